"""The orders of a batch's edges, against the reference."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from glt_lightning.base import DataError
from glt_lightning.kernels import by_source, column_pointers, sort_keys, split_by_source
from tests.helpers.examples import examples
from tests.reference import ops as reference


def check(src, dst, sources, destinations, threads):
    colptr, orders = np.full(destinations + 1, -1), np.full(sources + 1 + 2 * len(src), -1)
    column_pointers(dst, colptr)
    by_source(src, dst, sources, orders, threads=threads)
    assert colptr.tolist() == reference.column_pointers(torch.from_numpy(dst), destinations).tolist()
    want = reference.by_source(torch.from_numpy(src), torch.from_numpy(dst), sources)
    for got, expected in zip(split_by_source(orders, sources), want, strict=True):
        assert got.tolist() == expected.tolist()


@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 2**32), edges=st.integers(0, 60), threads=st.sampled_from([1, 3]))
def test_random_edges(seed, edges, threads):
    rng = np.random.default_rng(seed)
    least = 1 if edges else 0
    sources, destinations = rng.integers(least, 20, 2).tolist()
    src = rng.integers(0, max(1, sources), edges).astype(np.int32)
    dst = np.sort(rng.integers(0, max(1, destinations), edges)).astype(np.int32)
    check(src, dst, sources, destinations, threads)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_share_many_edges(threads):
    rng = np.random.default_rng(threads)
    src = (rng.random(400_000) ** 3 * 50_000).astype(np.int32)
    check(src, np.sort(rng.integers(0, 900, len(src))).astype(np.int32), 50_000, 1000, threads)


@pytest.mark.parametrize(("dst", "said"), [([0, 2, 1], "edge 2 leads to 1"), ([0, 4], "edge 1 leads to 4")])
def test_edges_in_another_order(dst, said):
    with pytest.raises(DataError, match=f"sorted by destination, 0 to 3; {said}.*edge_format tensor"):
        column_pointers(np.array(dst, dtype=np.int32), np.empty(5, dtype=np.int64))


@pytest.mark.parametrize("threads", [1, 3])
def test_a_source_that_is_no_node(threads):
    src = np.zeros(300_000, dtype=np.int32)
    src[250_000], src[260_000] = 7, -1
    with pytest.raises(DataError, match="edge 250000 comes from 7, and there are 7 nodes"):
        by_source(src, src, 7, np.empty(8 + 2 * len(src), dtype=np.int64), threads=threads)


@pytest.mark.parametrize("bits", [0, 1, 11, 12, 22, 23, 44, 63])
@pytest.mark.parametrize("count", [0, 1, 700])
def test_keys_are_sorted_and_equal_ones_stay_in_their_order(bits: int, count: int) -> None:
    keys = np.random.default_rng(bits).integers(0, 1 << bits, count, np.int64)
    alone, beside, positions = keys.copy(), keys.copy(), np.arange(count)
    sort_keys(alone)
    sort_keys(beside, positions)
    order = np.argsort(keys, kind="stable")
    assert np.array_equal(alone, keys[order])
    assert np.array_equal(beside, keys[order])
    assert np.array_equal(positions, order)
