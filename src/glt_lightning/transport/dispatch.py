"""The server's half of an operation, the same for every transport: look it up, run it, say how it failed."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from glt_lightning.errors import GLTError, RefusedError, RemoteError
from glt_lightning.transport.base import Caller, CallHandler, Service, StreamHandler
from glt_lightning.transport.message import MOST_BODY, Message, WireError

_MOST_TEXT = 5000  # characters of a message or traceback: both fit into a header, escaped or not


def find_call(service: Service, op: Any) -> CallHandler:
    """The handler of a call. Raises `WireError` for an operation that the service does not have."""
    handler: CallHandler = _find(service.calls, op)
    return handler


def find_stream(service: Service, op: Any) -> StreamHandler:
    """The handler of a stream. Raises `WireError` for an operation that the service does not have."""
    handler: StreamHandler = _find(service.streams, op)
    return handler


def _find(table: Mapping[str, Any], op: Any) -> Any:
    handler = table.get(op) if isinstance(op, str) else None
    if handler is None:
        raise WireError(f"there is no operation {op!r:.60} here; known: {', '.join(sorted(table)) or 'none'}.")
    return handler


def greet(service: Service, hello: Any) -> dict[str, Any]:
    """The answer to an introduction. Raises `RefusedError`, also for one that is no introduction at all."""
    if not isinstance(hello, dict):
        raise RefusedError("expected an introduction.")
    try:
        return service.greet(hello)
    except RefusedError:
        raise
    except Exception as error:  # an introduction that breaks the check is not let in
        raise RefusedError(f"the introduction cannot be read: {type(error).__name__}: {error!s:.200}") from error


def caller_name(hello: Mapping[str, Any]) -> str:
    """What to call a peer that introduced itself."""
    return f"{hello.get('name', 'a peer without a name')!s:.200}"


def check_reply(message: Message) -> Message:
    """Raises `WireError` for a reply that cannot be sent."""
    if message.body.nbytes > MOST_BODY:
        raise WireError(
            f"a reply of {message.body.nbytes} bytes; at most {MOST_BODY} can be sent. Ask for less at once."
        )
    return message


def fault(error: BaseException) -> dict[str, Any]:
    """An exception of a handler, as a header."""
    return {
        "kind": type(error).__name__,
        "message": str(error)[:_MOST_TEXT],
        "traceback": "".join(traceback.format_exception(error))[-_MOST_TEXT:],
        "expected": isinstance(error, GLTError),
    }


def raise_fault(header: Mapping[str, Any], source: str) -> None:
    """Raises the `RemoteError` that `fault` describes. ``source``: who reported it."""
    kind, text, trace = (str(header.get(name, "")) for name in ("kind", "message", "traceback"))
    said = f"{source}: {text}" if header.get("expected") is True else f"{source}: {kind}: {text}\n\n{trace}"
    raise RemoteError(said, kind=kind, traceback=trace)


class Workers:
    """A few daemon threads for handlers, started as they are needed.

    Unlike `concurrent.futures`, a handler that hangs does not keep the interpreter from ending.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, task: Callable[[], None]) -> None:
        """Runs ``task``, which must not raise, as soon as a thread is free. After `close` it is dropped."""
        with self._lock:
            if self._closed:
                return
            self._tasks.put(task)
            if len(self._threads) < self._most:
                thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
            del task  # while this thread waits for the next one, nothing of the last reply may stay

    def close(self, timeout_s: float) -> None:
        """Ends the threads; one in the middle of a handler ends after it, within ``timeout_s`` or later by itself."""
        with self._lock:
            first, self._closed = not self._closed, True
            if first:
                for _ in self._threads:
                    self._tasks.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout_s)


def caller_is(hello: Mapping[str, Any], is_gone: Callable[[], bool], host: str = "") -> Caller:
    """A `Caller` for a greeted peer."""
    return _Greeted(hello, is_gone, host)


class _Greeted:
    def __init__(self, hello: Mapping[str, Any], is_gone: Callable[[], bool], host: str) -> None:
        self.host = host
        self.hello, self.name, self.is_gone = hello, caller_name(hello), is_gone
