"""The parts of the graph that a process maps, as its samplers find them in the memory of its host."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from glt_lightning.cluster.link import Link
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.options import CacheOptions
from glt_lightning.producer.ranks import Ranks
from glt_lightning.producer.samplers import SamplerSource
from glt_lightning.producer.shared_tiers import shared_host_tier
from glt_lightning.producer.shared_uva import SamplerGpus
from glt_lightning.sampler.device_source import DeviceSource


class HostParts:
    """Opens what ``cache.memory`` and the GPUs of sampler processes need of the mapped parts, once per host. All ranks make
    theirs at the same time. Close it after the samplers.

    partition: the mapped parts, with the rows that stay in memory.  gpus: of the sampler processes; None: the CPU samples.
    Raises `OptionError` for more memory than this host has, on other ranks `PeerError`.
    """

    def __init__(self, partition: LocalPartition, cache: CacheOptions, gpus: DeviceSource | None, ranks: Ranks) -> None:
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
        """What samplers of these parts open; the arguments are those of `SamplerSource`."""
        return SamplerSource.of(self.partition, link, gpus=self._gpus, **changes)

    def close(self) -> None:
        """Safe to call twice."""
        self._opened.close()
