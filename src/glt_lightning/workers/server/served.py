"""A graph of graph servers, which make its batches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property

import numpy as np

from glt_lightning.base import ClusterOptions, OptionError, SamplingOptions
from glt_lightning.sampling import RemoteRows
from glt_lightning.workers.cluster.graph import RemoteGraph
from glt_lightning.workers.cluster.placement import placed_parts
from glt_lightning.workers.cluster.remote_rows import PeerRows
from glt_lightning.workers.producer.base import ProducerSetup
from glt_lightning.workers.server.remote import RemoteProducer
from glt_lightning.workers.transport.peer import Peer

_log = logging.getLogger(__name__)
_DEFAULTS = SamplingOptions()


class ServedGraph(RemoteGraph):
    """A `SampledGraph` that ``server`` stores and samples.

    options: number of batches ahead, and deadlines.  handover: see `RemoteProducer`.  servers: all servers of the job by number,
    this one among them, for rows that are read by number; None: it is the only one.
    """

    def __init__(
        self, server: Peer, options: ClusterOptions, *, handover: bool = True, servers: Sequence[Peer] | None = None
    ) -> None:
        super().__init__(server)
        self._options, self.handover = options, handover
        self._servers = [server] if servers is None else list(servers)

    @cached_property
    def _rows(self) -> PeerRows:
        number, parts = len(self._servers), self.manifest.num_parts
        owner_of_part = np.zeros(parts, dtype=np.int32)
        for rank in reversed(range(number)):
            owner_of_part[list(placed_parts(rank, number, parts))] = 1 + rank
        return PeerRows(owner_of_part, self._servers)

    def rows(self) -> RemoteRows:
        """The servers as the owners of all parts."""
        return self._rows

    def open_producer(self, setup: ProducerSetup, opened: ExitStack) -> tuple[RemoteProducer, None]:
        """Raises `OptionError` for what only a process that maps the graph can do."""
        if setup.cache.device_bytes is not None and not setup.sampling.worker_devices:  # else the servers' GPUs have it
            raise OptionError(
                "cache.device: the training process must map the graph, but here a graph server makes whole batches. Train with "
                "strategy glt_worker, or remove cache.device."
            )
        if setup.sampling.batch_sampler is not None:
            raise OptionError(
                "sampling.batch_sampler: runs in the training process, and here a graph server makes the batches. Remove it, or "
                "write a sampling.picker, which runs wherever rows are."
            )
        if setup.ranks.rank == 0:
            _log_without_effect(setup.sampling)
        producer = RemoteProducer(self._server, self._options, setup.sampling, setup.pin, handover=self.handover)
        opened.callback(producer.close)
        return producer, None


def _log_without_effect(sampling: SamplingOptions) -> None:
    """Logs options of a sampling trainer that have no effect here."""
    if sampling.prefetch != _DEFAULTS.prefetch:
        _log.warning("sampling.prefetch has no effect: servers make the batches. Remove it, or set cluster.prefetch.")
    if sampling.worker_devices:
        return
    kinds = (("topology", sampling.topology), ("features", sampling.features))
    given = [f"{name} {kind}" for name, kind in kinds if kind != "auto"]
    if given and sampling.topology != "cpu":
        _log.info(
            "sampling: servers make the batches; these options hold for their sampling.worker_devices: %s.",
            ", ".join(given),
        )
