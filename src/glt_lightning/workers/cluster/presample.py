"""Which remote nodes this host's batches would use: counted in batches that are sampled for that alone."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from glt_lightning.base import Fanouts, Progress, WeightAttr
from glt_lightning.graph import LocalPartition, Seeds
from glt_lightning.sampling import (
    RemoteRows,
    SamplerConfig,
    batch_key,
    fanout_table,
    k_hop,
    neighbor_source,
    weights_of,
)

_BATCHES = 64  # to count in
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Presampled:
    """Per node of the graph, by gid, int32 [N]: the number of ``batches`` it was in, and of those in which its neighbours
    were drawn.  picks: average number of neighbours drawn per such node."""

    in_batch: np.ndarray
    in_frontier: np.ndarray
    batches: int
    picks: float


def presample(
    partition: LocalPartition,
    remote: RemoteRows,
    num_neighbors: Fanouts,
    batch_size: int,
    progress: bool | None = None,
    *,
    weight_attr: WeightAttr = None,
    option: str = "cache.policy: presample",
) -> Presampled:
    """Samples up to 64 batches of the training seeds that the mapped parts own, the same ones each time.

    Without such seeds other nodes take their place, see `_presample_seeds`. weight_attr: what neighbours are drawn
    by.  option: the option that needs it, for the log.
    """
    manifest, schema = partition.manifest, partition.schema
    seeds, stand_in = _presample_seeds(partition)
    if stand_in:
        _log.warning("%s counts batches of the training seeds in parts %s. %s", option, list(partition.parts), stand_in)
    own = _shuffled(seeds.gids, _BATCHES * batch_size if stand_in else len(seeds.gids))
    batches = min(_BATCHES, -(-len(own) // batch_size))
    config = SamplerConfig(
        seeds.node_type, fanout_table(num_neighbors, schema), weights=weights_of(manifest, weight_attr)
    )
    source = neighbor_source(partition, config, remote=remote, attributes=False)
    in_batch = np.zeros(manifest.total_nodes, dtype=np.int32)
    in_frontier = np.zeros(manifest.total_nodes, dtype=np.int32)
    nodes = edges = 0
    with Progress(progress).phase("presampling", batches, "batches") as done:
        for b in range(batches):
            chosen = np.ascontiguousarray(own[b * batch_size : (b + 1) * batch_size])
            found = k_hop(source, {seeds.node_type: chosen}, batch_key(0, "presample", 0, b))
            for gids, per_hop in zip(found.gid, found.nodes_per_hop, strict=True):
                in_batch[gids] += 1  # a node is in a batch once, except seeds that are listed twice
                in_frontier[gids[: int(per_hop[:-1].sum())]] += 1
                nodes += int(per_hop[:-1].sum())
            edges += int(found.edges_per_hop.sum())
            done(1)
    return Presampled(in_batch, in_frontier, batches, edges / max(1, nodes))


def _presample_seeds(partition: LocalPartition) -> tuple[Seeds, str]:
    """Seeds to count batches of, and a sentence about them unless they are the training seeds of the mapped parts."""
    manifest, schema = partition.manifest, partition.schema
    if "train" in manifest.splits:
        seeds = partition.split("train")
        bounds = np.asarray(manifest.bounds[seeds.node_type]) + manifest.offsets[seeds.node_type]
        own = seeds.gids[np.isin(np.searchsorted(bounds, seeds.gids, side="right") - 1, partition.parts)]
        if len(own):
            return Seeds(seeds.node_type, own), ""
        if len(seeds.gids):  # seeds are distributed evenly over ranks, so this host trains on these
            return seeds, "There are none, so all training seeds of the graph are used."
    node_type = _seed_type(partition)
    offset, bounds_of = manifest.offsets[node_type], manifest.bounds[node_type]
    gids = [np.arange(offset + bounds_of[p], offset + bounds_of[p + 1], dtype=np.int64) for p in partition.parts]
    own = np.concatenate(gids)
    name = "" if schema.homogeneous else f" {schema.node_types[node_type]!r}"
    if len(own):
        return Seeds(node_type, own), f"The partition stores none, so random{name} nodes of these parts are used."
    everything = np.arange(offset, offset + manifest.num_nodes[node_type], dtype=np.int64)
    return Seeds(node_type, everything), f"The partition stores none, so random{name} nodes of all parts are used."


def _seed_type(partition: LocalPartition) -> int:
    """The type that carries the labels; without labels, the largest one that has in-edges."""
    manifest, schema = partition.manifest, partition.schema
    if manifest.target_type is not None:
        return schema.node_index(manifest.target_type)
    return max(set(schema.destination_types()) or {0}, key=lambda t: manifest.num_nodes[t])


def _shuffled(gids: np.ndarray, most: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.permutation(gids) if len(gids) <= most else rng.choice(gids, most, replace=False)
