"""Records that tasks deal out come back bucket by bucket, in the order of tasks and runs."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from glt_lightning.base import DataError
from glt_lightning.partition.tasks.exchange import cut, finished_runs, load_runs, read_buckets
from tests.helpers.examples import examples

WIDTH, BUCKETS = 8, 5


def deal(folder: Path, number: int, runs: list[list[int]]) -> None:
    """One task's file. A record is its bucket, and a number that tells records apart."""
    with finished_runs(folder / f"dealt{number}", WIDTH, BUCKETS) as writer:
        for at, buckets in enumerate(runs):
            order = np.argsort(buckets, kind="stable")
            records = np.stack([np.array(buckets, np.int32), 1000 * number + 100 * at + np.arange(len(buckets))], 1)
            writer.add(records.astype(np.int32)[order], np.bincount(np.array(buckets, int), minlength=BUCKETS))


@settings(max_examples=examples(60), deadline=None)
@given(
    tasks=st.lists(st.lists(st.lists(st.integers(0, BUCKETS - 1), max_size=9), max_size=3), min_size=1, max_size=3),
    low=st.integers(0, BUCKETS),
    size=st.integers(0, BUCKETS),
)
def test_buckets(tmp_path_factory, tasks: list[list[list[int]]], low: int, size: int) -> None:
    folder = tmp_path_factory.mktemp("exchange")
    for number, runs in enumerate(tasks):
        deal(folder, number, runs)
    high = min(BUCKETS, low + size)
    data, first = read_buckets([load_runs(folder / f"dealt{n}") for n in range(len(tasks))], low, high, WIDTH)
    records = data.view(np.int32).reshape(-1, 2).tolist()
    numbered = [
        (b, 1000 * n + 100 * at + i)
        for n, runs in enumerate(tasks)
        for at, buckets in enumerate(runs)
        for i, b in enumerate(buckets)
    ]
    for bucket in range(low, high):
        found = records[first[bucket - low] : first[bucket - low + 1]]
        assert [tuple(r) for r in found] == [r for r in numbered if r[0] == bucket]


def test_files_that_are_cut_off(tmp_path: Path) -> None:
    deal(tmp_path, 0, [[0, 1, 2, 3, 4]])
    os.truncate(tmp_path / "dealt0", 3 * WIDTH)
    runs = [load_runs(tmp_path / "dealt0")]
    assert len(read_buckets(runs, 0, 3, WIDTH)[0]) == 3 * WIDTH
    with pytest.raises(DataError, match="changed between two readings"):
        read_buckets(runs, 2, 5, WIDTH)


@pytest.mark.parametrize(("count", "at_most"), [(0, 5), (1, 5), (10, 5), (11, 5), (7, 0), (100, 1)])
def test_ranges(count: int, at_most: int) -> None:
    ranges = cut(count, at_most)
    assert ranges[0][0] == 0
    assert [b for b, _ in ranges[1:]] == [e for _, e in ranges[:-1]]
    assert ranges[-1][1] == count
    assert max(e - b for b, e in ranges) <= max(1, at_most)
