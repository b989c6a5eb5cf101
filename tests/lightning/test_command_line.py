"""The command line: what it takes, what it refuses in one line, what it adds."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import warnings
from argparse import Namespace
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
import torch
import yaml
from jsonargparse import ArgumentParser

import glt_lightning
from glt_lightning.base import PartitionOptions
from glt_lightning.cli import GLTCLI, command_line, main
from glt_lightning.cli.command_line import TrainerParser
from glt_lightning.cli.run_line import without_noise
from glt_lightning.cli.subcommands import cluster_of_data
from tests.helpers.disks import full_soon
from tests.lightning.tiny import CLASSES, NODES, WIDTH

SUBCOMMANDS = (
    "fit, validate, test, predict, embed, recommend, deploy, replay, demo, partition, append, compact, pull, report, plan, "
    "serve, launch, neighbours, certs, completion"
)

MODULE = '''
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.loggers import CSVLogger
import torch
from glt_lightning import GraphSAGE
from glt_lightning.base import GLTError

class Plain(LightningModule):
    """Knows nothing of graphs."""
    def __init__(self, width: int = 3):
        super().__init__()
        self.layer = torch.nn.Linear(width, 1)
        print("width", width)

class Trained(LightningModule):
    def __init__(self, in_channels: int, out_channels: int, width: int):
        super().__init__()
        self.layer = torch.nn.Linear(in_channels, width)
        self.head = torch.nn.Linear(width, out_channels)
    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self.head(self.layer(batch.x)), batch.y)
    def test_step(self, batch, batch_idx):
        pass
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

class OtherSage(GraphSAGE):
    """The same weights, and another class."""

class Wide(LightningModule):
    def __init__(self, in_channels: int, num_nodes: int):
        super().__init__()
        print("in_channels", in_channels, "num_nodes", num_nodes)

class Wider(LightningModule):
    def __init__(self, in_channels: int = 3, out_channels: int = 64):
        super().__init__()
        self.save_hyperparameters()

class Needs(LightningModule):
    def __init__(self, in_channels: int, num_nodes: int):
        super().__init__()
        self.layer = torch.nn.Linear(in_channels, 1)

class Fails(LightningModule):
    def __init__(self, in_channels: int, kind: str = "gat"):
        super().__init__()
        self.layer = {"gat": torch.nn.Linear}[kind](in_channels, 1)
    def training_step(self, batch, batch_idx):
        raise GLTError("the batch is odd")
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

class Sized(LightningModule):
    def __init__(self, num_features: int, num_classes: int):
        super().__init__()

class Remote(CSVLogger):
    def __init__(self, save_dir: str = "logs"):
        raise ModuleNotFoundError("Requirement 'remote' not met. Try pip install remote.\\nTwice.")

class OtherData(LightningDataModule):
    """Has no num_features."""
'''


@pytest.fixture
def config(graph_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("usermodule.py").write_text(MODULE)
    data = {"dataset": str(graph_npz), "root": "root", "num_neighbors": [5, 5], "batch_size": 20}
    trainer = {"max_epochs": 1, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    run = {
        "seed_everything": 1,
        "trainer": trainer | {"devices": 1},
        "model": {"class_path": "GraphSAGE", "init_args": {"hidden_channels": 16, "num_layers": 2}},
        "data": {"class_path": "GLTDataModule", "init_args": data},
    }
    Path("run.yaml").write_text(yaml.safe_dump(run))
    return "run.yaml"


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[GLTCLI]:
    """Collects what `main` builds, and keeps it from running."""
    seen: list[GLTCLI] = []
    monkeypatch.setattr(GLTCLI, "_run_subcommand", lambda self, _: seen.append(self))
    return seen


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    with pytest.raises(SystemExit):
        main([*args, "--print_config"])
    return yaml.safe_load(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one line that is said."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(list(args))
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert end.value.code in (1, 2)
    assert len(lines) == 1
    return lines[0]


TABLES = {
    "nodes": {"movie": {"path": "m.csv", "id": "id", "encode": "auto", "features": "*"}, "user": {"path": "u.csv"}},
    "edges": {"user__rates__movie": {"path": "r.csv", "source": "user", "destination": "movie"}},
}


@pytest.fixture
def of_tables(config: str) -> str:
    run = yaml.safe_load(Path(config).read_text())
    run["data"]["init_args"]["dataset"] = TABLES
    Path("tables.yaml").write_text(yaml.safe_dump(run))
    return "tables.yaml"


def test_leaves_of_a_mapping_are_overridden_one_by_one(of_tables: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = {
        "--data.dataset.nodes.movie.path": "other.csv",
        "--data.dataset.nodes.movie.features": "[year, 'a,b']",
        "--data.init_args.dataset.edges.user__rates__movie.path": "*.csv",
        "--data.dataset.edges.user__rates__movie.attrs.stars": "rating",  # below what is not there yet
        "--data.dataset.nodes.studio.path": "s.csv",
        "--data.dataset.name": "films",
    }
    words = [word for pair in given.items() for word in pair]
    found = printed(capsys, "fit", "--config", of_tables, *words)["data"]["init_args"]["dataset"]
    nodes, edges = TABLES["nodes"], TABLES["edges"]["user__rates__movie"]
    assert found == {
        "nodes": {
            "movie": {**nodes["movie"], "path": "other.csv", "features": ["year", "a,b"]},
            "user": nodes["user"],
            "studio": {"path": "s.csv"},
        },
        "edges": {"user__rates__movie": {**edges, "path": "*.csv", "attrs": {"stars": "rating"}}},
        "name": "films",
    }


@pytest.mark.parametrize(
    ("leaf", "typed", "value"),
    [
        ("nodes.movie.id", "007", "007"),
        ("nodes.movie.id", "null", None),
        ("nodes.movie.features", "[007, on]", ["007", "on"]),
        ("nodes.studio.label", "on", "on"),
        ("edges.user__rates__movie.attrs.stars", "1_000", "1_000"),
        ("nodes.movie.encode.year.size", "8", 8),
    ],
)
def test_names_in_tables_stay_as_they_are_typed(leaf: str, typed: str, value: Any) -> None:
    parser = TrainerParser(exit_on_error=False)
    parser.add_argument("--dataset", type=str | dict[str, Any] | Any)
    nodes = {"movie": {"path": "m.csv", "id": "id"}}
    found = parser.parse_args(
        ["--dataset", json.dumps({"nodes": nodes, "edges": {}}), f"--dataset.{leaf}", typed]
    ).dataset
    for key in leaf.split("."):
        found = found[key]
    assert found == value


def test_leaves_of_a_typed_mapping_stay_text_as_they_are_typed() -> None:
    parser = TrainerParser(exit_on_error=False)
    parser.add_argument("--text", type=dict[str, dict[str, str]] | None)
    parser.add_argument("--any", type=dict[str, dict[str, Any]])
    words = [
        "--text",
        "{a: {b: x}}",
        "--text.a.b",
        "007",
        "--text.a.c",
        "on",
        "--any",
        "{a: {b: x}}",
        "--any.a.b",
        "007",
    ]
    found = parser.parse_args(words)
    assert found.text == {"a": {"b": "007", "c": "on"}}
    assert found.any == {"a": {"b": 7}}


TEXTS = """2020 007 1e3 1E3 1e-3 12e03 1.0e3 1_000 0x10 0o7 0b11 1:30 190:20:30.15 2020-01-01 on off yes no y true null ~ Null
None .5 5. 0. -1 +1 -0 _ .inf .nan nan inf = << - -- --- ... ? | > ! & * % @ ` # [a] {a} 'a' "a"
"""


def test_text_is_written_as_text(of_tables: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A configuration of a run is given again: to predict, to resume."""
    run = yaml.safe_load(Path(of_tables).read_text())
    of_data = run["data"]["init_args"]
    given = of_data["dataset"]
    texts = [
        *re.findall(r"\S+", TEXTS),
        "- a",
        "a: b",
        "a #b",
        " a ",
        "a\nb",
        "",
        "1 000",
        "1,5",
        "2020-01-01T00:00:00Z",
    ]
    given |= {"name": "007"}
    given["nodes"]["movie"] |= {"id": "1e3", "features": [*texts, 5, 1e3, 1e-5, None, True]}
    given["edges"] |= {f"user__{text}__movie": {"path": text, "attrs": {text: text}} for text in texts}
    of_data["root"] = "1e3"
    Path(of_tables).write_text(json.dumps(run))
    with pytest.raises(SystemExit):
        main(["fit", "--config", of_tables, "--print_config"])
    Path("again.yaml").write_text(capsys.readouterr().out)
    found = printed(capsys, "fit", "--config", "again.yaml")["data"]["init_args"]
    assert found["dataset"] == given
    assert found["root"] == "1e3"


@dataclass
class OfFile:
    text: str = ""


def test_parsers_of_other_programs_write_as_before(tmp_path: Path) -> None:
    theirs, ours = ArgumentParser(), TrainerParser()
    for each in (theirs, ours):
        each.add_argument("--text", type=str)
        each.add_argument("--group", type=OfFile)
    (tmp_path / "group.yaml").write_text("text: '1e3'")
    words = ["--text=1e3", f"--group={tmp_path / 'group.yaml'}"]
    for parser, written in ((theirs, "text: 1e3\n"), (ours, "text: '1e3'\n"), (theirs, "text: 1e3\n")):
        found = parser.parse_args(words)
        assert parser.dump(found).startswith(written)
        (tmp_path / "out").mkdir(exist_ok=True)
        parser.save(found, tmp_path / "out" / "all.yaml", overwrite=True)  # and a file for the group
        assert (tmp_path / "out" / "group.yaml").read_text() == written
    with pytest.raises(AttributeError):
        ours.dump(None)
    assert theirs.dump(theirs.parse_args(words)).startswith("text: 1e3\n")


def test_private_modules_of_jsonargparse_are_not_imported() -> None:
    """A release that names them otherwise would end every command at its imports."""
    private = re.compile(r"jsonargparse(\._|\.typing\._| import (\([^)]*|.*)\b_[a-z])")
    texts = {path: path.read_text() for path in Path(glt_lightning.__file__).parent.rglob("*.py")}
    assert any("from jsonargparse import" in text for text in texts.values())
    assert [path for path, text in texts.items() if private.search(text)] == []


def test_overridden_leaves_are_in_the_configuration_of_the_run(of_tables: str, built: list[GLTCLI]) -> None:
    for name in ("m", "u", "r"):
        Path(f"{name}.csv").write_text("id,user,movie\n1,1,1\n")
    Path("other.csv").write_text("id,user,movie\n1,1,1\n")
    edges = ["--data.dataset.edges.user__rates__movie.path", "other.csv", "--data.dataset.nodes.user.id", "user"]
    main(["fit", "--config", of_tables, *edges, "--model", "usermodule.Plain"])
    said = yaml.safe_load(built[0].parser.dump(built[0].config, skip_none=False))["fit"]["data"]["init_args"]
    assert said["dataset"]["edges"]["user__rates__movie"]["path"] == "other.csv"
    assert said["dataset"]["nodes"]["user"] == {"path": "u.csv", "id": "user"}
    assert built[0].datamodule.dataset == said["dataset"]


@pytest.mark.parametrize(
    ("leaf", "said"),
    [
        ("nodes.movie.pth", "nodes: movie: unknown key 'pth'; allowed: path, id"),
        ("nodes.movie.encode.year", "encode is 'auto', which has no 'year' below it. Give all of it as a mapping."),
        ("nodez.movie.path", "unknown key 'nodez'"),
    ],
)
def test_a_wrong_leaf_is_refused(of_tables: str, capsys: pytest.CaptureFixture[str], leaf: str, said: str) -> None:
    assert said in refused(capsys, "fit", "--config", of_tables, f"--data.dataset.{leaf}", "x.csv")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: {class_path: X\ndata: [1\n", "conf/bad.yaml, line 2: is not YAML: expected ',' or '}', but got ':'"),
        (
            "data:\n  class_path: X\n  class_path: Y\n",
            "conf/bad.yaml, line 3: class_path is given twice, first in line 2.",
        ),
        (
            "trainer:\n  devices: 1\n  max_epochs: two\n",
            "conf/bad.yaml, line 3: trainer.max_epochs: expected int; got two.",
        ),
        ("data:\n  class_path: GLTDataModule\n  init_args:\n    batchsize: 3\n", "conf/bad.yaml, line 4: data: Option"),
        (
            "model: usermodule.Plain\ntrianer: {max_epochs: 1}\n",
            "conf/bad.yaml, line 2: Subcommand 'fit' does not accept",
        ),
        (
            "trainer:\n  max_epoch: 1\n",
            "bad.yaml, line 2: Subcommand 'fit' does not accept option 'trainer.max_epoch'. Did you mean trainer.",
        ),
        (
            "data:\n  class_path: GLTDataModule\n  init_args:\n    sampling:\n      num_worker: 2\n",
            "line 5: data: Group 'sampling' does not accept option 'num_worker'. Did you mean sampling.num_workers?",
        ),
    ],
)
def test_an_error_in_a_file_names_it_and_the_line(
    config: str, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    Path("conf").mkdir()
    Path("conf/bad.yaml").write_text(text)
    assert said in refused(capsys, "fit", "--config", config, "--config", "conf/bad.yaml")
    if "trianer" not in text:
        assert "bad.yaml" not in refused(capsys, "fit", "--config", config, "--trainer.max_epochs", "two")


def test_a_configuration_may_come_from_a_pipe(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe")
    writer = threading.Thread(target=Path("pipe").write_text, args=("trainer: {max_epochs: 17}\n",), daemon=True)
    writer.start()
    assert printed(capsys, "fit", "--config", config, "--config", "pipe")["trainer"]["max_epochs"] == 17
    writer.join(30)


@pytest.mark.parametrize("command", ["partition", "launch"])
def test_files_of_other_subcommands_are_read_alike(
    config: str, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    Path("bad.yaml").write_text("data: 1\ndata: 2\n")
    assert "bad.yaml, line 2: data is given twice" in refused(capsys, command, "--config", "bad.yaml")


@pytest.mark.parametrize(
    ("given", "interval"),
    [([], 3), (["--trainer.log_every_n_steps", "7"], 7), (["--trainer.log_every_n_steps", "0"], 0)],
)
def test_steps_of_short_epochs_are_logged(config: str, given: list[str], interval: int) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        words = ["--trainer.enable_checkpointing", "false", *given]
        assert _fitted_interval(["fit", "--config", config, "--trainer.limit_train_batches", "3", *words]) == interval
    assert any("logging interval" in str(each.message) for each in seen) == (interval > 3)


def _fitted_interval(words: list[str]) -> int:
    trainers = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_line, "run_line", lambda trainer, *_: trainers.append(trainer) or "run:")
        main(words)
    return trainers[0].log_every_n_steps


def test_nested_options(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    nested = ["--data.sampling.num_workers", "2", "--data.partition.num_parts", "4", "--cluster.peer_timeout_s", "7"]
    run = printed(
        capsys, "fit", "--config", config, "--data.dataset", "x.npz", "--data.num_neighbors", "[3,2]", *nested
    )
    data = run["data"]["init_args"]
    assert (data["dataset"], data["num_neighbors"], data["batch_size"]) == ("x.npz", [3, 2], 20)
    assert data["sampling"]["num_workers"] == 2
    assert data["partition"] == asdict(PartitionOptions(num_parts=4))
    assert run["cluster"]["peer_timeout_s"] == 7


def test_fan_outs_per_edge_type(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = printed(capsys, "fit", "--config", config, "--data.num_neighbors", "{a__to__b: [3, 2]}")
    assert run["data"]["init_args"]["num_neighbors"] == {"a__to__b": [3, 2]}


@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict"])
def test_help_explains_the_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--data.help", "GLTDataModule"])
    assert end.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--data.sampling.num_workers" in shown
    assert "Sampler processes per rank; 0 samples inside the training process." in shown
    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = capsys.readouterr().out
    assert "usage: python -m lightning" in shown
    assert "--cluster.peer_timeout_s" in shown


def test_data_tells_the_model_about_the_graph(config: str, built: list[GLTCLI]) -> None:
    main(["fit", "--config", config])
    assert built[0].model.hparams["in_channels"] == WIDTH
    assert built[0].model.hparams["out_channels"] == CLASSES
    assert not Path("root").exists()


def test_modules_of_the_user(config: str, built: list[GLTCLI], capsys: pytest.CaptureFixture[str]) -> None:
    main(["fit", "--config", config, "--model", "usermodule.Plain", "--model.width", "4"])
    assert "width 4" in capsys.readouterr().out
    main(["fit", "--config", config, "--model", "usermodule.Wide"])
    assert f"in_channels {WIDTH} num_nodes {NODES}" in capsys.readouterr().out
    own = ["--data", "usermodule.OtherData", "--model", "usermodule.Wide"]
    main(["fit", "--trainer.accelerator", "cpu", *own, "--model.in_channels", "6", "--model.num_nodes", "5"])
    assert "in_channels 6 num_nodes 5" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["word", "file"])
def test_given_values_that_the_data_fills_in(
    config: str, built: list[GLTCLI], capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """Equal ones are accepted, others refused: they were ignored."""

    def words(name: str, value: int) -> list[str]:
        if form == "word":
            return ["fit", "--config", config, f"--model.{name}={value}"]
        run = yaml.safe_load(Path(config).read_text())
        run["model"]["init_args"][name] = value
        Path("given.yaml").write_text(yaml.safe_dump(run))
        return ["fit", "--config", "given.yaml"]

    main(words("in_channels", WIDTH))
    assert built.pop().model.hparams["in_channels"] == WIDTH
    said = refused(capsys, *words("out_channels", CLASSES + 1))
    assert f"model.out_channels: got {CLASSES + 1}, and the data fills in {CLASSES} (its num_classes)" in said
    assert "Remove out_channels; if it means something else in GraphSAGE, rename the parameter there." in said


def test_default_of_a_class_where_the_data_has_no_value(
    config: str, built: list[GLTCLI], capsys: pytest.CaptureFixture[str]
) -> None:
    """It got None. A given value is refused, too: config.yaml has no linked values."""
    run = yaml.safe_load(Path(config).read_text())
    graph = dict(np.load(run["data"]["init_args"]["dataset"]))
    np.savez("unlabelled.npz", **{name: graph[name] for name in ("edge_index", "x", "train_idx")})
    own = ["fit", "--config", config, "--model", "usermodule.Wider", "--data.dataset", "unlabelled.npz"]
    main(own)
    assert built.pop().model.hparams["out_channels"] == 64
    assert "model.out_channels: got 5, and the data fills in None" in refused(capsys, *own, "--model.out_channels=5")


def test_module_that_needs_features_of_a_graph_without_any(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = yaml.safe_load(Path(config).read_text())
    graph = dict(np.load(run["data"]["init_args"]["dataset"]))
    np.savez("bare.npz", **{name: graph[name] for name in ("edge_index", "y", "train_idx")})
    own = ["fit", "--config", config, "--data.dataset", "bare.npz", "--model", "usermodule.Needs"]
    said = refused(capsys, *own)
    assert "model: Needs cannot be made: " in said
    assert "Its in_channels is None, since the data has no num_features (x)." in said


def test_error_of_a_module_is_raised_as_it_is(config: str) -> None:
    """jsonargparse raises one of its own, with the module's as a cause: the last of 86 lines was about a Union."""
    with pytest.raises(KeyError, match="gcn") as error:
        main(["fit", "--config", config, "--model", "usermodule.Fails", "--model.kind", "gcn"])
    assert error.value.__cause__ is None
    assert error.value.__context__ is None
    assert len(error.traceback) < 15


def test_error_begins_a_line_after_a_progress_bar(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["fit", "--config", config, "--model", "usermodule.Fails", "--trainer.enable_progress_bar", "true"])
    shown = capsys.readouterr()
    assert shown.err.endswith("error: the batch is odd\n")
    assert "Epoch 0" in shown.out
    assert shown.out.endswith("\n")


def test_our_callbacks_are_added_unless_the_user_has_chosen(config: str, built: list[GLTCLI]) -> None:
    def names() -> set[str]:
        return {type(callback).__name__ for callback in built.pop().trainer.callbacks}

    main(["fit", "--config", config])
    assert names() >= {"SamplingMonitor", "BestCheckpoint", "RunReport"}
    main(["fit", "--config", config, "--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks+=SamplingMonitor"])
    chosen = names()
    assert "ModelCheckpoint" in chosen
    assert "BestCheckpoint" not in chosen
    main(["fit", "--config", config, "--trainer.enable_checkpointing", "false"])
    assert not names() & {"ModelCheckpoint", "BestCheckpoint"}
    main(["fit", "--config", config, "--trainer.barebones", "true"])
    assert not names() & {"SamplingMonitor", "BestCheckpoint"}
    main(["predict", "--config", config, "--ckpt_path", "none"])
    assert "PredictionWriter" in names()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--data.datset", "x"], "Option 'datset' is not accepted. Did you mean dataset?"),
        (
            ["--data.partition.nm_parts", "2"],
            "data: unrecognized arguments: --partition.nm_parts=2. Did you mean --partition.num_parts?",
        ),
        (["--data.partition.num_parts", "two"], "data.partition.num_parts: expected int; got two."),
        (["--data.partition.num_parts", "0"], "partition.num_parts: expected an integer >= 1, got 0."),
        (["--data.num_neighbors", "[3,0]"], "got [3, 0]. Drop the hop instead of asking for 0."),
        (["--data.batch_size", "0"], "batch_size: expected an integer >= 1, got 0."),
        (["--data.normalize", "rws"], "data.normalize: expected one of 'none', 'rows', 'standardize'; got rws."),
        (["--data.dataset", "none.npz"], "dataset: there is no file 'none.npz'"),
        (["--data.dataset", "dmo"], "Did you mean demo?"),
        (["--cluster.peer_timeout_s", "0"], "cluster.peer_timeout_s: expected seconds > 0, got 0.0."),
        (
            ["--data.cache.ratio", "1.4"],
            "cache.ratio: expected a share of the nodes from 0 to 1, such as 0.1; got 1.4.",
        ),
        (
            ["--data.cache.policy", "vipp", "--data.cache.ratio", "0.1"],
            "data.cache.policy: expected one of 'auto', 'vip',",
        ),
        (
            ["--data.cache.ratio", "0.1", "--data.cache.bytes", "1GB"],
            "cache: give ratio or bytes, not both; got 0.1 and",
        ),
        (["--trainer.strategy", "glt_wroker"], "got 'glt_wroker'. Did you mean glt_worker?"),
        (
            ["--trainer.strategy", "nccl"],
            "expected auto, glt_worker, glt_server_client, ddp or another strategy of Lightning; got 'nccl'.",
        ),
        (["--trainer.accelerator", "gpu"], "finds no GPU that it can use. Choose --trainer.accelerator cpu"),
        (["--trainer.max_epocs", "2"], "Did you mean --trainer.max_epochs?"),
        (
            ["--trainer.max_epoch", "2"],
            "unrecognized arguments: --trainer.max_epoch 2. Did you mean --trainer.max_epochs?",
        ),
        (["--trainer.devices", "x"], "trainer: `devices` selected with `CPUAccelerator` should be an int > 0."),
        (
            ["--model", "GraphSage"],
            "model: unknown class GraphSage; give the name of a built-in class or a dotted path. Did you",
        ),
        (
            ["--trainer.callbacks", "[{class_path: NoSuch}]"],
            "callbacks: unknown class NoSuch; give the name of a built-in class or a dotted path. Options",
        ),
        (["--trainer.callbacks+=EarlyStoping"], "a dotted path. Did you mean EarlyStopping? Options"),
        (["--trainer.callbacks+=SeedProgressBar"], "callbacks: SeedProgressBar is removed: Lightning's own"),
        (
            ["--trainer.logger", "usermodule.Remote"],
            "error: Requirement 'remote' not met. Try pip install remote. Or choose another class.",
        ),
        (["--model.model", "Sage"], "model: expected one of EdgeCNN, GAT, GCN, GIN, GraphSAGE, PNA; got 'Sage'."),
        (
            ["--ckpt_path", "none.ckpt"],
            "ckpt_path: there is no file 'none.ckpt'. `best` and `last` stand for the checkpoints of the latest fit.",
        ),
        (["--ckpt_path", "lst"], "ckpt_path: there is no file 'lst'. Did you mean last?"),
    ],
)
def test_wrong_options_get_one_line(
    config: str, capsys: pytest.CaptureFixture[str], args: list[str], said: str
) -> None:
    assert said in refused(capsys, "fit", "--config", config, *args)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], f"no subcommand is given; expected one of {SUBCOMMANDS}."),
        (["ft"], f"there is no subcommand 'ft'; expected one of {SUBCOMMANDS}. Did you mean fit?"),
        (["status"], f"expected one of {SUBCOMMANDS}. Did you mean serve --status host:port?"),
        (
            ["--config", "empty.yaml", "partition"],
            "partition: must be the first argument: python -m lightning partition",
        ),
        (["fit"], "the following arguments are required: fit.data, fit.model"),
        (
            ["fit", "--data.dataset", "x.npz"],
            "'dataset' is not accepted. Name the class before its options, such as --data GLTD",
        ),
        (
            ["fit", "--model.dropout", "1"],
            "'dropout' is not accepted. Name the class before its options, such as --model Graph",
        ),
        (["fit", "--config", "none.yaml"], "File does not exist"),
    ],
)
def test_wrong_commands_get_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], args: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.yaml").write_text("{}")
    assert said in refused(capsys, *args)


def test_help_names_every_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert re.findall(r"^    (\w+)  ", shown, re.MULTILINE) == SUBCOMMANDS.split(", ")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith(f"glt_lightning {glt_lightning.__version__} (lightning {lightning.__version__}, torch ")


@pytest.mark.parametrize("command", ["fit", "serve", "partition"])
def test_help_of_a_group_without_a_class_names_the_ready_ones(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([command, "--data.help"])
    assert f"python -m lightning {command} --data.help GLTDataModule" in capsys.readouterr().out
    main([command, "--model.help", "--trainer.devices", "1"])
    said = capsys.readouterr().out
    for ready in ("GraphSAGE      Classifies nodes", "NodePredictor  Predicts classes, labels or numbers"):
        assert f"  {ready}" in said
    assert "my_module.MyModel" in said


def test_null_in_a_group_of_the_data_module(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = [
        "--data.batches.transform",
        "my.Transform",
        "--data.batches.transform",
        "null",
        "--data.seeds.input_type",
        "null",
    ]
    with pytest.raises(SystemExit):
        main(["fit", "--config", config, *given, "--print_config"])
    printed = yaml.safe_load(capsys.readouterr().out)["data"]["init_args"]
    assert printed["batches"]["transform"] is None
    assert printed["seeds"]["input_type"] is None


def test_errors_while_training_get_one_line(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "fit", "--config", config, "--data.seeds.splits", "{train: [9999]}")
    assert said == "error: seeds.splits.train: 9999 at position 0 is not a node of type 'node', whose ids are 0 to 239."


@pytest.mark.parametrize(
    ("words", "asker"),
    [
        (["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val_los"], "EarlyStopping"),
        (["--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.monitor=val_los"], "ModelCheckpoint"),
        (
            ["--optimizer=Adam", "--lr_scheduler=ReduceLROnPlateau", "--lr_scheduler.monitor=val_los"],
            "ReduceLROnPlateau",
        ),
    ],
)
def test_a_mistyped_monitor_gets_the_nearest_metric(
    config: str, capsys: pytest.CaptureFixture[str], words: list[str], asker: str
) -> None:
    said = refused(capsys, "fit", "--config", config, *words)
    wanted = (
        f"error: {asker}.monitor: 'val_los' is not logged. Did you mean val_loss? Logged are train_loss, val_loss, "
    )
    assert said.startswith(wanted)


def test_a_missing_argument_of_the_model(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "fit", "--config", config, "--model", "usermodule.Sized")
    assert (
        "required: num_features, num_classes. Parameters named in_channels and out_channels are filled in from" in said
    )


def test_bugs_of_the_user_keep_their_traceback(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GLTCLI, "_run_subcommand", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["fit", "--config", config])


def test_traceback_on_request(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLT_TRACEBACK", "1")
    with pytest.raises(ValueError, match="batch_size"):
        main(["fit", "--config", config, "--data.batch_size", "0"])


def test_fit_then_test_then_predict(
    config: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def last_line() -> str:
        lines = [line for line in caplog.messages if line.startswith("run: ")]
        caplog.clear()
        return lines[-1]

    assert "there is no best checkpoint of an earlier fit" in refused(
        capsys, "test", "--config", config, "--ckpt_path", "best"
    )
    main(["fit", "--config", config, "--trainer.max_epochs", "3"])
    number = r"\d\.\d{4}"
    outputs = "checkpoints/best.ckpt, metrics.csv, report.html, config.yaml"
    assert re.fullmatch(rf"run: lightning_logs/version_0: best val_acc {number}; {outputs}", last_line())
    page = Path("lightning_logs/version_0/report.html").read_text()
    assert "finished after 3 epochs" in page
    assert re.search(r"model:\n +class_path: \S*GraphSAGE\n", page)
    # other runs in the same folder: a newer one of another model, and one of the same model with another option
    own = ["--model", "usermodule.Plain", "--trainer.limit_train_batches", "0", "--trainer.limit_val_batches", "0"]
    main(["fit", "--config", config, "--trainer.max_epochs", "2", "--model.dropout", "0.1"])
    best = Path("lightning_logs/version_7/checkpoints/best.ckpt")
    best.parent.mkdir(parents=True)
    torch.save({"glt_run": {"model": {"class_path": "other.Model"}, "data": {}}}, best)
    main(["test", "--config", config, "--ckpt_path", "best"])
    assert "test_acc" in capsys.readouterr().out
    (found,) = [line for line in caplog.messages if line.startswith("ckpt_path best: ")]
    assert found.endswith("version_0/checkpoints/best.ckpt")
    assert last_line().endswith("metrics.csv, config.yaml; from lightning_logs/version_0/checkpoints/best.ckpt")
    main(["predict", "--config", config, "--ckpt_path", "best", "--model.dropout", "0.2"])
    (found,) = [line for line in caplog.messages if line.startswith("ckpt_path best: ")]
    assert found.endswith("version_1/checkpoints/best.ckpt, whose model has dropout 0.1 (here 0.2)")
    assert "predictions, config.yaml; from" in last_line()
    assert len(list(Path("lightning_logs").glob("*/predictions"))) == 1
    said = refused(capsys, "test", "--config", config, "--ckpt_path", "best", "--data.normalize", "rows")
    assert "was saved for this graph and model" in said
    said = refused(capsys, "test", "--config", config, *own, "--ckpt_path", "best")
    assert "has model other.Model (here usermodule.Plain)" in said


def test_checkpoint_that_does_not_fit_the_model_is_one_line(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--config", config, "--model", "usermodule.Trained"]
    main(["fit", *own, "--model.width", "3"])
    path = "lightning_logs/version_0/checkpoints/best.ckpt"
    said = refused(capsys, "test", *own, "--model.width", "4", "--ckpt_path", path)
    assert (
        f"ckpt_path: {path} was saved by a different model or for a different graph: size mismatch for layer.weight"
        in said
    )
    assert "config.yaml in the folder of its run" in said


def test_checkpoint_of_another_model_is_refused(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its hyperparameters would take the place of the given class."""
    main(["fit", "--config", config])
    path = "lightning_logs/version_0/checkpoints/best.ckpt"
    plain = torch.load(path, weights_only=True)
    torch.save({name: part for name, part in plain.items() if name != "glt_run"}, "earlier.ckpt")
    for given in (path, "earlier.ckpt"):
        for command in ("fit", "test"):
            said = refused(capsys, command, "--config", config, "--model", "usermodule.OtherSage", "--ckpt_path", given)
            assert f"ckpt_path: {given} has model glt_lightning.GraphSAGE, and --model is usermodule.OtherSage." in said
    assert not Path("lightning_logs/version_1").exists()


@pytest.mark.slow
def test_options_of_a_given_checkpoint_that_differ_are_said(config: str, caplog: pytest.LogCaptureFixture) -> None:
    main(["fit", "--config", config])
    path = "lightning_logs/version_0/checkpoints/best.ckpt"
    main(["test", "--config", config, "--ckpt_path", path])
    assert "ckpt_path: " not in caplog.text
    main(["test", "--config", config, "--ckpt_path", path, "--model.hidden_channels", "8", "--model.lr", "0.5"])
    assert f"ckpt_path: {path}, whose model has hidden_channels 16 (here 8); lr 0.003 (here 0.5)" in caplog.messages


@pytest.mark.parametrize("own_class", [False, True])
def test_checkpoint_of_a_script_gives_its_hyperparameters(config: str, built: list[GLTCLI], own_class: bool) -> None:
    """It does not say which class it is of, and one of the command line says so to a program with a class of its own."""
    model = glt_lightning.GraphSAGE(in_channels=WIDTH, out_channels=CLASSES, hidden_channels=24, num_layers=2)
    known = {"_class_path": "glt_lightning.GraphSAGE"} if own_class else {}
    torch.save({"hyper_parameters": {**model.hparams, **known}, "state_dict": model.state_dict()}, "script.ckpt")
    given = ["test", "--ckpt_path", "script.ckpt"]
    if own_class:
        data = yaml.safe_load(Path(config).read_text())["data"]["init_args"]
        words = [f"--data.{name}={value}" for name, value in data.items()]
        GLTCLI(glt_lightning.GraphSAGE, glt_lightning.GLTDataModule, args=[*given, *words])
    else:
        main([*given, "--config", config])
    assert built.pop().model.hparams["hidden_channels"] == 24


@pytest.mark.diagonal(most=2)
@pytest.mark.parametrize("command", ["validate", "test", "predict", "embed"])
def test_random_weights_are_refused(config: str, capsys: pytest.CaptureFixture[str], command: str) -> None:
    for more in ([], ["--ckpt_path", "null"]):
        said = refused(capsys, command, "--config", config, *more)
        assert said.startswith(f"error: {command}: no checkpoint is given, and the model would have random weights.")
        assert "Give --ckpt_path best" in said


def test_modules_with_weights_of_their_own_say_none(config: str) -> None:
    main(["validate", "--config", config, "--ckpt_path", "none"])
    kept = Path("lightning_logs/version_0/config.yaml")
    assert yaml.safe_load(kept.read_text())["ckpt_path"] == "none"
    main(["validate", "--config", str(kept)])  # so that it repeats the command
    main(["fit", "--config", config, "--ckpt_path", "none"])
    assert Path("lightning_logs/version_2/checkpoints/best.ckpt").exists()


@pytest.mark.parametrize(
    ("kib", "said"), [(4, "config.yaml: the configuration of this run cannot"), (8, "a file of this run: ")]
)
def test_full_disk_is_one_line_whoever_writes(
    config: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, kib: int, said: str
) -> None:
    with full_soon(tmp_path / "disk", kib << 10):
        if kib == 4:
            (tmp_path / "disk" / "of the user").write_text("takes the only page")
        line = refused(capsys, "fit", "--config", config, "--trainer.default_root_dir", str(tmp_path / "disk"))
        assert said in line
        assert "Free some space, or choose another folder" in line
        assert kib > 4 or not list((tmp_path / "disk").rglob("config.yaml"))


def test_folder_that_cannot_be_made_is_named(config: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    options = ["--trainer.logger", "false", "--trainer.default_root_dir", str(tmp_path / "file/sub")]
    line = refused(capsys, "fit", "--config", config, *options)
    assert "file/sub/config.yaml: the configuration of this run cannot be written (Not a directory)" in line


def test_unreadable_checkpoint_is_named(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("cut.ckpt").write_bytes(b"PK\3\4 and no more")
    assert "ckpt_path: cut.ckpt: torch cannot read this checkpoint: " in refused(
        capsys, "test", "--config", config, "--ckpt_path", "cut.ckpt"
    )
    Path("note.ckpt").write_text("of another kind\n")
    line = refused(capsys, "test", "--config", config, "--ckpt_path", "note.ckpt")
    assert "note.ckpt: torch cannot read this checkpoint: it is cut off, or no file of torch.save" in line


def test_checkpoint_with_objects_is_read_if_the_user_says_so(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["fit", "--config", config])
    plain = torch.load("lightning_logs/version_0/checkpoints/best.ckpt", weights_only=True)
    torch.save({**plain, "of_user": Fraction(1, 2)}, "own.ckpt")
    given = ["test", "--config", config, "--ckpt_path", "own.ckpt"]
    assert "it holds fractions.Fraction, not only tensors and plain values. If you trust it" in refused(capsys, *given)
    main([*given, "--weights_only", "false"])
    assert "test_acc" in capsys.readouterr().out


def test_best_of_a_checkpoint_callback_of_the_users(config: str, caplog: pytest.LogCaptureFixture) -> None:
    own = ["--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.filename", "mybest"]
    own += ["--trainer.callbacks.monitor", "val_acc", "--trainer.callbacks.mode", "max"]
    main(["fit", "--config", config, "--trainer.callbacks+=ModelCheckpoint", *own])
    assert "run: lightning_logs/version_0: best val_acc" in caplog.text
    main(["test", "--config", config, "--ckpt_path", "best"])
    assert caplog.messages[-1].endswith("; from lightning_logs/version_0/checkpoints/mybest.ckpt")


def test_last_resumes_the_run_of_the_configuration(config: str, caplog: pytest.LogCaptureFixture) -> None:
    main(["fit", "--config", config, "--ckpt_path", "last"])  # there is nothing to resume
    assert "Restoring states" not in caplog.text
    main(["fit", "--config", config, "--ckpt_path", "last", "--trainer.max_epochs", "2"])
    assert re.search(r"Restoring states from .*/version_0/checkpoints/last\.ckpt", caplog.text)
    checkpoint = torch.load("lightning_logs/version_1/checkpoints/last.ckpt", weights_only=True)
    assert (checkpoint["epoch"], checkpoint["global_step"]) == (1, 10)
    assert "dirpath has changed" not in caplog.text


@pytest.mark.parametrize(("limit", "done"), [("max_epochs", 1), ("max_steps", 5)])
def test_run_that_is_finished_is_not_begun_again(
    config: str, caplog: pytest.LogCaptureFixture, limit: str, done: int
) -> None:
    main(["fit", "--config", config])
    again = ["fit", "--config", config, "--ckpt_path", "last", "--trainer.max_epochs", "9"]
    main([*again, f"--trainer.{limit}", f"{done}"])
    assert (
        f"this run has finished: trainer.{limit} is {done}, and the checkpoint already has {done}, so nothing is trained."
        in caplog.text
    )
    assert f"Set --trainer.{limit} above {done} to continue" in caplog.text
    assert [path.name for path in Path("lightning_logs").iterdir()] == ["version_0"]


def test_checkpoint_of_the_network_is_unpickled_without_code(
    config: str, built: list[GLTCLI], caplog: pytest.LogCaptureFixture
) -> None:
    url = "https://models.example/best.ckpt"
    main(["test", "--config", config, "--ckpt_path", url])
    assert built[0].config.test.weights_only is True
    assert f"ckpt_path: {url}: read with weights_only" in caplog.text
    main(["test", "--config", config, "--ckpt_path", url, "--weights_only", "false"])
    assert built[1].config.test.weights_only is False


def test_lines_of_dependencies_are_left_out(config: str, built: list[GLTCLI], caplog, recwarn, monkeypatch) -> None:
    main(["fit", "--config", config])
    torch_log = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    with without_noise():
        torch_log.info("-----\nAll distributed processes registered. Starting with 1 processes\n-----")
        torch_log.info("-----\nAll distributed processes registered. Starting with 2 processes\n-----")
        warnings.warn("tensorboardX is mine", UserWarning, stacklevel=1)
        unfit = logging.LogRecord(torch_log.name, logging.INFO, "", 0, "%d seeds", ("many",), None)
        assert torch_log.filter(unfit)  # logging itself says what is wrong with it, and raises nothing
    said = "\n".join(caplog.messages) + "\n".join(str(warning.message) for warning in recwarn)
    assert "GPU available" in said
    assert "Starting with 2 processes" in said
    assert "tensorboardX is mine" in said
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    main(["fit", "--config", config, "--seed_everything", "true"])
    assert "Seed set to 0" in caplog.text
    said += "\n".join(str(warning.message) for warning in recwarn)
    noise = ("TPU available", "litlogger", "`tensorboardX`", "with 1 processes", "No seed found")
    assert not [text for text in noise if text in said]


class OwnStrategy(glt_lightning.GLTServerClientStrategy):
    """A subclass of ours, whose data module asks the servers for the graph as well."""


@pytest.mark.parametrize(
    ("strategy", "asks"),
    [
        ("glt_server_client", True),
        ("glt_server_client_find_unused_parameters_true", True),
        ("glt_worker", False),
        ("auto", False),
        (Namespace(class_path=f"{__name__}.OwnStrategy"), True),
        (Namespace(class_path="lightning.pytorch.strategies.DDPStrategy"), False),
        (None, False),
    ],
)
def test_strategies_whose_servers_have_the_graph(strategy: Any, asks: bool) -> None:
    cluster = glt_lightning.ClusterOptions(servers=["127.0.0.1:7000"])
    assert cluster_of_data(cluster, strategy) is (cluster if asks else None)


@pytest.mark.slow
def test_own_module_resumes_and_predicts(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no parameters for most of what the data module knows; earlier releases kept that in its checkpoints."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    own = ["--config", config, "--model", "own_module.NodeClassifier"]
    main(["fit", *own])
    path = "lightning_logs/version_0/checkpoints/last.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    kept = checkpoint["hyper_parameters"]
    assert kept.keys() == {
        "_class_path",
        "_instantiator",
        "in_channels",
        "out_channels",
        "hidden_channels",
        "lr",
    }
    torch.save(checkpoint | {"hyper_parameters": kept | {"metadata": None, "num_nodes": 7, "target_type": None}}, "old")
    for given in (path, "old"):
        main(["fit", *own, "--ckpt_path", given, "--trainer.max_epochs", "2"])
        main(["predict", *own, "--ckpt_path", given])
    assert len(list(Path("lightning_logs").glob("*/predictions"))) == 2


def test_no_logger_writes_config_twice(config: str) -> None:
    for more in ([], ["--trainer.fast_dev_run", "1"], []):
        main(["fit", "--config", config, "--trainer.logger", "false", *more])
    assert Path("checkpoints/best.ckpt").exists()


@pytest.mark.parametrize(
    ("strategy", "strategys", "datas"),
    [
        (["glt_server_client"], 7.0, 7.0),
        (["GLTServerClientStrategy", "--trainer.strategy.find_unused_parameters", "true"], 7.0, 7.0),
        (["GLTWorkerStrategy", "--trainer.strategy.find_unused_parameters", "true"], 7.0, None),
        (["ddp"], None, None),
    ],
)
def test_cluster_goes_to_those_who_ask_others(
    config: str, built: list[GLTCLI], strategy: list[str], strategys: float | None, datas: float | None
) -> None:
    main(["fit", "--config", config, "--cluster.peer_timeout_s", "7", "--trainer.strategy", *strategy])
    (run,) = built

    def timeout_of(owner: Any) -> float | None:
        cluster = getattr(owner, "cluster", None)
        return None if cluster is None else cluster.peer_timeout_s

    assert (timeout_of(run.trainer.strategy), timeout_of(run.datamodule)) == (strategys, datas)
    printed = yaml.safe_load(run.parser.dump(run.config, skip_none=False))["fit"]
    assert "cluster" not in printed["data"]["init_args"]  # it is written once


def test_cluster_is_nothing_to_another_data_module(config: str, built: list[GLTCLI]) -> None:
    own = ["--data", "usermodule.OtherData", "--model", "usermodule.Plain", "--trainer.strategy", "glt_server_client"]
    main(["fit", "--trainer.accelerator", "cpu", "--trainer.devices", "1", *own, "--cluster.prefetch", "9"])
    assert built[0].trainer.strategy.cluster.prefetch == 9


def test_what_was_parsed_is_written_without_another_check() -> None:
    parser = TrainerParser()
    parser.add_argument("--rate", type=int)
    config = parser.parse_object({"rate": 1})
    config.rate = "checked before"
    assert parser.dump(config) == "rate: checked before\n"
