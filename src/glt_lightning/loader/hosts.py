"""A graph whose parts are mapped by the hosts of a job, which sample for each other."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import replace

from glt_lightning.graph import LocalPartition
from glt_lightning.loader.device_producer import DeviceRows
from glt_lightning.loader.mapped import open_mapped
from glt_lightning.workers import ClusterGraph, JoiningProducer, Link, OnLoss, ProducerSetup, WorkerGroup


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

    def open_producer(self, setup: ProducerSetup, opened: ExitStack) -> tuple[JoiningProducer, DeviceRows | None]:
        link = self._link
        setup = replace(setup, ranks=replace(setup.ranks, name=link.name))
        producer, rows = open_mapped(self.partition, setup, opened, link, self._serve)
        group = WorkerGroup(self, producer, link, setup, self._on_loss, self._silence_s)
        opened.callback(group.close)
        if rows is not None:
            rows.fill(group.rows)
        return producer, rows
