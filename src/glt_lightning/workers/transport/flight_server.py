"""The server end of Arrow Flight: for each peer one Flight stream per lane of calls, and one per stream of replies."""

from __future__ import annotations

import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any

import numpy as np
import pyarrow as pa

from glt_lightning.base import FullError, LimitOptions, OptionError, PeerError, RefusedError, parse_address
from glt_lightning.workers.transport import dispatch
from glt_lightning.workers.transport.admission import Admission, ClientConnection, LaneUsage
from glt_lightning.workers.transport.base import Caller, Service, sever_accepted, sever_peer
from glt_lightning.workers.transport.credentials import Credentials, proof_for
from glt_lightning.workers.transport.flight_common import (
    FLIGHT_ERRORS,
    SCHEMA,
    TOKEN_HEADER,
    chunk,
    chunks,
    flight,
    open_chunk,
    read_json,
    refused,
    write_chunk,
)
from glt_lightning.workers.transport.frame import Frame, Kind
from glt_lightning.workers.transport.message import EMPTY, Message, WireError

_MOST_IN_FLIGHT = 64  # requests of a lane that are read ahead of their replies
_MOST_BYTES_IN_FLIGHT = 1 << 29  # of their bodies; one request may be larger
_THREADS = 4  # for the handlers of each lane of each peer: a peer that stops reading blocks its own threads only
_MOST_TURNED_AWAY = 16  # threads that wait until a client has read that the server is full; further clients see a close
_CLOSE_S = 1.0  # for the handlers of a lane to end
_POLL_S = 0.5  # Flight does not report that a peer has left, so waiting threads ask
LANES = ("calls", "bulk")


class FlightServer:
    """A `Server` over Arrow Flight. Listens once it is constructed."""

    def __init__(self, address: str, service: Service, credentials: Credentials, limits: LimitOptions) -> None:
        host, port = parse_address("address", address)
        check_bind(host, address, credentials)
        shown = f"[{host}]" if ":" in host else host
        _probe(host, port, address)
        tls = credentials.tls
        scheme = "grpc+tcp" if tls is None else "grpc+tls"
        security: dict[str, Any] = {}
        if tls is not None:
            security = {
                "tls_certificates": [(tls.cert, tls.key)],
                "verify_client": True,
                "root_certificates": tls.ca,
            }
        try:
            self._flight = _Flight(service, f"{scheme}://{shown}:{port}", credentials, security, limits)
        except FLIGHT_ERRORS as error:
            hint = " Check that cluster.security.cert and key belong together." if tls is not None else ""
            raise OptionError(f"cannot listen at {address}: {error}.{hint}") from None
        self.address = f"{shown}:{self._flight.port}"
        # also at the interpreter's exit, where a server that still listens would hang
        self._end = weakref.finalize(self, self._flight.end)

    def close(self) -> None:
        self._end()


def check_bind(host: str, address: str, credentials: Credentials) -> None:
    """Raises `OptionError` for an address beyond loopback without certificates, unless the user allows clear text."""
    if credentials.tls is None and not credentials.insecure and not is_loopback(host):
        raise OptionError(
            f"{address} is reachable from other hosts, and cluster.security has no certificates. Set cluster.security.ca, cert "
            "and key (`glt-lightning certs` makes them), or listen at 127.0.0.1, or set cluster.security.insecure: true."
        )


def is_loopback(host: str) -> bool:
    """Tells whether a name or address leads to this host alone."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise OptionError(f"address: the host name {host!r} cannot be resolved: {error.strerror or error}.") from None
    return all(name.startswith("127.") or name == "::1" for name in found)


def _probe(host: str, port: int, address: str) -> None:
    """Raises `OptionError` with the reason if an address cannot be used: gRPC reports only that it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        raise OptionError(
            f"cannot listen at {address}: {error.strerror or error}. Choose an address of this host and a free port; port 0 "
            "picks one."
        ) from None


class _Gate(flight.ServerMiddlewareFactory):
    """Refuses every call, of any Flight method, without the job's secret."""

    def __init__(self, credentials: Credentials) -> None:
        super().__init__()
        self._credentials = credentials

    def start_call(self, info: Any, headers: Any) -> None:
        values = headers.get(TOKEN_HEADER, [])
        if not self._credentials.accepts(values[0] if len(values) == 1 else None):
            raise flight.FlightUnauthenticatedError("wrong secret")


