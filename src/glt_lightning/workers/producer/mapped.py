"""Graphs whose parts are mapped: all of them here, or some by each host of a job; and the producers of mapped parts."""

from __future__ import annotations

import logging
import math
from contextlib import ExitStack
from dataclasses import replace

from glt_lightning.base import OptionError, SamplingOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.sampling import DeviceSource, OwnBatches
from glt_lightning.workers.cluster.cache import NOTHING_TO_CACHE
from glt_lightning.workers.cluster.graph import ClusterGraph
from glt_lightning.workers.cluster.link import Link
from glt_lightning.workers.producer.base import JoiningProducer, KeptRows, ProducerSetup
from glt_lightning.workers.producer.group import WorkerGroup
from glt_lightning.workers.producer.host_parts import HostParts, require_plain
from glt_lightning.workers.producer.on_gpu import gpu_kernels, make_device_producer
from glt_lightning.workers.producer.process import OnLoss
from glt_lightning.workers.producer.samplers import InlineProducer, Samplers
from glt_lightning.workers.producer.subprocess import SubprocessProducer

_log = logging.getLogger(__name__)


class MappedGraph:
    """A `SampledGraph` of which this process maps all parts: this process or its sampler processes make the batches."""

    def __init__(self, partition: LocalPartition) -> None:
        self._partition = partition
        self.manifest, self.schema = partition.manifest, partition.schema
        self.split, self.edge_split, self.seeds = partition.split, partition.edge_split, partition.seeds
        self.deleted = partition.deleted

    def open_producer(self, setup: ProducerSetup, opened: ExitStack) -> tuple[JoiningProducer, KeptRows | None]:
        if setup.cache.keeps_rows and setup.ranks.rank == 0:
            _log.warning("%s", NOTHING_TO_CACHE)
        producer, rows = open_mapped(self._partition, setup, opened)
        if rows is not None:
            rows.fill()
        return producer, rows


class HostsGraph(ClusterGraph):
    """A `SampledGraph` of which each host maps some parts. The samplers of a rank ask those of other ranks for the rows that
    are not mapped here.

    Args:
        partition: The parts that are mapped here.
        link: This rank's name and how it reaches the other ranks.
        host: Name or address at which other hosts reach this one.
        on_loss: Hears of a rank that is gone for longer than the deadlines allow.
        silence_s: How long a rank may be stopped whose sampler processes go on.
    """

    def __init__(
        self,
        partition: LocalPartition,
        link: Link,
        host: str,
        on_loss: OnLoss | None = None,
        silence_s: float = math.inf,
    ) -> None:
        super().__init__(partition)
        self._link = replace(link, graph=partition.identity)
        self._serve = f"[{host}]:0" if ":" in host else f"{host}:0"
        self._on_loss, self._silence_s = on_loss, silence_s

    def open_producer(self, setup: ProducerSetup, opened: ExitStack) -> tuple[JoiningProducer, KeptRows | None]:
        link = self._link
        setup = replace(setup, ranks=replace(setup.ranks, name=link.name))
        producer, rows = open_mapped(self.partition, setup, opened, link, self._serve)
        group = WorkerGroup(self, producer, link, setup, self._on_loss, self._silence_s)
        opened.callback(group.close)
        if rows is not None:
            rows.fill(group.rows)
        return producer, rows


def open_mapped(
    partition: LocalPartition,
    setup: ProducerSetup,
    opened: ExitStack,
    link: Link | None = None,
    serve: str | None = None,
) -> tuple[JoiningProducer, KeptRows | None]:
    """Opens the producer of mapped parts, by a GPU, sampler processes or this process. Returns it, and the rows that the
    training device is to be filled with. A collective call of ``setup.ranks``.

    opened: closes what was opened.  link: connects samplers to the owners of the other parts; None if all parts are mapped.
    serve: the address at which samplers serve the mapped parts to other ranks; None: they do not.
    """
    sampling, cache = setup.sampling, setup.cache
    kernels = gpu_kernels(setup)
    _require_own_on_cpu(sampling, kernels is not None)
    require_plain(partition, cache, kernels is not None)
    gpus = DeviceSource.of_workers(sampling, cache, partition.manifest)
    parts = HostParts(partition, cache, gpus, setup.ranks, kernels is not None)
    opened.callback(parts.close)
    rows, on_device = None, None
    gpus_sample = kernels is not None or bool(sampling.worker_devices)  # then cache.device is their budget
    if setup.keep_rows is not None and not gpus_sample:
        rows = setup.keep_rows(parts.partition, setup)
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


def _require_own_on_cpu(sampling: SamplingOptions, on_gpu: bool) -> None:
    own = [name for name in ("picker", "batch_sampler") if getattr(sampling, name) is not None]
    if own and on_gpu:
        raise OptionError(f"sampling.{own[0]}: runs on CPUs, and here a GPU samples. Set sampling.topology to cpu.")
