"""Data modules, models and Trainers over the small graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer, seed_everything

from glt_lightning import GLTDataModule, GraphSAGE
from tests.lightning.tiny import SHAPE, save_graph


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads of torch that share cores with other work spend their time waiting for each other."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # Lightning leaves it alone then
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line, called with arguments of its own, warns when the process has some too."""
    monkeypatch.setattr("sys.argv", ["python -m lightning"])


@pytest.fixture(scope="session")
def graph_npz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_graph(tmp_path_factory.mktemp("graph") / "tiny.npz")


@pytest.fixture
def make_data(graph_npz: Path, tmp_path: Path) -> Callable[..., GLTDataModule]:
    """Makes a `GLTDataModule` over the small graph; keyword arguments replace defaults."""

    def make(**options: Any) -> GLTDataModule:
        defaults: dict[str, Any] = {"dataset": str(graph_npz), "root": str(tmp_path / "root")}
        return GLTDataModule(**defaults | {"num_neighbors": [5, 5], "batch_size": 20} | options)

    return make


@pytest.fixture
def make_model() -> Callable[..., GraphSAGE]:
    """Makes the same model each time."""

    def make(kind: type[GraphSAGE] = GraphSAGE, **options: Any) -> GraphSAGE:
        seed_everything(1, verbose=False)
        return kind(**SHAPE | options)

    return make


@pytest.fixture
def make_trainer(tmp_path: Path) -> Callable[..., Trainer]:
    """Makes a Trainer that writes below the test's folder and shows nothing."""

    def make(**options: Any) -> Trainer:
        defaults: dict[str, Any] = {
            "accelerator": "cpu",
            "devices": 1,
            "max_epochs": 2,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": str(tmp_path),
        }
        return Trainer(**defaults | options)

    return make
