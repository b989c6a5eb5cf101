"""Whole runs on two ranks, as a user starts them."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml

from glt_lightning.lightning import read_predictions
from tests.helpers import Run, run_cli, run_script, started
from tests.helpers.family import settle
from tests.helpers.ogb_layout import RawGraph, lay_out
from tests.lightning.tiny import NODES

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
# for scripts that import from tests
WITH_TESTS = ONE_THREAD | {
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
}

# Fits, tests and predicts in one process per rank; prints what rank 0 saw.
SCRIPT = """
import json, sys
import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from glt_lightning import GLTDataModule, PredictionWriter
from tests.lightning.tiny import Noting

options = json.loads(sys.argv[1])
torch.set_num_threads(1)

def main():
    seed_everything(1)
    data = GLTDataModule(num_neighbors=[5, 5], batch_size=10, **options["data"])
    model = Noting(dropout=0.0)
    keep = ModelCheckpoint(dirpath="ckpt", filename="{step}", every_n_train_steps=3, save_top_k=-1)
    trainer = Trainer(accelerator="cpu", devices=2, strategy="glt_worker", max_epochs=3, logger=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[keep, PredictionWriter("predictions")])
    trainer.fit(model, data, ckpt_path=options.get("ckpt_path"))
    result = {"losses": model.losses, "weights": [float(p.double().sum()) for p in model.parameters()]}
    if options.get("whole"):
        (tested,) = trainer.test(model, data, verbose=False)
        trainer.predict(model, data)
        result |= tested
    if trainer.is_global_zero:
        print("RESULT", json.dumps(result), flush=True)

if __name__ == "__main__":
    main()
"""


def run_two(cwd: Path, **options: Any) -> dict[str, Any]:
    output = run_script(SCRIPT, json.dumps(options), cwd=cwd, env=WITH_TESTS).stdout
    (line,) = [line for line in output.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


@pytest.fixture
def data_options(graph_npz: Path) -> dict[str, Any]:
    return {"dataset": str(graph_npz), "root": "root", "partition": {"num_parts": 2}, "sampling": {"num_workers": 2}}


@pytest.fixture
def endless(graph_npz: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """The command line of a run of two ranks that does not end by itself."""
    trainer = {"strategy": "glt_worker", "devices": 2, "accelerator": "cpu", "max_epochs": 100_000, "logger": False}
    trainer |= {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    data = {"dataset": str(graph_npz), "root": str(tmp_path / "root"), "num_neighbors": [5, 5], "batch_size": 10}
    run = {
        "seed_everything": 1,
        "trainer": trainer,
        "model": {"class_path": "GraphSAGE", "init_args": {"hidden_channels": 16, "num_layers": 2}},
        "data": {"class_path": "GLTDataModule", "init_args": data | {"sampling": {"num_workers": 1}}},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run))
    return ["-m", "glt_lightning", "fit", "--config", str(tmp_path / "run.yaml")]


def test_fit_test_and_predict_in_one_process_per_rank(data_options: dict[str, Any], tmp_path: Path) -> None:
    result = run_two(tmp_path, data=data_options, whole=True)
    assert len(result["losses"]) == 15
    assert result["test_acc"] > 0.6
    written = read_predictions(tmp_path / "predictions")
    assert written["n_id"].tolist() == list(range(NODES))
    assert sorted(p.name for p in (tmp_path / "predictions").iterdir()) == [
        "_manifest.json",
        "rank0.parquet",
        "rank1.parquet",
    ]


# Evaluates one seed on as many ranks as it is told; prints the metrics of rank 0.
FEW_SEEDS = """
import json, sys
import torch
from lightning.pytorch import Trainer, seed_everything
from glt_lightning import GLTDataModule, PredictionWriter
from tests.lightning.tiny import Noting

options = json.loads(sys.argv[1])
torch.set_num_threads(1)

