"""Modules of one's own, and those of the page and the examples, through the command line: fit, resume, validate, test and
predict, under each strategy, with one rank and with two."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from glt_lightning import GLTDataModule
from glt_lightning.cli import main
from glt_lightning.lightning import read_predictions
from tests.helpers import run_cli
from tests.lightning.own_modules import SageByHand
from tests.lightning.tiny import NODES, learnable_graph, learnable_hetero

ROOT = Path(__file__).parents[2]
STRATEGIES = ("auto", "ddp", "glt_worker", "glt_server_client")
MODULES = (
    "SageByHand",
    "LazyGat",
    "Hgt",
    "ToHetero",
    "SeveralLosses",
    "page.NodeClassifier",
    "own_module.NodeClassifier",
)
QUICK = {("SageByHand", "glt_worker")}
HETERO = ("Hgt", "ToHetero")


@pytest.fixture(scope="session")
def hetero_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = learnable_hetero()
    graph["author"].x = graph["author"].x.float()
    data = GLTDataModule(graph, root=str(tmp_path_factory.mktemp("hetero")), partition={"num_parts": 2})
    data.prepare_data()
    return data.partition_dir


@pytest.fixture
def config(graph_npz: Path, hetero_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes the file of a run in the folder of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_module.py").write_text((ROOT / "examples/own_module.py").read_text())
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/lightning.md").read_text(), re.S)
    (tmp_path / "page.py").write_text(next(block for block in blocks if "class NodeClassifier" in block))

    def write(module: str, strategy: str, devices: int = 1) -> str:
        graph = {"dataset": str(graph_npz), "root": "root"}
        if module in HETERO:
            graph = {"partition": {"dir": str(hetero_dir)}}
        data = graph | {"num_neighbors": [4, 4], "batch_size": 10 // devices}
        trainer = {"max_epochs": 2, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
        if (
            module in HETERO and strategy != "auto"
        ):  # journals, and the last layer of all but the authors, reach no loss
            strategy += "_find_unused_parameters_true"
        run = {
            "seed_everything": 1,
            "trainer": trainer | {"devices": devices, "strategy": strategy},
            "model": {"class_path": module if "." in module else f"tests.lightning.own_modules.{module}"},
            "data": {"class_path": "GLTDataModule", "init_args": data},
        }
        Path("run.yaml").write_text(yaml.safe_dump(run))
        return "run.yaml"

    return write


def test_features_in_another_dtype_than_weights_have_advice(make_data, make_trainer, tmp_path: Path) -> None:
    np.savez(tmp_path / "half.npz", **(graph := learnable_graph()) | {"x": graph["x"].astype(np.float16)})
    data = make_data(dataset=str(tmp_path / "half.npz"))
    with pytest.raises(RuntimeError, match="dtype") as error:
        make_trainer().fit(SageByHand(data.num_features, data.num_classes), data)
    assert "have the dtype of the data in batches, such as float16" in error.value.__notes__[0]
    assert error.value.__notes__[0].endswith("Convert them in the module: batch.x.float().")


# One module under each strategy, and each module under another one: what a strategy adds is the same for all.
PAIRS = sorted({("SageByHand", each) for each in STRATEGIES} | set(zip(MODULES, STRATEGIES * 2, strict=False)))
CELLS = [pytest.param(*pair, marks=[] if pair in QUICK else [pytest.mark.slow]) for pair in PAIRS]


@pytest.mark.parametrize(("module", "strategy"), CELLS)
def test_whole_life(config: Any, capsys: pytest.CaptureFixture[str], module: str, strategy: str) -> None:
    run = ["--config", config(module, strategy)]
    main(["fit", *run])
    first = Path("lightning_logs/version_0/checkpoints")
    assert torch.load(first / "last.ckpt", weights_only=True)["epoch"] == 1
    main(["fit", *run, "--ckpt_path", str(first / "last.ckpt"), "--trainer.max_epochs", "3"])
    assert torch.load(Path("lightning_logs/version_1/checkpoints/last.ckpt"), weights_only=True)["epoch"] == 2
    capsys.readouterr()
    for command in ("validate", "test", "predict"):
        main([command, *run, "--ckpt_path", "best"])
    shown = capsys.readouterr().out
    assert "val_acc" in shown
    assert "test_acc" in shown
    (written,) = Path("lightning_logs").glob("*/predictions")
    assert read_predictions(written)["n_id"].tolist() == list(range(60 if module in HETERO else NODES))


# Each module once, each strategy at least once: what two ranks add is the same for the others.
TWO_RANKS = [
    ("SageByHand", "auto"),  # which is ddp for two
    ("SeveralLosses", "ddp"),  # collections of metrics, and means of each rank
    ("LazyGat", "glt_worker"),  # the dry run gives both ranks the same shapes
    ("ToHetero", "glt_worker"),
    ("Hgt", "glt_server_client"),  # embeddings of nodes, parameters without a gradient
    ("page.NodeClassifier", "glt_server_client"),
]


@pytest.mark.slow
@pytest.mark.timeout(900)  # five commands of two processes: 40 s of CPU time
@pytest.mark.parametrize(("module", "strategy"), TWO_RANKS)
def test_whole_life_of_two_ranks(config: Any, tmp_path: Path, module: str, strategy: str) -> None:
    run = ["--config", config(module, strategy, devices=2)]
    here = {"cwd": tmp_path, "env": {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}, "timeout": 400}
    run_cli("fit", *run, **here)
    first = Path("lightning_logs/version_0/checkpoints")
    checkpoint = torch.load(first / "last.ckpt", weights_only=True)
    steps = -(-(15 if module in HETERO else 100) // 10)  # of ten seeds, five from each rank
    assert (checkpoint["epoch"], checkpoint["global_step"]) == (1, 2 * steps)
    run_cli("fit", *run, "--ckpt_path", first / "last.ckpt", "--trainer.max_epochs", 3, **here)
    again = torch.load(Path("lightning_logs/version_1/checkpoints/last.ckpt"), weights_only=True)
    assert (again["epoch"], again["global_step"]) == (2, 3 * steps)
    said = "".join(run_cli(command, *run, "--ckpt_path", "best", **here).stdout for command in ("validate", "test"))
    assert "val_acc" in said
    assert "test_acc" in said
    run_cli("predict", *run, "--ckpt_path", "best", **here)
    (written,) = Path("lightning_logs").glob("*/predictions")
    assert sorted(file.name for file in written.glob("*.parquet")) == ["rank0.parquet", "rank1.parquet"]
    assert read_predictions(written)["n_id"].tolist() == list(range(60 if module in HETERO else NODES))
