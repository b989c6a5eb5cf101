"""The rows that assigners and hotness read are the user's edges, whatever the chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from glt_lightning.base import EDGE, PartitionOptions, Progress
from glt_lightning.kernels import MetisGraph, NeighborRows
from glt_lightning.partition import ArraySource, GraphToPartition
from glt_lightning.partition.assign.assigners import fill
from glt_lightning.partition.build.edge_types import StoredEdgeType
from glt_lightning.partition.build.steps import count_edges
from glt_lightning.partition.build.stored_graph import StoredGraph
from glt_lightning.partition.build.topology import GraphTopology, remove_rows
from glt_lightning.partition.tasks.engine import run_tasks
from tests.helpers.examples import examples
from tests.helpers.partition_truth import HETERO, random_source, stored_edges

Rows = dict[int, list[int]]


@contextmanager
def topology_of(source: ArraySource, undirected: bool, folder: Path) -> Iterator[GraphTopology]:
    made = {"undirected": undirected, "normalize": "none"}
    graph = StoredGraph(source, PartitionOptions(memory_bytes=1 << 20), {}, made, Progress(False))
    with run_tasks(graph, folder, "", False) as tasks:
        yield GraphTopology(tasks, count_edges(tasks))


def listed(chunks: Iterable[NeighborRows]) -> Rows:
    """Node -> its neighbours, sorted. Each node has one row at most."""
    found: Rows = {}
    for rows in chunks:
        for i in range(len(rows)):
            assert rows.first + i not in found
            found[rows.first + i] = sorted(rows.neighbors[rows.indptr[i] : rows.indptr[i + 1]].tolist())
    return found


def both_ways(source: ArraySource, offset: dict[str, int], total: int) -> Rows:
    """Each edge in the rows of both its ends; those within a node type once, however often they are listed."""
    rows: Rows = {node: [] for node in range(total)}
    for (s, _, d), index in source.edge_index.items():
        pairs = [(u + offset[s], v + offset[d]) for u, v in index.T.tolist()]
        pairs += [(v, u) for u, v in pairs]
        for u, v in set(pairs) if s == d else pairs:
            rows[u].append(v)
    return {node: sorted(neighbors) for node, neighbors in rows.items()}


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    edge_types=st.sampled_from([(EDGE,), HETERO]),
    undirected=st.booleans(),
    most=st.sampled_from([1, 7, 1 << 22]),
    symmetric=st.booleans(),
    sampled_first=st.booleans(),
)
def test_rows(seed, edge_types, undirected, most, symmetric, sampled_first):
    source = random_source(np.random.default_rng(seed), edge_types, nodes=20)
    if symmetric:  # no edge twice, each with its reverse
        for (s, rel, d), index in source.edge_index.items():
            both = np.concatenate([index, index[::-1]], axis=1) if s == d else index
            source.edge_index[s, rel, d] = np.unique(both, axis=1)
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr("glt_lightning.partition.build.topology._MOST_EDGES", most)
        with topology_of(source, undirected, Path(name)) as topology:
            offset = {t: topology.offset(t) for t in topology.num_nodes}
            if sampled_first:
                _check_sampled(source, undirected, topology)
            expected = both_ways(source, offset, topology.total)
            assert listed(topology.neighbors()) == expected
            _check_sampled(source, undirected, topology)
            options = PartitionOptions(num_parts=2)
            with MetisGraph(np.ones((topology.total, 1), np.int32), topology.num_neighbors) as metis:
                fill(metis, GraphToPartition(source, topology, {}, options, Progress(False)))
            assert list(Path(name).glob("work/topology*"))
        remove_rows(topology.folder)
        assert not list(Path(name).glob("work/topology*"))
    assert len(metis.indptr) == topology.total + 1
    assert metis.indptr[0] == 0
    rows = [sorted(metis.neighbors[a:b].tolist()) for a, b in pairwise(metis.indptr)]
    assert rows == [[u for u in expected[v] if u != v] for v in range(topology.total)]


@pytest.mark.parametrize("sampled_first", [True, False])
@pytest.mark.parametrize(
    ("edges", "sorts"),
    [
        ([(0, 1), (1, 0), (1, 2), (2, 1), (2, 2)], 1),
        ([(0, 1), (1, 0), (1, 2)], 2),
        ([(0, 1), (1, 2), (2, 0)], 2),  # as many edges in as out
        ([(0, 1), (1, 0), (0, 1), (1, 0)], 2),  # merged in one of the two
    ],
)
def test_symmetric_edges_are_sorted_once(tmp_path: Path, edges, sorts: int, sampled_first: bool) -> None:
    source = random_source(np.random.default_rng(0), (EDGE,), nodes=4)
    source.edge_index[EDGE] = np.array(edges, np.int64).T
    reverse = [(v, u) for u, v in edges]
    with topology_of(source, False, tmp_path) as topology:
        if sampled_first:
            list(topology.sampled(StoredEdgeType(EDGE, EDGE)))
        both = listed(topology.neighbors())
        assert both == {v: sorted({u for u, w in edges + reverse if w == v}) for v in both}
        rows = listed(topology.sampled(StoredEdgeType(EDGE, EDGE)))
        assert rows == {v: sorted(u for u, w in edges if w == v) for v in rows}
        assert len(list(tmp_path.glob("work/topology*"))) == sorts
        rows = listed(topology.sampled(StoredEdgeType(EDGE, EDGE, flip=True)))
        assert rows == {v: sorted(u for u, w in reverse if w == v) for v in rows}


def _check_sampled(source: ArraySource, undirected: bool, topology: GraphTopology) -> None:
    for stored_type in topology.stored_types:
        src, _, dst = stored_type.edge_type
        edges = Counter((u, v) for u, v, _ in stored_edges(source, undirected)[stored_type.edge_type])
        found = listed(topology.sampled(stored_type))
        assert sorted(found) == [topology.offset(dst) + v for v in range(topology.num_nodes[dst])]
        pairs = ((u - topology.offset(src), v - topology.offset(dst)) for v, row in found.items() for u in row)
        assert Counter(pairs) == edges
        indptr, neighbors = topology.sampled_arrays(stored_type)
        assert np.diff(indptr).tolist() == [len(row) for row in found.values()]
        assert sorted(neighbors.tolist()) == sorted(u for row in found.values() for u in row)
