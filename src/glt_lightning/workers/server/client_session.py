"""A client's side of a session: requests batches of a graph server, across broken connections and restarts of the server."""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from glt_lightning.base import DeadlineOptions, PeerError, PeerLostError, RemoteError, SamplerError
from glt_lightning.workers.producer.process import STEP_S, StandStill
from glt_lightning.workers.server.handover import HandoverStream, place_identity
from glt_lightning.workers.server.question import Question
from glt_lightning.workers.slots import PinMemory
from glt_lightning.workers.transport.base import MessageStream
from glt_lightning.workers.transport.message import Message
from glt_lightning.workers.transport.peer import Peer, PendingAnswer

_LOST = "SessionLostError"
_FIRST_PAUSE_S = 0.02  # between streams that break before a message has arrived; doubles up to _MOST_PAUSE_S
_MOST_PAUSE_S = 1.0
_LEAVE_S = 2.0  # for the threads to end when this is closed, "close" to the server included
_LEAVE_LOST_S = 0.1  # the same while the server is away: there is no server to say goodbye to
Key = tuple[int, int]


class ClientSession:
    """Sends questions to a server and stores the answers until they are taken. Close it before its peer.

    Two threads: one sends questions, and renews the lease when there is none, so that the lease does not depend on how
    often batches are taken; the other reads the stream of batches. When the stream breaks, or the server does not know the
    session any more, a new stream or session is opened and every unanswered question is sent again; the server still has
    the batches or makes the same ones again. Both threads start with the first question.

    server: the peer.  max_restarts: how often the server retries a batch that ends its samplers.
    timeout_s: the wait for one batch.
    pin: page-locks the memory of batches that are handed over.  handover: map the server's memory if it runs on this host.
    clock: the monotonic clock, or that of a test.
    """

    def __init__(
        self,
        server: Peer,
        deadlines: DeadlineOptions,
        max_restarts: int,
        timeout_s: float,
        pin: PinMemory | None = None,
        handover: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._outage = clock, Outage(deadlines.reconnect_s, clock)
        self._peer, self._deadlines = server, deadlines
        self._max_restarts, self._timeout_s = max_restarts, timeout_s
        self._pin, self._handover = pin, handover
        self._socket_name = ""  # of the server's handover socket; "" if it is on another host
        # Guards the fields below. Never held while the peer or the stream is used (both block), nor while a batch's memory
        # is freed (that runs finalizers, which post to the stream's queue).
        self._state = threading.Condition()
        self._unanswered: dict[Key, Question] = {}
        self._answers: dict[Key, Message | PeerError] = {}
        self._session = ""  # "" while there is none
        self._stream_number = 0  # number of the stream
        self._lease_s = deadlines.lease_s
        self._stream: MessageStream | None = None
        # a key to ask for, a run to drop, or None to wake the thread; lock-free for `forget`, which a finalizer may call
        self._to_send: queue.SimpleQueue[Key | int | None] = queue.SimpleQueue()
        self._error: PeerError | None = None
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._asked_again_s = clock()  # when the unanswered questions were sent again
        self._broken_s = clock()  # when the last stream broke
        self.reopened = 0  # streams after the first
        self._fresh = 0

    @property
    def fresh(self) -> int:
        """Number of batches that were copied, because the program referenced many others."""
        return self._fresh + getattr(self._stream, "fresh", 0)

    @property
    def server(self) -> str:
        return self._peer.name

    def ask(self, question: Question) -> None:
        """Requests a batch. Returns at once. After a server that was lost, this is a new attempt to reach it."""
        self._begin_again()
        with self._state:
            self._unanswered[question.key] = question
            if not self._threads and not self._closed:
                for name, work in (("send", self._send), ("read", self._read)):
                    thread = threading.Thread(target=self._guarded, args=(work,), name=f"glt-{name}", daemon=True)
                    self._threads.append(thread)
                    thread.start()
        self._to_send.put(question.key)

    def _begin_again(self) -> None:
        with self._state:
            threads = self._threads if isinstance(self._error, PeerLostError) and not self._closed else []
        for thread in threads:
            thread.join(_LEAVE_LOST_S)
        with self._state:
            if threads is self._threads and not any(thread.is_alive() for thread in threads):
                self._error, self._threads, self._session = None, [], ""
                self._outage = Outage(self._deadlines.reconnect_s, self._clock)

    def answer(self, key: Key) -> Message:
        """Takes the answer to a question. Waits ``timeout_s``, and again after the server has come back.

        Raises `SamplerError` if the batch cannot be made or does not arrive, `PeerError` if the server is lost.
        """
        begun_s = self._clock()
        latest_s: float | None = None  # the last time at which a new stream restarts the timeout
        still = StandStill()
        with self._state:
            while key not in self._answers:
                self._raise_if_over()
                if still.happened():
                    begun_s, latest_s = self._clock(), None
                if latest_s is None and self._broken_s > begun_s:
                    # Each stream restarts the timeout. This bounds it where the batch itself ends every server that makes
                    # it: a new server, a new stream, for ever.
                    latest_s = self._broken_s + self._deadlines.reconnect_s
                asked_s = max(begun_s, self._asked_again_s)
                asked_s = asked_s if latest_s is None else min(latest_s, asked_s)
                left_s = asked_s + self._timeout_s - self._clock()
                if self._stream is None:  # the server is away: `_read` gives up after reconnect_s
                    left_s = self._timeout_s
                if left_s <= 0:
                    raise SamplerError(
                        f"{self.server}: no answer with batch {key[1]} within sampling.timeout_s = {self._timeout_s} s. "
                        "Raise it if batches take that long, or check the log of the server."
                    )
                self._state.wait(min(left_s, STEP_S))
            found = self._answers.pop(key)
        if isinstance(found, PeerError):
            raise found
        return found

    def forget(self, run: int) -> None:
        """Drops a run that has ended, with its unanswered questions. May be called from any thread, also by a finalizer."""
        self._to_send.put(run)

    def close(self) -> None:
        """Ends the session, if the server can be reached, and the threads. Safe to call twice."""
        with self._state:
            self._closed = True
            self._state.notify_all()
            stream = self._stream
        self._to_send.put(None)
        if stream is not None:
            stream.close()
        for thread in self._threads:
            # A server that is away ends the session by its lease; a thread that is still connecting ends with the peer.
            if thread is not threading.current_thread():
                thread.join(_LEAVE_S if stream is not None else _LEAVE_LOST_S)
        self._answers.clear()

    # -- both threads

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except PeerError as error:
            self._fail(error)
        except BaseException as error:  # the trainer must not wait for ever because this thread died
            self._fail(PeerError(f"{self.server}: {type(error).__name__}: {error}"))
            raise

    def _fail(self, error: PeerError) -> None:
        with self._state:
            self._error = self._error or error
            for key in self._unanswered:  # now: a later question may begin again before who waits for this one looks
                self._answers[key] = type(self._error)(*self._error.args)
            self._unanswered.clear()
            stream = self._stream
            self._state.notify_all()
        self._to_send.put(None)
        if stream is not None:
            stream.close()

    def _raise_if_over(self) -> None:
        if self._error is not None:
            raise type(self._error)(*self._error.args)
        if self._closed:
            raise SamplerError("the loader's context is closed; open a new one.")

    @property
    def _over(self) -> bool:
        return self._closed or self._error is not None

    # -- the reading thread

    def _read(self) -> None:
        """Reads one stream after another, until the outage exceeds ``reconnect_s``."""
        pause_s, limit_s = 0.0, self._deadlines.reconnect_s
        while not self._over:
            self._outage.begin_attempt()
            try:
                lost: PeerError = self._read_stream(*self._next_stream())
            except RemoteError as error:
                if error.kind != _LOST:
                    raise
                lost = error
                self._lose(self._session)
            away_s = self._outage.broke()
            # Judged only after the attempt: one that succeeds ends the outage, however long it was.
            if away_s > limit_s and not self._over:
                raise PeerLostError(
                    f"{lost}. It sent no batch for {away_s:.1f} s, longer than cluster.deadlines.reconnect_s ({limit_s:g}). "
                    "Check that the server runs; raise the option if it needs longer to come back."
                )
            pause_s = min(_MOST_PAUSE_S, 2 * pause_s or _FIRST_PAUSE_S) if away_s > 0 else 0.0
            with self._state:
                self._state.wait_for(lambda: self._over, pause_s)

    def _read_stream(self, session: str, number: int) -> PeerLostError:
        """Stores the batches of one stream. Returns the reason why it ended."""
        try:
            for message in self._open_stream(session, number):
                self._outage.heard()
                self._file(message)
                del message  # or this variable would keep the batch's memory while the thread waits for the next
        except PeerLostError as error:
            return error
        return PeerLostError(f"{self.server}: the server ended the stream of batches")

    def _next_stream(self) -> tuple[str, int]:
        """Opens a session if there is none, and sends every unanswered question again under a new stream number.

        Raises `PeerLostError` if the server stays away for longer than ``reconnect_s``.
        """
        with self._state:
            session = self._session
        if not session:
            session = secrets.token_hex(16)  # the id alone identifies this client to the server, so nobody may guess it
            place = place_identity() if self._handover else ""
            asked = {
                "session": session,
                "max_restarts": self._max_restarts,
                "timeout_s": self._timeout_s,
                "place": place,
            }
            welcome = self._peer.ask("open", asked).result().header
            self._lease_s, self._socket_name = float(welcome["lease_s"]), str(welcome["handover"])
        elif self._stream_number:
            # Raises SessionLostError if the server was restarted: before questions are sent for a session that is gone.
            self._peer.ask("renew", {"session": session}).result()
        with self._state:
            self._session = session
            self._stream_number += 1
            self.reopened += self._stream_number > 1
            self._asked_again_s = self._clock()
            number, questions = self._stream_number, list(self._unanswered)
            self._state.notify_all()
        for key in questions:
            self._to_send.put(key)
        return session, number

    def _open_stream(self, session: str, number: int) -> Iterator[Message]:
        asked = {"session": session, "talk": number}
        stream = self._hand_over(asked) if self._socket_name else self._peer.stream("batches", asked)
        self._outage.opened()
        with self._state:
            over = self._over
            self._stream = stream
            self._state.notify_all()  # threads in `answer` start their timeout now
        try:
            if not over:
                yield from stream
        finally:
            with self._state:
                self._stream = None
                self._broken_s = self._clock()
                self._fresh += getattr(stream, "fresh", 0)
            stream.close()

    def _hand_over(self, asked: dict[str, Any]) -> HandoverStream:
        return HandoverStream(
            self.server, self._socket_name, asked, self._deadlines.call_s, self._pin, lambda: len(self._answers)
        )

    def _file(self, message: Message) -> None:
        """Stores an answer. Drops one that is not expected any more, or arrives for the second time: after a broken stream the
        server repeats batches that may have arrived."""
        header = message.header
        self._settle(
            (header.get("run", 0), header.get("number", 0)),
            _failed(self.server, message) if "error" in header else message,
        )

    def _settle(self, key: Key, answer: Message | PeerError) -> None:
        with self._state:
            if self._unanswered.pop(key, None) is not None:
                self._answers[key] = answer
                self._state.notify_all()

    def _lose(self, session: str) -> None:
        """Forgets a session that the server does not know any more."""
        with self._state:
            if self._session != session:  # the other thread has noticed it first, and has opened a new one
                return
            self._session = ""
            stream = self._stream
        if stream is not None:
            stream.close()

    # -- the sending thread

    def _send(self) -> None:
        while not self._over:
            waiting: list[Key | int | None] = []
            with suppress(queue.Empty):
                waiting.append(self._to_send.get(timeout=self._lease_s / 4))  # three renewals may get lost
                while True:
                    waiting.append(self._to_send.get_nowait())
            self._send_all(waiting)
        with self._state:
            session = self._session if self._error is None else ""
        if session:
            with suppress(PeerError):
                self._peer.ask("close", {"session": session}).result()

    def _send_all(self, waiting: list[Key | int | None]) -> None:
        """Sends questions and the runs to drop, or renews the lease if there are none."""
        for run in (each for each in waiting if isinstance(each, int)):
            self._drop_answers(run)
        with self._state:
            session, number = self._session, self._stream_number
            questions = [self._unanswered[k] for k in waiting if isinstance(k, tuple) and k in self._unanswered]
        if not session or self._over:
            return  # no session: `_next_stream` sends the unanswered questions again
        # All are sent before the first answer is awaited: an epoch begins with many, and each takes a round trip.
        sent: list[tuple[Question | None, PendingAnswer]] = []
        for each in questions:
            message = each.to_message(session, number)
            sent.append((each, self._peer.ask("make", message.header, message.body)))
        for run in (each for each in waiting if isinstance(each, int)):
            sent.append((None, self._peer.ask("drop", {"session": session, "run": run})))
        if not sent and None not in waiting:
            sent.append((None, self._peer.ask("renew", {"session": session})))
        for question, answer in sent:
            try:
                answer.result()
            except RemoteError as error:
                if error.kind == _LOST:
                    self._lose(session)
                elif question is not None:  # the server refuses this question alone
                    self._settle(question.key, error)
                else:
                    raise

    def _drop_answers(self, run: int) -> None:
        with self._state:
            for key in [key for key in self._unanswered if key[0] == run]:
                del self._unanswered[key]
            gone = [self._answers.pop(key) for key in list(self._answers) if key[0] == run]
        del gone  # memory is freed outside the lock


def _failed(server: str, message: Message) -> PeerError:
    """Makes the error for a batch that the server could not make."""
    reason, trace = str(message.header["error"]), str(message.header.get("traceback", ""))
    text = f"{server}: {reason}" + (f"\n\nTraceback in the server's sampler process:\n{trace}" if trace else ".")
    return RemoteError(text, "SamplerError", trace)


# How long a server has been away, as seen by its client.


class Outage:
    """Counts the time without a stream since the last message from a server.

    The time for which a stream was open is not counted, whatever it delivered: a client may want no batch for an hour, and
    a restart of the server after it is a new outage. (Once the time was counted from the opening of the broken stream, and
    each restart killed every job older than ``reconnect_s``.) Streams that break at once add up, so the client also gives
    up a server that accepts each stream and drops it.

    limit_s: a stream that was open for longer than this ends the outage before it, even without a message.
    clock: the monotonic clock, or that of a test.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._clock = limit_s, clock
        self._since_s: float | None = None
        self._opened_s: float | None = None

    def begin_attempt(self) -> None:
        """Notes that a stream is about to be opened."""
        self._opened_s = None
        if self._since_s is None:
            self._since_s = self._clock()

    def opened(self) -> None:
        """Notes that the stream is open."""
        self._opened_s = self._clock()

    def heard(self) -> None:
        """Ends the outage: a message has arrived."""
        self._since_s = None

    def broke(self) -> float:
        """Notes that the stream, or the attempt to open one, has failed. Returns the seconds of the outage so far."""
        now = self._clock()
        open_s = 0.0 if self._opened_s is None else now - self._opened_s
        if self._since_s is None or open_s > self._limit_s:
            self._since_s = now
        else:
            self._since_s += open_s
        return now - self._since_s
