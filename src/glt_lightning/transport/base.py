"""What a transport offers. Nothing here waits without a deadline, and nobody unknown gets past `Service.greet`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from glt_lightning.transport.message import EMPTY, Message

PROTOCOL = 3  # version of the wire format and of the operations


class Caller(Protocol):
    """The peer a handler works for. ``name``: as it introduced itself; ``hello``: all it said; ``host``: where it really
    is, "" within this process."""

    name: str
    host: str
    hello: Mapping[str, Any]

    def is_gone(self) -> bool:
        """Whether its connection has ended. A stream that waits for news asks this at least once a second."""


CallHandler = Callable[[Message, Caller], Message]
StreamHandler = Callable[[Message, Caller], Iterator[Message]]


@dataclass(frozen=True)
class Service:
    """What a process offers to its peers: a fixed table of operations.

    greet: takes a peer's introduction (`hello`), returns the answer to it or raises `RefusedError` with the reason.
    calls: operations that give one reply. They run on pool threads, several at once.
    streams: operations that give replies until they end or the caller leaves.
    """

    greet: Callable[[Mapping[str, Any]], dict[str, Any]]
    calls: Mapping[str, CallHandler]
    streams: Mapping[str, StreamHandler]


class Pending(Protocol):
    """A call on its way."""

    def result(self, timeout_s: float) -> Message:
        """The reply. Raises `PeerLostError` when the connection ends or the time is over, `RemoteError` for an error of
        the handler. May be asked again after a timeout."""


class MessageStream(Protocol):
    """Replies of a stream. Iterating raises `PeerLostError` when the connection ends."""

    def __iter__(self) -> Iterator[Message]: ...

    def close(self) -> None:
        """Ends the stream from any thread; a blocked ``next`` returns. Safe to call twice."""


class Connection(Protocol):
    """A greeted connection to one peer; for any number of threads.

    welcome: what the peer answered to the greeting.
    heard_s: when anything last came from it, by the monotonic clock.
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
    """A service that listens. ``address``: host:port, with the port that was picked."""

    address: str

    def close(self) -> None:
        """Stops listening and ends every connection. Safe to call twice."""


class Transport(Protocol):
    """A way for processes to reach each other."""

    def serve(self, address: str, service: Service) -> Server:
        """Listens at ``host:port``; port 0 picks a free one. Raises `OptionError` for an address that cannot be used:
        taken, not of this host, or beyond loopback without security."""

    def connect(self, address: str, hello: Mapping[str, Any], timeout_s: float) -> Connection:
        """Reaches a peer and greets it. Raises `PeerLostError` if there is no answer in time, `RefusedError` if it says no."""
