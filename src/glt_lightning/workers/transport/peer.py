"""A named peer: calls that survive a lost connection and a restart of the peer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glt_lightning.base import (
    DeadlineOptions,
    FullError,
    PeerError,
    PeerLostError,
    RefusedError,
    RemoteError,
)
from glt_lightning.workers.transport.base import Connection, MessageStream, Pending, Transport
from glt_lightning.workers.transport.message import EMPTY, Message

_CLOSED = "this process has closed the connection"


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Pauses between attempts to reach a peer, in seconds.

    Attributes:
        first_s: The first pause. Each further one is twice as long.
        most_s: The longest pause.

    Example:
        >>> Retry(first_s=0.1, most_s=5.0).most_s
        5.0
    """

    first_s: float = 0.05
    most_s: float = 2.0


@dataclass
class PeerStats:
    """Totals of a peer. calls: each counted once, however often it was sent.  bytes_out, bytes_in: bytes of bodies.
    retries: calls sent again.  reconnects: connections made after the first."""

    calls: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    retries: int = 0
    reconnects: int = 0


class Peer:
    """A peer that is reached at any of ``addresses``. Thread-safe; connects lazily.

    All operations of a `Service` may be repeated, so a call whose answer got lost is sent again. While the peer is away,
    one thread at a time tries to connect, with the growing pauses of ``retry``. ``clock``: the monotonic clock, or that of
    a test.
    """

    def __init__(
        self,
        name: str,
        addresses: Sequence[str],
        transport: Transport,
        hello: Mapping[str, Any],
        deadlines: DeadlineOptions,
        retry: Retry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert addresses, "a peer has an address"
        self.clock = clock
        self.name, self.stats = name, PeerStats()
        self._addresses, self._transport, self._hello = list(addresses), transport, dict(hello)
        self._deadlines, self._retry = deadlines, retry
        # Guards the fields below and ``stats``. Never held while a connection is made, used or closed: those block, and
        # `close` must be able to take it at any time.
        self._state = threading.Condition()
        self._connection: Connection | None = None
        self._connecting = self._closed = self._was_connected = False
        self._turn = 0  # index of the address to try next
        self._pause_s = retry.first_s
        self._next_try_s = 0.0  # no attempt before this time
        self._lost_s: float | None = None  # the first failure since the last reply
        self._tried_s = 0.0  # the last failure
        self._reason = ""
        self._losses = 0

    @property
    def welcome(self) -> Mapping[str, Any]:
        """The peer's answer to the greeting. Connects if needed; raises as `PendingAnswer.result` does."""
        patience = _Patience(self)
        while True:
            try:
                return self.connect().welcome
            except PeerError as error:
                patience.after(error)

    def ask(
        self, op: str, header: Mapping[str, Any] | None = None, body: Any = EMPTY, *, bulk: bool = False
    ) -> PendingAnswer:
        """Starts a call; sends it at once unless the peer is known to be away. Never raises for a lost peer: `result` of the
        answer does.

        ``body`` must not change until the answer has arrived: it may be sent again.
        """
        answer = PendingAnswer(self, op, {} if header is None else header, body, bulk)
        with self._state:
            self.stats.calls += 1
            away = self._lost_s is not None and self._connection is None
        if not away:
            answer.send()
        return answer

    def stream(self, op: str, header: Mapping[str, Any]) -> MessageStream:
        """Opens a stream of replies, with one attempt. Raises `PeerLostError`, also while the stream is read."""
        try:
            connection = self.connect()
            return _PeerStream(self, connection, connection.stream(op, header))
        except PeerError as error:
            raise self.named(error) from None

    def close(self) -> None:
        """Ends the connection and every wait for an answer. Safe to call twice, from any thread."""
        with self._state:
            self._closed = True
            connection, self._connection = self._connection, None
            self._state.notify_all()
        if connection is not None:
            connection.close()

    # For answers and streams.

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def lost_s(self) -> float | None:
        """Time at which the peer was lost, by the monotonic clock. None if it is not lost, and also if the last attempt is
        longer ago than an attempt can take: nothing is known about the time since, and an old outage must not count as part of
        a new one."""
        one_try_s = self._deadlines.connect_s + self._deadlines.call_s + self._retry.most_s
        return self._lost_s if self.clock() - self._tried_s <= one_try_s else None

    def pause(self, seconds: float) -> None:
        """Waits; returns early when this peer is closed."""
        with self._state:
            self._state.wait_for(lambda: self._closed, seconds)

    @property
    def retry(self) -> Retry:
        return self._retry

    @property
    def deadlines(self) -> DeadlineOptions:
        return self._deadlines

    def connect(self) -> Connection:
        """Returns the connection. If there is none, one thread makes it, after the pause that follows a failure; other threads
        wait for its result, so that a peer that comes back gets one new connection and not one per call. Raises
        `PeerLostError` or `RefusedError`, without this peer's name."""
        with self._state:
            if self._await_turn():
                assert self._connection is not None
                return self._connection
            self._connecting = True
            address = self._addresses[self._turn]
        try:
            connection = self._transport.connect(address, self._hello, self._deadlines.connect_s)
        except BaseException as error:
            with self._state:
                self._connecting = False
                self._note_loss(str(error))
            raise
        with self._state:
            self._connecting = False
            self._state.notify_all()
            if not self._closed:
                self._connection = connection
                self.stats.reconnects += self._was_connected
                self._was_connected = True
                return connection
        connection.close()
        raise PeerLostError(_CLOSED)

    def _await_turn(self) -> bool:
        """Waits until there is a connection, and returns True, or until this thread is to make one, and returns False. Raises
        `PeerLostError` if another thread's attempt failed."""
        while True:
            if self._closed:
                raise PeerLostError(_CLOSED)
            if self._connection is not None:
                return True
            if self._connecting:
                losses = self._losses
                # No deadline of its own: the attempt that this waits for ends within connect_s.
                self._state.wait_for(lambda: not self._connecting or self._closed)
                if self._losses != losses:
                    raise PeerLostError(self._reason)
                continue
            pause_s = self._next_try_s - self.clock()
            if pause_s <= 0:
                return False
            self._state.wait(pause_s)

    def drop(self, connection: Connection, reason: str) -> None:
        """Closes a connection that has failed, unless another thread has replaced it already."""
        with self._state:
            current = self._connection is connection
            if current:  # many calls fail with one connection: it is one loss, and one pause
                self._connection = None
                self._note_loss(reason)
        if current:
            connection.close()

    def _note_loss(self, reason: str) -> None:
        now = self.clock()
        since_s = self.lost_s
        self._lost_s, self._tried_s = now if since_s is None else since_s, now
        self._reason = reason
        self._losses += 1
        self._turn = (self._turn + 1) % len(self._addresses)
        self._next_try_s = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, self._retry.most_s)
        self._state.notify_all()

    def note_sent(self, nbytes: int, again: bool) -> None:
        with self._state:
            self.stats.bytes_out += nbytes
            self.stats.retries += again

    def note_heard(self, nbytes: int) -> None:
        """Ends an outage: a reply has arrived. A new connection alone does not: it may break at each use, and the pauses would
        never grow."""
        with self._state:
            self.stats.bytes_in += nbytes
            self._lost_s, self._pause_s = None, self._retry.first_s

    def named(self, error: PeerError, more: str = "") -> PeerError:
        """Returns a copy of an error with this peer's name and addresses."""
        if isinstance(error, RemoteError):
            return RemoteError(f"{self.name}: {error}", error.kind, error.traceback)
        stage = " handshake failed:" if isinstance(error, RefusedError) else ""
        return type(error)(f"{self.name} ({', '.join(self._addresses)}):{stage} {error}{more}")


