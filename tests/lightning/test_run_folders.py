"""Each run of the command line has a folder of its own, also where several begin together."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from glt_lightning.base import WriteError
from glt_lightning.cli.run_line import reserved_folders
from tests.helpers import run_cli

DATA = """
import os, subprocess, sys
from glt_lightning import GLTDataModule

class Overtaken(GLTDataModule):
    def prepare_data(self):
        super().prepare_data()
        if os.environ.pop("OVERTAKE", ""):
            subprocess.run([sys.executable, "-m", "lightning", *sys.argv[1:]], check=True)
"""


@pytest.fixture(autouse=True)
def tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its logger numbers folders also where the package, which writes into them, is not installed."""
    monkeypatch.setattr("lightning.fabric.loggers.tensorboard._TENSORBOARD_AVAILABLE", True)


def trainer(*loggers: Any) -> Trainer:
    return Trainer(accelerator="cpu", devices=1, logger=list(loggers), enable_progress_bar=False)


@pytest.mark.slow
def test_a_run_that_another_overtakes_keeps_its_folder(graph_npz: Path, tmp_path: Path) -> None:
    """The first is at its data while the second runs from beginning to end."""
    (tmp_path / "overtaken.py").write_text(DATA)
    data = {"dataset": str(graph_npz), "root": "root", "num_neighbors": [2], "batch_size": 50}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "devices": 1}
    run = {
        "trainer": {"max_epochs": 1, "logger": {"class_path": "CSVLogger", "init_args": {"save_dir": "."}}} | quiet,
        "model": {"class_path": "GraphSAGE", "init_args": {"hidden_channels": 4, "num_layers": 1}},
        "data": {"class_path": "overtaken.Overtaken", "init_args": data},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run))
    said = run_cli("fit", "--config", "run.yaml", cwd=tmp_path, env={"OVERTAKE": "1", "OMP_NUM_THREADS": "1"}).stdout
    logs = tmp_path / "lightning_logs"
    assert {path.parent.name for path in logs.glob("*/metrics.csv")} == {"version_0", "version_1"}
    assert {path.parts[-3] for path in logs.glob("*/checkpoints/best.ckpt")} == {"version_0", "version_1"}
    assert [line.split(":")[1] for line in said.splitlines() if line.startswith("run: ")] == [
        " lightning_logs/version_1",
        " lightning_logs/version_0",
    ]


@pytest.mark.parametrize("kind", [CSVLogger, TensorBoardLogger])
def test_runs_that_see_the_same_folders_get_different_ones(
    tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lightning_logs/version_3").mkdir(parents=True)
    together = threading.Barrier(4, timeout=60)
    listed = kind._get_next_version

    def next_version(logger: Any) -> int:
        number = listed(logger)
        together.wait()  # all have looked before one makes its folder
        return number

    monkeypatch.setattr(kind, "_get_next_version", next_version)
    trainers = [trainer(kind(tmp_path)) for _ in range(4)]
    with ExitStack() as runs:
        begun = [threading.Thread(target=lambda t=t: runs.enter_context(reserved_folders(t))) for t in trainers]
        for thread in begun:
            thread.start()
        for thread in begun:
            thread.join()
        assert sorted(t.logger.version for t in trainers) == [4, 5, 6, 7]
        assert all(Path(t.logger.log_dir).is_dir() for t in trainers)
        Path(trainers[0].logger.log_dir, "metrics.csv").touch()
    assert {path.name for path in (tmp_path / "lightning_logs").iterdir()} == {
        "version_3",
        Path(trainers[0].logger.log_dir).name,  # the others have written nothing
    }


def test_the_users_version_and_other_ranks_make_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lightning_logs/version_3").mkdir(parents=True)
    given = trainer(CSVLogger(tmp_path, version=3), TensorBoardLogger(tmp_path, version="mine"))
    without = Trainer(accelerator="cpu", devices=1, logger=False, default_root_dir=tmp_path)
    other = trainer(CSVLogger(tmp_path))
    monkeypatch.setattr(type(other.strategy), "is_global_zero", property(lambda _: False))
    for each in (given, without, other):
        with reserved_folders(each):
            assert [path.name for path in (tmp_path / "lightning_logs").iterdir()] == ["version_3"]
    assert [logger.version for logger in given.loggers] == [3, "mine"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "lightning_logs").touch()
    with (
        pytest.raises(
            WriteError, match=r"lightning_logs: the folder of this run cannot be made in it \((Not a dir|File exists)"
        ),
        reserved_folders(trainer(CSVLogger(tmp_path))),
    ):
        pass


def test_a_log_folder_behind_a_dangling_link_is_named(tmp_path: Path) -> None:
    (tmp_path / "lightning_logs").symlink_to(tmp_path / "purged" / "logs")
    with (
        pytest.raises(WriteError, match="lightning_logs: the folder of this run cannot be made in it"),
        reserved_folders(trainer(CSVLogger(tmp_path))),
    ):
        pass
