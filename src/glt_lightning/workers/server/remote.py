"""The producer whose batches a graph server makes."""

from __future__ import annotations

import warnings
import weakref

import numpy as np

from glt_lightning.base import ClusterOptions, SamplerError, SamplingOptions
from glt_lightning.sampling import BatchRequest, Counters, Sample
from glt_lightning.workers.producer.in_flight import InFlight
from glt_lightning.workers.producer.look_ahead import LoaderRun, LookAhead
from glt_lightning.workers.server.client_session import ClientSession
from glt_lightning.workers.server.handover import BorrowedMessage
from glt_lightning.workers.server.question import Question
from glt_lightning.workers.slots import PinMemory, Slot, SlotPool
from glt_lightning.workers.transport.message import Message, unpack
from glt_lightning.workers.transport.peer import Peer

_SLOTS = 3  # of pinned memory: the batch in use, the one before, which the loop may still reference, and one to write


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
        handover: Map the server's memory if it runs on this host as the same user.
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
        return Sample(number, unpack(message), Counters.from_list(message.header.get("counters")))

    def _pinned(self, slots: SlotPool, body: np.ndarray) -> np.ndarray:
        memory = slots.lend_room(slots.take() or slots.take_fresh(), body.nbytes)
        memory[:] = body
        return memory

    def _check_open(self) -> None:
        if self._closed:
            raise SamplerError("the loader's context is closed; open a new one.")
