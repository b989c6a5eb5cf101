"""Other partitions that a plan considers: which encodings change no value, and what fewer bytes of rows change."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from glt_lightning import GLTDataModule
from glt_lightning.graph import LocalPartition
from glt_lightning.lightning.planner import changes
from glt_lightning.lightning.planner.partitions import _is_exact, exact_encoding, wide_attributes
from glt_lightning.lightning.planner.rules import Counted, RemoteCost


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        ([0.0, 1.0, -0.0, 0.5], {"float16", "bfloat16"}),
        ([1.0 + 2**-10], {"float16"}),
        ([2.0**100], {"bfloat16"}),
        ([70000.0], set()),
        ([0.1], set()),
        ([np.nan], set()),
    ],
)
def test_encodings_that_change_no_value(values: list[float], kinds: set[str]) -> None:
    array = np.array([values], dtype=np.float32)
    assert {kind for kind in ("float16", "bfloat16") if _is_exact(kind, array)} == kinds


def test_each_value_counts(make_data: Callable[..., GLTDataModule]) -> None:
    data = make_data(partition={"num_parts": 2})
    data.prepare_data()
    partition = LocalPartition.open(data.partition_dir)
    assert list(wide_attributes(partition.manifest)) == [(0, "x")]
    assert exact_encoding(partition, 0, "x") is None


@pytest.mark.parametrize("placement", ["global", "owner"])
def test_an_algorithm_that_changes_batches_is_yours(placement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = SimpleNamespace(sampling=SimpleNamespace(seed_placement=placement))
    random, metis = (
        SimpleNamespace(
            seconds=s, memory=SimpleNamespace(fits=lambda _: True), available=2, run=SimpleNamespace(data=data)
        )
        for s in (10.0, 5.0)
    )
    monkeypatch.setattr(
        changes,
        "by_algorithm",
        lambda plan: nullcontext(({"random": plan, "metis": metis}, ["streaming takes 1 h to make"])),
    )
    chosen: list[changes.Choice] = []
    plan = changes._choose_algorithm(random, chosen, ExitStack())  # type: ignore[arg-type]
    assert plan is (metis if placement == "global" else random)  # type: ignore[comparison-overlap]
    text = changes.as_yaml(chosen)
    assert text.startswith(
        "data:" if placement == "global" else "# nothing is left open\n# yours to choose: data.partition"
    )
    assert text.endswith("5.00 s an epoch; with random: 10.0 s; streaming takes 1 h to make")


def test_rows_of_fewer_bytes() -> None:
    remote = RemoteCost(rows=2, row_bytes=100, requests=3, nbytes=500, cached_bytes=40)
    found = Counted(seeds=1, nodes=4, edges=5, rows=4, row_bytes=400, remote=remote).in_row_bytes(0.5)
    assert (found.row_bytes, found.remote.row_bytes, found.remote.cached_bytes) == (200, 50, 20)
    assert (found.remote.nbytes, found.remote.requests, found.rows) == (450, 3, 4)  # ids stay as they are
