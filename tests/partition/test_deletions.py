"""Rows that are deleted are in no batch, which equal those of the graph partitioned anew without them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glt_lightning.base import EDGE, DataError, EdgeType, PartitionOptions, Progress, SamplingOptions
from glt_lightning.graph import LocalPartition, Manifest
from glt_lightning.loader import LinkSpec, LoaderSpec, Session
from glt_lightning.partition import (
    Additions,
    ArraySource,
    NewEdges,
    append_rows,
    compact_partition,
    delete_rows,
    hold_out_edges,
    list_versions,
    open_version,
    partition_graph,
    verify_partition,
)
from glt_lightning.partition.edge_splits.read import KeptEdges, KeptRows
from glt_lightning.partition.versions import Versions
from glt_lightning.tensors import DistGraph, GraphReader
from glt_lightning.workers import Link, Ranks, ServedGraph
from glt_lightning.workers.producer.mapped import HostsGraph
from tests.helpers.contents import contents
from tests.helpers.grown import KINDS as GROWN, TwoVersions, two_versions
from tests.helpers.ranks import run_ranks
from tests.helpers.servers import cluster, of_clients, open_farm
from tests.partition.test_compact import GivenParts, cases, with_edges_to_predict, with_splits
from tests.partition.test_grow import batches
from tests.partition.test_versions import halves

KINDS = {
    **GROWN,
    "undirected, times": {"graph": {"undirected": True, "timed": "edges"}, "sampling": {"time_attr": "time"}},
    "fewer bytes": {"graph": {"storage": {"x": "int8", "edge_attr": "float16"}, "weighted": True}},
}


@dataclass
class Gone:
    """What is deleted. columns: the edges that are left."""

    nodes: dict[str, np.ndarray]
    edges: dict[EdgeType, np.ndarray]
    columns: dict[EdgeType, np.ndarray]

    @classmethod
    def of(cls, two: TwoVersions, rng: np.random.Generator) -> Gone:
        whole, nodes, edges, columns = two.whole, {}, {}, {}
        for t, count in whole.num_nodes.items():
            nodes[t] = rng.permutation(count)[: count // 4]
        for e, index in whole.edge_index.items():
            both = two.undirected and e[0] == e[2]
            edges[e] = index[:, rng.permutation(index.shape[1])[: index.shape[1] // 6]]
            ends, pairs = (np.sort(index, axis=0), np.sort(edges[e], axis=0)) if both else (index, edges[e])
            gone = {(int(s), int(d)) for s, d in pairs.T}
            left = [
                k
                for k, (s, d) in enumerate(ends.T)
                if (int(s), int(d)) not in gone and index[0, k] not in nodes[e[0]] and index[1, k] not in nodes[e[2]]
            ]
            columns[e] = np.array(left, np.int64)
        return cls(nodes, edges, columns)


class Left:
    """The graph without the edges that are deleted or, as `undirected` leaves nothing of them, merged; with zeros in place of the
    attributes of deleted nodes, and without them in splits."""

    def __init__(self, two: TwoVersions, gone: Gone) -> None:
        self._source, self._gone, self._both = two.whole, gone, two.undirected

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    @property
    def splits(self) -> Any:
        return {n: (t, ids[~np.isin(ids, self._gone.nodes[t])]) for n, (t, ids) in self._source.splits.items()}

    def node_attrs(self, t: str) -> Mapping[str, np.ndarray]:
        found = {name: np.array(rows[:]) for name, rows in self._source.node_attrs(t).items()}
        for rows in found.values():
            rows[self._gone.nodes[t]] = 0
        return found

    def _columns(self, e: EdgeType) -> np.ndarray:
        left = self._gone.columns[e]
        if not self._both or e[0] != e[2]:
            return left
        ends = np.sort(self._source.edge_index[e][:, left], axis=0)
        times = self._source.edge[e].get("time", np.zeros(self._source.edge_index[e].shape[1], int))[left]
        return left[np.sort(np.unique(np.concatenate([ends, times[None]]), axis=1, return_index=True)[1])]

    def edges(self, e: EdgeType) -> KeptEdges:
        return KeptEdges(self._source.edges(e), self._columns(e))

    def edge_attrs(self, e: EdgeType) -> Mapping[str, KeptRows]:
        return {name: KeptRows(rows, self._columns(e)) for name, rows in self._source.edge_attrs(e).items()}


def specs(two: TwoVersions, gone: Gone, rng: np.random.Generator, timed: bool) -> list[LoaderSpec | LinkSpec]:
    whole, made = two.whole, list[LoaderSpec | LinkSpec]()
    left = {t: np.setdiff1d(np.arange(n), gone.nodes[t]) for t, n in whole.num_nodes.items()}
    for fanouts in ([2, 3], [-1, 2]):
        seeds: Any = {t: rng.choice(left[t], 15) for t in left}
        common: dict[str, Any] = {"num_neighbors": fanouts, "batch_size": 6, "shuffle": True}
        times: Any = {t: rng.integers(0, 7, 15) for t in left}
        edge_type = whole.schema.edge_types[int(rng.integers(len(whole.schema.edge_types)))]
        edges: Any = np.stack([rng.choice(left[t], 15) for t in (edge_type[0], edge_type[2])])
        name, until = "__".join(edge_type), rng.integers(5, 7, 15)
        if whole.schema.homogeneous:
            seeds, times = seeds["node"], times["node"]
        made.append(
            LoaderSpec(name="nodes", seeds=seeds, disjoint=timed, **common, **({"input_time": times} if timed else {}))
        )
        if not timed:
            made.append(LoaderSpec(name="induced", seeds=seeds, subgraph_type="induced", **common))
        link: Any = {"edge_label_time": until if whole.schema.homogeneous else {name: until}} if timed else {}
        edges = edges if whole.schema.homogeneous else {name: edges}
        made.append(LinkSpec(name="edges", edge_label_index=edges, exclude_target_edges="self", **common, **link))
    return made


def with_negatives(spec: LinkSpec, two: TwoVersions) -> list[LinkSpec]:
    of_nodes = any("time" in attrs for attrs in two.whole.node.values())
    modes: list[dict[str, Any]] = [{"mode": "binary"}, {"mode": "triplet", "amount": 2}]
    modes += [] if of_nodes else [{"mode": "binary", "strict": False}, {"mode": "binary", "dst_weight": "degree"}]
    return [replace(spec, neg_sampling=mode | ({"unresolved": "oldest"} if of_nodes else {})) for mode in modes]


def nodes_of(graph: LocalPartition, spec: LoaderSpec | LinkSpec, sampling: SamplingOptions) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {t: set() for t in graph.schema.node_types}
    with Session(graph, sampling, seed=5) as session:
        for batch in session.make_loader(spec):
            for t in found:
                found[t] |= set((batch if graph.schema.homogeneous else batch[t]).n_id.tolist())
    return found


@pytest.mark.parametrize(("kind", "edge_types", "number"), cases(KINDS, {"plain", "undirected, times"}))
def test_batches_equal_those_of_the_graph_without_these_rows(
    tmp_path: Path, kind: str, edge_types: Any, number: int
) -> None:
    rng = np.random.default_rng([number, len(kind), len(edge_types)])
    two = two_versions(rng, edge_types, **KINDS[kind].get("graph", {}))
    with_splits(two, rng)
    given, parts = KINDS[kind].get("sampling", {}), 1 + (number + len(kind)) % 4
    timed, sampling = "time_attr" in given, SamplingOptions(**{"with_edge": True, **given})
    base, gone = two.partition(two.base, tmp_path / "base", parts), Gone.of(two, rng)
    for rows in halves(two, rng):
        append_rows(tmp_path / "base", rows)
    assert delete_rows(tmp_path / "base", edges=gone.edges) == 3
    assert delete_rows(tmp_path / "base", nodes=gone.nodes) == 4
    version, left = open_version(base, "latest"), Left(two, gone)
    options = PartitionOptions(num_parts=parts, **two.options)
    source: Any = left
    anew = partition_graph(
        source, tmp_path / "anew", options, undirected=two.undirected, assigner=GivenParts(version), progress=False
    )
    compacted = compact_partition(tmp_path / "base", tmp_path / "new", forget=True, progress=False)
    marks = {path for path in compacted.arrays if path.endswith("deleted.npy")}
    assert {path: e for path, e in compacted.arrays.items() if path not in marks} == anew.arrays
    assert (compacted.splits, compacted.num_edges) == (anew.splits, version.manifest.num_edges)
    verify_partition(tmp_path / "new", Progress(False))
    opened, other = (LocalPartition.open(tmp_path / name) for name in ("new", "anew"))
    for spec in specs(two, gone, rng, timed):
        expected = batches(other, spec, sampling)
        assert batches(version, spec, sampling) == expected
        assert batches(opened, spec, sampling) == expected
        for each in with_negatives(spec, two) if isinstance(spec, LinkSpec) else ():
            assert batches(opened, each, sampling) == batches(version, each, sampling)
            for t, ids in nodes_of(version, each, sampling).items():
                assert ids.isdisjoint(gone.nodes[t].tolist())
    for graph in (version, opened):
        for t, name in enumerate(graph.schema.node_types):
            assert graph.deleted(t).tolist() == sorted(gone.nodes[name].tolist())
            assert np.array_equal(
                graph.user_ids(t)[graph.seeds(t).gids - graph.manifest.offsets[t]],
                np.setdiff1d(np.arange(two.whole.num_nodes[name]), gone.nodes[name]),
            )
            if len(gone.nodes[name]):
                with pytest.raises(DataError, match="that is deleted"):
                    graph.seeds(t, gone.nodes[name][:1])


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    """0 -> 1 -> ... -> 9 -> 0, in two parts, with parallel edges from 3 to 4."""
    ids = np.arange(10)
    ends = np.concatenate([np.stack([ids, (ids + 1) % 10]), [[3], [4]]], axis=1)
    source = ArraySource(
        name="ring",
        fingerprint="",
        schema=two_versions(np.random.default_rng(0)).base.schema,
        num_nodes={"node": 10},
        edge_index={EDGE: ends},
        splits={"train": ("node", ids[:6])},
        target_type="node",
    )
    partition_graph(source, tmp_path / "ring", PartitionOptions(num_parts=2), progress=False)
    return tmp_path / "ring"


def edges_of(graph: LocalPartition) -> list[tuple[int, int]]:
    spec = LoaderSpec(name="all", seeds=None, num_neighbors=[-1], batch_size=100)
    with Session(graph, SamplingOptions(with_edge=True), seed=5) as session:
        (batch,) = session.make_loader(spec)
    return sorted(zip(*(batch.n_id[row].tolist() for row in batch.edge_index), strict=True))


def test_numbers_of_rows_and_versions(ring: Path) -> None:
    base = LocalPartition.open(ring)
    assert delete_rows(ring, nodes={"node": np.array([7, 7])}, edges={EDGE: np.array([[3], [4]])}) == 1
    (facts,) = list_versions(ring)
    assert (facts.deleted_nodes, facts.deleted_edges) == ({"node": 1}, {"node__to__node": 4})
    version = open_version(base, 1)
    assert edges_of(version) == [(i, (i + 1) % 10) for i in (0, 1, 2, 4, 5, 8, 9)]
    # an edge that comes back is another edge
    assert append_rows(ring, Additions(edges={EDGE: NewEdges(np.array([[3, 0], [4, 5]]))})) == 2
    again = open_version(base, 2)
    assert (3, 4) in edges_of(again)
    assert edges_of(open_version(base, 1)) == edges_of(version)
    assert delete_rows(ring, nodes={"node": np.array([0])}) == 3
    last = open_version(base, 3)
    assert edges_of(last) == [(1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (8, 9)]
    assert len(last.split("train").gids) == last.manifest.splits["train"].count == 5
    assert base.split("train").gids.shape == (6,)
    verify_partition(ring, Progress(False))
    # marks stay in a partition of its own, rows unless they are forgotten
    for forget in (False, True):
        folder = ring.with_name(f"new{forget}")
        compact_partition(ring, folder, forget=forget, progress=False)
        opened = LocalPartition.open(folder)
        assert edges_of(opened) == edges_of(last)
        assert delete_rows(folder, nodes={"node": np.array([9])}) == 1
        assert open_version(opened, 1).deleted(0).tolist() == [0, 7, 9]
        with pytest.raises(DataError, match="node 7 of type 'node' is deleted already"):
            delete_rows(folder, nodes={"node": np.array([7])})
        with pytest.raises(DataError, match="edge 0 leads to node 7 of type 'node', which is deleted"):
            append_rows(folder, Additions(edges={EDGE: NewEdges(np.array([[1], [7]]))}))


SPECS = [
    LoaderSpec(name="all", seeds=None, num_neighbors=[2, -1], batch_size=3, shuffle=True),
    LoaderSpec(name="train", split="train", num_neighbors=[2], batch_size=2),
    LinkSpec(
        name="edges",
        edge_label_index=np.array([[1, 4], [2, 5]]),
        num_neighbors=[2],
        batch_size=2,
        neg_sampling={"mode": "triplet", "amount": 3},
    ),
]


def all_batches(session: Session) -> list[Any]:
    found = []
    for spec in SPECS:
        with closing(session.make_loader(spec)) as loader:
            found += [contents(batch) for batch in loader]
    return found


def test_servers_and_hosts_know_what_is_deleted(ring: Path) -> None:
    """A partition of a version is as good as any: its batches are the same, whoever has the parts."""
    gone = np.array([0, 3, 7])
    delete_rows(ring, nodes={"node": gone})
    folder = ring.with_name("less")
    compact_partition(ring, folder, progress=False)
    whole = LocalPartition.open(folder)
    with Session(whole, seed=3) as session:
        expected = all_batches(session)

    with open_farm("in process") as farm:
        servers = [farm.serve(whole).address]
        with farm.context(*servers) as session:
            assert all_batches(session) == expected
        graph = ServedGraph(farm.peer(*servers), of_clients(cluster()))
        refuses_deleted(graph, gone)
        with DistGraph(GraphReader.of(graph)) as rows:
            assert rows.user_ids(rows.rows_of(np.arange(10))).tolist() == [*range(10)]
            assert rows.deleted().tolist() == gone.tolist()

    def of_rank(rank: int, exchange: Any) -> list[Any]:
        here = LocalPartition.open(folder, parts=[rank])
        link = Link(job="test", role="worker", name=f"rank {rank}", token="a-secret-of-this-test")
        graph = HostsGraph(here, link, "127.0.0.1")
        with Session(graph, seed=3, ranks=Ranks(rank, 2, exchange)) as session:
            found = all_batches(session)
            refuses_deleted(graph, gone)
            exchange("all done")
        return found

    for rank, found in enumerate(run_ranks(2, of_rank)):
        with Session(whole, seed=3, ranks=Ranks(rank, 2)) as session:
            assert found == all_batches(session)


def refuses_deleted(graph: Any, gone: np.ndarray) -> None:
    assert graph.deleted(0).tolist() == gone.tolist()
    assert len(graph.seeds(0).gids) == 10 - len(gone)
    with pytest.raises(DataError, match="seeds: 7 at position 1 is a node of type 'node' that is deleted"):
        graph.seeds(0, np.array([1, 7]))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"nodes": {"book": np.array([0])}}, "delete: the graph has no node type 'book'"),
        ({"nodes": {"node": np.array([10])}}, "delete: node 10 of type 'node' is none of 0 to 9"),
        ({"nodes": {"node": np.array([0.5])}}, r"expected integers \[n\], got float64"),
        ({"nodes": {"node": np.array([8])}}, "node 8 of type 'node' is deleted already"),
        ({"edges": {EDGE: np.array([[4], [3]])}}, "there is no edge from 4 to 3"),
        ({"edges": {EDGE: np.array([[7], [8]])}}, "there is no edge from 7 to 8"),
        ({"edges": {("a", "to", "b"): np.array([[7], [8]])}}, "no edge type a__to__b; it has: node__to__node"),
        ({"edges": {EDGE: np.array([[7], [80]])}}, "edge 0 has the destination 80"),
    ],
)
def test_mistakes(ring: Path, given: dict[str, Any], said: str) -> None:
    delete_rows(ring, nodes={"node": np.array([8])})
    with pytest.raises(DataError, match=said):
        delete_rows(ring, **given)
    assert len(list_versions(ring)) == 1
    append_rows(
        ring, Additions(edges={EDGE: NewEdges(np.array([[1, 2], [2, 3]]))})
    )  # edges are counted from each append on
    with pytest.raises(DataError, match="edge 1 leads to node 8 of type 'node', which is deleted"):
        append_rows(ring, Additions(edges={EDGE: NewEdges(np.array([[1, 8], [2, 3]]))}))


def test_mistakes_name_nodes_as_tables_do(ring: Path) -> None:
    names = {"name": lambda t, node: f"{t}-{node:03d}"}
    delete_rows(ring, nodes={"node": np.array([8])}, **names)
    with pytest.raises(DataError, match="delete: node 'node-008' of type 'node' is deleted already"):
        delete_rows(ring, nodes={"node": np.array([2, 8])}, **names)
    with pytest.raises(DataError, match="there is no edge from 'node-004' to 'node-003'"):
        delete_rows(ring, edges={EDGE: np.array([[4], [3]])}, **names)


def test_edges_to_predict_without_deleted_ones(tmp_path: Path) -> None:
    partition_graph(with_edges_to_predict(), tmp_path / "base", PartitionOptions(num_parts=2), progress=False)
    base = LocalPartition.open(tmp_path / "base")
    before = {name: base.edge_split(0, name).edge for name in ("train", "val", "test")}
    node, pair = before["test"][0, 0], before["train"][:, before["train"][0] != before["test"][0, 0]][:, :1]
    delete_rows(tmp_path / "base", nodes={"node": np.array([node])}, edges={EDGE: pair})
    compact_partition(tmp_path / "base", tmp_path / "new", progress=False)
    for graph in (open_version(base, 1), LocalPartition.open(tmp_path / "new")):
        for name, edge in before.items():
            left = (edge != node).all(axis=0) & ~(edge == pair).all(axis=0)
            assert graph.edge_split(0, name).edge.tolist() == edge[:, left].tolist()
            assert graph.manifest.edge_splits[f"0/{name}"].count == left.sum()
    appended = Versions(tmp_path / "base").read(Manifest.load(tmp_path / "base"), 1)
    assert appended.additions.deleted.nodes["node"].tolist() == [node]


@pytest.mark.parametrize("undirected", [False, True])
def test_edges_that_are_held_out_are_deleted(tmp_path: Path, undirected: bool) -> None:
    """By their ends, in either direction where both are stored, by one of their nodes, and together with edges of the graph."""
    partition_graph(
        with_edges_to_predict(), tmp_path / "base", PartitionOptions(), undirected=undirected, progress=False
    )
    base = LocalPartition.open(tmp_path / "base")
    val, test, train = (base.edge_split(0, name).edge for name in ("val", "test", "train"))
    pairs = np.stack([val[:, 0], test[::-1, 1] if undirected else test[:, 1], train[:, 2]], axis=1)
    gone = {tuple(pair) for pair in pairs.T.tolist()} | {tuple(pair) for pair in pairs[::-1].T.tolist() if undirected}
    assert delete_rows(tmp_path / "base", edges={EDGE: pairs[:, :2]}) == 1
    assert delete_rows(tmp_path / "base", edges={EDGE: pairs[:, 2:]}) == 2
    (edges, _) = (each.deleted_edges["node__to__node"] for each in list_versions(tmp_path / "base"))
    assert edges == 2
    for again in (pairs[:, :1], pairs[::-1, :1]):  # neither is there any more
        with pytest.raises(DataError, match="there is no edge from"):
            delete_rows(tmp_path / "base", edges={EDGE: again})
    node = next(n for n in test[0].tolist() if n not in pairs)
    delete_rows(tmp_path / "base", nodes={"node": np.array([node])})
    with pytest.raises(DataError, match=f"there is no edge from {node} to"):
        delete_rows(tmp_path / "base", edges={EDGE: test[:, test[0] == node][:, :1]})
    verify_partition(tmp_path / "base", Progress(False))
    for forget in (False, True):
        compact_partition(tmp_path / "base", tmp_path / f"new{forget}", forget=forget, progress=False)
    opened = [LocalPartition.open(tmp_path / f"new{forget}") for forget in (False, True)]
    for graph in (open_version(base, "latest"), *opened):
        for name, edge in (("val", val), ("test", test), ("train", train)):
            left = [pair for pair in edge.T.tolist() if tuple(pair) not in gone and node not in pair]
            assert graph.edge_split(0, name).edge.T.tolist() == left


def test_a_given_source_that_is_deleted_cannot_stand_among_negatives(tmp_path: Path) -> None:
    """A ranking among fewer sources is another one; among destinations a negative is drawn in the place of it."""
    pairs, others = [[0, 1, 0], [2, 3, 3]], [[4, 5], [6, 7], [8, 9]]
    given = {"test": {"edge": pairs, "negatives": others, "source_negatives": others}, "train": [[1], [0]]}
    ends = np.random.default_rng(3).integers(10, 40, (2, 120))
    schema = two_versions(np.random.default_rng(0)).base.schema
    graph = ArraySource(name="links", fingerprint="", schema=schema, num_nodes={"node": 40}, edge_index={EDGE: ends})
    source = hold_out_edges(graph, {"node__to__node": given})
    partition_graph(source, tmp_path / "base", PartitionOptions(), progress=False)
    base = LocalPartition.open(tmp_path / "base")
    delete_rows(tmp_path / "base", nodes={"node": np.array([20])})
    open_version(base, 1).edge_split(0, "test")
    with pytest.raises(DataError, match="test: some of its source_negatives are nodes of type 'node' that are deleted"):
        delete_rows(tmp_path / "base", nodes={"node": np.array([4])})
    assert len(list_versions(tmp_path / "base")) == 1
