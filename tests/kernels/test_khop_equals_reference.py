"""The whole native batch equals the plain-torch reference, on any number of parts and threads."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from glt_lightning.base import DataError, DrawOptions, PartitionError
from glt_lightning.kernels import KHopOp, khop
from tests.helpers.examples import examples
from tests.helpers.graphs import (
    HETERO,
    SINGLE,
    CutGraph,
    TypedGraph,
    cut,
    excluded_edges,
    random_excluded,
    random_seeds,
)
from tests.reference import ops as reference

KEYS = st.integers(0, 2**64 - 1)
FANOUT = st.sampled_from([-1, 1, 2, 3, 7, 100])


def assert_equals_reference(
    graph: TypedGraph, parts: CutGraph, op: KHopOp, seeds, fanouts, key, replace, excluded=None
):
    gone = None if excluded is None else excluded_edges(graph, excluded, parts.gid_of).find(parts.view)
    got = op({t: parts.gid_of[t][ids] for t, ids in seeds.items()}, key, gone)
    want = reference.khop(
        graph.reference(),
        len(graph.num_nodes),
        {t: torch.from_numpy(ids) for t, ids in seeds.items()},
        fanouts,
        batch_key=key,
        replace=replace,
        excluded=excluded,
    )
    for t, n_id in enumerate(want.n_id):
        assert got.uid[t].tolist() == n_id.tolist()
        assert got.gid[t].tolist() == parts.gid_of[t][n_id.numpy()].tolist()
    for r, edge_index in enumerate(want.edge_index):
        assert got.src[r].tolist() == edge_index[0].tolist()
        assert got.dst[r].tolist() == edge_index[1].tolist()
        assert parts.edge_ids[r][got.edge_row[r]].tolist() == want.e_id[r].tolist()
    assert got.nodes_per_hop.tolist() == want.nodes_per_hop
    assert got.edges_per_hop.tolist() == want.edges_per_hop


@settings(max_examples=examples(150), deadline=None)
@given(
    data=st.data(),
    seed=st.integers(0, 2**32),
    edge_types=st.sampled_from([SINGLE, HETERO]),
    parts=st.sampled_from([1, 2, 5]),
    replace=st.booleans(),
    dtype=st.sampled_from([np.int32, np.int64]),
    key=KEYS,
)
def test_random_graphs(data, seed, edge_types, parts, replace, dtype, key):
    rng = np.random.default_rng(seed)
    graph = TypedGraph.random(rng, edge_types)
    if seed % 2:
        graph.weigh(rng)
    graph.labor = bool(seed & 2) and not replace
    pieces = cut(graph, parts, rng, dtype)
    fanouts = data.draw(
        st.lists(st.lists(FANOUT, min_size=len(edge_types), max_size=len(edge_types)), min_size=1, max_size=3)
    )
    seeds = random_seeds(graph, rng)
    op = KHopOp(pieces.view, fanouts, DrawOptions(replace=replace, with_edge=True))
    assert_equals_reference(graph, pieces, op, seeds, fanouts, key, replace)
    excluded = random_excluded(graph, rng)
    assert_equals_reference(graph, pieces, op, seeds, fanouts, key, replace, excluded)


@pytest.mark.parametrize(("replace", "labor"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize(
    ("degree", "weighted"),
    [(d, w) for d in (1, 63, 64, 65, 200, 5000, 40000) for w in (False, True) if d < 40000 or not w],
)
@pytest.mark.parametrize("fanout", [1, 5, 64, 300])
def test_every_way_of_picking(degree, weighted, fanout, replace, labor):
    """One word, a bit set and insertion are chosen by degree and fan-out; all pick what Floyd's algorithm picks. LABOR looks at
    the smallest numbers alone where it can."""
    sources = np.arange(degree)
    graph = TypedGraph.random(np.random.default_rng(0))
    graph.num_nodes = [degree + 1]
    graph.edges = [np.stack([sources, np.full(degree, degree)])]
    if weighted:
        graph.weights[0] = np.random.default_rng(3).integers(0, 2**31 // degree // 4, degree) // 3 * 3
    graph.labor = labor
    pieces, some = cut(graph, 1, np.random.default_rng(1)), np.random.default_rng(2).permutation(degree)[: degree // 3]
    op = KHopOp(pieces.view, [[fanout]], DrawOptions(replace=replace, with_edge=True))
    for key in (0, 2**64 - 1):
        for excluded in (None, {0: {(degree, src) for src in some.tolist()}}):
            assert_equals_reference(graph, pieces, op, {0: np.array([degree])}, [[fanout]], key, replace, excluded)


@pytest.mark.parametrize("fanout", [1, 7, 64])
def test_weighted_rows_that_are_drawn_together(fanout):
    """Of any lengths; weights alike, missing, or so different that no entry lies near to its share of the row."""
    rng = np.random.default_rng(fanout)
    degrees = np.append(rng.integers(1, 300, 65), [1, fanout, fanout + 1, 64, 65, 900])
    n, width = len(degrees), int(degrees.max())
    graph = TypedGraph.random(rng)
    graph.num_nodes = [n + width]
    graph.edges = [np.stack([n + np.concatenate([np.arange(d) for d in degrees]), np.repeat(np.arange(n), degrees)])]
    alike, rare = rng.integers(1, 50, degrees.sum()), rng.integers(1, 9, degrees.sum()) // 8
    skewed = (rng.pareto(0.5, degrees.sum()) + 1).clip(max=2**21).astype(np.int64)
    kinds = np.stack([alike, rare, np.sort(skewed)])
    graph.weights[0] = kinds[np.repeat(rng.integers(0, 3, n), degrees), np.arange(degrees.sum())]
    pieces = cut(graph, 2, rng)
    op = KHopOp(pieces.view, [[fanout]], DrawOptions(with_edge=True))
    for seeds in (rng.permutation(n), np.arange(33), np.arange(3)):
        assert_equals_reference(graph, pieces, op, {0: seeds}, [[fanout]], 5, False)


@pytest.mark.parametrize("with_edge", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_threads_do_not_matter(with_edge, replace):
    rng = np.random.default_rng(5)
    n = 6000
    graph = TypedGraph.random(rng)
    graph.num_nodes = [n]
    graph.edges = [(rng.random((2, 20 * n)) ** 2 * n).astype(np.int64)]
    pieces = cut(graph, 3, rng)
    seeds = pieces.gid_of[0][rng.permutation(n)[:4000]]
    results = []
    for threads in (1, 2, 5):
        op = KHopOp(pieces.view, [[7], [3]], DrawOptions(replace=replace, with_edge=with_edge, threads=threads))
        results.append(op({0: seeds}, 99))
    for other in results[1:]:
        for name in ("gid", "uid", "src", "dst", "edge_row"):
            mine, theirs = getattr(results[0], name)[0], getattr(other, name)[0]
            assert mine is theirs is None or np.array_equal(mine, theirs), name


def test_workspace_grows_to_any_batch():
    """Fan-out -1 has no bound in advance: the call is made again with more memory and gives the same batch."""
    rng = np.random.default_rng(7)
    graph = TypedGraph.random(rng)
    graph.num_nodes = [50]
    graph.edges = [rng.integers(0, 50, (2, 60_000))]
    pieces = cut(graph, 2, rng)
    op = KHopOp(pieces.view, [[-1], [-1]], DrawOptions(with_edge=True))
    op._scratch = op._scratch[:8]
    op._edge_array(0, 4)
    op._node_array(0, 1)
    op._sized_for, op._settled = [3], True
    op._table_slots(1)
    op._bind()
    assert_equals_reference(graph, pieces, op, {0: np.array([3, 4, 3])}, [[-1], [-1]], 11, False)


def test_one_op_serves_batches_of_any_size():
    rng = np.random.default_rng(8)
    graph = TypedGraph.random(rng, HETERO)
    pieces = cut(graph, 2, rng)
    op = KHopOp(pieces.view, [[2, 2, 2], [3, 3, 3]], DrawOptions(with_edge=True))
    for size in (1, 9, 0, 4, 30, 1):
        seeds = rng.integers(0, graph.num_nodes[1], size)
        assert_equals_reference(graph, pieces, op, {1: seeds}, [[2, 2, 2], [3, 3, 3]], size, False)


@pytest.mark.parametrize("nodes_per_slot", [0, 8], ids=["hashed", "one slot per node"])
def test_a_batch_does_not_see_what_others_left_in_the_table(nodes_per_slot, monkeypatch):
    """Also behind a batch that failed half-way, and at the end of the table's numbers."""
    monkeypatch.setattr(khop, "_NODES_PER_SLOT_IN_CACHE", nodes_per_slot)
    rng = np.random.default_rng(9)
    graph = TypedGraph.random(rng)
    graph.num_nodes, graph.edges = [500], [rng.integers(0, 500, (2, 9000))]
    pieces = cut(graph, 2, rng)
    op = KHopOp(pieces.view, [[3], [2]], DrawOptions(with_edge=True))
    op._table = np.full(500, -1)
    for key, base in enumerate((None, None, None, 2**31 - 20, None, 0, 2**32 - 20, None)):
        if base is not None:
            op._table_base[0] = base
        if key == 2:
            with pytest.raises(DataError):
                op({0: np.append(pieces.gid_of[0][:4], -1)}, key)
        seeds = rng.integers(0, 500, 5 + key % 2)
        assert_equals_reference(graph, pieces, op, {0: seeds}, [[3], [2]], key, False)
        assert (op._table_base[0] > 0) == (nodes_per_slot > 0)


@pytest.mark.parametrize("bad", [-1, 1 << 40])
def test_a_seed_outside_the_graph_is_refused(bad):
    pieces = cut(TypedGraph.random(np.random.default_rng(0)), 1, np.random.default_rng(0))
    op = KHopOp(pieces.view, [[2]])
    with pytest.raises(DataError, match=f"id {bad} at position 1"):
        op({0: np.array([0, bad])}, 0)


def test_a_damaged_row_is_refused():
    rng = np.random.default_rng(3)
    graph = TypedGraph.random(rng)
    graph.num_nodes, graph.edges = [4], [np.array([[0, 1, 2, 3], [1, 2, 3, 0]])]
    pieces = cut(graph, 1, rng)
    edge_type = pieces.view._keep[0][0]
    edge_type.indices[0] = 77
    with pytest.raises(PartitionError, match="names neighbour 77"):
        KHopOp(pieces.view, [[-1]])({0: np.arange(4)}, 0)
    edge_type.indices[0] = 0
    edge_type.indptr[1] = 1000
    with pytest.raises(PartitionError, match="outside its array"):
        KHopOp(pieces.view, [[-1]])({0: pieces.gid_of[0]}, 0)
