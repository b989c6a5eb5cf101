"""Computes hotness: the expected accesses of each node by the batches of each part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from glt_lightning.base import EdgeType, Fanouts, GraphSchema, NodeType, PartitionOptions, Progress
from glt_lightning.kernels import EdgeTypeArrays, GraphView, KHopOp, NeighborRows, NeighborSums
from glt_lightning.partition.build.degrees import Degrees
from glt_lightning.partition.build.edge_types import StoredEdgeType
from glt_lightning.partition.build.rows import float_matrix
from glt_lightning.partition.build.topology import GraphTopology, Topology
from glt_lightning.sampling import fanout_table

Policy = Literal["vip", "degree", "presample", "given"]

# Batches sampled per part by ``presample``: the share of them with a node has a standard error of at most 1/16.
_MOST_BATCHES = 64


@dataclass(frozen=True)
class Hotness:
    """Expected accesses of each node by one batch of each part.

    Attributes:
        policy: The policy by which hotness was computed.
        made_by: The options it was computed with, for the manifest.
        values: Floats [parts, or 1 for all of them; nodes of all types].
    """

    policy: Policy
    made_by: Mapping[str, Any]
    values: Sequence[np.ndarray] | np.ndarray


def rank_nodes(
    topology: GraphTopology,
    parts: Mapping[NodeType, np.ndarray],
    train: tuple[NodeType, np.ndarray] | None,
    options: PartitionOptions,
    progress: Progress,
) -> Hotness:
    """Computes hotness by the policy of ``options.hotness``.

    parts: node type -> int32 [N].  train: node type and user ids of all training seeds; without any, nodes rank by degree.
    """
    policy = policy_of(options)
    if policy == "degree" or train is None or not len(train[1]):
        values = np.empty((1, topology.total), np.float32)
        for node_type, own in topology.split(values[0]).items():
            own[:] = topology.degrees.occurrences(node_type, topology.stored_types, 0, len(own))
        return Hotness("degree", {}, values)
    node_type, ids = train
    seeds = [(node_type, ids[parts[node_type][ids] == p]) for p in range(options.num_parts)]
    if policy == "vip":
        values = inclusion_of_each(topology, seeds, options, progress)
    else:
        values = float_matrix(options.num_parts, topology.total, topology.folder, options.memory_bytes // 4)
        _count_accesses(topology, seeds, options, values, progress)
    made_by = {"num_neighbors": options.assumed_num_neighbors, "batch_size": options.assumed_batch_size}
    return Hotness(policy, made_by, values)


def policy_of(options: PartitionOptions) -> Policy:
    if options.hotness != "auto":
        return options.hotness
    # With random parts, both policies leave equally many rows remote, and degrees cost nothing.
    return "degree" if options.algorithm == "random" else "vip"


def _count_accesses(
    topology: GraphTopology,
    seeds: list[tuple[NodeType, np.ndarray]],
    options: PartitionOptions,
    values: np.ndarray,
    progress: Progress,
) -> None:
    """Samples batches of each part's seeds, and adds the share of batches that each node is in to ``values`` [P, N]."""
    schema = GraphSchema(tuple(topology.num_nodes), tuple(r.edge_type for r in topology.stored_types))
    sample = KHopOp(_view(topology, schema), fanout_table(options.assumed_num_neighbors, schema))
    size = options.assumed_batch_size
    numbers = [min(_MOST_BATCHES, -(-len(ids) // size)) for _, ids in seeds]
    with progress.phase("sampling", sum(numbers), "batches") as done:
        for part, ((node_type, ids), batches) in enumerate(zip(seeds, numbers, strict=True)):
            gids = np.random.default_rng([options.seed, part]).permutation(ids) + topology.offset(node_type)
            for b in range(batches):
                found = sample({schema.node_index(node_type): gids[b * size : (b + 1) * size]}, b)
                for gid in found.gid:
                    values[part][gid] += np.float32(1 / batches)
                done(1)


def _view(topology: GraphTopology, schema: GraphSchema) -> GraphView:
    """A view of the whole graph as one part, by user ids."""
    offsets = np.array([*(topology.offset(t) for t in schema.node_types), topology.total], np.int64)
    arrays = [EdgeTypeArrays(*topology.sampled_arrays(r)) for r in topology.stored_types]
    dtype = arrays[0].indices.dtype if arrays else np.dtype(np.int32)
    return GraphView(
        offsets,
        arrays,
        [np.arange(n, dtype=dtype) for n in topology.num_nodes.values()],
        schema.edge_type_keys(),
        schema.source_types(),
        schema.destination_types(),
        np.array([[len(a.indices)] for a in arrays], np.int64).reshape(len(arrays), 1),
    )


# Vertex inclusion probability: the probability of each node to be in a batch.
#
# The definition is that of SALIENT++ (Kaler et al. 2023), with two refinements: rows are those that the sampler reads, so the
# direction of edges is exact; and a node is expanded only in the hop that first reaches it, as our sampler does. Draws of
# different rows are assumed to be independent.


_ALMOST_ONE = np.float32(1 - 2**-24)  # probabilities are clipped to this, since log(0) cannot be summed
# Logarithms are summed as integers of this unit, so that the order of edges does not change a bit. A row adds at most
# log(2^24) = 16.6, so sums over 2^26 rows stay below 2^63.
_UNIT = np.float32(2**-32)
_BYTES_PER_NODE = 24  # held by `inclusion` for each node and column
_MOST_COLUMNS = 8  # parts computed in one pass over the edges, if memory allows


def seed_probabilities(topology: Topology, seeds: Sequence[tuple[NodeType, np.ndarray]], batch_size: int) -> np.ndarray:
    """Returns float32 [nodes of all types, K]: probability that a node is a seed of a batch, for K sets of seeds (user ids).

    A seed that is listed several times is in a batch if any of its entries is.
    """
    first = np.zeros((topology.total, len(seeds)), np.float32)
    for k, (node_type, ids) in enumerate(seeds):
        if len(ids):
            column = topology.split(first)[node_type][:, k]
            column[ids] = min(1.0, batch_size / len(ids))
            _count_repeats(column, ids, batch_size)
    return first


def _count_repeats(column: np.ndarray, ids: np.ndarray, batch_size: int) -> None:
    """Sets the probability of seeds that are listed more than once; entries are drawn without replacement."""
    ordered = np.sort(ids)
    if not (ordered[1:] == ordered[:-1]).any():
        return
    nodes, times = np.unique(ordered, return_counts=True)
    entries = len(ids) - np.arange(int(times.max()))  # entries left after 0, 1, ... of the node's were not drawn
    missed = np.cumprod(np.maximum(entries - batch_size, 0) / entries)
    again = times > 1
    column[nodes[again]] = 1 - missed[times[again] - 1]


def inclusion_of_each(
    topology: GraphTopology,
    seeds: Sequence[tuple[NodeType, np.ndarray]],
    options: PartitionOptions,
    progress: Progress,
) -> np.ndarray:
    """Returns float32 [K, nodes of all types]: probability that a node is in a batch of each of K sets of seeds (user ids).

    Computed for as many sets at a time as fit half of ``partition.memory_bytes``; a large result lies in a file.
    """
    values = float_matrix(len(seeds), topology.total, topology.folder, options.memory_bytes // 4)
    columns = max(1, min(_MOST_COLUMNS, options.memory_bytes // 2 // (_BYTES_PER_NODE * max(1, topology.total))))
    for begin in range(0, len(seeds), columns):
        group = seeds[begin : begin + columns]
        first = seed_probabilities(topology, group, options.assumed_batch_size)
        found = inclusion(topology, first, options.assumed_num_neighbors, progress, options.device)
        values[begin : begin + len(group)] = found.T
    return values


def inclusion(
    topology: Topology, first: np.ndarray, num_neighbors: Fanouts, progress: Progress, device: str = "cpu"
) -> np.ndarray:
    """Returns float32 [nodes of all types, K]: probability that a node is in a batch.

    first: float32 of the same shape, probability that a node is a seed; overwritten.
    device: ``cpu`` or a CUDA device, which sums over edges; the result is the same, bit for bit.
    """
    schema = GraphSchema(tuple(topology.num_nodes), tuple(r.edge_type for r in topology.stored_types))
    fanouts = fanout_table(num_neighbors, schema)
    present = first.copy()
    frontier = first
    edges = sum(topology.degrees.num_edges(r) for r in topology.stored_types)
    with progress.phase("ranking nodes", len(fanouts) * edges, "edges") as done:
        for hop in fanouts:
            # sums of -log(probability that a row does not draw the node)
            missed = NeighborSums.on(device, len(frontier), frontier.shape[1], topology.threads)
            for stored_type in topology.stored_types:
                fanout = hop[schema.edge_index(stored_type.edge_type)]
                for rows in topology.sampled(stored_type):
                    missed.add(rows, _drawn(frontier, rows.first, np.diff(rows.indptr), fanout))
                    done(len(rows.neighbors))
            np.multiply(missed.result(), -_UNIT, out=frontier, casting="unsafe")
            np.expm1(frontier, out=frontier)
            frontier *= present - 1  # probability of being reached in this hop and not before
            present += frontier
    return present


def _drawn(frontier: np.ndarray, begin: int, degree: np.ndarray, fanout: int) -> np.ndarray:
    """Returns int64 [rows, K]: -log(probability that a row does not draw a given neighbour), in units of `_UNIT`."""
    chance = frontier[begin : begin + len(degree)]
    if fanout >= 0:
        chance = chance * np.minimum(1, fanout / np.maximum(degree, 1)).astype(np.float32)[:, None]
    units: np.ndarray = np.rint(np.log1p(-np.minimum(chance, _ALMOST_ONE)) / -_UNIT).astype(np.int64)
    return units


class _MemoryTopology(Topology):
    """Rows in memory. rows: edge type -> (row pointers, neighbours by user id)."""

    def __init__(
        self, num_nodes: Mapping[NodeType, int], rows: Mapping[EdgeType, tuple[np.ndarray, np.ndarray]]
    ) -> None:
        degrees = Degrees({}, {e: np.diff(indptr) for e, (indptr, _) in rows.items()})
        super().__init__(num_nodes, [StoredEdgeType(e, e) for e in sorted(rows)], degrees)
        self._rows = {e: (indptr, self._shifted(neighbors, e[0])) for e, (indptr, neighbors) in rows.items()}

    def sampled(self, stored_type: StoredEdgeType) -> Iterator[NeighborRows]:
        indptr, neighbors = self._rows[stored_type.source]
        yield NeighborRows(self.offset(stored_type.edge_type[2]), indptr, neighbors, self.total)

    def _shifted(self, ids: np.ndarray, node_type: NodeType) -> np.ndarray:
        offset = self.offset(node_type)
        return ids if not offset else ids.astype(np.int32 if self.total < 2**31 else np.int64) + ids.dtype.type(offset)


def inclusion_in_memory(
    num_nodes: Mapping[NodeType, int],
    rows: Mapping[EdgeType, tuple[np.ndarray, np.ndarray]],
    seeds: tuple[NodeType, np.ndarray],
    batch_size: int,
    num_neighbors: Fanouts,
    device: str = "cpu",
) -> dict[NodeType, np.ndarray]:
    """Returns float32 [N] by node type: probability that a node of a graph in memory is in a batch.

    num_nodes: of each node type, in the order of the types.  rows: edge type -> (int64 [N + 1] of the destinations, user ids of
    the sources).  seeds: node type and user ids.  device: as of `inclusion`.
    """
    topology = _MemoryTopology(num_nodes, rows)
    first = seed_probabilities(topology, [seeds], batch_size)
    return topology.split(inclusion(topology, first, num_neighbors, Progress(None), device)[:, 0])
