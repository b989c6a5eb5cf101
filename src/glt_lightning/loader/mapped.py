"""A graph whose parts are all mapped here, and the producers of mapped parts."""

from __future__ import annotations

import logging
from contextlib import ExitStack

import torch

from glt_lightning.base import CacheOptions, OptionError, SamplingOptions
from glt_lightning.graph import GrownPartition, LocalPartition
from glt_lightning.loader.device_producer import DeviceRows, device_rows
from glt_lightning.loader.on_gpu import gpu_kernels, make_device_producer
from glt_lightning.sampling import DeviceSource, OwnBatches
from glt_lightning.workers import (
    NOTHING_TO_CACHE,
    HostParts,
    InlineProducer,
    JoiningProducer,
    Link,
    ProducerSetup,
    Samplers,
    SubprocessProducer,
)

_log = logging.getLogger(__name__)


def _require_own_on_cpu(sampling: SamplingOptions, on_gpu: bool) -> None:
    own = [name for name in ("picker", "batch_sampler") if getattr(sampling, name) is not None]
    if own and on_gpu:
        raise OptionError(f"sampling.{own[0]}: runs on CPUs, and here a GPU samples. Set sampling.topology to cpu.")


class MappedGraph:
    """A `SampledGraph` of which this process maps all parts: this process or its sampler processes make the batches."""

    def __init__(self, partition: LocalPartition) -> None:
        self._partition = partition
        self.manifest, self.schema = partition.manifest, partition.schema
        self.split, self.edge_split, self.seeds = partition.split, partition.edge_split, partition.seeds
        self.deleted = partition.deleted

    def open_producer(self, setup: ProducerSetup, opened: ExitStack) -> tuple[JoiningProducer, DeviceRows | None]:
        if setup.cache.keeps_rows and setup.ranks.rank == 0:
            _log.warning("%s", NOTHING_TO_CACHE)
        producer, rows = open_mapped(self._partition, setup, opened)
        if rows is not None:
            rows.fill()
        return producer, rows


def _require_plain(sampling: SamplingOptions, cache: CacheOptions, on_gpu: bool) -> None:
    """Raises `OptionError` for options that an overlay has no part in: what they copy would lack its rows."""
    refused = {
        "sampling on a GPU": on_gpu or bool(sampling.worker_devices),
        "cache.device": cache.device_bytes is not None,
        "cache.memory": cache.memory_bytes is not None,
    }
    for name, given in refused.items():
        if given:
            raise OptionError(
                f"{name}: has no effect on rows that were added to the graph (partition.version, data.new). Leave it out"
                f"{', or set sampling.topology: cpu' if on_gpu else ''}."
            )


def open_mapped(
    partition: LocalPartition,
    setup: ProducerSetup,
    opened: ExitStack,
    link: Link | None = None,
    serve: str | None = None,
) -> tuple[JoiningProducer, DeviceRows | None]:
    """Who makes batches of mapped parts, a GPU, sampler processes or this process; and the rows that the training device is
    to be filled with. A collective call of ``setup.ranks``.

    opened: closes what was opened.  link: connects samplers to the owners of the other parts; None if all parts are mapped.
    serve: the address at which samplers serve the mapped parts to other ranks; None: they do not.
    """
    sampling, cache, device = setup.sampling, setup.cache, torch.device(setup.device)
    kernels = gpu_kernels(sampling, device, setup.ranks)
    _require_own_on_cpu(sampling, kernels is not None)
    if isinstance(partition, GrownPartition):
        _require_plain(sampling, cache, kernels is not None)
    parts = HostParts(partition, cache, DeviceSource.of_workers(sampling, cache, partition.manifest), setup.ranks)
    opened.callback(parts.close)
    rows, on_device = None, None
    if kernels is None and not sampling.worker_devices:  # else cache.device is the budget of the GPUs that sample
        rows = device_rows(parts.partition, cache, device, setup.ranks, stored=sampling.feature_dtype == "stored")
    if rows is not None:
        opened.callback(rows.close)
        on_device = rows.index.path
    source = parts.source(link, serve=serve, on_device=on_device, picker=sampling.draw.picker)
    producer: JoiningProducer
    if kernels is not None:
        producer = make_device_producer(parts.partition, source, kernels, setup)
    elif sampling.num_workers:
        producer = SubprocessProducer(source, sampling, setup.pin)
    else:
        own = OwnBatches.of(sampling.batch_sampler)
        producer = InlineProducer(Samplers(source, partition=parts.partition, own=own), setup.pin)
    opened.callback(producer.close)
    return producer, rows