class PendingAnswer:
    """The answer to a call, which may be in flight. Made by `Peer.ask`."""

    def __init__(self, peer: Peer, op: str, header: Mapping[str, Any], body: Any, bulk: bool) -> None:
        self._peer, self._op, self._header, self._body, self._bulk = peer, op, header, body, bulk
        self._connection: Connection | None = None
        self._pending: Pending | None = None
        self._error: PeerError | None = None
        self._sent_s = 0.0
        self._tries = 0

    def send(self) -> None:
        """Makes one attempt. `result` raises its error."""
        try:
            self._connection = self._peer.connect()
            self._sent_s = time.monotonic()  # not the peer's clock: it is compared with `Connection.heard_s`
            self._pending = self._connection.call(self._op, self._header, self._body, bulk=self._bulk)
            self._peer.note_sent(memoryview(self._body).nbytes, self._tries > 0)
        except PeerError as error:
            self._error = error
            if self._connection is not None and isinstance(error, PeerLostError):
                self._peer.drop(self._connection, str(error))
        self._tries += 1

    def result(self) -> Message:
        """Waits for the reply; repeats the call, on a new connection if necessary, until ``reconnect_s`` has passed.

        Raises, with the peer's name: `PeerLostError` if it was away for too long; `RemoteError` for an error of the
        operation and `RefusedError`, both without a second attempt.
        """
        patience = _Patience(self._peer)
        while True:
            try:
                return self._attempt()
            except PeerError as error:
                patience.after(error)

    def _attempt(self) -> Message:
        if self._pending is None and self._error is None:
            self.send()
        error, self._error = self._error, None
        if error is not None:
            raise error
        assert self._pending is not None
        assert self._connection is not None
        try:
            reply = self._pending.result(self._peer.deadlines.call_s)
        except PeerLostError as lost:
            # A late reply on a live connection: the call is repeated there. If nothing at all has arrived since it was sent,
            # the connection is taken for dead: TCP keeps the connection to a stopped process open.
            self._pending = None
            if self._connection.heard_s <= self._sent_s:
                self._peer.drop(self._connection, str(lost))
            raise
        except RemoteError as fault:
            self._peer.note_heard(0)
            if fault.kind == FullError.__name__:
                self._pending = None
                raise FullError(str(fault)) from None
            raise
        self._peer.note_heard(reply.body.nbytes)
        return reply


