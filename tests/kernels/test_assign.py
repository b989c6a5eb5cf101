"""Label propagation, contraction and spreading against the reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from glt_lightning.base import DataError, NativeError
from glt_lightning.kernels import LabelPairs, Labels, NeighborRows
from glt_lightning.kernels.assign import spread_rows
from tests.helpers.examples import examples
from tests.reference import assign as assign_reference


def random_rows(rng: np.random.Generator, num_nodes: int, dtype: type = np.int32, mean: float = 4) -> NeighborRows:
    """Rows of all nodes; isolated nodes, self loops and repeated neighbours occur."""
    degrees = rng.poisson(mean, num_nodes) * (rng.random(num_nodes) < 0.8)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    return NeighborRows(0, indptr, (rng.random(indptr[-1]) ** 2 * num_nodes).astype(dtype), num_nodes)


def chunks(rows: NeighborRows, size: int) -> Iterator[NeighborRows]:
    """The same rows, ``size`` at a time."""
    for begin in range(0, len(rows), size):
        indptr = rows.indptr[begin : begin + size + 1]
        yield NeighborRows(begin, indptr - indptr[0], rows.neighbors[indptr[0] : indptr[-1]], rows.num_nodes)


def tensors(rows: NeighborRows) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(rows.indptr), torch.from_numpy(rows.neighbors.astype(np.int64))


def pairs_of(pairs: LabelPairs, given: Iterable[NeighborRows], num_labels: int, together: int) -> dict:
    """(lower label, higher one) -> number of edges, ordered by the labels. together: buckets that are counted at once."""
    found = [tuple(map(np.copy, pairs.records(rows))) for rows in given]
    buckets = len(found[0][1])
    ends = [np.cumsum([0, *sizes]) for _, sizes in found]
    for low in range(0, buckets, together):
        each = range(low, min(low + together, buckets))
        keys = [keys[end[b] : end[b + 1]] for b in each for (keys, _), end in zip(found, ends, strict=True)]
        first = np.cumsum([0, *(sum(int(sizes[b]) for _, sizes in found) for b in each)])
        pairs.add(np.concatenate(keys), low, first)
    indptr, other, counts = pairs.graph(num_labels)
    own = np.repeat(np.arange(num_labels), np.diff(indptr))
    greater = own < other
    order = np.lexsort((other, ~greater, own))
    assert order.tolist() == [*range(len(own))]  # of each row the greater labels, then the smaller ones
    listed = own[greater], other[greater], counts[greater]
    back = np.lexsort((own[~greater], other[~greater]))
    for there, again in zip(listed, (other[~greater], own[~greater], counts[~greater]), strict=True):
        assert there.tolist() == again[back].tolist()
    low, high, edges = (each.tolist() for each in listed)
    return dict(zip(zip(low, high, strict=True), edges, strict=True))


def written(edges: dict[int, list[int]], num_nodes: int, dtype: type = np.int32) -> NeighborRows:
    """Rows written down: node -> neighbours."""
    lists = [edges.get(node, []) for node in range(num_nodes)]
    return NeighborRows(
        0, np.cumsum([0, *map(len, lists)]), np.array([n for row in lists for n in row], dtype), num_nodes
    )


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_labels=st.sampled_from([1, 3, 40, 70]),
    constraints=st.integers(1, 3),
    slack=st.sampled_from([0.5, 1.0, 1.3, 9.0]),  # over-full at the start, binding, loose
    everywhere=st.booleans(),
    dtype=st.sampled_from([np.int32, np.int64]),
    size=st.sampled_from([1, 7, 1000]),
    threads=st.sampled_from([1, 3]),
)
def test_propagation(seed, num_labels, constraints, slack, everywhere, dtype, size, threads):
    rng = np.random.default_rng(seed)
    num_nodes = int(rng.integers(1, 60))
    rows = random_rows(rng, num_nodes, dtype)
    weights = rng.integers(0, 4, (num_nodes, constraints)).astype(np.int32)
    given_labels = rng.integers(-1, num_labels, num_nodes)
    capacity = np.ceil(slack * weights.sum(axis=0) / num_labels).astype(np.int64)
    labels = Labels(given_labels, weights, num_labels)
    want_labels, want_loads = torch.from_numpy(given_labels.copy()), torch.from_numpy(labels.loads.copy())
    for _ in range(3):
        moved = sum(
            labels.propagate(chunk, capacity, everywhere=everywhere, threads=threads) for chunk in chunks(rows, size)
        )
        want_moved = assign_reference.propagate_labels(
            *tensors(rows),
            0,
            want_labels,
            torch.from_numpy(weights).long(),
            want_loads,
            torch.from_numpy(capacity),
            everywhere=everywhere,
        )
        assert moved == want_moved
        assert labels.labels.tolist() == want_labels.tolist()
        assert labels.loads.tolist() == want_loads.tolist()
    held = labels.labels >= 0
    loads = np.zeros_like(labels.loads)
    np.add.at(loads, labels.labels[held], weights[held])
    assert labels.loads.tolist() == loads.tolist()


@pytest.mark.parametrize(
    ("neighbors", "before", "capacity", "everywhere", "after"),
    [
        ([1, 2, 3], [0, 1, 1, 0], 4, False, 1),  # the most frequent
        ([1, 2], [0, 1, 0, 0], 4, False, 0),  # its own at a tie
        ([1, 2], [-1, 2, 1, 0], 4, False, 2),  # the first in the row at a tie of others
        ([1, 2, 3], [0, 1, 1, 2], 2, False, 2),  # what is full does not count
        ([1], [0, -1, 0, 0], 4, False, 0),  # what has no label does not count
        ([], [0, 0, 0, 1], 2, False, 0),  # over-full, nowhere to go in its row
        ([], [0, 0, 0, 1], 2, True, 2),  # the lightest of all
        ([], [0, 0, 0, 0], 2, True, 1),  # the lowest of the lightest
        ([0, 0, 1], [0, 1, 1, 1], 4, False, 0),  # its own loops hold it
        ([1, 1, 0], [0, 1, 0, 0], 2, False, 1),  # over-full: it leaves though its own is as frequent
    ],
)
def test_one_node(neighbors: list[int], before: list[int], capacity: int, everywhere: bool, after: int) -> None:
    labels = Labels(np.array(before), np.ones((4, 1)), 3)
    row = NeighborRows(0, np.array([0, len(neighbors)]), np.array(neighbors, np.int64), 4)
    labels.propagate(row, np.array([capacity]), everywhere=everywhere)
    assert labels.labels[0] == after


def test_weight_of_zero_needs_no_room() -> None:
    """A node that weighs nothing in the full constraint may come; one that does may not."""
    weights = np.array([[1, 0], [1, 1], [0, 5], [1, 0]])
    labels = Labels(np.array([0, 0, 1, 0]), weights, 2)
    rows = written({0: [2], 1: [2]}, 4)
    assert labels.propagate(rows, np.array([3, 5]), everywhere=False) == 1
    assert labels.labels.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(("num_labels", "room"), [(4, 1.05), (4, 0.9), (20_000, 50), (300, 0.7)])
def test_threads_of_many_windows(num_labels: int, room: float) -> None:
    """Rows of more edges than a window has, some without and some with a neighbour that moves just before."""
    rng = np.random.default_rng(0)
    rows = random_rows(rng, 20_000, mean=30)
    near = rng.random(len(rows.neighbors)) < 0.1
    ends = np.repeat(np.arange(20_000), np.diff(rows.indptr))
    rows.neighbors[near] = np.maximum(0, ends[near] - 1)
    found = [Labels(np.arange(20_000) % num_labels, np.ones((20_000, 1)), num_labels) for _ in range(2)]
    capacity = np.array([int(20_000 / num_labels * room)])  # less than there is: nodes have to leave
    moved = [
        [labels.propagate(rows, capacity, everywhere=False, threads=threads) for _ in range(3)]
        for labels, threads in zip(found, (1, 4), strict=True)
    ]
    assert moved[0] == moved[1]
    assert (found[0].labels == found[1].labels).all()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("bad", [-1, 4])
def test_ids_that_are_none(dtype: type, bad: int, threads: int) -> None:
    rows = written({1: [0, bad]}, 4, dtype)
    labels = Labels(np.zeros(4), np.ones((4, 1)), 1)
    with pytest.raises(DataError, match=f"assign rows: id {bad} at position 1 is not in the graph"):
        labels.propagate(rows, np.array([9]), everywhere=False, threads=threads)
    with pytest.raises(DataError, match=f"count pairs: id {bad} at position 1"):
        LabelPairs(labels.labels, 0, 10, threads).records(rows)
    with pytest.raises(DataError, match=f"spread rows: id {bad} at position 1"):
        spread_rows(rows, np.ones((4, 1), np.int64), np.zeros((4, 1), np.int64), threads)


def test_labels_that_are_none() -> None:
    for node in (0, 1):  # as a neighbour, and as its own
        labels = Labels(np.zeros(4), np.ones((4, 1)), 1)
        labels.labels[node] = 1
        with pytest.raises(NativeError, match="assign rows"):
            labels.propagate(written({1: [0]}, 4), np.array([9]), everywhere=False)


@settings(max_examples=examples(100), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_labels=st.sampled_from([1, 2, 9, 60]),
    skew=st.sampled_from([1, 4]),  # 4: the low labels have most of the edges
    most=st.sampled_from([1, 2, 3, 31, 10_000]),
    bits=st.sampled_from([0, 1, 5]),
    together=st.sampled_from([1, 2, 32]),
    dtype=st.sampled_from([np.int32, np.int64]),
    size=st.sampled_from([1, 7, 1000]),
    threads=st.sampled_from([1, 3]),
)
def test_pairs(seed, num_labels, skew, most, bits, together, dtype, size, threads):
    rng = np.random.default_rng(seed)
    rows = random_rows(rng, int(rng.integers(1, 80)), dtype)
    labels = (rng.random(rows.num_nodes) ** skew * num_labels).astype(np.int32)
    found = pairs_of(LabelPairs(labels, bits, most, threads), chunks(rows, size), num_labels, together)
    want, _ = assign_reference.count_pairs(*tensors(rows), torch.from_numpy(labels), most)
    assert found == want
    assert [*found] == [*want]


def test_pairs_of_many_edges() -> None:
    """Pairs of more edges than are counted one by one, two of which have equally many."""
    rows = written({0: [1] * 3000 + [2] * 5000 + [3] * 3000 + [4] * 1023 + [5]}, 6)
    labels = np.arange(6, dtype=np.int32)
    for most, want in (
        (2, {(0, 1): 3000, (0, 2): 5000}),
        (4, {(0, n): c for n, c in enumerate((3000, 5000, 3000, 1023), 1)}),
    ):
        assert pairs_of(LabelPairs(labels, 0, most), [rows], 6, 1) == want


@pytest.mark.parametrize("threads", [1, 3])
def test_pairs_in_many_slices(threads: int) -> None:
    """More edges than one thread takes; many pairs are dropped while buckets are counted."""
    rng = np.random.default_rng(0)
    rows = random_rows(rng, 20_000, mean=30)
    labels = rng.integers(0, 3000, 20_000).astype(np.int32)
    found = pairs_of(LabelPairs(labels, 6, 500, threads), chunks(rows, 15_000), 3000, 4)
    want, rest = assign_reference.count_pairs(*tensors(rows), torch.from_numpy(labels), 500)
    assert found == want
    assert rest > 100_000


@pytest.mark.parametrize(("bits", "dtype"), [(3, np.uint64), (4, np.uint32)])
def test_width_of_records(bits: int, dtype: type) -> None:
    """A pair of labels of 18 bits each fits 32 bits if its bucket says 4 of them."""
    rng = np.random.default_rng(0)
    rows = random_rows(rng, 400, mean=200)
    labels = rng.choice(rng.integers(0, 1 << 18, 30), 400).astype(np.int32)
    labels[0] = (1 << 18) - 1
    pairs = LabelPairs(labels, bits, 300)
    assert pairs.dtype == dtype
    found = pairs_of(pairs, chunks(rows, 100), 1 << 18, 3)
    want, rest = assign_reference.count_pairs(*tensors(rows), torch.from_numpy(labels), 300)
    assert found == want
    assert rest


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    width=st.sampled_from([1, 3, 8]),
    dtype=st.sampled_from([np.int32, np.int64]),
    size=st.sampled_from([1, 7, 1000]),
    threads=st.sampled_from([1, 3]),
)
def test_spreading(seed, width, dtype, size, threads):
    rng = np.random.default_rng(seed)
    rows = random_rows(rng, int(rng.integers(1, 80)), dtype, mean=20)
    values = rng.integers(-(2**62), 2**62, (len(rows), width))  # sums wrap
    before = rng.integers(0, 99, (rows.num_nodes, width))
    out = before.copy()
    for chunk in chunks(rows, size):
        spread_rows(chunk, np.ascontiguousarray(values[chunk.first : chunk.first + len(chunk)]), out, threads)
    want = assign_reference.spread_rows(*tensors(rows), torch.from_numpy(values), torch.from_numpy(before))
    assert out.tolist() == want.tolist()


def test_pairs_of_a_label_that_is_none() -> None:
    pairs = LabelPairs(np.arange(4, dtype=np.int32), 0, 10)
    with pytest.raises(NativeError, match="list pairs"):
        pairs_of(pairs, [written({0: [3]}, 4)], 3, 1)


def test_more_labels_than_32_bits_count() -> None:
    """Refused before an array of that length is made."""
    with pytest.raises(DataError, match="got 2,147,483,648, but labels are 32-bit numbers, at most 2,147,483,647"):
        Labels(np.zeros(0, np.int32), np.zeros((0, 1), np.int32), 2**31)
