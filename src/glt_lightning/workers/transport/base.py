"""The interfaces of a transport. Every wait has a deadline, and a peer is served only after `Service.greet` accepted it.

**The greeting.** ``hello`` introduces the caller in every opening, so that the server keeps no state of callers:

* ``protocol``: 3
* ``version``: version of the package; must be the same
* ``job``: name of the job
* ``role``: ``worker``, ``client``, ``server`` or ``tool``
* ``name``: the caller in errors, such as ``rank 3``
* ``graph``: hash of its partition, or ``""`` if it does not know one yet

The first frame of the answer is ``WELCOME``, with the server's own introduction as header, or ``REFUSED``, with the
reason as ``message``, which ends the stream.

**Lost messages.** All operations may be repeated; ``put``, which changes rows, has a number by which a server recognises
a repeated one and does not apply it again. A caller that gets no answer in time asks again, over a new connection if the
old one is silent, for up to ``cluster.deadlines.reconnect_s``. A second reply with the same id is dropped. The reader of
a broken stream opens it again, and repeats the requests that are still unanswered.

While a connection has streams open, the caller sends a ``PING`` four times per ``cluster.deadlines.call_s``, and takes
a server that was silent for that long as lost. (gRPC's own keepalive cannot be used: Flight leaves servers at defaults
that end a connection which pings while idle.)

**Versions.** `PROTOCOL` changes whenever the wire format does. There is no negotiation: all processes of a job run one
release, and a peer of another one is refused with both versions in the message.
"""

from __future__ import annotations

import os
import socket
import ssl
import stat
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import unquote

from glt_lightning.base import parse_address
from glt_lightning.workers.transport.credentials import Certificates, Credentials
from glt_lightning.workers.transport.message import EMPTY, Message

# Version of the wire format and of the operations: a change of either takes the next number, since both ends refuse another one.
PROTOCOL = 4


class Caller(Protocol):
    """The peer that a handler works for. name: the name in its greeting.  hello: its whole greeting.  host: the address that
    its connection comes from, which it cannot choose; "" within this process."""

    name: str
    host: str
    hello: Mapping[str, Any]

    def is_gone(self) -> bool:
        """Tells whether the peer's connection has ended. A stream handler checks this at least once a second while it waits, a
        call handler between pieces of long work."""

    def working(self, nbytes: int) -> AbstractContextManager[None]:
        """Reserves the memory that a call takes until its reply is made; waits as long as ``cluster.limits`` require. A call
        reserves once at a time, before it takes the memory. Raises `PeerLostError` if the caller leaves meanwhile."""


CallHandler = Callable[[Message, Caller], Message]
StreamHandler = Callable[[Message, Caller], Iterator[Message]]


@dataclass(frozen=True)
class Service:
    """The operations that a process offers to its peers: a fixed table.

    greet: takes a peer's greeting (``hello``), and returns the answer or raises `RefusedError` with the reason.
    calls: operations with one reply. They run on pool threads, several at once.
    streams: operations with any number of replies; they end by themselves or when the caller leaves.
    prompt: the calls that take no time and little memory. They have a thread of their own, so that they are answered while a
    peer's other calls are at work.
    """

    greet: Callable[[Mapping[str, Any]], dict[str, Any]]
    calls: Mapping[str, CallHandler]
    streams: Mapping[str, StreamHandler]
    prompt: Set[str] = frozenset()


class Pending(Protocol):
    """A call in flight."""

    def result(self, timeout_s: float) -> Message:
        """Waits for the reply. Raises `PeerLostError` when the connection ends or ``timeout_s`` has passed, `RemoteError` for
        an error of the handler. May be called again after a timeout."""


class MessageStream(Protocol):
    """The replies of a stream. Iterating raises `PeerLostError` when the connection ends."""

    def __iter__(self) -> Iterator[Message]: ...

    def close(self) -> None:
        """Ends the stream from any thread; a blocked ``next`` returns. Safe to call twice."""


class Connection(Protocol):
    """A connection to one peer, after the greeting. Thread-safe.

    welcome: the peer's answer to the greeting.
    heard_s: when the last message of any kind arrived from it, by the monotonic clock.
    """

    welcome: Mapping[str, Any]

    @property
    def heard_s(self) -> float: ...

    def call(self, op: str, header: Mapping[str, Any], body: Any = EMPTY, *, bulk: bool = False) -> Pending:
        """Sends one request. ``bulk``: the reply may be large and must not stand in the way of small ones.
        Raises `PeerLostError` if the connection has ended."""

    def stream(self, op: str, header: Mapping[str, Any]) -> MessageStream:
        """Opens a stream of replies."""

    def close(self) -> None:
        """Ends all calls and streams. Safe to call twice, from any thread."""


