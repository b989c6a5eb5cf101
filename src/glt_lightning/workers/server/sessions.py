"""The clients of a graph server: their questions, whose turn is next, and which have been silent for too long."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from glt_lightning.base import DataError, FullError, PeerError
from glt_lightning.workers.producer.base import LEAST
from glt_lightning.workers.producer.process import BatchTask
from glt_lightning.workers.server.question import Question
from glt_lightning.workers.slots import SharedSlot
from glt_lightning.workers.transport.message import EMPTY

_MOST_WAITING = 4096  # questions of a session that wait
_MOST_WAITING_BYTES = 256 << 20  # of their memory: the most that a hostile client can claim
_MOST_BYTES_OF_ALL = 2 << 30  # of the questions of all sessions that wait
_MOST_SHOWN = 80  # characters of a name in a status
_RATE_S = 10.0  # window over which rates are measured
_STILL_S = 2.0  # `silent` is called every half second; a longer gap means that this process itself was stopped

Key = tuple[int, int]  # a client's run, and the number of a batch in it


class SessionLostError(PeerError):
    """The server does not know the session: it was restarted, or the client was silent for longer than its lease."""


class Reservation:
    """The bytes of a client's buffer that a batch takes."""

    def __init__(self, session: Session, nbytes: int) -> None:
        self._session, self._nbytes = session, nbytes
        session.held += nbytes

    def release(self) -> None:
        """Gives the bytes back. Safe to call twice: the handover and the end of the memory both do."""
        self._session.held -= self._nbytes
        self._nbytes = 0


@dataclass(frozen=True)
class Finished:
    """A batch, or the error in its place, on its way to the client.

    memory: uint8; lives as long as a view of it.  slot: holds the memory.  reservation: its bytes in the client's buffer.
    slot and reservation are None for an error.
    """

    key: Key
    header: Mapping[str, Any]
    memory: np.ndarray = field(default_factory=lambda: EMPTY)
    slot: SharedSlot | None = None
    reservation: Reservation | None = None


class ClientStream:
    """The finished batches for one stream to a client. A client that lost its stream opens another one with the next number,
    which inherits the batches that the old one has not taken."""

    def __init__(self, number: int, ready: Iterable[Finished] = ()) -> None:
        self.number = number
        self._ready = OrderedDict((item.key, item) for item in ready)
        # The scheduler's thread puts, threads of the transport take. Held only for a moment, so that no client can block
        # the scheduler.
        self._state = threading.Condition()
        self._ended = False

    @property
    def ended(self) -> bool:
        return self._ended

    def put(self, item: Finished) -> None:
        with self._state:
            if not self._ended:
                self._ready[item.key] = item
                self._state.notify_all()

    def take(self, timeout_s: float) -> list[Finished]:
        """Takes the next batch. Returns it alone in a list, so that the caller can pop its last reference; an empty list if
        none is finished in time, or the stream has ended."""
        with self._state:
            self._state.wait_for(lambda: self._ended or self._ready, timeout_s)
            return [] if self._ended or not self._ready else [self._ready.popitem(last=False)[1]]

    def __contains__(self, key: Key) -> bool:
        with self._state:
            return key in self._ready

    def __len__(self) -> int:
        return len(self._ready)

    def drop(self, run: int) -> None:
        """Forgets the finished batches of a run."""
        with self._state:
            gone = [self._ready.pop(key) for key in list(self._ready) if key[0] == run]
        del gone  # memory is freed outside the lock: that runs finalizers

    def end(self) -> list[Finished]:
        """Returns the batches that were not taken; nothing can be taken after this."""
        with self._state:
            left, self._ended = list(self._ready.values()), True
            self._ready.clear()
            self._state.notify_all()
            return left


@dataclass(eq=False, kw_only=True)
class Job(BatchTask):
    """A question in flight at a sampler. wanted: False once its client has dropped the run or left."""

    session: Session
    question: Question
    charged: int  # estimated bytes charged to its session, before its size was known
    wanted: bool = True


