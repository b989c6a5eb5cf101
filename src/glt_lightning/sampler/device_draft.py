"""A GPU sampling for a process whose batches go through the host's memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from glt_lightning.data.host_arrays import open_on_host
from glt_lightning.data.kept import Kept
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.data.shared_arrays import SharedArrays
from glt_lightning.ops.cuda.kernels import Kernels
from glt_lightning.ops.cuda.stream import SideStream, wait_for
from glt_lightning.sampler.device_cluster import DeviceClusterSampler
from glt_lightning.sampler.device_sampler import DeviceSampler
from glt_lightning.sampler.device_source import DeviceSource
from glt_lightning.sampler.device_store import open_store
from glt_lightning.sampler.request import BatchRequest, SamplerConfig
from glt_lightning.sampler.sample import Draft, Field, Sample
from glt_lightning.sampler.source import RemoteRows


class DeviceDrafts:
    """The mapped parts on the GPU of one sampler process. Close it when no batch is being made.

    Raises `NativeError` for a GPU that cannot be used, `OptionError` for one with too little memory.
    """

    def __init__(self, source: DeviceSource, index: int, partition: LocalPartition) -> None:
        self._partition, self._kernels = partition, Kernels.open(source.device(index))

        def share(on_host: Sequence[str]) -> SharedArrays | None:
            if not on_host:
                return None
            assert source.host is not None, "the trainer or server has not copied what GPUs read"
            return open_on_host(partition, on_host, source.with_edge, source.host)

        self._store = open_store(
            partition,
            self._kernels,
            topology=source.topology,
            features=source.features,
            cache=source.cache,
            with_edge=source.with_edge,
            share=share,
        )
        wait_for(self._kernels.device)

    def drafter(self, config: SamplerConfig, remote: RemoteRows | None, kept: Kept) -> DeviceDrafter:
        """For one thread. remote: who has the parts that are not mapped; None if all are."""
        sampler: _Makes
        if remote is None:
            sampler = DeviceSampler(self._store, self._partition, config)
        else:
            sampler = DeviceClusterSampler(self._store, self._partition, config, remote, kept)
        return DeviceDrafter(sampler, self._kernels.device)

    def close(self) -> None:
        wait_for(self._kernels.device)
        self._store.close()


class _Makes(Protocol):
    def make(self, request: BatchRequest) -> Sample: ...


class DeviceDrafter:
    """Drafts the batches that ``sampler`` makes on ``device``: writing a draft copies them to the host. For one thread."""

    def __init__(self, sampler: _Makes, device: torch.device) -> None:
        self._sampler, self._stream = sampler, SideStream(device)

    def draft(self, request: BatchRequest) -> Draft:
        with self._stream.current():
            sample = self._sampler.make(request)
        return Draft([self._field(name, value) for name, value in sample.arrays.items()], sample.counters)

    def _field(self, name: str, value: Any) -> Field:
        if isinstance(value, Tensor):
            # bfloat16 travels as uint16, which numpy has
            bits = value.view(torch.uint16) if value.dtype == torch.bfloat16 else value
            dtype = np.dtype(str(bits.dtype).removeprefix("torch."))
            return Field(name, dtype, tuple(bits.shape), partial(self._fetch, bits))
        return Field(name, value.dtype, value.shape, partial(_copy, value))

    def _fetch(self, values: Tensor, out: np.ndarray) -> None:
        with self._stream.current():
            torch.from_numpy(out).copy_(values)  # waits: what is written may be sent at once


def _copy(values: np.ndarray, out: np.ndarray) -> None:
    out[...] = values
