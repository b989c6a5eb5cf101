"""Runs that follow each other in one process leave no map of the partition and no descriptor behind."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule

from glt_lightning import CacheOptions, DistEmbedding, GraphSAGE, SamplingOptions, SparseAdagrad
from glt_lightning.base import PartitionOptions
from tests.helpers.leaks import count_memfds


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Whatever hides in a reference cycle stays, as it does for a long time in a large process."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def fit(make_data, make_model, make_trainer) -> Callable[..., GraphSAGE]:
    def run(strategy: str, **options: object) -> GraphSAGE:
        model = make_model()
        data = make_data(partition=PartitionOptions(num_parts=3), **options)
        make_trainer(strategy=strategy, fast_dev_run=1).fit(model, data)
        return model

    return run


def held(root: Path) -> tuple[list[str], int]:
    """Maps of files below ``root`` and of memory files, and open descriptors, of this process."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    found = [line.split()[-1] for line in maps if str(root) in line or "/memfd:glt" in line]
    return found, len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("auto", {}),
        ("auto", {"cache": CacheOptions(memory="4KB")}),
        pytest.param("glt_worker", {}, marks=pytest.mark.slow),
        ("glt_worker", {"sampling": SamplingOptions(num_workers=1)}),
    ],
    ids=["auto", "little-memory", "worker", "sampler-process"],
)
def test_nothing_is_kept(fit, tmp_path: Path, no_collection: None, strategy: str, options: dict) -> None:
    fit(strategy, **options)
    before = held(tmp_path)
    assert before[0] == []
    for _ in range(2):
        fit(strategy, **options)
    assert held(tmp_path) == before


class Embedded(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = DistEmbedding(4)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.embedding(batch).sum()

    def configure_optimizers(self) -> Any:
        return SparseAdagrad([self.embedding], lr=0.1)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_tables_of_modules_that_were_dropped_go(make_data, make_trainer, no_collection: None, workers: int) -> None:
    """Their Trainer refers to them, and they to it."""

    def fit() -> None:
        module, data = Embedded(), make_data(sampling=SamplingOptions(num_workers=workers))
        for _ in range(2):
            make_trainer(fast_dev_run=1).fit(module, data)
        rows = torch.arange(3)
        assert torch.equal(module.embedding(rows), module.embedding(rows))  # they are read after the run, too

    counts = []
    for _ in range(4):
        fit()
        counts.append(count_memfds())
    assert counts[1:] == counts[:1] * 3


def test_nothing_is_kept_after_an_error(make_data, make_model, make_trainer, tmp_path: Path, no_collection) -> None:
    class Broken(GraphSAGE):
        def training_step(self, batch: object, batch_idx: int) -> object:
            raise RuntimeError("as planned")

    with pytest.raises(RuntimeError, match="as planned"):
        make_trainer(strategy="glt_worker").fit(make_model(Broken), make_data())
    assert held(tmp_path)[0] == []


def test_loaders_after_a_fit(make_data, make_model, make_trainer) -> None:
    """A data module whose run is over still makes loaders: it maps again what it needs."""
    data = make_data()
    make_trainer(fast_dev_run=1).fit(make_model(), data)
    assert sum(batch.batch_size for batch in data.test_dataloader()) == 90
    data.teardown()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sweep(fit, tmp_path: Path) -> None:
    fit("glt_worker")
    gc.collect()  # what earlier tests left open is closed during this one
    before = held(tmp_path)
    for _ in range(300):
        fit("glt_worker")
    assert held(tmp_path) == before


@pytest.mark.parametrize("strategy", ["auto", "glt_worker"])
def test_data_by_hand_after_a_run(make_data, make_model, make_trainer, tmp_path: Path, strategy: str) -> None:
    data = make_data(partition=PartitionOptions(num_parts=3))
    make_trainer(strategy=strategy, fast_dev_run=1).fit(make_model(), data)
    for _ in range(2):
        data.setup("fit")
        seeds = sum(batch.batch_size for batch in data.train_dataloader())
        assert seeds == 100
        data.teardown()
        assert held(tmp_path)[0] == []