class _Patience:
    """The deadline of one call: it is repeated until ``reconnect_s`` after the peer was lost."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._first_s: float | None = None
        self._pause_s = peer.retry.first_s

    def after(self, error: PeerError) -> None:
        """Returns if another attempt makes sense, else raises ``error`` with the peer's name."""
        if not isinstance(error, PeerLostError):
            raise self._peer.named(error) from None
        now = self._peer.clock()
        self._first_s = now if self._first_s is None else self._first_s
        lost_s = self._peer.lost_s  # a call that is made during an outage shares its deadline with those before it
        since_s = self._first_s if lost_s is None else min(self._first_s, lost_s)
        limit_s = self._peer.deadlines.reconnect_s
        if self._peer.closed:
            raise PeerLostError(f"{self._peer.name}: {_CLOSED}.") from None
        if now - since_s >= limit_s:
            more = (
                f". Gave up after {now - since_s:.1f} s of attempts. Check that the peer runs and is reachable; if it needs "
                f"longer to come back, raise cluster.deadlines.reconnect_s (now {limit_s:g} s)."
            )
            raise self._peer.named(error, more) from None
        if isinstance(error, FullError):  # the peer answers at once: without a pause this would be a tight loop
            self._peer.pause(self._pause_s)
            self._pause_s = min(2 * self._pause_s, self._peer.retry.most_s)


class _PeerStream:
    """A stream whose errors name the peer. A broken one drops the connection for the other users of the peer, too."""

    def __init__(self, peer: Peer, connection: Connection, stream: MessageStream) -> None:
        self._peer, self._connection, self._stream = peer, connection, stream

    def __iter__(self) -> Iterator[Message]:
        try:
            for message in self._stream:
                self._peer.note_heard(message.body.nbytes)
                yield message
                del message
        except PeerError as error:
            if isinstance(error, PeerLostError):
                self._peer.drop(self._connection, str(error))
            raise self._peer.named(error) from None

    def close(self) -> None:
        self._stream.close()
