"""Small random graphs, as the user's tensors, as the reference sees them, and cut into parts for the kernels."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch_geometric.data import HeteroData

from glt_lightning.base import EdgeType, GraphSchema
from glt_lightning.kernels import EdgeTypeArrays, ExcludedEdges, GraphView, LaborIds
from tests.reference.ops import ReferenceEdgeType

HETERO = (("a", "likes", "b"), ("b", "by", "a"), ("b", "near", "b"))
SINGLE = (("node", "to", "node"),)


@dataclass
class TypedGraph:
    """num_nodes and edges (int64 [2, E], user ids) per type, by index in the schema. weights, times: edge type -> int64 [E].
    labor: neighbours are drawn by LABOR."""

    schema: GraphSchema
    num_nodes: list[int]
    edges: list[np.ndarray]
    weights: dict[int, np.ndarray] = field(default_factory=dict)
    times: dict[int, np.ndarray] = field(default_factory=dict)
    labor: bool = False

    def date(self, rng: np.random.Generator) -> TypedGraph:
        """Gives some edge types times, also before 0; many are equal."""
        for r, edge_index in enumerate(self.edges):
            if rng.integers(4):
                self.times[r] = rng.integers(-5, int(rng.choice([-4, 5, 1000])), edge_index.shape[1])
        return self

    def weigh(self, rng: np.random.Generator) -> TypedGraph:
        """Gives some edge types weights: few or many of 0, all alike, or of very different sizes."""
        for r, edge_index in enumerate(self.edges):
            positive = rng.random(edge_index.shape[1]) < rng.choice([0.0, 0.1, 0.5, 1.0])
            if rng.integers(4):
                self.weights[r] = positive * 2 ** rng.integers(0, int(rng.choice([1, 3, 20])), len(positive))
        return self

    def sums(self, edge_type: int, order: np.ndarray, rows: np.ndarray) -> np.ndarray | None:
        """int32 [E]: prefix sums of the weights of edges in an order, within runs of equal ``rows`` [E]."""
        if edge_type not in self.weights:
            return None
        ends = np.cumsum(self.weights[edge_type][order])
        first = np.searchsorted(rows, rows)
        return (ends - np.append(0, ends)[first]).astype(np.int32)

    @classmethod
    def random(cls, rng: np.random.Generator, edge_types: tuple[EdgeType, ...] = SINGLE, most: int = 40) -> TypedGraph:
        """Skewed degrees, isolated nodes, self loops and parallel edges all occur."""
        node_types = tuple({t for e in edge_types for t in (e[0], e[2])})
        schema = GraphSchema(node_types, edge_types, homogeneous=len(node_types) == 1)
        num_nodes = [int(rng.integers(1, most)) for _ in schema.node_types]
        edges = []
        for src, dst in zip(schema.source_types(), schema.destination_types(), strict=True):
            count = int(rng.integers(0, 6 * most))
            ends = [(rng.random(count) ** 3 * num_nodes[t]).astype(np.int64) for t in (src, dst)]
            edges.append(np.stack(ends))
        return cls(schema, num_nodes, edges)

    def reference(self) -> list[ReferenceEdgeType]:
        edge_types = []
        sources, destinations = self.schema.source_types(), self.schema.destination_types()
        for r, edge_index in enumerate(self.edges):
            times = self.times.get(r)
            alike = np.zeros(edge_index.shape[1]) if times is None else times
            order = np.lexsort((np.arange(edge_index.shape[1]), edge_index[0], alike, edge_index[1]))
            degrees = np.bincount(edge_index[1], minlength=self.num_nodes[destinations[r]])
            sums = self.sums(r, order, edge_index[1][order])
            edge_types.append(
                ReferenceEdgeType(
                    source=sources[r],
                    destination=destinations[r],
                    key=self.schema.edge_type_keys()[r],
                    indptr=torch.from_numpy(np.concatenate([[0], np.cumsum(degrees)])),
                    neighbors=torch.from_numpy(edge_index[0][order]),
                    edge_ids=torch.from_numpy(order),
                    sums=None if sums is None else torch.from_numpy(sums),
                    times=None if times is None else torch.from_numpy(times[order]),
                    source_key=self.schema.node_type_keys()[sources[r]] if self.labor else None,
                )
            )
        return edge_types


def random_seeds(graph: TypedGraph, rng: np.random.Generator) -> dict[int, np.ndarray]:
    """User ids of some node types, of one or of several: none, few, repeated."""
    types = rng.permutation(len(graph.num_nodes))[: int(rng.integers(1, len(graph.num_nodes) + 1))]
    return {int(t): rng.integers(0, graph.num_nodes[t], int(rng.integers(0, 12))) for t in types}


def random_excluded(graph: TypedGraph, rng: np.random.Generator) -> dict[int, set[tuple[int, int]]]:
    """(destination, source) in user ids, by edge type, or nothing: some edges, of some nodes the whole row, and pairs that are
    no edges."""
    excluded = {}
    types = list(zip(graph.schema.source_types(), graph.schema.destination_types(), strict=True))
    for r in np.flatnonzero(rng.integers(0, 3, len(types))).tolist():
        src, dst = graph.edges[r]
        some = rng.random(len(src)) < rng.choice([0, 0.1, 0.5])
        some |= np.isin(dst, rng.integers(0, graph.num_nodes[types[r][1]], 2))
        others = [rng.integers(0, graph.num_nodes[t], 5) for t in types[r]]
        pairs = np.concatenate([np.stack([dst[some], src[some]]), others[::-1]], axis=1)
        excluded[r] = set(zip(*pairs.tolist(), strict=True))
    return excluded


def excluded_edges(
    graph: TypedGraph, excluded: dict[int, set[tuple[int, int]]], gid_of: list[np.ndarray]
) -> ExcludedEdges:
    """Those of `random_excluded`, by gid. gid_of: by node type."""
    sources, destinations = graph.schema.source_types(), graph.schema.destination_types()
    pairs = {}
    for r, some in excluded.items():
        dst, src = np.array(sorted(some), dtype=np.int64).reshape(-1, 2).T
        pairs[r] = gid_of[destinations[r]][dst], gid_of[sources[r]][src]
    return ExcludedEdges.of(pairs)


def random_data(rng: np.random.Generator, graph: TypedGraph) -> HeteroData:
    """The graph with some attributes."""
    data = HeteroData()
    for t, name in enumerate(graph.schema.node_types):
        n = data[name].num_nodes = graph.num_nodes[t]
        if rng.integers(2):
            data[name].x = torch.from_numpy(rng.random((n, int(rng.integers(1, 9))), dtype=np.float32))
        if rng.integers(2):
            data[name].tags = torch.from_numpy(rng.integers(0, 9, (n, 3)).astype(np.int8))
    for r, (edge_type, edges) in enumerate(zip(graph.schema.edge_types, graph.edges, strict=True)):
        data[edge_type].edge_index = torch.from_numpy(edges)
        if rng.integers(2):
            data[edge_type].edge_attr = torch.from_numpy(rng.random((edges.shape[1], 2), dtype=np.float32))
        if r in graph.weights:
            data[edge_type].weight = torch.from_numpy(graph.weights[r])
        if r in graph.times:
            data[edge_type].time = torch.from_numpy(graph.times[r])
    return data


@dataclass
class CutGraph:
    """A graph in parts: gid_of[t][user id], and the edge ids by edge row of each edge type."""

    view: GraphView
    gid_of: list[np.ndarray]
    edge_ids: list[np.ndarray]


def cut(graph: TypedGraph, parts: int, rng: np.random.Generator, dtype: type = np.int32) -> CutGraph:
    """Random parts in random order inside: any partitioner's output, made the slow and obvious way."""
    schema = graph.schema
    offsets = np.concatenate([[0], np.cumsum(graph.num_nodes)])
    gid_of, bounds, user_ids = [], [], []
    for t, n in enumerate(graph.num_nodes):
        owner = rng.integers(0, parts, n)
        order = np.lexsort((rng.random(n), owner))
        gid = np.empty(n, dtype=np.int64)
        gid[order] = offsets[t] + np.arange(n)
        gid_of.append(gid)
        starts = np.searchsorted(owner[order], np.arange(parts))
        bounds += (offsets[t] + starts).tolist()
        user_ids += [ids.astype(dtype) for ids in np.split(order, starts[1:])]
    bounds.append(int(offsets[-1]))
    edge_types, counts, edge_ids = [], [], []
    sources, destinations = schema.source_types(), schema.destination_types()
    for r, edge_index in enumerate(graph.edges):
        order = np.lexsort((np.arange(edge_index.shape[1]), edge_index[0], gid_of[destinations[r]][edge_index[1]]))
        rows = gid_of[destinations[r]][edge_index[1][order]]
        edge_ids.append(order)
        neighbors = gid_of[sources[r]][edge_index[0][order]].astype(dtype)
        sums = graph.sums(r, order, rows)
        for p in range(parts):
            segment = destinations[r] * parts + p
            begin, end = bounds[segment], bounds[segment + 1]
            mine = (rows >= begin) & (rows < end)
            indptr = np.concatenate([[0], np.cumsum(np.bincount(rows[mine] - begin, minlength=end - begin))])
            own = None if sums is None else np.ascontiguousarray(sums[mine])
            edge_types.append(EdgeTypeArrays(indptr.astype(np.int64), np.ascontiguousarray(neighbors[mine]), own))
            counts.append(int(mine.sum()))
    view = GraphView(
        np.array(bounds, dtype=np.int64),
        edge_types,
        user_ids,
        schema.edge_type_keys(),
        sources,
        destinations,
        np.array(counts, dtype=np.int64).reshape(len(graph.edges), parts),
        LaborIds(schema.node_type_keys(), [np.argsort(gid).astype(dtype) for gid in gid_of]) if graph.labor else None,
    )
    return CutGraph(view, gid_of, edge_ids)
