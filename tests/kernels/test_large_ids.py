"""Ids around 2^31 and 2^32, where narrow integers and narrow table slots end."""

import numpy as np
import pytest

from glt_lightning.base import DataError, DrawOptions
from glt_lightning.kernels import BatchBuilder, EdgeTypeArrays, GraphView, KHopOp, Picks
from tests.helpers.graphs import TypedGraph, cut
from tests.helpers.rows import sample_rows

NODES = 40


def shifted(start: int) -> tuple[GraphView, GraphView]:
    """A graph of 40 nodes, alone and behind a huge node type whose part is elsewhere: the same with larger ids."""
    rng = np.random.default_rng(4)
    graph = TypedGraph.random(rng)
    graph.num_nodes, graph.edges = [NODES], [(rng.random((2, 300)) ** 2 * NODES).astype(np.int64)]
    plain = cut(graph, 1, rng, np.int64).view
    (edge_type,), (users,) = plain._keep
    assert edge_type is not None
    far = EdgeTypeArrays(edge_type.indptr, edge_type.indices + start)
    bounds = np.array([0, start, start + NODES])
    counts = np.array([[len(far.indices)]])
    return plain, GraphView(bounds, [far], [None, users], plain.keys.tolist(), [1], [1], counts)


@pytest.mark.parametrize("start", [2**31 - NODES // 2, 2**32 - NODES // 2, 2**32 - NODES, 2**40])
@pytest.mark.parametrize("fanouts", [[[3], [2]], [[-1], [-1]]])
def test_a_batch_is_the_same_but_for_its_gids(start, fanouts):
    plain, far = shifted(start)
    seeds = np.array([0, 39, 17, 0, 20])
    a, b = (
        KHopOp(plain, fanouts, DrawOptions(with_edge=True))({0: seeds}, 9),
        KHopOp(far, fanouts, DrawOptions(with_edge=True))({1: seeds + start}, 9),
    )
    assert (a.gid[0] + start).tolist() == b.gid[1].tolist()
    assert a.uid[0].tolist() == b.uid[1].tolist()
    for name in ("src", "dst", "edge_row"):
        assert getattr(a, name)[0].tolist() == getattr(b, name)[0].tolist()
    assert b.nodes_per_hop[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("start", [2**31 - NODES // 2, 2**32 - NODES // 2, 2**40])
def test_sampled_rows_are_the_same_but_for_their_gids(start):
    plain, far = shifted(start)
    rows = np.arange(NODES)
    counts, neighbors, _ = sample_rows(plain, 0, rows, 3, batch_key=1, hop=0)
    far_counts, far_neighbors, _ = sample_rows(far, 0, rows + start, 3, batch_key=1, hop=0)
    assert counts.tolist() == far_counts.tolist()
    assert (neighbors + start).tolist() == far_neighbors.tolist()


def test_a_node_whose_part_is_elsewhere_is_named():
    _, far = shifted(2**31)
    with pytest.raises(
        DataError, match="id 5 at position 0 is not in the graph, or its part is not mapped by this process"
    ):
        KHopOp(far, [[2]])({0: np.array([5])}, 0)


@pytest.mark.parametrize("start", [2**31 - NODES // 2, 2**32 - NODES // 2, 2**32 - NODES, 2**40])
def test_a_batch_built_step_by_step_is_that_of_one_call(start):
    _, far = shifted(start)
    seeds = np.array([0, 39, 17, 0, 20]) + start
    expected = KHopOp(far, [[3], [2]], DrawOptions(with_edge=True))({1: seeds}, 9)
    builder = BatchBuilder(far, DrawOptions(with_edge=True))
    builder.start({1: seeds})
    for hop, fanout in enumerate((3, 2)):
        rows = builder.frontier[1]
        builder.merge(0, [Picks(*sample_rows(far, 0, rows, fanout, batch_key=9, hop=hop, with_edge=True))], None)
        builder.end_hop()
    found = builder.result()
    for name in ("gid", "src", "dst", "edge_row"):
        assert [a.tolist() for a in getattr(found, name)] == [a.tolist() for a in getattr(expected, name)]
    assert found.nodes_per_hop.tolist() == expected.nodes_per_hop.tolist()
    assert found.edges_per_hop.tolist() == expected.edges_per_hop.tolist()
