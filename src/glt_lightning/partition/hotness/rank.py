"""Computes hotness: the expected accesses of each node by the batches of each part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from glt_lightning.base import GraphSchema, NodeType, PartitionOptions, Progress
from glt_lightning.kernels import EdgeTypeArrays, GraphView, KHopOp
from glt_lightning.partition.build.rows import float_matrix
from glt_lightning.partition.hotness.vip import inclusion_of_each
from glt_lightning.partition.tasks.exchange import save_array
from glt_lightning.sampling import fanout_table

if TYPE_CHECKING:
    from glt_lightning.partition.build.topology import GraphTopology

Policy = Literal["vip", "degree", "presample", "given"]

# Batches sampled per part by ``presample``: the share of them with a node has a standard error of at most 1/16.
_MOST_BATCHES = 64


class Hotness:
    """Expected accesses of each node by one batch of each part.

    Attributes:
        policy: The policy by which hotness was computed.
        made_by: The options it was computed with, for the manifest.
    """

    def __init__(self, policy: Policy, made_by: Mapping[str, Any], values: Sequence[np.ndarray] | np.ndarray) -> None:
        self.policy, self.made_by = policy, dict(made_by)
        self._values = values

    def save(self, path: Path) -> None:
        """Saves the values as float32 [parts, or 1 for all of them; nodes of all types]."""
        save_array(path, np.asarray(self._values, np.float32))


def rank_nodes(
    topology: GraphTopology,
    parts: Mapping[NodeType, np.ndarray],
    train: tuple[NodeType, np.ndarray] | None,
    options: PartitionOptions,
    folder: Path,
    progress: Progress,
) -> Hotness:
    """Computes hotness by the policy of ``options.hotness``.

    parts: node type -> int32 [N].  train: node type and user ids of all training seeds; without any, nodes rank by degree.
    folder: for a result that is too large for memory.
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
        values = inclusion_of_each(topology, seeds, options, folder, progress)
    else:
        values = float_matrix(options.num_parts, topology.total, folder, options.memory_bytes // 4)
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