class _Flight(flight.FlightServerBase):
    """The Flight service: it has two methods; the base class refuses all others."""

    def __init__(
        self,
        service: Service,
        location: str,
        credentials: Credentials,
        security: dict[str, Any],
        limits: LimitOptions,
    ) -> None:
        self._service, self._credentials = service, credentials
        self._turned_away = threading.BoundedSemaphore(_MOST_TURNED_AWAY)
        self._admission = Admission(limits, lambda peer: sever_peer(self.port, peer))
        self._ending = threading.Event()
        self._lock = threading.Lock()  # guards _ended: `end` runs once
        self._ended = False
        super().__init__(location, middleware={"glt": _Gate(credentials)}, **security)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        replies = _Replies(writer)
        presence = _Presence(context, self._ending)
        try:
            with self._admission.stream(context.peer()) as client:
                self._serve_lane(descriptor, reader, replies, presence, client)
        except FullError as error:
            replies.refuse(error)
            if self._turned_away.acquire(blocking=False):
                try:
                    _wait_to_leave(reader)
                finally:
                    self._turned_away.release()
        finally:
            presence.end()
            replies.end()

    def _serve_lane(
        self, descriptor: Any, reader: Any, replies: _Replies, presence: _Presence, client: ClientConnection
    ) -> None:
        try:
            opening = read_json(descriptor.command or b"", "the opening of a stream")
            lane = opening.get("lane")
            if lane not in LANES:
                raise RefusedError(f"the opening names no lane: expected one of {', '.join(LANES)}, got {lane!r:.60}.")
            caller = self._greet(opening, presence, replies, client)
            del opening
        except RefusedError as refusal:
            replies.refuse(refusal)
            _wait_to_leave(reader)
            return
        workers, prompt = dispatch.Workers(f"glt-{lane}", _THREADS), dispatch.Workers(f"glt-{lane}-prompt", 1)
        usage = LaneUsage(self._admission, client)
        replies.on_read = usage.has_read
        try:
            self._serve_calls(reader, replies, caller, workers, prompt, usage)
        finally:
            replies.end()
            client.lanes.remove(usage)
            prompt.close(_CLOSE_S)
            workers.close(_CLOSE_S)
            pa.default_memory_pool().release_unused()  # without this, 1.4 GB stayed after a body that Arrow had decompressed

    def _greet(
        self, opening: dict[str, Any], presence: _Presence, replies: _Replies, client: ClientConnection
    ) -> Caller:
        hello: Any = opening.get("hello")
        welcome = dispatch.greet(self._service, hello) | proof_for(opening, self._credentials)
        replies.send(Kind.WELCOME, 0, Message(welcome))

        def working(nbytes: int) -> AbstractContextManager[None]:
            return self._admission.working(client, nbytes, presence.is_gone)

        return dispatch.caller_is(hello, presence.is_gone, client.host, working)

    def _serve_calls(
        self,
        reader: Any,
        replies: _Replies,
        caller: Caller,
        workers: dispatch.Workers,
        prompt: dispatch.Workers,
        usage: LaneUsage,
    ) -> None:
        """Reads requests until the peer leaves; at most as many ahead of their replies as `_InFlight` allows."""
        in_flight = _InFlight()
        if not _has_our_schema(reader):
            return
        while not caller.is_gone():
            if not in_flight.wait(_POLL_S):
                continue
            try:
                received = reader.read_chunk()
            except StopIteration:  # the peer sends no more requests, and still waits for replies
                while not (caller.is_gone() or in_flight.wait_empty(_POLL_S)):
                    pass
                return
            except FLIGHT_ERRORS:  # the peer left, or sent bytes that Flight cannot read
                return
            opened = _opened(received)
            del received
            if opened is None:  # not our protocol: end the lane
                return
            frame, body = opened
            del opened
            usage.active()
            if frame.kind == Kind.PING:
                replies.send(Kind.PONG, frame.id, Message({}))
            elif frame.kind == Kind.REQUEST:
                in_flight.enter(body.nbytes)
                call = _Call(self._service, frame, body, caller, replies, in_flight, usage)
                (prompt if call.is_prompt else workers).submit(call)
                del call
            else:
                return
            del frame, body

    def do_get(self, context: Any, ticket: Any) -> Any:
        presence = _Presence(context, self._ending)
        return flight.GeneratorStream(SCHEMA, self._stream(ticket.ticket, presence, context.peer()))

    def _stream(self, ticket: bytes, presence: _Presence, peer: str) -> Iterator[Any]:
        try:
            with self._admission.stream(peer) as client, self._admission.busy(client):
                yield from self._replies_of(ticket, presence)
        except FullError as error:
            yield _piece(Kind.REFUSED, refused(error))
        finally:
            presence.end()

    def _replies_of(self, ticket: bytes, presence: _Presence) -> Iterator[Any]:
        try:
            opening = read_json(ticket, "the ticket of a stream")
            hello: Any = opening.get("hello")
            yield _piece(Kind.WELCOME, dispatch.greet(self._service, hello) | proof_for(opening, self._credentials))
        except RefusedError as refusal:
            yield _piece(Kind.REFUSED, refused(refusal))
            return
        try:
            handler = dispatch.find_stream(self._service, opening.get("op"))
            header = opening.get("header")
            if not isinstance(header, dict):
                raise WireError("the ticket of a stream has no header: expected an object `header`.")
            replies = iter(handler(Message(header), dispatch.caller_is(hello, presence.is_gone)))
            del opening, header
            try:
                # `next` inside `yield from`: a local variable would keep a reply in memory while the handler makes another
                while not presence.is_gone():
                    yield from _reply_pieces(next(replies))
            except StopIteration:
                return
            finally:
                close = getattr(replies, "close", None)
                if close is not None:
                    close()
        except GeneratorExit:
            raise
        except BaseException as error:  # every error of a handler is reported to the peer
            yield _piece(Kind.FAULT, dispatch.fault(error))

    def end(self) -> None:
        """Stops listening, ends every connection and all threads. Once."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        self._ending.set()
        port = self.port
        waiting = threading.Thread(target=self.shutdown, name="glt-shutdown", daemon=True)
        waiting.start()
        # `shutdown` waits for running calls. They end when their connections do, also those that their peers do not read;
        # repeated, since one more may have been accepted meanwhile.
        while waiting.is_alive():
            sever_accepted(port)
            waiting.join(0.05)
        del self._service  # pyarrow 19 never frees this object, and the service has the parts of the graph


def _opened(received: Any) -> tuple[Frame, np.ndarray] | None:
    """Returns the frame and body of a message; None if it is not of this protocol. No exception leaves here, since its
    traceback would keep the memory."""
    try:
        return open_chunk(received)
    except WireError:
        return None


def _has_our_schema(reader: Any) -> bool:
    """Tells whether a lane's bodies are one column of bytes. Any other schema is refused before Arrow decodes a batch: it
    would expand dictionaries, and columns by the thousand."""
    try:
        return [field.type for field in reader.schema] == [pa.uint8()]
    except (StopIteration, *FLIGHT_ERRORS):
        return False


def _wait_to_leave(reader: Any) -> None:
    """Reads until the peer leaves: one that is still writing when its stream ends would not read the reason."""
    with suppress(StopIteration, *FLIGHT_ERRORS):
        while True:
            reader.read_chunk()


class _InFlight:
    """The requests of a lane that were read and not answered."""

    def __init__(self) -> None:
        self._state = threading.Condition()  # guards both counters; notified when a reply is sent
        self._requests = self._bytes = 0

    def wait(self, timeout_s: float) -> bool:
        """Waits up to ``timeout_s`` until one more request may be read. Returns False if none may."""
        with self._state:
            return self._state.wait_for(
                lambda: self._requests < _MOST_IN_FLIGHT and self._bytes < _MOST_BYTES_IN_FLIGHT, timeout_s
            )

    def wait_empty(self, timeout_s: float) -> bool:
        """Waits up to ``timeout_s`` until all requests are answered. Returns False if some are not."""
        with self._state:
            return self._state.wait_for(lambda: self._requests == 0, timeout_s)

    def enter(self, nbytes: int) -> None:
        with self._state:
            self._requests += 1
            self._bytes += nbytes

    def leave(self, nbytes: int) -> None:
        with self._state:
            self._requests -= 1
            self._bytes -= nbytes
            self._state.notify_all()


class _Call:
    """A request, to be run on a worker thread."""

    def __init__(
        self,
        service: Service,
        frame: Any,
        body: Any,
        caller: Caller,
        replies: _Replies,
        in_flight: _InFlight,
        usage: LaneUsage,
    ) -> None:
        self._service, self._frame, self._body, self._caller = service, frame, body, caller
        self._replies, self._in_flight, self._usage = replies, in_flight, usage
        try:
            self.is_prompt = dispatch.is_prompt(service, frame.decode())
        except WireError:  # to be reported by a handler's thread, as all errors are
            self.is_prompt = False

    def __call__(self) -> None:
        try:
            if self._caller.is_gone():
                return
            if self.is_prompt:
                self._usage.answer_promptly(self._run, self._send)
            else:
                self._usage.answer(self._run, self._send, self._caller.is_gone)
        except BaseException as error:
            self._replies.send(Kind.FAULT, self._frame.id, Message(dispatch.fault(error)))
        finally:
            self._in_flight.leave(self._body.nbytes)

    def _send(self, reply: Message) -> None:
        self._replies.send(Kind.REPLY, self._frame.id, reply)

    def _run(self) -> Message:
        request = self._frame.decode()  # again: values take many times the memory of their text while a call waits
        handler = dispatch.find_call(self._service, request.get("op"))
        header = request.get("header")
        if not isinstance(header, dict):
            raise WireError("the request has no header: expected an object `header`.")
        return dispatch.check_reply(handler(Message(header, self._body), self._caller))


class _Replies:
    """The writing half of a stream. Thread-safe. After `end` nothing is written: the writer belongs to Flight again, which
    frees it."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        # One writer at a time. Taken per piece and not per reply, so that a PONG or a small reply goes between the pieces of
        # a large one; held during a write, so that `end` returns only when no thread uses the writer.
        self._lock = threading.Lock()
        self._open = True
        self.on_read: Callable[[], None] = lambda: None  # called for each message that the peer, or TCP, has taken
        writer.begin(SCHEMA)

    def send(self, kind: Kind, id_: int, message: Message) -> None:
        """Sends a message. Raises `WireError` for one that cannot be encoded; does nothing once the peer has left."""
        for batch, frame in chunks(kind, id_, message.header, message.body):
            with self._lock:
                if not self._open:
                    return
                try:
                    write_chunk(self._writer, batch, frame)
                except FLIGHT_ERRORS:
                    self._open = False
            self.on_read()

    def refuse(self, refusal: PeerError) -> None:
        self.send(Kind.REFUSED, 0, Message(refused(refusal)))

    def end(self) -> None:
        with self._lock:
            self._open = False


