"""A graph of graph servers, which make its batches."""

from __future__ import annotations

import logging
import warnings
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property

import numpy as np

from glt_lightning.base import ClusterOptions, OptionError, SamplerError, SamplingOptions
from glt_lightning.sampling import BatchRequest, Counters, RemoteRows, Sample
from glt_lightning.workers.cluster.graph import RemoteGraph, served_parts
from glt_lightning.workers.cluster.remote_rows import PeerRows
from glt_lightning.workers.producer.base import InFlight, ProducerSetup
from glt_lightning.workers.producer.look_ahead import LoaderRun, LookAhead
from glt_lightning.workers.server.client_session import ClientSession
from glt_lightning.workers.server.handover import BorrowedMessage
from glt_lightning.workers.server.question import Question
from glt_lightning.workers.slots import PinMemory, Slot, SlotPool
from glt_lightning.workers.transport.message import Message
from glt_lightning.workers.transport.peer import Peer

_log = logging.getLogger(__name__)
_DEFAULTS = SamplingOptions()


class ServedGraph(RemoteGraph):
    """A `SampledGraph` that a graph server stores and samples.

    server: makes the batches.  options: number of batches ahead, and deadlines.  handover: see `RemoteProducer`.
    servers: all servers of the job by number, ``server`` among them, for reads of single rows; None: it is the only one.
    """

    def __init__(
        self, server: Peer, options: ClusterOptions, *, handover: bool = True, servers: Sequence[Peer] | None = None
    ) -> None:
        super().__init__(server)
        self._options, self.handover = options, handover
        self._servers = [server] if servers is None else list(servers)

    @cached_property
    def _rows(self) -> PeerRows:
        number = len(self._servers)
        owner_of_part = np.zeros(self.manifest.num_parts, dtype=np.int32)
        for rank in reversed(range(number)):
            owner_of_part[list(served_parts(rank, number, self.manifest))] = 1 + rank
        return PeerRows(owner_of_part, self._servers)

    def rows(self) -> RemoteRows:
        """Returns the servers as the owners of all parts."""
        return self._rows

    def open_producer(self, setup: ProducerSetup, opened: ExitStack) -> tuple[RemoteProducer, None]:
        """Opens a `RemoteProducer`. Raises `OptionError` for options that need the graph in the training process."""
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
    """Logs the options that have an effect only in a trainer that samples itself."""
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


# The producer whose batches a graph server makes.


_SLOTS = 3  # page-locked: the batch in use, the one before, which the loop may still reference, and one to write
_Answered = tuple[int, Message]  # number of a batch, and the batch


class RemoteProducer(LookAhead[int, _Answered]):
    """Requests batches from a graph server, up to ``options.prefetch`` ahead for each loader that is iterated.

    The trainer keeps the plan, and each request describes its batch completely, so a restarted server or a broken connection
    costs time and nothing else; `PeerLostError` after ``options.deadlines.reconnect_s``. A batch stays in the memory in
    which it arrived, or is copied to page-locked memory if ``pin`` is given.

    Args:
        server: The graph server; stays open when the producer is closed.
        options: Number of batches ahead, and deadlines.
        sampling: ``timeout_s`` for one batch; ``max_restarts`` for samplers that end while they make it; ``channel_size``
            for the bytes of batches in flight.
        pin: Page-locks the memory of batches.
        handover: Maps the server's memory if the server runs on this host as the same user.
    """

    restarts = 0
    _warned = False

    def __init__(
        self,
        server: Peer,
        options: ClusterOptions,
        sampling: SamplingOptions,
        pin: PinMemory | None = None,
        *,
        handover: bool = True,
    ) -> None:
        most = options.prefetch
        super().__init__(InFlight.of(sampling, most, f"cluster.prefetch {most}"))
        self._client_session = ClientSession(
            server, options.deadlines, sampling.max_restarts, sampling.timeout_s, pin, handover
        )
        self._finalizer = weakref.finalize(self, self._client_session.close)
        self._slots = None if pin is None else SlotPool(Slot, _SLOTS, pin)
        self._closed = False

    @property
    def fresh_slots(self) -> int:
        return self._client_session.fresh + (0 if self._slots is None else self._slots.fresh_slots)

    @property
    def reconnects(self) -> int:
        """Number of streams of batches that were opened after the first one."""
        return self._client_session.reopened

    def close(self) -> None:
        self._closed = True
        self._finalizer()
        if self._slots is not None:
            self._slots.close()

    def _ask(self, run: LoaderRun[int], request: BatchRequest) -> int:
        self._client_session.ask(Question(run.id, run.config, request))
        return request.number

    def _wait(self, run: LoaderRun[int], task: int) -> _Answered:
        return task, self._client_session.answer((run.id, task))

    def _nbytes(self, made: _Answered) -> int:
        return made[1].body.nbytes

    def _leave(self, run: LoaderRun[int]) -> None:
        self._client_session.forget(run.id)

    def _deliver(self, made: _Answered) -> Sample:
        number, message = made
        if self._slots is not None and not isinstance(message, BorrowedMessage):
            message = Message(message.header, self._pinned(self._slots, message.body))
        elif self._client_session.fresh and not self._warned:
            self._warned = True
            warnings.warn(
                "the program references many batches, so further ones are copied out of the memory shared with the server, which "
                "is slower. Drop references to batches that are no longer needed.",
                stacklevel=2,
            )
        return Sample(number, message.arrays(), Counters.from_list(message.header.get("counters")))

    def _pinned(self, slots: SlotPool, body: np.ndarray) -> np.ndarray:
        memory = slots.lend_room(slots.take() or slots.take_fresh(), body.nbytes)
        memory[:] = body
        return memory

    def _check_open(self) -> None:
        if self._closed:
            raise SamplerError("the loader's context is closed; open a new one.")
