"""A graph that graph servers have: they make the batches."""

from __future__ import annotations

import logging

from glt_lightning.cluster.graph import RemoteGraph
from glt_lightning.options import ClusterOptions, SamplingOptions
from glt_lightning.producer.base import OpenedProducer, ProducerSetup, refuse_device_rows
from glt_lightning.server.remote import RemoteProducer
from glt_lightning.transport.peer import Peer

_log = logging.getLogger(__name__)


class ServedGraph(RemoteGraph):
    """A `SampledGraph` that ``server`` holds and samples.

    options: how far ahead to ask, and how long to wait.  handover: see `RemoteProducer`.
    """

    def __init__(self, server: Peer, options: ClusterOptions, *, handover: bool = True) -> None:
        super().__init__(server)
        self._options, self.handover = options, handover

    def open_producer(self, setup: ProducerSetup) -> OpenedProducer:
        """Raises `OptionError` for ``cache.device``, unless it is the budget of the servers' GPUs."""
        if not self._options.worker_devices:
            refuse_device_rows(setup.cache)
        _log_without_effect(setup.sampling)
        producer = RemoteProducer(self._server, self._options, setup.sampling, setup.pin, handover=self.handover)
        return OpenedProducer(producer, None, producer.close)


def _log_without_effect(sampling: SamplingOptions) -> None:
    """Names the options that say how a trainer samples, for here it does not."""
    if sampling.worker_devices:
        _log.info(
            "sampling.worker_devices: no effect, for servers make whole batches; theirs are cluster.worker_devices."
        )
        return
    kinds = (("topology", sampling.topology), ("features", sampling.features))
    given = [f"{name} {kind}" for name, kind in kinds if kind != "auto"]
    if given and sampling.topology != "cpu":
        _log.info("sampling: servers make whole batches; for their cluster.worker_devices: %s.", ", ".join(given))
