"""Label propagation, contraction and spreading against the reference; the table of pairs at its limit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from glt_lightning.base import DataError, NativeError
from glt_lightning.kernels import Labels, NeighborRows, PairTable
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


def pairs_of(table: PairTable, num_labels: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(low labels, high labels, numbers of edges), ordered by the labels."""
    indptr, other, counts = table.graph(num_labels)
    own = np.repeat(np.arange(num_labels), np.diff(indptr))
    greater = own < other
    order = np.lexsort((other, ~greater, own))
    assert order.tolist() == [*range(len(own))]  # of each row the greater labels, then the smaller ones
    listed = own[greater], other[greater], counts[greater]
    back = np.lexsort((own[~greater], other[~greater]))
    for there, again in zip(listed, (other[~greater], own[~greater], counts[~greater]), strict=True):
        assert there.tolist() == again[back].tolist()
    return listed


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


@pytest.mark.parametrize("num_labels", [4, 20_000])
def test_threads_of_many_windows(num_labels: int) -> None:
    """Rows of more edges than a window has, some without and some with a neighbour that moves just before."""
    rng = np.random.default_rng(0)
    rows = random_rows(rng, 20_000, mean=30)
    near = rng.random(len(rows.neighbors)) < 0.1
    ends = np.repeat(np.arange(20_000), np.diff(rows.indptr))
    rows.neighbors[near] = np.maximum(0, ends[near] - 1)
    found = [Labels(np.arange(20_000) % num_labels, np.ones((20_000, 1)), num_labels) for _ in range(2)]
    capacity = np.array([max(50, 21_000 // num_labels)])
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
        PairTable(10).add(rows, labels.labels)
    with pytest.raises(DataError, match=f"spread rows: id {bad} at position 1"):
        spread_rows(rows, np.ones((4, 1), np.int64), np.zeros((4, 1), np.int64), threads)


def test_labels_that_are_none() -> None:
    for node in (0, 1):  # as a neighbour, and as its own
        labels = Labels(np.zeros(4), np.ones((4, 1)), 1)
        labels.labels[node] = 1
        with pytest.raises(NativeError, match="assign rows"):
            labels.propagate(written({1: [0]}, 4), np.array([9]), everywhere=False)


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_labels=st.sampled_from([1, 2, 9, 60]),
    dtype=st.sampled_from([np.int32, np.int64]),
    size=st.sampled_from([1, 7, 1000]),
)
def test_pairs(seed, num_labels, dtype, size):
    rng = np.random.default_rng(seed)
    rows = random_rows(rng, int(rng.integers(1, 80)), dtype)
    labels = rng.integers(0, num_labels, rows.num_nodes).astype(np.int32)
    table = PairTable(10_000)
    for chunk in chunks(rows, size):
        table.add(chunk, labels)
    low, high, counts = (column.tolist() for column in pairs_of(table, num_labels))
    want = assign_reference.count_pairs(*tensors(rows), 0, torch.from_numpy(labels))
    assert dict(zip(zip(low, high, strict=True), counts, strict=True)) == want
    assert list(zip(low, high, strict=True)) == list(want)
    assert table.forgotten == 0


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    limit=st.sampled_from([1, 2, 3, 8, 31]),
    skew=st.sampled_from([1, 4]),  # 4: the low labels have most of the edges
    size=st.sampled_from([1, 7, 1000]),
)
def test_pairs_in_a_full_table(seed, limit, skew, size):
    rng = np.random.default_rng(seed)
    rows = random_rows(rng, 80)
    labels = (rng.random(80) ** skew * 60).astype(np.int32)
    table = PairTable(limit)
    for chunk in chunks(rows, size):
        table.add(chunk, labels)
    low, high, counts = (column.tolist() for column in pairs_of(table, 60))
    want, forgotten = assign_reference.count_pairs_within(*tensors(rows), 0, torch.from_numpy(labels), limit)
    assert dict(zip(zip(low, high, strict=True), counts, strict=True)) == want
    assert table.forgotten == forgotten


def test_full_table_of_heavy_pairs() -> None:
    """Pairs of more edges than are counted one by one, two of which have equally many."""
    labels = np.arange(6, dtype=np.int32)
    table = PairTable(4)
    table.add(written({0: [1] * 3000 + [2] * 5000 + [3] * 3000 + [4] * 1023 + [5]}, 6), labels)
    low, high, counts = (column.tolist() for column in pairs_of(table, 6))
    assert list(zip(low, high, counts, strict=True)) == [(0, 1, 3000), (0, 2, 5000), (0, 5, 1)]
    assert table.forgotten == 3000 + 1023


@pytest.mark.parametrize("size", [1, 13, 1000])
def test_full_table_forgets_the_lightest(size: int) -> None:
    """Half of the rows' entries are those of 20 pairs, which come again and again; the others are rare."""
    rng = np.random.default_rng(0)
    lists = {node: [500 + node % 20] * 20 + rng.integers(520, 1000, 20).tolist() for node in range(400)}
    rows, labels = written(lists, 1000), np.arange(1000, dtype=np.int32)
    labels[:500] %= 20
    table = PairTable(100)
    for chunk in chunks(rows, size):
        table.add(chunk, labels)
    low, high, counts = pairs_of(table, 1000)
    assert 0 < len(low) <= 100
    heavy = np.argsort(-counts, kind="stable")[:20]
    assert sorted(zip(low[heavy].tolist(), high[heavy].tolist(), strict=True)) == [(i, 500 + i) for i in range(20)]
    assert counts[heavy].tolist() == [400] * 20  # 20 of each of 20 rows, none lost
    assert counts.sum() + table.forgotten == 400 * 40
    whole = PairTable(100)
    whole.add(rows, labels)
    for column, again in zip(pairs_of(table, 1000), pairs_of(whole, 1000), strict=True):
        assert column.tolist() == again.tolist()  # however it is cut


def test_row_longer_than_the_table() -> None:
    """A hub with more neighbours than the table has room for."""
    rows = written({0: [*range(1, 1000), *range(1, 1000)]}, 1000, np.int64)
    table = PairTable(16)
    table.add(rows, np.arange(1000, dtype=np.int32))
    low, _, counts = pairs_of(table, 1000)
    assert 8 <= len(low) <= 16
    assert counts.sum() + table.forgotten == 2 * 999


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
    table = PairTable(10)
    table.add(written({0: [3]}, 4), np.arange(4, dtype=np.int32))
    with pytest.raises(NativeError, match="list pairs"):
        table.graph(3)


def test_more_labels_than_32_bits_count() -> None:
    """Refused before an array of that length is made."""
    with pytest.raises(DataError, match="got 2,147,483,648, but labels are 32-bit numbers, at most 2,147,483,647"):
        Labels(np.zeros(0, np.int32), np.zeros((0, 1), np.int32), 2**31)
