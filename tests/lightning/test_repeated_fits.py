"""Runs that follow each other in one process leave no map of the partition and no descriptor behind."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glt_lightning import CacheOptions, GraphSAGE, SamplingOptions
from glt_lightning.options import PartitionOptions


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
        ("glt_worker", {}),
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