class Session:
    """The server's state of one client. Only the scheduler's thread uses it; `heard` may be called from any thread.

    lease_s: how long the client may be silent.  patience_s: how long it waits for a batch.  most_failures: how often one of
    its batches may end a sampler.  served: bytes made for it, by which turns are given.  largest: bytes of its largest batch
    so far.  held: bytes of finished batches that the transport has not released.  host: the client's host.
    """

    def __init__(
        self, id_: str, client: str, job: str, lease_s: float, patience_s: float, most_failures: int, host: str = ""
    ) -> None:
        self.host = host
        self.id, self.client, self.job = id_, client, job
        self.lease_s, self.patience_s, self.most_failures = lease_s, patience_s, most_failures
        self.heard_s = time.monotonic()
        self.stream = ClientStream(0)
        self.waiting: OrderedDict[Key, Question] = OrderedDict()
        self.making: dict[Key, Job] = {}
        self.runs: dict[int, int] = {}  # number of a run at the client -> at the samplers
        self.served = 0
        self.largest = self.held = self.batches = self.nbytes = 0
        self.waiting_bytes = 0
        self._recent: deque[float] = deque()
        self.ended = False

    def heard(self) -> None:
        """Renews the lease. Needs no lock from any thread, because it is one store."""
        self.heard_s = time.monotonic()

    def knows(self, key: Key) -> bool:
        """Tells whether a batch waits, is being made, or is ready. A client repeats its questions after its stream broke."""
        return key in self.waiting or key in self.making or key in self.stream

    def ask(self, question: Question) -> bool:
        """Queues a question. Returns False if it is known already. Raises `DataError` if too many wait."""
        if self.knows(question.key):
            return False
        self.waiting_bytes += question.nbytes
        if len(self.waiting) >= _MOST_WAITING or self.waiting_bytes > _MOST_WAITING_BYTES:
            self.waiting_bytes -= question.nbytes
            raise DataError(
                f"{len(self.waiting)} batches are asked for and not made yet; at most {_MOST_WAITING}, with "
                f"{_MOST_WAITING_BYTES >> 20} MiB of memory, may wait. Lower cluster.prefetch of this client."
            )
        self.waiting[question.key] = question
        return True

    def may_have_more(self, buffer_bytes: int) -> bool:
        """Tells whether another batch fits into the client's buffer, if it is as large as the largest so far. One always fits,
        or the client would never get it. Until the first is finished its size is unknown, so no second one is begun."""
        if not self.held and not self.making:
            return True
        return self.largest > 0 and self.held + (len(self.making) + 1) * self.largest <= buffer_bytes

    def pop(self) -> Question:
        """Removes and returns the oldest waiting question."""
        _, question = self.waiting.popitem(last=False)
        self.waiting_bytes -= question.nbytes
        return question

    def forget_run(self, run: int) -> list[Job]:
        """Drops a run; returns its jobs that are in flight at samplers."""
        for key in [key for key in self.waiting if key[0] == run]:
            self.waiting_bytes -= self.waiting.pop(key).nbytes
        self.stream.drop(run)
        self.runs.pop(run, None)
        jobs = [job for key, job in self.making.items() if key[0] == run]
        for job in jobs:
            job.wanted = False
            del self.making[job.question.key]
        return jobs

    def change_stream(self, number: int) -> bool:
        """Makes ``number`` the current stream. Returns False if there is a later one: messages of an old one may arrive late."""
        if number > self.stream.number:
            self.stream = ClientStream(number, self.stream.end())
        return number == self.stream.number

    def count(self, nbytes: int) -> None:
        """Adds a finished batch to the statistics."""
        self.batches += 1
        self.nbytes += nbytes
        self.largest = max(self.largest, nbytes)
        self._recent.append(time.monotonic())
        self._trim()

    def _trim(self) -> None:
        since_s = time.monotonic() - _RATE_S
        while self._recent and self._recent[0] < since_s:
            self._recent.popleft()

    def status(self) -> dict[str, Any]:
        self._trim()
        return {
            "client": self.client[:_MOST_SHOWN],
            "job": self.job[:_MOST_SHOWN],
            "waiting": len(self.waiting),
            "making": len(self.making),
            "ready": len(self.stream),
            "buffered_bytes": self.held,
            "batches": self.batches,
            "bytes": self.nbytes,
            "batches_per_s": round(len(self._recent) / _RATE_S, 2),
            "silent_s": round(time.monotonic() - self.heard_s, 3),
        }


