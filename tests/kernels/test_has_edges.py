"""has_edges against the reference, and what it refuses."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from glt_lightning.base import DataError, PartitionError
from glt_lightning.kernels import EdgeTypeArrays, ExcludedEntries, GraphView
from tests.helpers.examples import examples
from tests.helpers.graphs import HETERO, TypedGraph, cut
from tests.reference import ops as reference


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    parts=st.integers(1, 4),
    threads=st.sampled_from([1, 3]),
    dtype=st.sampled_from([np.int32, np.int64]),
)
def test_as_the_reference(seed, parts, threads, dtype):
    rng = np.random.default_rng(seed)
    graph = TypedGraph.random(rng, HETERO)
    pieces = cut(graph, parts, rng, dtype)
    for r, each in enumerate(graph.reference()):
        dst, src = (rng.integers(0, graph.num_nodes[t], 40) for t in (each.destination, each.source))
        expected = reference.has_edges(each.indptr, each.neighbors, torch.from_numpy(dst), torch.from_numpy(src))
        again = rng.integers(0, 40, 4000)  # so many that threads share them
        ends = pieces.gid_of[each.destination][dst[again]], pieces.gid_of[each.source][src[again]]
        found = pieces.view.has_edges(r, *ends, threads=threads)
        assert found.tolist() == expected[again].tolist()
        assert found.tolist() == pieces.view.has_edges(r, *(gids.astype(np.int32) for gids in ends)).tolist()


def one_type(indptr, neighbors, dtype=np.int32, edges=None):
    arrays = EdgeTypeArrays(np.array(indptr, dtype=np.int64), np.array(neighbors, dtype=dtype))
    rows = len(indptr) - 1
    return GraphView(
        np.array([0, rows]), [arrays], [np.arange(rows, dtype=dtype)], [1], [0], [0], np.array([[len(neighbors)]])
    )


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_at_every_place_of_a_row(dtype):
    """Entries are compared many at once; rows of every length up to three times as many, and entries of the next row."""
    for degree in range(200):
        row = np.arange(1, degree + 1)
        graph = one_type([0, degree, degree + 1, *[degree + 1] * 200], [*row, 201], dtype)
        src = np.arange(202)
        assert np.flatnonzero(graph.has_edges(0, np.zeros_like(src), src)).tolist() == row.tolist()


def test_no_pairs():
    assert one_type([0, 1], [0]).has_edges(0, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)).tolist() == []


@pytest.mark.parametrize(
    ("edge_type", "dst", "src", "message"),
    [
        (1, [0], [0], "expected the index of an edge type, 0 to 0, got 1"),
        (-1, [0], [0], "expected the index of an edge type, 0 to 0, got -1"),
        ("to", [0], [0], "expected the index of an edge type, 0 to 0, got 'to'"),
        (0, [0], [0, 1], "expected as many dst as src, got 1 and 2"),
        (0, [0.5], [0], r"dst: expected gids, integers \[n\], got float64 \[1\]"),
        (0, [0], [[0]], r"src: expected gids, integers \[n\], got int64 \[1, 1\]"),
        (0, [0, 2], [0, 0], "dst: gid 2 at position 1 is no node of type 0, whose gids are 0 to 1"),
        (0, [0, 0], [-1, 5], "src: gid -1 at position 0 is no node"),
        (0, [0], [2**32], "src: gid 4294967296 at position 0 is no node"),
    ],
)
def test_what_is_wrong_is_said(edge_type, dst, src, message):
    with pytest.raises(DataError, match=message):
        one_type([0, 1, 2], [0, 1]).has_edges(edge_type, np.array(dst), np.array(src))


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_that_are_not_here_or_damaged(threads):
    rng = np.random.default_rng(0)
    graph = TypedGraph.random(rng)
    pieces = cut(graph, 2, rng)
    some = pieces.view.bounds
    gone = GraphView(some, [pieces.view.arrays(0, 0), None], [None, None], [1], [0], [0], np.array([[0, 0]]))
    dst = np.zeros(5000, dtype=np.int64)
    dst[4321] = some[1]
    with pytest.raises(
        DataError, match=f"id {some[1]} at position 4321 is not in the graph, or its part is not mapped"
    ):
        gone.has_edges(0, dst, np.zeros_like(dst), threads=threads)
    with pytest.raises(PartitionError, match="edge type 0 node 1 points to 1:9, outside its array"):
        one_type([0, 1, 9], [0, 1]).has_edges(0, np.array([0, 1]), np.array([0, 0]), threads=threads)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("count", [1, 16, 17, 90])
def test_excluded_edges_of_one_row_are_found_few_or_many(dtype, count):
    """Many are looked for in one pass; copies of an edge are all found, and rows beside it are as they were."""
    rng = np.random.default_rng(count)
    row, beside = rng.integers(0, 100, 300), rng.integers(0, 100, 20)
    graph = one_type([0, 300, 320, *[320] * 98], [*row, *beside], dtype)
    src = np.sort(rng.permutation(100)[:count])
    found = ExcludedEntries.find(graph, 0, np.append(np.zeros(count, int), 1), np.append(src, beside[3]))
    first = np.flatnonzero(np.isin(row, src)).tolist()
    wanted = first + np.flatnonzero(beside == beside[3]).tolist()
    assert found.positions.tolist() == wanted
    assert found.gids.tolist() == ([0, 1] if first else [1])