def main():
    seed_everything(1)
    data = GLTDataModule(num_neighbors=[5, 5], batch_size=10, evaluation={"predict_split": "test"}, **options["data"])
    trainer = Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[PredictionWriter("predictions")],
        **options["trainer"])
    model = Noting(dropout=0.0)
    if options["trainer"]["devices"] == 1:
        found = {}
    else:
        trainer.fit(model, data)
        found = {"fit": sorted(trainer.callback_metrics)}
    model = Noting(dropout=0.0)
    for layer in model.parameters():
        torch.nn.init.constant_(layer, 0.01)
    found |= trainer.validate(model, data, verbose=False)[0] | trainer.test(model, data, verbose=False)[0]
    trainer.predict(model, data)
    if trainer.is_global_zero:
        print("RESULT", json.dumps(found), flush=True)

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["glt_worker", pytest.param("glt_server_client", marks=pytest.mark.slow)])
def test_evaluation_with_fewer_seeds_than_ranks(data_options: dict[str, Any], tmp_path: Path, strategy: str) -> None:
    data = data_options | {"seeds": {"splits": {"val": [7], "test": [9]}}}
    data["partition"] = data.get("partition", {}) | {"allow": ["overlapping_splits"]}
    found = []
    for devices, name in ((1, "auto"), (2, strategy)):
        options = {"data": data, "trainer": {"devices": devices, "strategy": name}}
        output = run_script(FEW_SEEDS, json.dumps(options), cwd=tmp_path, env=WITH_TESTS).stdout
        (line,) = [line for line in output.splitlines() if line.startswith("RESULT ")]
        found.append(json.loads(line.removeprefix("RESULT ")))
        assert read_predictions(tmp_path / "predictions")["n_id"].tolist() == [9]
    assert {"val_loss", "val_acc"} <= set(found[1].pop("fit"))
    assert found[1] == pytest.approx(found[0])


@pytest.mark.slow
def test_loss_curves_do_not_depend_on_who_samples(data_options: dict[str, Any], tmp_path: Path) -> None:
    combinations = [(1, 0, 1), (2, 2, 1), (5, 3, 2)]
    curves = []
    for parts, workers, threads in combinations:
        sampling = {"num_workers": workers, "num_threads": threads}
        data = data_options | {"partition": {"num_parts": parts}, "sampling": sampling}
        curves.append(run_two(tmp_path, data=data))
    assert curves[0] == curves[1] == curves[2]


@pytest.mark.slow
def test_resumed_run_ends_on_the_same_weights(data_options: dict[str, Any], tmp_path: Path) -> None:
    whole = run_two(tmp_path, data=data_options)
    for step, workers in ((3, 2), (9, 1), (12, 0)):
        data = data_options | {"sampling": {"num_workers": workers}}
        resumed = run_two(tmp_path, data=data, ckpt_path=f"ckpt/step={step}.ckpt")
        assert resumed["weights"] == whole["weights"]
        assert resumed["losses"] == whole["losses"][step:]


