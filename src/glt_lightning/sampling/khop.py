"""The k-hop sampler: one loop and one assembler for all sources of rows and all places of batches."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.graph import DeviceIndex, LocalPartition, RemoteCache
from glt_lightning.kernels import ExcludedEdges, Trees, run_hops
from glt_lightning.sampling.assemble import assemble, require_aggregable
from glt_lightning.sampling.host_source import HostSource
from glt_lightning.sampling.importance import ImportanceSource, partition_for
from glt_lightning.sampling.links import EdgeSeeds, LinksSampler
from glt_lightning.sampling.neighbors import Found, LocalSource, NeighborSource
from glt_lightning.sampling.request import BatchRequest, SamplerConfig
from glt_lightning.sampling.routed_source import RoutedSource
from glt_lightning.sampling.sample import Draft
from glt_lightning.sampling.source import RemoteRows
from glt_lightning.sampling.subgraph import complete_edges

if TYPE_CHECKING:
    from glt_lightning.graph import DeviceStore


def neighbor_source(
    partition: LocalPartition,
    config: SamplerConfig,
    *,
    store: DeviceStore | None = None,
    remote: RemoteRows | None = None,
    cache: RemoteCache | None = None,
    on_device: DeviceIndex | None = None,
) -> NeighborSource:
    """Makes the source of a graph's neighbours and attributes, for one thread.

    store: the mapped parts on the device that samples them, in whose memory batches lie; None: the CPU samples, and batches
    lie in the host's memory.  remote: the owners of the parts that are not mapped; None: all are.  cache: the remote rows
    and neighbour lists that are cached on this host.  on_device: nodes whose attributes the trainer's device has; batches
    of the CPU leave these out, and have an array ``device_rows`` (int32 [n]), the row of each node on the device, or -1.
    Raises `OptionError` for ``on_device`` together with ``store``.
    """
    local: LocalSource
    config.require_possible(on_gpu=store is not None, on_device=on_device is not None)
    partition = partition_for(partition, config)
    require_aggregable(partition.manifest, config)
    if store is None:
        local = HostSource(partition, config, on_device)
    else:
        from glt_lightning.sampling.device_neighbors import DeviceNeighbors  # imports torch

        local = DeviceNeighbors(store, partition, config, None if remote is None else remote.owner_of_part != 0)
    source = local if remote is None else RoutedSource(local, partition, remote, cache)
    return source if config.importance is None else ImportanceSource(source, config.importance)


class KHopSampler:
    """Samples k-hop batches with all node and edge attributes; see `neighbor_source` for the arguments.

    Batches do not depend on where the graph lies and which process or device samples it. One instance serves one thread. On
    a device, arrays may be used by work that follows on the stream that was current; the host waits for the device once a
    batch, or once a hop if parts are remote or fan-outs do not bound the batch, and once more if the CPU reads attributes.
    """

    def __init__(
        self,
        partition: LocalPartition,
        config: SamplerConfig,
        *,
        store: DeviceStore | None = None,
        remote: RemoteRows | None = None,
        cache: RemoteCache | None = None,
        on_device: DeviceIndex | None = None,
    ) -> None:
        self.source = neighbor_source(partition, config, store=store, remote=remote, cache=cache, on_device=on_device)
        self._links = None if config.link is None else LinksSampler(self.source, partition)

    def find(self, request: BatchRequest) -> tuple[Found, EdgeSeeds | None]:
        """Samples the nodes and edges of one batch, without attributes. Returns them, and for a batch of edges its seeds. Raises
        as `k_hop`."""
        if self._links is None:
            seeds = request.typed_seeds(self.source.config.seed_type)
            return k_hop(self.source, seeds, request.key_of_neighbors, request.excluded, request.trees), None
        ends = self._links.find(request)
        return k_hop(self.source, ends.seeds, request.key_of_neighbors, ends.excluded, ends.trees), ends

    def draft(self, request: BatchRequest) -> Draft:
        """Samples one batch. Write the draft before the next call, which reuses the arrays: writing copies the attributes.

        Raises as `k_hop`, and `DataError` for more than ``config.most_bytes``; on a device also in the batch after one
        whose edges lead out of the graph.
        """
        found, ends = self.find(request)
        if ends is None:
            return assemble(self.source, request, found)
        self.source.local.counters.add(ends.counters)
        return assemble(self.source, request, found, ends.arrays, ends.examples)


# The nodes and edges of a k-hop batch, from any source.


def k_hop(
    source: NeighborSource,
    seeds: Mapping[int, np.ndarray],
    key: int,
    excluded: ExcludedEdges | None = None,
    trees: Trees | None = None,
) -> Found:
    """Samples the nodes and edges of a batch, with the edges that ``source.config.subgraph`` adds. Arrays in the host's memory
    are valid until the next batch.

    seeds: by node type int64 [S] gids, of any number of types; a seed that comes twice has two rows.
    key: 64-bit key of all draws.
    excluded: edges that the batch is sampled without; draws from rows without such edges stay the same.
    trees: the trees of the seeds, if the source's config is ``disjoint``; None: each seed has its own.
    Raises `DataError` for seeds and excluded edges outside their types and trees that do not fit the seeds, `PartitionError`
    for damaged rows, `PeerError`, with the name of an owner that does not answer.
    """
    begin = time.perf_counter()
    source.begin()
    if source.config.disjoint:
        trees = (trees or Trees()).for_seeds(seeds)
    elif trees is not None:
        raise DataError("k_hop: got trees for a batch that is not disjoint.")
    found = source.khop(seeds, key, excluded, trees)
    if found is None:  # one call cannot do it, for instance because parts are remote: hop by hop
        batch = source.local.start(seeds, trees)
        later = excluded
        if excluded is not None and trees is None and source.config.importance is None:
            # A node is expanded once, a seed in the first hop, and excluded edges mostly end at seeds: later hops look for
            # few or none. A disjoint batch may expand a seed again in another tree, and walks come back to seeds.
            later = excluded.without_seeds(seeds, source.view)
        run_hops(source, batch, key, source.config.fanouts, (excluded, later))
        found = batch.result()
    found = complete_edges(source, found, excluded)
    counters = source.local.counters
    counters.sample_s = time.perf_counter() - begin - counters.remote_s
    return found
