"""The k-hop sampler: one loop and one assembler, whoever has the rows and wherever the batch lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.graph import DeviceIndex, LocalPartition, RemoteCache
from glt_lightning.sampling.aggregate import require_aggregable
from glt_lightning.sampling.assemble import assemble
from glt_lightning.sampling.hops import k_hop
from glt_lightning.sampling.host_source import HostSource
from glt_lightning.sampling.importance import ImportanceSource, partition_for
from glt_lightning.sampling.links import LinksSampler
from glt_lightning.sampling.neighbors import LocalSource, NeighborSource
from glt_lightning.sampling.request import BatchRequest, SamplerConfig
from glt_lightning.sampling.routed_source import RoutedSource
from glt_lightning.sampling.sample import Draft
from glt_lightning.sampling.source import RemoteRows

if TYPE_CHECKING:
    from glt_lightning.graph import DeviceStore  # imports torch


def neighbor_source(
    partition: LocalPartition,
    config: SamplerConfig,
    *,
    store: DeviceStore | None = None,
    remote: RemoteRows | None = None,
    cache: RemoteCache | None = None,
    on_device: DeviceIndex | None = None,
) -> NeighborSource:
    """The source of a graph's neighbours and attributes, for one thread.

    store: the mapped parts on the device that samples them, and on which batches shall lie; None: the CPU samples, and
    batches lie in the host's memory.  remote: the owners of the parts that are not mapped; None: all are.  cache: the
    remote rows and neighbour lists that are cached on this host.  on_device: nodes whose attributes the trainer's device
    has; batches of the CPU leave them out, and an array ``device_rows`` (int32 [n], -1: not there) tells of every node its
    row on the device.
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

    Batches do not depend on where the graph lies and who samples it. One instance serves one thread. On a device, arrays
    are good for work that comes behind them on the stream that was current; the host waits for the device once a batch, or
    once a hop where parts are remote or fan-outs do not bound the batch, and once more where the CPU reads attributes.
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

    def draft(self, request: BatchRequest) -> Draft:
        """Samples one batch. Attributes are copied when the draft is written, which has to be before the next batch.

        Raises as `k_hop`, and `DataError` for more than ``config.most_bytes``; on a device also in the batch after one
        whose edges lead out of the graph.
        """
        if self._links is None:
            seeds = request.typed_seeds(self.source.config.seed_type)
            found = k_hop(self.source, seeds, request.key_of_neighbors, request.excluded, request.trees)
            return assemble(self.source, request, found)
        ends = self._links.find(request)
        found = k_hop(self.source, ends.seeds, request.key_of_neighbors, ends.excluded, ends.trees)
        self.source.local.counters.add(ends.counters)
        return assemble(self.source, request, found, ends.arrays, ends.examples)
