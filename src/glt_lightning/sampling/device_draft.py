"""Sampling on the GPU of a sampler process, whose batches go to the trainer through the host's memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from glt_lightning.graph import BatchArrays, DeviceStore, LocalPartition, RemoteCache, SharedArrays, open_uva
from glt_lightning.kernels import Kernels, SideStream, wait_for
from glt_lightning.sampling.device_source import DeviceSource
from glt_lightning.sampling.khop import KHopSampler
from glt_lightning.sampling.request import BatchRequest, SamplerConfig
from glt_lightning.sampling.sample import Draft
from glt_lightning.sampling.source import RemoteRows


class GpuSamplers:
    """The mapped parts on the GPU of one sampler process. Close it when no batch is being made.

    Raises `NativeError` for a GPU that cannot be used, `OptionError` for one with too little memory.
    """

    def __init__(self, source: DeviceSource, index: int, partition: LocalPartition) -> None:
        self._partition, self._kernels = partition, Kernels.open(source.device(index))
        batch = BatchArrays(partition, source.edges, source.weights, source.timed, source.labor)

        def share(on_host: Sequence[str]) -> SharedArrays | None:
            if not on_host:
                return None
            assert source.host is not None, "the trainer or server has not copied the arrays that GPUs read"
            return open_uva(batch, on_host, source.host)

        self._store = DeviceStore.open(
            batch,
            self._kernels,
            topology=source.topology,
            features=source.features,
            budgets=source.budgets,
            share=share,
        )
        wait_for(self._kernels.device)

    def sampler(self, config: SamplerConfig, remote: RemoteRows | None, cache: RemoteCache) -> OnStream:
        """Makes a sampler for one thread. remote: the owners of the parts that are not mapped; None if all are."""
        sampler = KHopSampler(self._partition, config, store=self._store, remote=remote, cache=cache)
        return OnStream(sampler, self._kernels.device)

    def close(self) -> None:
        wait_for(self._kernels.device)
        self._store.close()


class OnStream:
    """A sampler with a stream of its own, for one thread. Its drafts copy batches to the host when they are written."""

    def __init__(self, sampler: KHopSampler, device: torch.device) -> None:
        self._sampler, self._stream = sampler, SideStream(device)

    def draft(self, request: BatchRequest) -> Draft:
        with self._stream.current():
            return self._sampler.draft(request)
