"""The client end of Arrow Flight."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from glt_lightning.base import DeadlineOptions, PeerError, PeerLostError, RefusedError
from glt_lightning.workers.transport.base import diagnose, sever_to
from glt_lightning.workers.transport.credentials import Challenge, Credentials
from glt_lightning.workers.transport.flight_common import (
    CLOSED,
    FLIGHT_ERRORS,
    SCHEMA,
    TOKEN_HEADER,
    Assembler,
    flight,
    refusal,
    to_json,
    translate,
    write,
)
from glt_lightning.workers.transport.frame import Frame, Kind
from glt_lightning.workers.transport.message import EMPTY, Message, Recycler, as_body, keep_freed_memory
from glt_lightning.workers.transport.pending import Waiting, again, received

_MOST_IN_FLIGHT = 64  # calls of a lane without a reply; the server reads no further ones
_CLOSE_S = 1.0  # for cancelled threads to end before the TCP connection is severed
_ENDED = "the connection is closed"


class FlightConnection:
    """A `Connection` over Arrow Flight. Raises as `Transport.connect` does."""

    def __init__(
        self,
        address: str,
        hello: Mapping[str, Any],
        credentials: Credentials,
        deadlines: DeadlineOptions,
        timeout_s: float,
        memory: Recycler,
    ) -> None:
        self._hello = dict(hello)
        keep_freed_memory()
        client = _client(address, credentials, deadlines, timeout_s)
        self._parts = _Parts(address, client, credentials, deadlines.call_s, memory)
        self._end = weakref.finalize(self, self._parts.close)
        try:
            self._calls = self._parts.open_lane("calls", self._hello)
            self.welcome: Mapping[str, Any] = self._calls.welcome(timeout_s)
        except PeerLostError as error:
            self.close()
            # Both a server that shuts down and one that rejects our certificate close the connection without a reason.
            reason = diagnose(address, credentials, timeout_s) if str(error) == CLOSED else None
            if reason is not None:
                raise RefusedError(reason) from None
            raise
        except BaseException:
            self.close()
            raise
        self._lock = threading.Lock()  # the bulk lane is opened once, whichever thread needs it first
        self._bulk: _Lane | None = None

    @property
    def heard_s(self) -> float:
        lanes = [self._calls] if self._bulk is None else [self._calls, self._bulk]
        return max(lane.heard_s for lane in lanes)

    def call(self, op: str, header: Mapping[str, Any], body: Any = EMPTY, *, bulk: bool = False) -> Waiting:
        lane = self._bulk_lane() if bulk else self._calls
        return lane.call(op, header, as_body(body))

    def _bulk_lane(self) -> _Lane:
        with self._lock:
            if self._bulk is None:
                self._bulk = self._parts.open_lane("bulk", self._hello)
            return self._bulk

    def stream(self, op: str, header: Mapping[str, Any]) -> _Stream:
        stream = self._parts.open_stream({"hello": self._hello, "op": op, "header": dict(header)})
        self._parts.watch(self._calls)
        return stream

    def close(self) -> None:
        self._end()


def _client(address: str, credentials: Credentials, deadlines: DeadlineOptions, timeout_s: float) -> Any:
    tls = credentials.tls
    security: dict[str, Any] = {}
    if tls is not None:
        security = {"tls_root_certs": tls.ca, "cert_chain": tls.cert, "private_key": tls.key}
    timeout_ms = max(1, int(timeout_s * 1000))
    options = [
        # A connection is one attempt; `Peer` makes the next one.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
        # How long gRPC tries to connect: longer than the caller waits, whose error says more.
        ("grpc.min_reconnect_backoff_ms", timeout_ms + 1000),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # Flight gives no access to the server's settings, and by its defaults gRPC ends a connection that pings while
        # idle; so gRPC sends none, and `_Parts.watch` has pings of its own.
        # The second number is also how long TCP waits for an acknowledgement of sent data.
        ("grpc.keepalive_time_ms", 24 * 3600 * 1000),
        ("grpc.keepalive_timeout_ms", max(1000, int(deadlines.call_s * 1000))),
    ]
    scheme = "grpc+tcp" if tls is None else "grpc+tls"
    try:
        return flight.FlightClient(f"{scheme}://{address}", generic_options=options, **security)
    except (*FLIGHT_ERRORS, ValueError) as error:
        raise PeerLostError(f"cannot be reached: {error}") from None


def _call_options(credentials: Credentials) -> Any:
    headers = [] if credentials.token is None else [(TOKEN_HEADER.encode(), credentials.token.encode())]
    return flight.FlightCallOptions(headers=headers)


class _Parts:
    """The lanes, streams and threads of a connection. An object of its own, since the connection may be garbage-collected
    while threads still wait."""

    def __init__(
        self, address: str, client: Any, credentials: Credentials, patience_s: float, memory: Recycler
    ) -> None:
        self._address, self._client, self._patience_s, self._memory = address, client, patience_s, memory
        self._credentials, self._options = credentials, _call_options(credentials)
        # Guards the lists below. `close` sets _ending under it, so that nothing is added to a list that was closed.
        self._lock = threading.Lock()
        self._lanes: list[_Lane] = []
        self._openings: weakref.WeakSet[_Opening] = weakref.WeakSet()
        self._streams: weakref.WeakSet[_Stream] = weakref.WeakSet()
        self._ending = threading.Event()
        self._pulse: threading.Thread | None = None

    def open_lane(self, name: str, hello: Mapping[str, Any]) -> _Lane:
        challenge = Challenge(self._credentials)
        descriptor = flight.FlightDescriptor.for_command(to_json({"lane": name, "hello": hello, **challenge.fields}))
        lane = _Lane(self._client, descriptor, self._options, self._patience_s, f"glt-{name}", self._memory, challenge)
        with self._lock:
            if not self._ending.is_set():
                self._lanes.append(lane)
                return lane
        lane.cancel()
        _joined([lane.thread])
        lane.end_writing()
        raise PeerLostError(_ENDED)

    def open_stream(self, ticket: Mapping[str, Any]) -> _Stream:
        challenge = Challenge(self._credentials)
        opening = _Opening(self._client, flight.Ticket(to_json({**ticket, **challenge.fields})), self._options)
        with self._lock:
            if self._ending.is_set():
                raise PeerLostError(_ENDED)
            self._openings.add(opening)
            opening.thread.start()
        stream = _Stream(opening.reader(self._patience_s), self._memory, challenge)
        with self._lock:
            if not self._ending.is_set():
                self._streams.add(stream)
                return stream
        stream.close()
        raise PeerLostError(_ENDED)

    def watch(self, lane: _Lane) -> None:
        """Pings the peer from now on while streams are open: a stream alone cannot tell a peer that makes its next message
        slowly from one that is cut off."""
        with self._lock:
            if self._pulse is None and not self._ending.is_set():
                self._pulse = threading.Thread(
                    target=self._ping_peer, args=(lane, self._patience_s), name="glt-pulse", daemon=True
                )
                self._pulse.start()

    def _ping_peer(self, lane: _Lane, silence_s: float) -> None:
        asked_s: float | None = None  # the first ping without an answer
        while not self._ending.wait(silence_s / 4):  # so silence is noticed at most a quarter late
            if asked_s is not None and lane.heard_s < asked_s and time.monotonic() - asked_s >= silence_s:
                for stream in list(self._streams):
                    stream.fail(
                        PeerLostError(f"the peer answered no ping for {silence_s:g} s (cluster.deadlines.call_s)")
                    )
            if asked_s is None or lane.heard_s >= asked_s:
                asked_s = time.monotonic() if len(self._streams) else None
            if asked_s is not None:
                lane.ping(silence_s / 4)

    def close(self) -> None:
        with self._lock:
            if self._ending.is_set():
                return
            self._ending.set()
            lanes, streams, openings = list(self._lanes), list(self._streams), list(self._openings)
        for cancel in (part.cancel for parts in (lanes, streams, openings) for part in parts):
            cancel()
        threads = [lane.thread for lane in lanes] + [opening.thread for opening in openings]
        if not (_joined(threads) and all(lane.end_writing() for lane in lanes)):
            sever_to(self._address)  # they are blocked in a write to a peer that does not read
            _joined(threads)
            for lane in lanes:
                lane.end_writing()
        if self._pulse is not None:
            _joined([self._pulse])
        self._client.close()


def _joined(threads: list[threading.Thread]) -> bool:
    """Waits up to _CLOSE_S for threads; returns whether all have ended."""
    deadline = time.monotonic() + _CLOSE_S
    waited_for = [thread for thread in threads if thread is not threading.current_thread()]
    for thread in waited_for:
        thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in waited_for)


class _Lane:
    """A stream of calls. The calling threads write, and one thread reads and distributes the replies.

    Two locks, never held together. ``_state`` guards the fields and is held briefly. ``_writing`` admits one writer; a write
    blocks while the peer does not read, so it is acquired with a deadline, and the reading thread never needs it.
    """

    def __init__(
        self,
        client: Any,
        descriptor: Any,
        options: Any,
        patience_s: float,
        name: str,
        memory: Recycler,
        challenge: Challenge,
    ) -> None:
        self._assembler, self._challenge = Assembler(memory), challenge
        self._client, self._descriptor, self._options, self._patience_s = client, descriptor, options, patience_s
        self._ids = itertools.count(1)
        self._state = threading.Condition()
        self._pending: dict[int, Waiting] = {}
        self._error: PeerError | None = None
        self._welcome: Mapping[str, Any] | None = None
        self._writing = threading.Lock()
        self._writer: Any = None
        self._reader: Any = None
        self._cancelled = False
        self.heard_s = time.monotonic()
        # Opening blocks until the peer is reached, so the reading thread does that as well.
        self.thread = threading.Thread(target=self._read, name=name, daemon=True)
        self.thread.start()

    def welcome(self, timeout_s: float) -> Mapping[str, Any]:
        """Waits for the answer to the greeting."""
        with self._state:
            self._state.wait_for(lambda: self._welcome is not None or self._error is not None, timeout_s)
            if self._error is not None:
                raise again(self._error)
            if self._welcome is None:
                raise PeerLostError(f"no answer to the greeting within {timeout_s:g} s")
            return self._welcome

    def call(self, op: str, header: Mapping[str, Any], body: np.ndarray) -> Waiting:
        pending = Waiting(op)
        deadline = time.monotonic() + self._patience_s
        with self._state:
            ready = self._state.wait_for(
                lambda: self._error is not None or (self._welcome is not None and len(self._pending) < _MOST_IN_FLIGHT),
                self._patience_s,
            )
            if self._error is not None:
                raise again(self._error)
            if not ready:
                raise PeerLostError(
                    f"{len(self._pending)} calls got no reply for {self._patience_s:g} s (cluster.deadlines.call_s)"
                )
            id_ = next(self._ids)
            self._pending[id_] = pending
        try:
            if not self._writing.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise PeerLostError(f"the peer took no data for {self._patience_s:g} s (cluster.deadlines.call_s)")
            try:
                if self._writer is None:
                    raise PeerLostError(_ENDED)
                write(self._writer, Kind.REQUEST, id_, {"op": op, "header": header}, body)
            finally:
                self._writing.release()
        except FLIGHT_ERRORS as error:
            self._forget(id_)
            with self._state:  # the reading thread may know the cause; a failed write rarely does
                raise again(self._error or translate(error)) from None
        except BaseException:
            self._forget(id_)
            raise
        return pending

    def ping(self, patience_s: float) -> None:
        """Sends a ping. Does not wait for the answer: it shows in `heard_s`."""
        if self._writing.acquire(timeout=patience_s):
            try:
                with suppress(*FLIGHT_ERRORS):
                    if self._writer is not None:
                        write(self._writer, Kind.PING, 0, {})
            finally:
                self._writing.release()

    def _forget(self, id_: int) -> None:
        with self._state:
            self._pending.pop(id_, None)
            self._state.notify_all()

    def _read(self) -> None:
        try:
            self._open()
            while True:
                arrived = self._assembler.open(self._reader.read_chunk())
                self.heard_s = time.monotonic()
                if arrived is not None:
                    self._take(*arrived)
                del arrived
        except StopIteration:
            self._fail(PeerLostError("the peer has closed the connection"))
        except FLIGHT_ERRORS as error:
            self._fail(translate(error))
        except PeerError as error:
            self._fail(error)
        except BaseException as error:  # no caller may wait for ever because this thread died
            self._fail(PeerLostError(f"{type(error).__name__}: {error}"))
            raise

    def _open(self) -> None:
        writer, reader = self._client.do_exchange(self._descriptor, self._options)
        with self._state:
            self._writer, self._reader = writer, reader
            cancelled = self._cancelled
        if cancelled:
            reader.cancel()
        writer.begin(SCHEMA)

    def _take(self, frame: Any, body: np.ndarray) -> None:
        if frame.kind in (Kind.REPLY, Kind.FAULT):
            with self._state:
                pending = self._pending.pop(frame.id, None)
                if len(self._pending) == _MOST_IN_FLIGHT - 1:
                    self._state.notify_all()
            if pending is not None:
                pending.resolve(frame.kind == Kind.FAULT, frame.header, body)
        elif frame.kind == Kind.WELCOME:
            welcome = self._challenge.check(frame.decode())
            with self._state:
                self._welcome = welcome
                self._state.notify_all()
        elif frame.kind == Kind.REFUSED:
            raise refusal(frame.decode())

    def _fail(self, error: PeerError) -> None:
        with self._state:
            self._error = self._error or error
            pending, self._pending = self._pending, {}
            self._state.notify_all()
        for each in pending.values():
            each.fail(error)

    def cancel(self) -> None:
        """Ends the stream at once; its thread ends soon after. From any thread."""
        with self._state:
            self._cancelled = True
            self._error = self._error or PeerLostError(_ENDED)
            reader = self._reader
            self._state.notify_all()
        if reader is not None:
            reader.cancel()

    def end_writing(self) -> bool:
        """Closes the writer. Returns False if another thread is blocked in it. Call it after `cancel` and the end of the thread:
        a stream whose writer is dropped while its thread reads hangs."""
        if not self._writing.acquire(timeout=_CLOSE_S):
            return False
        writer, self._writer = self._writer, None
        self._writing.release()
        if writer is not None:
            with suppress(*FLIGHT_ERRORS):  # the stream was cancelled, which closing reports as an error
                writer.close()
        return True


class _Opening:
    """Opens a stream on a thread of its own: ``do_get`` returns when the server begins to answer, and cannot be
    interrupted."""

    def __init__(self, client: Any, ticket: Any, options: Any) -> None:
        self._client, self._ticket, self._options = client, ticket, options
        self._state = threading.Condition()
        self._reader: Any = None
        self._error: PeerError | None = None
        self._abandoned = False
        self.thread = threading.Thread(target=self._open, name="glt-opening", daemon=True)

    def _open(self) -> None:
        reader, error = None, None
        try:
            reader = self._client.do_get(self._ticket, self._options)
        except FLIGHT_ERRORS as failure:
            error = translate(failure)
        with self._state:
            self._reader, self._error = reader, error
            self._state.notify_all()
            abandoned = self._abandoned
        if abandoned and reader is not None:
            reader.cancel()

    def reader(self, patience_s: float) -> Any:
        """The reader of the opened stream. Raises `PeerLostError` if the server does not begin to answer in time."""
        with self._state:
            self._state.wait_for(lambda: self._reader or self._error or self._abandoned, patience_s)
            if self._error is not None:
                raise self._error
            if self._reader is None:
                reason = _ENDED if self._abandoned else f"no answer to the opening of a stream within {patience_s:g} s"
                self._abandoned = True
                raise PeerLostError(reason)
            return self._reader

    def cancel(self) -> None:
        with self._state:
            self._abandoned = True
            self._state.notify_all()


class _Stream:
    """A `MessageStream` over Arrow Flight."""

    def __init__(self, reader: Any, memory: Recycler, challenge: Challenge) -> None:
        self._reader, self._assembler, self._challenge = reader, Assembler(memory), challenge
        self._closed = self._welcomed = False
        self._error: PeerError | None = None

    def __iter__(self) -> Iterator[Message]:
        while (arrived := self._read()) is not None:
            frame, body = arrived
            del arrived
            if frame.kind == Kind.REFUSED:
                raise refusal(frame.decode())
            if frame.kind == Kind.WELCOME:
                self._challenge.check(frame.decode())
                self._welcomed = True
            elif frame.kind in (Kind.REPLY, Kind.FAULT):
                if not self._welcomed:
                    raise RefusedError("the server sent a reply before its welcome, so it has proved no secret")
                message = received(frame.kind == Kind.FAULT, frame.header, body, "a stream")
                del frame, body  # only the caller may hold the message, or its memory could not be recycled
                yield message
                del message

    def _read(self) -> tuple[Frame, np.ndarray] | None:
        try:
            while not self._closed:
                arrived = self._assembler.open(self._reader.read_chunk())
                if arrived is not None:
                    return arrived
            return None
        except StopIteration:
            return None
        except FLIGHT_ERRORS as error:
            if self._closed:
                return None
            raise self._error or translate(error) from None

    def fail(self, error: PeerError) -> None:
        """Ends the stream from another thread: the reader gets ``error``."""
        self._error = self._error or error
        self._reader.cancel()

    def cancel(self) -> None:
        self._closed = True
        self._reader.cancel()

    def close(self) -> None:
        self.cancel()
