"""Peers within one process, over a network that can simulate faults.

Messages are encoded as on the wire and copied, so that nothing works here that would not work between hosts.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from glt_lightning.base import OptionError, PeerError, PeerLostError, parse_address
from glt_lightning.workers import Caller, Message
from glt_lightning.workers.transport import dispatch
from glt_lightning.workers.transport.base import CallHandler, Service
from glt_lightning.workers.transport.message import EMPTY, as_body, decode_header, encode_header
from glt_lightning.workers.transport.pending import Waiting, again, received
from tests.helpers.network_faults import Clock, Faults

_THREADS = 4  # per lane of a server
_MOST_IN_FLIGHT = 64  # calls of a lane without a reply; the same bound as of Flight
_PATIENCE_S = 30.0  # for a place among them; Flight takes cluster.deadlines.call_s
_AHEAD = 2  # messages of a stream that are made before they are asked for
_CLOSE_S = 1.0  # for handlers to end
_BROKEN = "the connection was closed"


class InProcessNetwork:
    """`transport.base.Transport`. An address is any ``host:port``; port 0 picks one. Close it after its servers.

    faults: the faults to simulate from now on; may be set at any time.
    """

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults
        # Guards _servers, _cut and _sent. Not held while a server, a connection or the clock is called: these take their own
        # locks, and call back.
        self._lock = threading.Lock()
        self._servers: dict[str, _Server] = {}
        self._ports = itertools.count(20000)
        self._cut: dict[str, bool] = {}  # address -> whether messages vanish without an error
        self._sent: Counter[tuple[str, str]] = Counter()
        self._clock = Clock()

    def serve(self, address: str, service: Service) -> _Server:
        host, port = parse_address("address", address)
        with self._lock:
            address = f"{host}:{port or next(self._ports)}"
            if address in self._servers:
                raise OptionError(
                    f"cannot listen at {address}: Address already in use. Choose another port; port 0 picks a free one."
                )
            server = self._servers[address] = _Server(self, address, service)
        return server

    def connect(self, address: str, hello: Mapping[str, Any], timeout_s: float) -> _Connection:
        with self._lock:
            server, silent = self._servers.get(address), self._cut.get(address)
        if silent:
            time.sleep(timeout_s)
            raise PeerLostError(f"no answer to the greeting within {timeout_s:g} s")
        if server is None or silent is not None:
            raise PeerLostError("nothing listens at this address (connection refused)")
        greeting = decode_header(encode_header(hello))
        welcome = decode_header(encode_header(dispatch.greet(server.service, greeting)))
        connection = _Connection(self, server, greeting, welcome)
        server.admit(connection)
        return connection

    def cut(self, address: str, *, silent: bool = False) -> None:
        """Breaks all connections to a server and refuses new ones. ``silent``: messages vanish, and neither end gets an error."""
        with self._lock:
            self._cut[address] = silent
            server = self._servers.get(address)
        if server is not None and not silent:
            server.break_connections()

    def heal(self, address: str) -> None:
        """Undoes `cut`. Messages that vanished stay lost."""
        with self._lock:
            self._cut.pop(address, None)

    def close(self) -> None:
        """Ends all servers and connections. Safe to call twice."""
        with self._lock:
            servers = list(self._servers.values())
        for server in servers:
            server.close()
        self._clock.close()

    def __enter__(self) -> InProcessNetwork:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # For connections and servers.

    def carry(self, address: str, way: str, op: str, deliver: Callable[[], None]) -> None:
        """Delivers one message of a call to the other end, subject to the faults."""
        faults = self.faults
        if self.is_silent(address):
            return
        if faults is None or not faults.hit(address, op):
            deliver()
            return
        for delay_s in faults.arrivals(way, op, self._count(way, op)):
            if delay_s > 0:
                self._clock.after(delay_s, deliver)
            else:
                deliver()

    def stream_breaks(self, address: str, op: str) -> bool:
        faults = self.faults
        return faults is not None and faults.hit(address, op) and faults.breaks(op, self._count("stream", op))

    def is_silent(self, address: str) -> bool:
        return self._cut.get(address) is True

    def forget(self, address: str) -> None:
        with self._lock:
            self._servers.pop(address, None)

    def _count(self, way: str, op: str) -> int:
        with self._lock:
            self._sent[way, op] += 1
            return self._sent[way, op]


class _Server:
    def __init__(self, network: InProcessNetwork, address: str, service: Service) -> None:
        self.address, self.service = address, service
        self._network = network
        self._lanes = [dispatch.Workers(f"glt-inproc-{lane}", _THREADS) for lane in ("calls", "bulk", "prompt")]
        self._lock = threading.Lock()
        self._connections: set[_Connection] = set()
        self._closed = False

    def admit(self, connection: _Connection) -> None:
        with self._lock:
            if not self._closed:
                self._connections.add(connection)
                return
        connection.fail(PeerLostError(_BROKEN))
        raise PeerLostError(_BROKEN)

    def dismiss(self, connection: _Connection) -> None:
        with self._lock:
            self._connections.discard(connection)

    def run(self, lane: int, task: Callable[[], None]) -> None:
        self._lanes[lane].submit(task)

    def break_connections(self) -> None:
        with self._lock:
            connections, self._connections = self._connections, set()
        for connection in connections:
            connection.fail(PeerLostError(_BROKEN))

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._network.forget(self.address)
        self.break_connections()
        for workers in self._lanes:
            workers.close(_CLOSE_S)


class _Connection:
    """Both ends of a connection."""

    def __init__(
        self, network: InProcessNetwork, server: _Server, hello: Mapping[str, Any], welcome: Mapping[str, Any]
    ) -> None:
        self.welcome, self.heard_s = welcome, time.monotonic()
        self._network, self._server = network, server
        self._caller = dispatch.caller_is(hello, self.is_gone)
        self._ids = itertools.count()
        # Guards _pending, _streams and _error. Calls and streams are failed without it: that wakes threads that call again.
        self._state = threading.Condition()
        self._pending: list[dict[int, Waiting]] = [{}, {}]  # of each lane
        self._streams: weakref.WeakSet[_InProcessStream] = weakref.WeakSet()
        self._error: PeerError | None = None

    def is_gone(self) -> bool:
        return self._error is not None

    def call(self, op: str, header: Mapping[str, Any], body: Any = EMPTY, *, bulk: bool = False) -> Waiting:
        lane, waiting, id_ = int(bulk), Waiting(op), next(self._ids)
        thread = 2 if op in self._server.service.prompt else lane
        request, copy = encode_header({"op": op, "header": header}), as_body(body).copy()
        with self._state:
            ready = self._state.wait_for(
                lambda: self._error is not None or len(self._pending[lane]) < _MOST_IN_FLIGHT, _PATIENCE_S
            )
            if self._error is not None:
                raise again(self._error)
            if not ready:
                raise PeerLostError(f"{_MOST_IN_FLIGHT} calls got no reply for {_PATIENCE_S:g} s")
            self._pending[lane][id_] = waiting

        def work() -> None:
            if not self.is_gone():
                failed, reply, found = _answer(self._server.service, request, copy.copy(), self._caller)
                self._network.carry(
                    self._server.address, "reply", op, lambda: self._take(lane, id_, failed, reply, found)
                )

        self._network.carry(self._server.address, "request", op, lambda: self._server.run(thread, work))
        return waiting

    def _take(self, lane: int, id_: int, failed: bool, header: bytes, body: np.ndarray) -> None:
        self.heard_s = time.monotonic()
        with self._state:
            waiting = self._pending[lane].pop(id_, None)
            self._state.notify_all()
        if waiting is not None:  # else it is the duplicate of a reply that was taken
            waiting.resolve(failed, header, body)

    def stream(self, op: str, header: Mapping[str, Any]) -> _InProcessStream:
        copy = decode_header(encode_header(header))
        with self._state:
            if self._error is not None:
                raise again(self._error)
            stream = _InProcessStream(self._network, self._server, op, copy, self._caller.hello)
            self._streams.add(stream)
        return stream

    def fail(self, error: PeerError) -> None:
        """Ends all calls and streams with ``error``."""
        with self._state:
            self._error = self._error or error
            waiting = [each for lane in self._pending for each in lane.values()]
            self._pending = [{}, {}]
            streams = list(self._streams)
            self._state.notify_all()
        for each in waiting:
            each.fail(error)
        for stream in streams:
            stream.fail(error)

    def close(self) -> None:
        self._server.dismiss(self)
        self.fail(PeerLostError("the connection is closed"))


def _answer(service: Service, request: bytes, body: np.ndarray, caller: Caller) -> tuple[bool, bytes, np.ndarray]:
    """(failed, header, body) of the reply."""
    try:
        asked = decode_header(request)
        handler: CallHandler = dispatch.find_call(service, asked.get("op"))
        return False, *_encoded(handler(Message(asked["header"], body), caller))
    except BaseException as error:  # as on the wire: every error of a handler is reported to the caller
        return True, encode_header(dispatch.fault(error)), EMPTY


def _encoded(reply: Message) -> tuple[bytes, np.ndarray]:
    dispatch.check_reply(reply)
    return encode_header(reply.header), reply.body.copy()


class _InProcessStream:
    """A thread makes the messages, up to _AHEAD of them before they are read."""

    def __init__(
        self, network: InProcessNetwork, server: _Server, op: str, header: Mapping[str, Any], hello: Mapping[str, Any]
    ) -> None:
        self._network, self._server, self._op, self._header = network, server, op, header
        self._caller = dispatch.caller_is(hello, lambda: self._over)
        # Guards the fields below. Never held while the handler makes a message or the network is asked.
        self._state = threading.Condition()
        self._ready: deque[tuple[bool, bytes, np.ndarray]] = deque()
        self._over = False  # no more messages are made
        self._error: PeerError | None = None  # why it ended early
        self._closed = False
        threading.Thread(target=self._make, name="glt-inproc-stream", daemon=True).start()

    def _make(self) -> None:
        try:
            handler = dispatch.find_stream(self._server.service, self._op)
            replies = iter(handler(Message(self._header), self._caller))
            try:
                while self._await_space():
                    self._put(False, *_encoded(next(replies)))
            except StopIteration:
                pass
            finally:
                close = getattr(replies, "close", None)
                if close is not None:
                    close()
        except BaseException as error:  # as on the wire: every error of a handler is reported to the caller
            self._put(True, encode_header(dispatch.fault(error)), EMPTY)
        with self._state:
            self._over = True
            self._state.notify_all()

    def _await_space(self) -> bool:
        with self._state:
            self._state.wait_for(lambda: self._over or len(self._ready) < _AHEAD)
            return not self._over

    def _put(self, failed: bool, header: bytes, body: np.ndarray) -> None:
        if self._network.stream_breaks(self._server.address, self._op):
            self.fail(PeerLostError(_BROKEN))
        with self._state:
            if not self._over:
                self._ready.append((failed, header, body))
                self._state.notify_all()

    def __iter__(self) -> Iterator[Message]:
        while (item := self._take()) is not None:
            message = received(*item, "a stream")
            del item
            yield message
            del message

    def _take(self) -> tuple[bool, bytes, np.ndarray] | None:
        with self._state:
            while not self._closed:
                if self._error is not None:
                    raise again(self._error)
                silent = self._network.is_silent(self._server.address)
                if self._ready and not silent:
                    self._state.notify_all()
                    return self._ready.popleft()
                if self._over and not silent:
                    return None
                self._state.wait(0.02 if silent else None)  # `heal` notifies nobody, so a cut is polled
            return None

    def fail(self, error: PeerError) -> None:
        with self._state:
            self._over, self._error = True, self._error or error
            self._ready.clear()
            self._state.notify_all()

    def close(self) -> None:
        with self._state:
            self._over = self._closed = True
            self._ready.clear()
            self._state.notify_all()
