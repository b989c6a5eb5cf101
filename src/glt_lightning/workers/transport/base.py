"""The interfaces of a transport. Every wait has a deadline, and a peer is served only after `Service.greet` accepted it.

**The greeting.** ``hello`` introduces the caller in every opening, so that the server keeps no state of callers:

* field
* ``protocol``: 3
* ``version``: version of the package; must be the same
* ``job``: name of the job
* ``role``: ``worker``, ``client``, ``server`` or ``tool``
* ``name``: what errors call it, such as ``rank 3``
* ``graph``: hash of its partition, or ``""`` if it does not know one yet

The first frame of the answer is ``WELCOME``, with the server's own introduction as header, or ``REFUSED``, with the
reason as ``message``, which ends the stream.

**Lost messages.** All operations may be repeated; ``put``, which changes something, has a number by which a repeated
one is known and not applied again. A caller that gets no answer in time asks again, over a new connection if the old
one is silent, for up to ``cluster.deadlines.reconnect_s``. A second reply with the same id is dropped. The reader of a
broken stream opens it again, with a request that says what is still wanted.

While a connection has streams open, the caller sends a ``PING`` four times per ``cluster.deadlines.call_s``, and takes
a server that was silent for that long as lost. (gRPC's own keepalive cannot be used: Flight leaves servers at defaults
that end a connection which pings while idle.)

**Versions.** `PROTOCOL` changes whenever the wire format does. There is no negotiation: all processes of a job run one
release, and a peer of another one is refused with both versions in the message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from glt_lightning.workers.transport.message import EMPTY, Message

PROTOCOL = 3  # version of the wire format and of the operations


class Caller(Protocol):
    """The peer that a handler works for. name: from its greeting.  hello: its whole greeting.  host: the address that its
    connection comes from, which it cannot choose; "" within this process."""

    name: str
    host: str
    hello: Mapping[str, Any]

    def is_gone(self) -> bool:
        """Whether its connection has ended. A stream handler checks this at least once a second while it waits, and a call
        handler between pieces of work that take long."""

    def working(self, nbytes: int) -> AbstractContextManager[None]:
        """Reserves memory that a call takes until its reply is made; waits for that, as `cluster.limits` say. A call does this
        once at a time, before it takes the memory. Raises `PeerLostError` if the caller leaves meanwhile."""


CallHandler = Callable[[Message, Caller], Message]
StreamHandler = Callable[[Message, Caller], Iterator[Message]]


@dataclass(frozen=True)
class Service:
    """The operations that a process offers to its peers: a fixed table.

    greet: takes a peer's greeting (`hello`), returns the answer to it or raises `RefusedError` with the reason.
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
        """The reply. Raises `PeerLostError` when the connection ends or ``timeout_s`` has passed, `RemoteError` for an error
        of the handler. May be called again after a timeout."""


class MessageStream(Protocol):
    """Replies of a stream. Iterating raises `PeerLostError` when the connection ends."""

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
