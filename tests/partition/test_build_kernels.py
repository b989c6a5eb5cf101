"""The native kernels of the partitioner, one by one."""

from __future__ import annotations

import numpy as np
import pytest

from glt_lightning.base import DataError, NativeError
from glt_lightning.kernels import Buckets, RowBuffers, build_rows, count_ids

LARGE = 5_000_000_000  # does not fit 32 bits


def test_count() -> None:
    counts = np.zeros(4, np.int64)
    assert count_ids(np.array([3, 0, 3]), counts) is None
    assert counts.tolist() == [1, 0, 0, 2]
    assert count_ids(np.array([0, 4]), counts) == 1
    assert count_ids(np.array([-1]), counts) == 0
    assert count_ids(np.zeros(0, np.int64), np.zeros(0, np.int64)) is None


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("num_nodes", [1, 7, 300_000])
def test_bucket_sizes(dtype: type, num_nodes: int) -> None:
    rng = np.random.default_rng(0)
    numbers = rng.permutation(num_nodes).astype(dtype)
    starts = np.unique(np.concatenate([[0, num_nodes], rng.integers(0, num_nodes + 1, 50)]))
    dst = rng.integers(0, num_nodes, 1000)
    buckets = Buckets(numbers, starts, 12 if dtype is np.int32 else 24)
    expected = np.bincount(np.searchsorted(starts, numbers[dst], side="right") - 1, minlength=len(starts) - 1)
    assert buckets.sizes(dst).tolist() == expected.tolist()


@pytest.mark.parametrize("wide", [False, True])
def test_records(wide: bool) -> None:
    kind, width = (np.int64, 24) if wide else (np.uint32, 12)
    numbers = np.array([2, 0, 1, 3], np.int64 if wide else np.int32)
    buckets = Buckets(numbers, np.array([0, 2, 4]), width)
    records = np.zeros(3 * width, np.uint8)
    first = LARGE if wide else 7
    buckets.scatter(np.array([0, 1, 2]), np.array([3, 1, 2]), 3, first, np.array([0, 2]), np.array([2, 3]), records)
    # destinations have the numbers 3, 0, 1: bucket 1 row 1, bucket 0 rows 0 and 1
    assert records.view(kind).reshape(-1, 3).tolist() == [[0, 1, first + 1], [1, 2, first + 2], [1, 0, first]]


@pytest.mark.parametrize("coalesce", [False, True])
@pytest.mark.parametrize(
    ("id_dtype", "edge_id_dtype", "record"),
    [(np.int32, np.int32, np.uint32), (np.int64, np.int32, np.int64), (np.int32, np.int64, np.int64), (np.int64,) * 3],
)
def test_rows(id_dtype: type, edge_id_dtype: type, record: type, coalesce: bool) -> None:
    rng = np.random.default_rng(0)
    num_rows, sources, count = 50, 20, 2000
    rows, src = rng.integers(0, num_rows, count), rng.integers(0, sources, count)
    edge_ids = rng.permutation(count)
    numbers = rng.permutation(sources).astype(id_dtype)
    records = np.stack([rows, src, edge_ids], axis=1).astype(record)
    width = records.itemsize * 3
    out = RowBuffers.allocate(num_rows, count, np.dtype(id_dtype), np.dtype(edge_id_dtype), width)
    indptr, indices, ids = build_rows(
        np.ascontiguousarray(records).view(np.uint8).reshape(-1), num_rows, coalesce, numbers, 100, width, out
    )
    expected = sorted(zip(rows.tolist(), src.tolist(), edge_ids.tolist(), strict=True))
    if coalesce:
        expected = [e for e, before in zip(expected, [(-1, -1, 0), *expected], strict=False) if e[:2] != before[:2]]
    assert indices.tolist() == [100 + int(numbers[u]) for _, u, _ in expected]
    assert ids.tolist() == [k for _, _, k in expected]
    assert np.diff(indptr).tolist() == np.bincount([r for r, _, _ in expected], minlength=num_rows).tolist()


def test_ids_at_the_border_of_32_bits() -> None:
    """Edge ids of 2^31 - 1 fit 32 bits; larger ones need wide records."""
    last = 2**31 - 1
    for kind, edge_id_dtype, edge_id in ((np.uint32, np.int32, last), (np.int64, np.int64, LARGE)):
        records = np.array([[0, 1, edge_id], [0, 0, edge_id - 1]], kind)
        width = records.itemsize * 3
        out = RowBuffers.allocate(1, 2, np.dtype(np.int32), np.dtype(edge_id_dtype), width)
        numbers = np.array([last, 5], np.int32)
        _, indices, ids = build_rows(records.view(np.uint8).reshape(-1), 1, False, numbers, 0, width, out)
        assert indices.tolist() == [last, 5]
        assert ids.tolist() == [edge_id - 1, edge_id]


@pytest.mark.parametrize(("src", "dst"), [([3], [0]), ([-1], [0]), ([0], [4]), ([0], [-1]), ([0, 0, 0], [1, 1, 1])])
def test_edges_that_were_not_counted(src: list[int], dst: list[int]) -> None:
    """Two records fit; a third, or an unknown node, is not written beside them."""
    buckets = Buckets(np.arange(4, dtype=np.int32), np.array([0, 4]), 12)
    records = np.zeros(100, np.uint8)
    with pytest.raises(DataError, match="changed between two readings"):
        buckets.scatter(np.array(src), np.array(dst), 3, 0, np.array([0]), np.array([2]), records)
    np.testing.assert_array_equal(records[24:], 0)


def test_record_outside_its_bucket_is_seen() -> None:
    records = np.array([[9, 0, 0]], np.uint32)
    out = RowBuffers.allocate(3, 1, np.dtype(np.int32), np.dtype(np.int32), 12)
    with pytest.raises(NativeError, match=r"detail \[0, 9"):
        build_rows(records.view(np.uint8).reshape(-1), 3, False, np.zeros(1, np.int32), 0, 12, out)
