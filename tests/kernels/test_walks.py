"""Walks and their visits against the reference, their laws, and what is refused."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import chisquare

from glt_lightning.base import DataError, PartitionError
from glt_lightning.kernels import ExcludedEdges, WalkRule, Walks, hop_key
from tests.helpers.graphs import HETERO, TypedGraph, cut
from tests.kernels.test_has_edges import one_type
from tests.reference.ops import row_weights
from tests.reference.walks import most_visited, random_walk, walk_stream

METAPATHS = [(0, 1), (1, 0), (2,), (1, 0, 1), (2, 2, 0, 1)]  # over HETERO: a likes b, b by a, b near b


def rows_of(edge_type):
    """For `walk_reference`."""
    found = {}
    for row, (begin, end) in enumerate(pairwise(edge_type.indptr.tolist())):
        sums = None if edge_type.sums is None else edge_type.sums[begin:end]
        weights = [1] * (end - begin) if sums is None else row_weights(sums)
        found[row] = list(zip(edge_type.neighbors[begin:end].tolist(), weights, strict=True))
    return found


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    parts=st.integers(1, 4),
    threads=st.sampled_from([1, 3]),
    dtype=st.sampled_from([np.int32, np.int64]),
    restart=st.sampled_from([0.0, 0.4, 1.0]),
    ends=st.booleans(),
)
def test_as_the_reference(seed, parts, threads, dtype, restart, ends):
    rng = np.random.default_rng(seed)
    graph = TypedGraph.random(rng, HETERO)
    graph = graph.weigh(rng) if seed % 2 else graph
    pieces, reference = cut(graph, parts, rng, dtype), graph.reference()
    metapath = METAPATHS[int(rng.integers(len(METAPATHS)))]
    length, each = int(rng.integers(1, 7)), 3
    node_type = reference[metapath[0]].destination
    once = WalkRule(edge_types=metapath, length=length, restart=WalkRule.threshold(restart), ends=ends)
    if reference[metapath[-1]].source != node_type:
        length = min(length, len(metapath))
        once = WalkRule(edge_types=metapath, length=length, restart=once.restart, ends=ends)
    once.require(pieces.view.src_types.tolist(), pieces.view.dst_types.tolist())
    roots = rng.integers(0, graph.num_nodes[node_type], 12)
    trees = rng.integers(0, 5, 12).astype(np.int32) if seed % 3 else None
    key, gids = hop_key(seed, 2, 99), pieces.gid_of[node_type][roots]
    walks = Walks.begin(once, gids, pieces.view.user_ids_of(node_type, gids), each, key, trees)
    streams = walks.streams.tolist()
    of_tree = [None] * 12 if trees is None else trees.tolist()
    assert streams == [
        walk_stream(key, u, w, t) for u, t in zip(roots.tolist(), of_tree, strict=True) for w in range(each)
    ]
    rows, without = {r: rows_of(reference[r]) for r in set(metapath)}, {}
    for r in rows if seed % 5 else []:  # some edges, with all their copies; of some nodes all
        gone = {(v, s) for v, row in rows[r].items() for s, _ in row if rng.random() < 0.3 or v % 4 == 0}
        rows[r] = {v: [(s, w) for s, w in row if (v, s) not in gone] for v, row in rows[r].items()}
        dst, src = np.array(sorted(gone), dtype=np.int64).reshape(-1, 2).T
        without[r] = pieces.gid_of[reference[r].destination][dst], pieces.gid_of[reference[r].source][src]
    walks.advance(pieces.view, threads=threads, excluded=ExcludedEdges.of(without).find(pieces.view))
    assert (walks.step == length).all()
    rule = [rows[r] for r in metapath]
    types = [reference[metapath[j % len(rule)]].source for j in range(length)]
    to_user = [np.append(np.argsort(gid - gid.min()), -1) for gid in pieces.gid_of]  # of -1 it is -1
    offsets = [gid.min() for gid in pieces.gid_of]
    traces = []
    for trace, u, stream in zip(walks.trace, np.repeat(roots, each).tolist(), streams, strict=True):
        expected = random_walk(rule, u, stream, length, once.restart, ends)
        found = [int(to_user[t][g - offsets[t] if g >= 0 else -1]) for t, g in zip(types, trace.tolist(), strict=True)]
        assert found == expected
        traces.append(trace.tolist())
    for every, most, own in ((1, -1, False), (1, 2, True), (2, 1, False)):
        picks = walks.visits(each, every, most, None if own else gids, threads)
        found = np.split(np.stack([picks.neighbors, picks.edge_rows], axis=1), np.cumsum(picks.counts)[:-1])
        for i, visits in enumerate(found):
            mine = traces[i * each : (i + 1) * each]
            assert [tuple(v) for v in visits.tolist()] == most_visited(mine, every, most, None if own else int(gids[i]))


def walked(graph, rule: WalkRule, count: int, root: int = 0) -> np.ndarray:
    walks = Walks.begin(rule, np.array([root]), np.array([root]), count, hop_key(3, 0, 1))
    walks.advance(graph)
    return walks.trace


def test_steps_and_restarts_are_drawn_as_they_should_be():
    """A step is uniform over the edges into a node, parallel ones each for itself; restarts have their probability, and do not
    depend on the steps beside them."""
    graph = one_type([0, 4, 5, 6, 7], [1, 2, 3, 3, 0, 0, 0])
    trace = walked(graph, WalkRule(edge_types=(0,), length=1), 40_000)[:, 0]
    assert chisquare(np.bincount(trace)[1:], [10_000, 10_000, 20_000]).pvalue > 1e-4
    ring = one_type([0, 1, 2, 3, 4], [1, 2, 3, 0])  # one way to go: only restarts are drawn
    trace = walked(ring, WalkRule(edge_types=(0,), length=3, restart=WalkRule.threshold(0.3)), 40_000)
    paths, counts = np.unique(trace, axis=0, return_counts=True)
    assert paths.tolist() == [[1, 1, 1], [1, 1, 2], [1, 2, 1], [1, 2, 3]]
    assert chisquare(counts, np.array([0.09, 0.21, 0.21, 0.49]) * 40_000).pvalue > 1e-4
    trace = walked(ring, WalkRule(edge_types=(0,), length=3, restart=WalkRule.threshold(0.3), ends=True), 40_000)
    lengths = np.bincount((trace >= 0).sum(axis=1), minlength=4)[1:]
    assert chisquare(lengths, np.array([0.3, 0.21, 0.49]) * 40_000).pvalue > 1e-4


def test_a_walk_with_restarts_visits_by_personalised_page_rank():
    """Of walks that end with probability a, the share of those whose last node is v is v's entry of the geometric sum."""
    rows = [[1, 2], [0, 2, 3], [0], [1, 2]]
    graph = one_type([0, 2, 5, 6, 8], [1, 2, 0, 2, 3, 0, 1, 2])
    step = np.zeros((4, 4))
    for v, row in enumerate(rows):
        step[v, row] = 1 / len(row)
    a, count = 0.4, 60_000
    trace = walked(graph, WalkRule(edge_types=(0,), length=40, restart=WalkRule.threshold(a), ends=True), count)
    last = trace[np.arange(count), (trace >= 0).sum(axis=1) - 1]
    law = a * step[0] @ np.linalg.inv(np.eye(4) - (1 - a) * step)
    assert chisquare(np.bincount(last, minlength=4), law * count).pvalue > 1e-4