class _Presence:
    """The connection state of a peer. The lock keeps `is_gone` from using Flight's context after its call has ended, when
    Flight has freed it."""

    def __init__(self, context: Any, ending: threading.Event) -> None:
        self._context, self._ending = context, ending
        self._lock = threading.Lock()

    def is_gone(self) -> bool:
        with self._lock:
            return self._context is None or self._ending.is_set() or self._context.is_cancelled()

    def end(self) -> None:
        with self._lock:
            self._context = None


def _piece(kind: Kind, header: dict[str, Any]) -> Any:
    return _with_batch(*chunk(kind, 0, header))


def _reply_pieces(message: Message) -> Iterator[Any]:
    dispatch.check_reply(message)
    for batch, frame in chunks(Kind.REPLY, 0, message.header, message.body):
        yield _with_batch(batch, frame)
        del batch


_NO_BYTES = pa.Array.from_buffers(pa.uint8(), 0, [None, pa.py_buffer(EMPTY)])  # pa.array() would import pandas
_NO_ROWS = pa.RecordBatch.from_arrays([_NO_BYTES], schema=SCHEMA)


def _with_batch(batch: Any, frame: bytes) -> Any:
    """(batch, metadata) for Flight, whose generators must always yield a batch."""
    return _NO_ROWS if batch is None else batch, frame
