"""How likely each node is to be in a batch: vertex inclusion probability.

As SALIENT++ (Kaler et al., 2023) defines it, with two refinements. Rows are those that the sampler reads, so the
direction of edges is exact; and a node is expanded only in the hop that first reaches it, as our sampler does. Draws of
different rows are taken as independent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from glt_lightning.ops.assign import NeighborRows, NeighborSums
from glt_lightning.options import Fanouts, PartitionOptions
from glt_lightning.partition.build.scratch import float_matrix
from glt_lightning.partition.build.topology import GraphTopology
from glt_lightning.progress import Progress
from glt_lightning.sampler.fanouts import fanout_table
from glt_lightning.types import GraphSchema, NodeType

_ALMOST_ONE = np.float32(1 - 2**-24)  # the logarithm of 0 has no place in a sum
# Logarithms are summed as integers of this unit: no order of edges changes a bit, and 2^26 rows cannot overflow.
_UNIT = np.float32(2**-32)
_BYTES_PER_NODE = 24  # that `inclusion` holds for each column
_MOST_COLUMNS = 8


class Sums(Protocol):
    """What `NeighborSums` does, here or on a device."""

    def add(self, rows: NeighborRows, values: np.ndarray) -> None: ...

    def result(self) -> np.ndarray: ...


def sums_on(device: str) -> Callable[[int, int], Sums]:
    """Makes sums for a number of nodes and columns. Raises `NativeError` where the device cannot be used."""
    if device == "cpu":
        return NeighborSums
    from glt_lightning.ops.cuda.kernels import Kernels  # imports torch
    from glt_lightning.ops.cuda.sums import CudaNeighborSums

    kernels = Kernels.open(device)
    return lambda num_nodes, width: CudaNeighborSums(num_nodes, width, kernels)


def seed_probabilities(
    topology: GraphTopology, seeds: Sequence[tuple[NodeType, np.ndarray]], batch_size: int
) -> np.ndarray:
    """float32 [nodes of all types, K]: probability that a node is a seed of a batch, for K sets of seeds (user ids).

    A seed that is listed several times is in a batch as soon as one of its places is.
    """
    first = np.zeros((topology.total, len(seeds)), np.float32)
    for k, (node_type, ids) in enumerate(seeds):
        if len(ids):
            column = topology.split(first)[node_type][:, k]
            column[ids] = min(1.0, batch_size / len(ids))
            _count_repeats(column, ids, batch_size)
    return first


def _count_repeats(column: np.ndarray, ids: np.ndarray, batch_size: int) -> None:
    """Puts in the probability of seeds that are listed more than once: places are drawn without replacement."""
    ordered = np.sort(ids)
    if not (ordered[1:] == ordered[:-1]).any():
        return
    nodes, times = np.unique(ordered, return_counts=True)
    places = len(ids) - np.arange(int(times.max()))  # that are left, after 0, 1, ... of the node's have been missed
    missed = np.cumprod(np.maximum(places - batch_size, 0) / places)
    again = times > 1
    column[nodes[again]] = 1 - missed[times[again] - 1]


def inclusion_of_each(
    topology: GraphTopology,
    seeds: Sequence[tuple[NodeType, np.ndarray]],
    options: PartitionOptions,
    folder: Path,
    progress: Progress,
) -> np.ndarray:
    """float32 [K, nodes of all types]: probability that a node is in a batch of each of K sets of seeds (user ids).

    Worked out for as many sets at a time as half of the memory has room for; a large result lies in a file of ``folder``.
    """
    values = float_matrix(len(seeds), topology.total, folder, options.memory_bytes // 4)
    columns = max(1, min(_MOST_COLUMNS, options.memory_bytes // 2 // (_BYTES_PER_NODE * max(1, topology.total))))
    for begin in range(0, len(seeds), columns):
        group = seeds[begin : begin + columns]
        first = seed_probabilities(topology, group, options.batch_size)
        found = inclusion(topology, first, options.num_neighbors, progress, options.device)
        values[begin : begin + len(group)] = found.T
    return values


def inclusion(
    topology: GraphTopology, first: np.ndarray, num_neighbors: Fanouts, progress: Progress, device: str = "cpu"
) -> np.ndarray:
    """float32 [nodes of all types, K]: probability that a node is in a batch.

    first: the same shape, that it is a seed; overwritten.
    device: ``cpu`` or a CUDA device, which sums over edges; the result is the same, bit for bit.
    """
    make_sums = sums_on(device)
    schema = GraphSchema(tuple(topology.num_nodes), tuple(r.edge_type for r in topology.stored_types))
    fanouts = fanout_table(num_neighbors, schema)
    present = first.copy()
    frontier = first
    edges = sum(topology.degrees.num_edges(r) for r in topology.stored_types)
    with progress.phase("ranking nodes", len(fanouts) * edges, "edges") as done:
        for hop in fanouts:
            missed = make_sums(*frontier.shape)  # of -log(probability that a row does not draw the node)
            for stored_type in topology.stored_types:
                fanout = hop[schema.edge_index(stored_type.edge_type)]
                for rows in topology.sampled(stored_type):
                    missed.add(rows, _drawn(frontier, rows.first, np.diff(rows.indptr), fanout))
                    done(len(rows.neighbors))
            np.multiply(missed.result(), -_UNIT, out=frontier, casting="unsafe")
            np.expm1(frontier, out=frontier)
            frontier *= present - 1  # reached now and not before
            present += frontier
    return present


def _drawn(frontier: np.ndarray, begin: int, degree: np.ndarray, fanout: int) -> np.ndarray:
    """int64 [rows, K]: -log(probability that a row does not draw a given one of its neighbours)."""
    chance = frontier[begin : begin + len(degree)]
    if fanout >= 0:
        chance = chance * np.minimum(1, fanout / np.maximum(degree, 1)).astype(np.float32)[:, None]
    units: np.ndarray = np.rint(np.log1p(-np.minimum(chance, _ALMOST_ONE)) / -_UNIT).astype(np.int64)
    return units