def wait_for_training(run: Run) -> list[psutil.Process]:
    """The ranks, once both train: each has its sampler process."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and run.popen.poll() is None:
        family = {process.pid: process for process in run.family()}
        if len(family) >= 4 and "All distributed processes registered" in run.output:
            time.sleep(2)  # some epochs
            ranks = [p for p in family.values() if "fit" in p.cmdline()]
            return sorted(ranks, key=lambda process: process.pid != run.popen.pid)
        time.sleep(0.2)
    raise AssertionError(f"training did not start:\n{run.output}")


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_no_rank_outlives_another(endless: list[str], tmp_path: Path, victim: int) -> None:
    with started([sys.executable, *endless], env=ONE_THREAD, cwd=tmp_path) as run:
        ranks = wait_for_training(run)
        assert len(ranks) == 2
        os.kill(ranks[victim].pid, signal.SIGKILL)
        left = settle(run.family, grace_s=30)
        assert left == [], run.output
        status = run.wait(10)
        said = run.output
    assert status == (-9 if victim == 0 else 1)
    other = 1 - victim
    named = rf"error: rank {victim} \(process {ranks[victim].pid}\) of this host died; rank {other} cannot go on\."
    assert len(re.findall(named, said)) == 1
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_rank_that_stands_still_ends_the_job(endless: list[str], tmp_path: Path, victim: int) -> None:
    command = [sys.executable, *endless, "--cluster.peer_silence_s", "2"]
    with started(command, env=ONE_THREAD, cwd=tmp_path) as run:
        ranks = wait_for_training(run)
        os.kill(ranks[victim].pid, signal.SIGSTOP)
        assert settle(run.family, grace_s=30) == [], run.output
        assert run.wait(10) == (-9 if victim == 0 else 1)
        said = run.output
    named = rf"error: rank {victim} \(process {ranks[victim].pid}\) of this host hung on .* and was killed \("
    assert len(re.findall(named, said)) == 1
    assert "Traceback" not in said


@pytest.mark.slow
def test_error_of_one_rank_ends_the_other(graph_npz: Path, tmp_path: Path) -> None:
    code = f"""
    import os
    from lightning.pytorch import Trainer
    from glt_lightning import GLTDataModule
    from tests.lightning.tiny import Noting

    class Broken(Noting):
        def training_step(self, batch, batch_idx):
            if self.global_rank == 1 and batch_idx == 2:
                raise ZeroDivisionError("only here")
            return super().training_step(batch, batch_idx)

    if __name__ == "__main__":
        data = GLTDataModule({str(graph_npz)!r}, root="root", num_neighbors=[5, 5], batch_size=10)
        trainer = Trainer(accelerator="cpu", devices=2, strategy="glt_worker", max_epochs=3, logger=False,
            enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
        trainer.fit(Broken(), data)
    """
    result = run_script(code, cwd=tmp_path, env=WITH_TESTS, check=False)
    assert result.returncode != 0
    assert "ZeroDivisionError: only here" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["glt_worker", "glt_server_client"])
def test_uneven_training_loaders_raise_instead_of_hanging(tmp_path: Path, strategy: str) -> None:
    code = """
    import sys
    from lightning.pytorch import Trainer
    from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
    from torch.utils.data import DataLoader
    import glt_lightning.lightning

    class Uneven(BoringModel):
        def train_dataloader(self):
            return DataLoader(RandomDataset(32, 4 + 3 * self.trainer.global_rank))

    if __name__ == "__main__":
        Trainer(accelerator="cpu", devices=2, strategy=sys.argv[1], max_epochs=1, logger=False,
            enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
            use_distributed_sampler=False).fit(Uneven())
    """
    result = run_script(code, strategy, cwd=tmp_path, env=ONE_THREAD, check=False)
    assert result.returncode != 0
    assert "training needs equally many batches on all ranks, got rank 0: 4, rank 1: 7." in result.stdout


_UNKNOWN_SEED = ["--data.init_args.seeds.splits", "{train: [999]}"]
_NO_BATCH = ["--trainer.limit_train_batches", "1.0e-9"]


@pytest.mark.parametrize(
    ("strategy", "options", "said"),
    [
        # of rank 0, while the other one waits
        ("glt_worker", _UNKNOWN_SEED, "error: .*999.*"),
        pytest.param("ddp", _UNKNOWN_SEED, "error: .*999.*", marks=pytest.mark.slow),
        # of both
        pytest.param("glt_worker", _NO_BATCH, "error: You requested to check 1e-09 of .*", marks=pytest.mark.slow),
        ("ddp", _NO_BATCH, "error: You requested to check 1e-09 of .*"),
    ],
)
def test_an_error_is_one_line(endless: list[str], tmp_path: Path, strategy: str, options: list[str], said: str) -> None:
    result = run_cli(*endless[2:], "--trainer.strategy", strategy, *options, cwd=tmp_path, env=ONE_THREAD, check=False)
    assert result.returncode
    assert re.fullmatch(said, "\n".join(re.findall(r"^.*(?:error:|Error|Traceback).*$", result.stdout, re.M)))


@pytest.mark.slow
def test_torchrun(endless: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", *endless]
    with started([*command, "--trainer.max_epochs", "2"], env=ONE_THREAD, cwd=tmp_path) as run:
        assert run.wait(120) == 0, run.output
        assert settle(run.family, grace_s=5) == []
        assert "error:" not in run.output
        assert run.output.count("`Trainer.fit` stopped: `max_epochs=2` reached.") == 1


@pytest.mark.slow
def test_more_ranks_than_seeds(endless: list[str], tmp_path: Path) -> None:
    command = [sys.executable, *endless, "--data.seeds.splits", "{train: [3]}"]
    with started(command, env=ONE_THREAD, cwd=tmp_path) as run:
        assert run.wait(120) == 2
        assert settle(run.family, grace_s=15) == []
        assert "error: loader 'train': each rank needs a seed; there are 1 for world size 2." in run.output
        assert "Traceback" not in run.output


@pytest.mark.slow
def test_sigterm_ends_all_ranks(endless: list[str], tmp_path: Path) -> None:
    """Even when Lightning's own way out hangs, as it sometimes does: its handler makes a collective call."""
    command = [sys.executable, *endless, "--cluster.peer_timeout_s", "5"]
    with started(command, env=ONE_THREAD, cwd=tmp_path) as run:
        wait_for_training(run)
        run.popen.terminate()
        run.wait(60)
        assert settle(run.family, grace_s=30) == [], run.output


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "glt_worker", "glt_server_client"])
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_all_ranks(endless: list[str], tmp_path: Path, strategy: str, times: int) -> None:
    """A terminal sends it to all processes of the job; a second one may come while they end."""
    command = [sys.executable, *endless, "--trainer.strategy", strategy]
    with started(command, env=ONE_THREAD, cwd=tmp_path) as run:
        wait_for_training(run)
        for _ in range(times):
            os.killpg(run.popen.pid, signal.SIGINT)
        # Lightning's own launcher kills its children; it may see them dead and kill itself.
        ended = (130, -signal.SIGINT) + ((-signal.SIGKILL,) if strategy == "ddp" else ())
        assert run.wait(60) in ended, run.output
        assert settle(run.family, grace_s=30) == [], run.output