class Sessions:
    """The sessions of all clients. For the scheduler's thread only.

    The next batch is made for the client with the fewest bytes made so far, among those that wait and whose buffer has
    space. A client that is new, or comes back after a time without questions, starts level with the one served last, so
    that an idle client does not save up a claim with which it would then block other clients.

    buffer_bytes: limit of finished batches of each client.  shared: of all clients together, divided evenly; each may then
    have two batches, however large they are.  clock: the monotonic clock, or that of a test.  most_waiting: bytes of the
    questions of all clients together. Half of them are divided evenly, so that no client's questions keep those of others out.
    """

    def __init__(
        self,
        buffer_bytes: int,
        *,
        shared: bool = False,
        clock: Callable[[], float] = time.monotonic,
        most_waiting: int = _MOST_BYTES_OF_ALL,
    ) -> None:
        self._most_waiting = most_waiting
        self._buffer_bytes, self._shared = buffer_bytes, shared
        self._clock, self._looked_s = clock, clock()
        self._by_id: dict[str, Session] = {}
        self._level = 0
        self._runs = count(1)

    def __iter__(self) -> Any:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, session: Session) -> Session:
        """Adds a session; returns the existing one if its id is known (the client repeats "open" after a lost answer)."""
        return self._by_id.setdefault(session.id, session)

    def greediest(self, host: str) -> Session | None:
        """Chooses the session to end for a newcomer from ``host``: one without questions and batches, of the address with the
        most sessions; of these first one that never had a batch, then the one that was silent for longest.

        Only sessions of the newcomer's own address, or of one with more sessions than it, are candidates: one address that
        opens ever more sessions ends its own, and not those of others. None if no session qualifies.
        """
        counts: dict[str, int] = {}
        for session in self._by_id.values():
            counts[session.host] = counts.get(session.host, 0) + 1
        able = [
            s
            for s in self._by_id.values()
            if not (s.waiting or s.making or s.held) and (s.host == host or counts[s.host] > counts.get(host, 0))
        ]
        return max(able, key=lambda s: (counts[s.host], s.batches == 0, -s.heard_s), default=None)

    def __contains__(self, id_: object) -> bool:
        return id_ in self._by_id

    def find(self, id_: Any) -> Session:
        """Returns the session with an id and renews its lease. Raises `SessionLostError` if there is none."""
        session = self._by_id.get(id_) if isinstance(id_, str) else None
        if session is None:
            raise SessionLostError(
                "there is no such session: the server was restarted, or the lease has ended (cluster.deadlines.lease_s)."
            )
        session.heard()
        return session

    def ask(self, session: Session, question: Question) -> None:
        """Queues a question. One that is known already is not made twice, and is never refused: its batch may be finished.
        Raises `FullError` beyond the client's share."""
        if session.knows(question.key):
            return
        waiting, half = sum(each.waiting_bytes for each in self._by_id.values()), self._most_waiting // 2
        mine, share = session.waiting_bytes + question.nbytes, half // len(self._by_id)
        if mine > share and waiting + question.nbytes > half:
            raise FullError(
                f"the batches that this client waits for take {mine} bytes here, more than its share of {share}, and those of "
                f"all sessions more than {half}. Lower cluster.prefetch of the clients"
            )
        idle = not session.waiting
        if session.ask(question) and idle:
            session.served = max(session.served, self._level)

    def next(self) -> tuple[Session, Question] | None:
        """Takes the next question of the session whose turn it is. None if no client waits or all buffers are full."""
        able = [s for s in self._by_id.values() if s.waiting and s.may_have_more(self._buffer_of(s))]
        if not able:
            return None
        session = min(able, key=lambda s: s.served)
        self._level = session.served
        return session, session.pop()

    def _buffer_of(self, session: Session) -> int:
        if not self._shared:
            return self._buffer_bytes
        return max(LEAST * session.largest, self._buffer_bytes // len(self._by_id))

    def job_of(self, session: Session, question: Question, slot: Any) -> Job:
        """Makes the job for a question, and charges the session with an estimate of its size."""
        # Clients number their runs independently, so samplers are given a number that no other client has.
        run = session.runs.setdefault(question.run, 0) or next(self._runs)
        session.runs[question.run] = run
        # Charged now and corrected by `settle`: else the same client had the next turns, too, until its batch is finished.
        charged = max(1, session.largest)
        session.served += charged
        job = Job(
            run,
            question.config,
            question.request,
            slot,
            once=False,
            session=session,
            question=question,
            charged=charged,
        )
        session.making[question.key] = job
        return job

    def settle(self, job: Job, nbytes: int) -> None:
        """Corrects the charge of a job by the real size of its batch."""
        job.session.served += nbytes - job.charged

    def remove(self, session: Session) -> list[Job]:
        """Ends a session; returns its jobs that are in flight at samplers."""
        self._by_id.pop(session.id, None)
        session.ended = True
        jobs = [job for run in {key[0] for key in session.making} for job in session.forget_run(run)]
        session.waiting.clear()
        session.stream.end()
        return jobs

    def silent(self) -> Collection[Session]:
        """Returns the sessions whose lease has ended. To be called every half second."""
        now, before = self._clock(), self._looked_s
        self._looked_s = now
        for session in self._by_id.values():
            if now - before > max(_STILL_S, session.lease_s / 2):
                # This process itself was stopped (a suspended machine, SIGSTOP): renewals that arrived meanwhile are not
                # read yet.
                session.heard_s = now
        return [s for s in self._by_id.values() if now - s.heard_s > s.lease_s]
