"""Batches made by a graph server."""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from weakref import WeakSet

import numpy as np

from glt_lightning.channel.slots import PinMemory, Slot, SlotPool
from glt_lightning.errors import SamplerError
from glt_lightning.options import ClusterOptions, SamplingOptions
from glt_lightning.producer.in_flight import InFlight
from glt_lightning.sampler.counters import Counters
from glt_lightning.sampler.request import BatchRequest, SamplerConfig
from glt_lightning.sampler.sample import Sample
from glt_lightning.server.client_session import ClientSession
from glt_lightning.server.handover import BorrowedMessage
from glt_lightning.server.question import Question
from glt_lightning.transport.message import Message, WireError, unpack
from glt_lightning.transport.peer import Peer

_SLOTS = 3  # of pinned memory: the batch in use, the one just left, and one to write


@dataclass(eq=False)
class _AskedRun:
    """One iteration of a loader: the numbers that were asked for and not yet delivered, in plan order."""

    id: int
    config: SamplerConfig
    requests: Iterator[BatchRequest]
    asked: deque[int] = field(default_factory=deque)
    largest: int = 0  # bytes of its largest batch so far


class RemoteProducer:
    """Asks a graph server for batches, up to ``options.prefetch`` ahead for each loader that is iterated.

    The trainer keeps the plan and says what it wants of each batch, so a server that was restarted, or a connection that
    broke, costs time and nothing else; `PeerLostError` after ``options.deadlines.reconnect_s``. A batch lies in the memory
    in which it arrived, or in page-locked memory where ``pin`` is given.

    Args:
        server: Whom to ask; stays open when the producer is closed.
        options: How far ahead, and how long to wait.
        sampling: ``timeout_s`` for one batch; ``max_restarts`` for samplers that end while they make it; ``channel_size``
            for how many bytes of batches are on their way.
        pin: Page-locks the memory of batches.
        handover: Map the server's own memory, where it runs on this host for the same user.
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
        self._in_flight = InFlight.of(sampling, most, f"cluster.prefetch {most}")
        self._sizes: dict[SamplerConfig, int] = {}  # bytes of the largest batch so far, for the runs to come
        self._runs: WeakSet[_AskedRun] = WeakSet()
        self._client_session = ClientSession(
            server, options.deadlines, sampling.max_restarts, sampling.timeout_s, pin, handover
        )
        self._finalizer = weakref.finalize(self, self._client_session.close)
        self._slots = None if pin is None else SlotPool(Slot, _SLOTS, pin)
        self._ids = count(1)
        self._closed = False

    @property
    def fresh_slots(self) -> int:
        return self._client_session.fresh + (0 if self._slots is None else self._slots.fresh_slots)

    @property
    def reconnects(self) -> int:
        """Streams of batches that were opened after the first one."""
        return self._client_session.reopened

    def stream(self, config: SamplerConfig, requests: Iterator[BatchRequest]) -> Iterator[Sample]:
        self._check_open()
        run = _AskedRun(next(self._ids), config, requests, largest=self._sizes.get(config, 0))
        self._runs.add(run)
        try:
            self._top_up(run)
            while run.asked:
                number = run.asked[0]
                box = [self._client_session.answer((run.id, number))]
                run.asked.popleft()
                self._note_size(run, box[0].body.nbytes)
                self._top_up(run)  # the server works on while the trainer does
                box_of_sample = [self._deliver(number, box.pop())]
                yield box_of_sample.pop()  # nothing here holds the batch while the trainer has it
                self._check_open()
        finally:
            # Not more: an abandoned iterator is closed wherever the garbage collector finds it.
            run.asked.clear()
            self._client_session.forget(run.id)

    def close(self) -> None:
        self._closed = True
        self._finalizer()
        if self._slots is not None:
            self._slots.close()

    def _top_up(self, run: _AskedRun) -> None:
        others = sum(len(each.asked) * each.largest for each in list(self._runs) if each is not run)
        allowed = self._in_flight.allowed(run.largest, others)
        while len(run.asked) < allowed:
            request = next(run.requests, None)
            if request is None:
                return
            run.asked.append(request.number)
            self._client_session.ask(Question(run.id, run.config, request))

    def _note_size(self, run: _AskedRun, nbytes: int) -> None:
        self._sizes[run.config] = max(nbytes, self._sizes.get(run.config, 0))
        run.largest = self._sizes[run.config]
        self._in_flight.log_once(run.largest)

    def _deliver(self, number: int, message: Message) -> Sample:
        if self._slots is not None and not isinstance(message, BorrowedMessage):
            message = Message(message.header, self._pinned(self._slots, message.body))
        elif self._client_session.fresh and not self._warned:
            self._warned = True
            warnings.warn(
                "many batches are kept, so further ones are copied out of the memory that is shared with the server, which "
                "is slower.",
                stacklevel=2,
            )
        try:
            counters = Counters.from_list(message.header.get("counters"))
        except ValueError as error:
            raise WireError(f"{self._client_session.server}: batch {number}: {error}.") from None
        return Sample(number, unpack(message), counters)

    def _pinned(self, slots: SlotPool, body: np.ndarray) -> np.ndarray:
        slot = slots.take() or slots.take_fresh()
        slot.reserve(body.nbytes)
        memory = slots.lend(slot, body.nbytes)
        memory[:] = body
        return memory

    def _check_open(self) -> None:
        if self._closed:
            raise SamplerError("the loader's context is closed; make a new loader.")