@pytest.mark.slow
def test_products_config_runs_offline(tmp_path: Path) -> None:
    """OGB's own loader reads files of the layout that it downloads, and asks nothing."""
    lay_out(tmp_path / "data", "ogbn-products", RawGraph.random(np.random.default_rng(0)))
    config = ["--config", Path(__file__).parents[2] / "configs" / "products.yaml", "--trainer.accelerator", "cpu"]
    small = ["--model.hidden_channels", "16", "--data.batch_size", "4", "--trainer.max_epochs", "2"]
    run_cli("fit", *config, *small, cwd=tmp_path, env=ONE_THREAD)
    tested = run_cli("test", *config, *small, "--ckpt_path", "best", cwd=tmp_path, env=ONE_THREAD)
    assert "test_acc" in tested.stdout


# Edges of a shop with their negatives, as files; the scores of a model that has not been trained.
LINKS = """
import json, sys
import numpy as np
import torch
from lightning.pytorch import Trainer, seed_everything
from glt_lightning import GLTDataModule, LinkPredictor

strategy, devices = sys.argv[1], int(sys.argv[2])

def main():
    torch.set_num_threads(1)
    splits = {"train": "train.npy", "val": {"edge": "val.npy", "negatives": "val_pairs.npy"}}
    splits["test"] = {"edge": "test.npy", "negatives": "test_lists.npy"}
    data = GLTDataModule(dataset="shop.npz", root="root", task="link", links={"edge_splits": splits}, num_neighbors=[-1],
        batch_size=16, partition={"num_parts": 2})
    trainer = Trainer(accelerator="cpu", devices=devices, strategy=strategy, logger=False,
        enable_progress_bar=False, enable_model_summary=False)
    found = {}
    for stage, metrics in (("validate", ["auc", "ap", "hits@10"]), ("test", ["mrr"])):
        seed_everything(1)
        model = LinkPredictor(3, hidden_channels=8, num_layers=1, dropout=0.0, metrics=metrics)
        found |= getattr(trainer, stage)(model, data, verbose=False)[0]
    if trainer.is_global_zero:
        print("RESULT", json.dumps(found), flush=True)

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_metrics_of_links_are_those_of_one_rank(tmp_path: Path) -> None:
    """Also where the ranks have different numbers of edges, and one of them fewer batches."""
    rng = np.random.default_rng(0)
    edges = np.unique(rng.integers(0, 60, (2, 900)), axis=1)
    edges = rng.permutation(edges[:, edges[0] < edges[1]], axis=1)
    np.savez(tmp_path / "shop.npz", edge_index=edges, x=rng.normal(size=(60, 3)).astype(np.float32))
    given = {"train": edges[:, 120:], "val": edges[:, :33], "test": edges[:, 33:120]}
    given |= {"val_pairs": rng.integers(0, 60, (2, 49)), "test_lists": rng.integers(0, 60, (87, 20))}
    for name, array in given.items():
        np.save(tmp_path / f"{name}.npy", array)
    found = {}
    for strategy, devices in (("auto", 1), ("glt_worker", 2), ("ddp", 2)):
        output = run_script(LINKS, strategy, devices, cwd=tmp_path, env=WITH_TESTS).stdout
        (line,) = [line for line in output.splitlines() if line.startswith("RESULT ")]
        found[strategy] = json.loads(line.removeprefix("RESULT "))
    alone = found.pop("auto")
    assert alone.keys() == {"val_loss", "val_auc", "val_ap", "val_hits@10", "test_mrr"}
    assert all(0 < value < 1 for name, value in alone.items() if "loss" not in name)
    for name, value in found.items():
        assert value == pytest.approx(alone, rel=1e-5), name