def test_a_walk_goes_on_where_its_row_is():
    """It stops before a row that is not mapped, and goes on as it would have."""
    rng = np.random.default_rng(0)
    graph = TypedGraph.random(rng)
    pieces = cut(graph, 3, rng)
    rule = WalkRule(edge_types=(0,), length=20, restart=WalkRule.threshold(0.2))
    roots = pieces.gid_of[0]
    whole, split = (Walks.begin(rule, roots, np.arange(len(roots)), 4, 5) for _ in range(2))
    whole.advance(pieces.view)
    view, owners = pieces.view, np.arange(len(whole))
    kept = [view.arrays(0, p) for p in range(3)]
    for _ in range(20):
        for p in range(3):
            alone = type(view)(
                view.bounds,
                [each if q == p else None for q, each in enumerate(kept)],
                [None] * 3,
                [1],
                [0],
                [0],
                np.array([[len(each.indices) for each in kept]]),
            )
            split.advance(alone, split.under_way(owners))
    assert split.trace.tolist() == whole.trace.tolist()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"edge_types": ()}, "walk: expected edge types, and a length"),
        ({"length": 0}, "a length of 1 to 65536 steps"),
        ({"length": 2.5}, "a length of 1 to 65536 steps"),
        ({"restart": (1 << 32) + 1}, "walk: restart: expected 0 to 4294967296"),
    ],
)
def test_rules_that_no_walk_has(given, message):
    with pytest.raises(DataError, match=message):
        WalkRule(**{"edge_types": (0,), "length": 3} | given)


def test_what_is_wrong_is_said():
    types = [0, 1, 1], [1, 0, 1]  # sources and destinations of HETERO
    with pytest.raises(DataError, match="edge type 0 leads to nodes of type 0, and edge type 2 goes on from type 1"):
        WalkRule(edge_types=(0, 2), length=2).require(*types)
    WalkRule(edge_types=(0,), length=1).require(*types)
    with pytest.raises(DataError, match="edge type 0 leads to nodes of type 0, and edge type 0 goes on from type 1"):
        WalkRule(edge_types=(0,), length=2).require(*types)
    with pytest.raises(DataError, match="expected edge types 0 to 2, got 3"):
        WalkRule(edge_types=(3,), length=2).require(*types)
    rule = WalkRule(edge_types=(0,), length=1)
    for graph, root, kind, message in (
        (one_type([0, 1, 9], [0, 1]), 1, PartitionError, "points to 1:9, outside its array"),
        (one_type([0, 1, 1], [7]), 0, PartitionError, "names neighbour 7, which is no node"),
        (one_type([0, 1, 1], [0]), 2, DataError, "id 2 at position 0 is not in the graph"),
    ):
        with pytest.raises(kind, match=message):
            walked(graph, rule, 1, root)
