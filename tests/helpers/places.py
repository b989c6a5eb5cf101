"""A transport for a test: what is opened through a `Place` is closed at its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from glt_lightning.base import DeadlineOptions
from glt_lightning.workers import Caller, Message, Peer, Transport
from glt_lightning.workers.transport.base import Connection, Server, Service
from glt_lightning.workers.transport.peer import Retry

# Short, so that a failing test fails soon; nothing waits for them when all is well.
DEADLINES = DeadlineOptions(connect_s=5, call_s=10, reconnect_s=20)
RETRY = Retry(first_s=0.01, most_s=0.1)


class Place:
    """transport: what is tested.  kind: its name."""

    def __init__(self, kind: str, transport: Transport, deadlines: DeadlineOptions = DEADLINES) -> None:
        self.kind, self.transport, self.deadlines = kind, transport, deadlines
        self._stack = ExitStack()

    def serve(self, service: Service, address: str = "127.0.0.1:0") -> Server:
        server = self.transport.serve(address, service)
        self._stack.callback(server.close)
        return server

    def connect(self, address: str, timeout_s: float = 5.0, **hello: Any) -> Connection:
        connection = self.transport.connect(address, {"name": "a test", **hello}, timeout_s)
        self._stack.callback(connection.close)
        return connection

    def peer(
        self, *addresses: str, deadlines: DeadlineOptions | None = None, retry: Retry = RETRY, **hello: Any
    ) -> Peer:
        hello = {"name": "a test", **hello}
        peer = Peer("server 0", addresses, self.transport, hello, deadlines or self.deadlines, retry)
        self._stack.callback(peer.close)
        return peer

    def close(self) -> None:
        self._stack.close()


class Desk:
    """A service for tests. Handlers that wait do so until `release` is set; `finish` sets it for good."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.entered = threading.Semaphore(0)  # one for each handler that has begun to wait
        self.waiting = 0
        self.made = 0  # messages of streams
        self.ended = threading.Event()  # a stream's handler has ended
        self._lock = threading.Lock()

    def service(self, greet: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None, **calls: Any) -> Service:
        table = {"echo": self.echo, "who": self.who, "wait": self.wait, "grow": self.grow, "boom": self.boom, **calls}
        streams = {"count": self.count, "news": self.news}
        return Service(greet or (lambda hello: {"welcome": hello.get("name")}), table, streams)

    def echo(self, message: Message, _caller: Caller) -> Message:
        return Message(message.header, message.body)

    def who(self, _message: Message, caller: Caller) -> Message:
        return Message({"name": caller.name, "hello": dict(caller.hello)})

    def grow(self, message: Message, _caller: Caller) -> Message:
        """A body of so many bytes."""
        return Message({}, pattern(message.header["nbytes"]))

    def wait(self, message: Message, _caller: Caller) -> Message:
        with self._lock:
            self.waiting += 1
        self.entered.release()
        assert self.release.wait(30)
        return Message(message.header)

    def boom(self, message: Message, _caller: Caller) -> Message:
        raise ValueError(message.header.get("text", "boom"))

    def count(self, message: Message, _caller: Caller) -> Iterator[Message]:
        """So many messages of so many bytes; then an error, if asked for."""
        try:
            for number in range(message.header["count"]):
                self.made += 1
                yield Message({"number": number}, pattern(message.header.get("nbytes", 0)))
            if "error" in message.header:
                raise ValueError(message.header["error"])
        finally:
            self.ended.set()

    def news(self, _message: Message, caller: Caller) -> Iterator[Message]:
        """One message, and then none until the caller has left."""
        try:
            yield Message({"number": 0})
            self.entered.release()
            while not caller.is_gone() and not self.release.wait(0.05):
                pass
        finally:
            self.ended.set()


def pattern(nbytes: int) -> np.ndarray:
    """uint8 [nbytes] of bytes that differ from their neighbours."""
    return np.resize(np.arange(251, dtype=np.uint8), nbytes)
