"""The local parts of the graph with their host tier and the copies for GPUs, shared by the ranks of a host."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from glt_lightning.base import CacheOptions, OptionError
from glt_lightning.graph import GrownPartition, LocalPartition
from glt_lightning.sampling import DeviceSource
from glt_lightning.workers.cluster.link import Link
from glt_lightning.workers.producer.base import Ranks
from glt_lightning.workers.producer.group import SamplerGpus, shared_host_tier
from glt_lightning.workers.producer.samplers import SamplerSource


class HostParts:
    """Opens the host tier (``cache.memory``) and the memory that GPUs of sampler processes read, once per host. Collective:
    all ranks construct theirs at the same time. Close it after the samplers.

    partition: the mapped parts, with their host tier.  gpus: the GPUs of the sampler processes; None: the CPU samples, or with
    ``on_gpu`` this process's GPU. GPUs read no tier that ``cache.memory: auto`` would make.
    Raises `OptionError` if this host has too little memory, on other ranks `PeerError`; and as `require_plain`.
    """

    def __init__(
        self,
        partition: LocalPartition,
        cache: CacheOptions,
        gpus: DeviceSource | None,
        ranks: Ranks,
        on_gpu: bool = False,
    ) -> None:
        on_gpu = on_gpu or gpus is not None
        require_plain(partition, cache, on_gpu)
        if on_gpu and cache.memory == "auto":
            cache = replace(cache, memory=None)
        with ExitStack() as opened:
            memory = shared_host_tier(partition, cache, ranks) if partition.memory is None else None
            if memory is not None:
                opened.callback(memory.close)
                partition = partition.with_memory(memory)
            shared = SamplerGpus(partition, gpus, ranks)
            opened.callback(shared.close)
            self.partition, self._gpus = partition, shared.source
            self._opened = opened.pop_all()

    def source(self, link: Link | None = None, **changes: Any) -> SamplerSource:
        """Makes the `SamplerSource` of these parts. link, changes: its other fields."""
        return SamplerSource.of(self.partition, link, gpus=self._gpus, **changes)

    def close(self) -> None:
        """Safe to call twice."""
        self._opened.close()


def require_plain(partition: LocalPartition, cache: CacheOptions, on_gpu: bool) -> None:
    """Raises `OptionError` for options that an overlay has no part in: what they copy would lack its rows."""
    refused = {
        "sampling on a GPU": on_gpu,
        "cache.device": cache.device_bytes is not None,
        "cache.memory": cache.memory_bytes is not None,
    }
    for name in [name for name, given in refused.items() if given and isinstance(partition, GrownPartition)][:1]:
        raise OptionError(
            f"{name}: has no effect on rows that were added to the graph (partition.version, data.new). Leave it out"
            f"{', or set sampling.topology: cpu' if on_gpu else ''}."
        )
