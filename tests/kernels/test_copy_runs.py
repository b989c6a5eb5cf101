"""Copies of runs of rows, against slices of torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from glt_lightning.base import PartitionError
from glt_lightning.kernels import copy_runs


@pytest.mark.parametrize("shape", [(), (3,), (0,)])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float16, np.bool_])
def test_runs_lie_where_they_are_asked_for(shape: tuple[int, ...], dtype: type) -> None:
    rng = np.random.default_rng(len(shape))
    rows = rng.integers(0, 2, (50, *shape)).astype(dtype)
    begin = rng.integers(0, 50, 20)
    counts = rng.integers(0, 51 - begin)
    gaps = rng.integers(0, 3, 20)
    at = np.cumsum(counts + gaps) - counts
    out = np.ones((at[-1] + counts[-1] + 2, *shape), dtype)
    wanted = torch.from_numpy(out.copy())
    for first, count, place in zip(begin, counts, at, strict=True):
        wanted[place : place + count] = torch.from_numpy(rows[first : first + count])
    copy_runs(rows, begin, counts, out, at)
    assert torch.equal(torch.from_numpy(out), wanted)


@pytest.mark.parametrize(
    ("begin", "count", "at"),
    [(8, 3, 0), (-1, 2, 0), (0, -1, 0), (0, 3, 4), (0, 3, -1), (2**62, 2**62, 0), (0, 2**62, 2**62)],
)
def test_a_run_outside_of_its_rows_is_refused(begin: int, count: int, at: int) -> None:
    out = np.zeros(6, np.int64)
    with pytest.raises(
        PartitionError, match=rf"a row with {count} edges from edge {begin} on lies outside its part, which has 10"
    ):
        copy_runs(np.ones(10, np.int64), *(np.array([n]) for n in (begin, count)), out, np.array([at]))
    assert not out.any()
