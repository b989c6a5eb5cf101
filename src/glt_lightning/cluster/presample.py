"""Which nodes of others this host's batches would use: counted in batches that are sampled for nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.errors import OptionError
from glt_lightning.options import Fanouts
from glt_lightning.partition.progress import Progress
from glt_lightning.sampler.cluster import ClusterSampler
from glt_lightning.sampler.fanouts import fanout_table
from glt_lightning.sampler.request import BatchRequest, SamplerConfig, batch_key
from glt_lightning.sampler.source import RemoteRows

_BATCHES = 64


@dataclass(frozen=True)
class Presampled:
    """Per node of the graph, by gid, int32 [N]: in how many of ``batches`` it was, and in how many its neighbours were
    drawn.  picks: neighbours drawn for each such node, on average."""

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
) -> Presampled:
    """Samples up to 64 batches of the training seeds that the mapped parts own, the same ones each time.

    Raises `OptionError` where there are no such seeds.
    """
    manifest, schema = partition.manifest, partition.schema
    if "train" not in manifest.splits:
        raise OptionError("cache.policy: presample counts batches of training seeds, and this graph has none.")
    seeds = partition.split("train")
    bounds = np.asarray(manifest.bounds[seeds.node_type]) + manifest.offsets[seeds.node_type]
    own = seeds.gids[np.isin(np.searchsorted(bounds, seeds.gids, side="right") - 1, partition.parts)]
    if not len(own):
        raise OptionError("cache.policy: presample counts batches of this host's training seeds, and it has none.")
    own = np.random.default_rng(0).permutation(own)
    batches = min(_BATCHES, -(-len(own) // batch_size))
    config = SamplerConfig(seeds.node_type, fanout_table(num_neighbors, schema))
    sampler = ClusterSampler(partition, config, remote, attributes=False)
    in_batch = np.zeros(manifest.total_nodes, dtype=np.int32)
    in_frontier = np.zeros(manifest.total_nodes, dtype=np.int32)
    nodes = edges = 0
    with Progress(progress).phase("presampling", batches, "batches") as done:
        for b in range(batches):
            chosen = np.ascontiguousarray(own[b * batch_size : (b + 1) * batch_size])
            found = sampler.sample(BatchRequest(b, batch_key(0, "presample", 0, b), chosen, np.arange(len(chosen))))
            for gids, per_hop in zip(found.gid, found.nodes_per_hop, strict=True):
                in_batch[gids] += 1  # a node is in a batch once, but for seeds that are listed twice
                in_frontier[gids[: int(per_hop[:-1].sum())]] += 1
                nodes += int(per_hop[:-1].sum())
            edges += int(found.edges_per_hop.sum())
            done(1)
    return Presampled(in_batch, in_frontier, batches, edges / max(1, nodes))