class Server(Protocol):
    """A listening service. ``address``: host:port, with the actual port where 0 was asked for."""

    address: str

    def close(self) -> None:
        """Stops listening and ends every connection. Safe to call twice."""


class Transport(Protocol):
    """A way for processes to reach each other."""

    def serve(self, address: str, service: Service) -> Server:
        """Listens at ``host:port``; port 0 picks a free one. Raises `OptionError` for an address that cannot be used:
        in use, not of this host, or beyond loopback without security."""

    def connect(self, address: str, hello: Mapping[str, Any], timeout_s: float) -> Connection:
        """Connects to a peer and greets it. Raises `PeerLostError` if there is no answer in time, `RefusedError` if the peer
        refuses the greeting."""


# Ends TCP connections that are owned by a library (gRPC) which offers no way to end them.


def sever_accepted(port: int) -> None:
    """Shuts down the connections that this process has accepted at a port. Without this, Flight waits for ever for a peer
    that has stopped reading."""
    _sever(lambda connection: connection.getsockname()[1] == port)


def sever_peer(port: int, peer: str) -> None:
    """Shuts down the connection that this process has accepted at a port from ``peer``, as gRPC names it:
    ``ipv4:10.0.0.1:4711`` or ``ipv6:[::1]:4711``, percent-encoded."""
    host, _, theirs = unquote(peer).partition(":")[2].rpartition(":")
    host = host.strip("[]").removeprefix("::ffff:")
    _sever(
        lambda connection: (
            connection.getsockname()[1] == port
            and str(connection.getpeername()[1]) == theirs
            and _host(connection) == host
        )
    )


def sever_to(address: str) -> None:
    """Shuts down the connections of this process to ``host:port``. gRPC does not cancel a write to a peer that has
    stopped reading, nor a call that the peer has not begun to answer."""
    host, port = parse_address("address", address)
    with suppress(OSError):
        hosts = {str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        _sever(lambda connection: connection.getpeername()[1] == port and _host(connection) in hosts)


def _host(connection: socket.socket) -> str:
    return str(connection.getpeername()[0]).removeprefix("::ffff:")


def _sever(mine: Callable[[socket.socket], bool]) -> None:
    for connection in _sockets():
        with connection, suppress(OSError):
            if connection.family in (socket.AF_INET, socket.AF_INET6) and mine(connection):
                connection.getpeername()  # raises for a listening socket, which must stay open
                connection.shutdown(socket.SHUT_RDWR)


def _sockets() -> Iterator[socket.socket]:
    """Yields all sockets of this process by duplicated descriptors: another thread may close the original, and the kernel may
    give its number to another file, at any moment."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            fd = os.dup(int(name))
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                yield socket.socket(fileno=fd)
            else:
                os.close(fd)


# Finds out why a peer closes the connection during the greeting: gRPC does not report it, so a plain TLS handshake is
# tried.


_ASKS = "the server requires TLS with a client certificate, and this process has none. Set cluster.security.ca, cert and key."

_REJECTS = (
    "the server rejects the certificate of this process (cluster.security.cert): its ca is another authority, or the "
    "certificate has expired. Make both with the same authority (glt-lightning certs)."
)


def diagnose(address: str, credentials: Credentials, timeout_s: float) -> str | None:
    """Finds the reason why another attempt to connect would fail as well; None if it finds none."""
    try:
        if credentials.tls is None:
            return _ASKS if _speaks_tls(address, timeout_s) else None
        # twice: a server that is shutting down also hangs up, once
        tls = credentials.tls
        return _REJECTS if _hangs_up(address, tls, timeout_s) and _hangs_up(address, tls, timeout_s) else None
    except OSError:  # nothing answers: the peer is away, and another attempt may succeed
        return None


def _speaks_tls(address: str, timeout_s: float) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection(parse_address("address", address), timeout_s) as raw, context.wrap_socket(raw):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")


def _hangs_up(address: str, tls: Certificates, timeout_s: float) -> bool:
    """Tells whether a TLS server ends the connection after the handshake. In TLS 1.3 the client is done before the server has
    checked its certificate, and gRPC reports no reason; to a client that it accepts, the server sends HTTP/2 settings."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # gRPC has checked the peer's already
    context.set_alpn_protocols(["h2"])
    with _file(tls.cert) as cert, _file(tls.key) as key:
        context.load_cert_chain(cert, key)
    with socket.create_connection(parse_address("address", address), timeout_s) as raw:
        try:
            with context.wrap_socket(raw) as secure:
                return secure.recv(1) == b""
        except ssl.SSLError as error:
            return "ALERT" in (error.reason or "")


@contextmanager
def _file(data: bytes) -> Iterator[str]:
    """A path from which ``ssl`` can read ``data``: a memfd, so that no key is written to a disk."""
    fd = os.memfd_create("glt-pem", os.MFD_CLOEXEC)
    try:
        os.write(fd, data)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
