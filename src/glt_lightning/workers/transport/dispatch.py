"""The server's half of an operation, the same for every transport: finds its handler, runs it, reports how it failed."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from glt_lightning.base import GLTError, RefusedError, RemoteError
from glt_lightning.workers.transport.base import Caller, CallHandler, Service, StreamHandler
from glt_lightning.workers.transport.message import MOST_BODY, Message, WireError

_MOST_TEXT = 5000  # characters of a message or traceback: both fit into a header, escaped or not


def find_call(service: Service, op: Any) -> CallHandler:
    """Finds the handler of a call. Raises `WireError` for an operation that the service does not have."""
    handler: CallHandler = _find(service.calls, op)
    return handler


def find_stream(service: Service, op: Any) -> StreamHandler:
    """Finds the handler of a stream. Raises `WireError` for an operation that the service does not have."""
    handler: StreamHandler = _find(service.streams, op)
    return handler


def is_prompt(service: Service, request: Any) -> bool:
    """Tells whether a peer's request is for one of `Service.prompt`."""
    op = request.get("op") if isinstance(request, dict) else None
    return isinstance(op, str) and op in service.prompt


def _find(table: Mapping[str, Any], op: Any) -> Any:
    handler = table.get(op) if isinstance(op, str) else None
    if handler is None:
        raise WireError(f"unknown operation {op!r:.60}; this server offers: {', '.join(sorted(table)) or 'none'}.")
    return handler


def greet(service: Service, hello: Any) -> dict[str, Any]:
    """Answers a greeting. Raises `RefusedError`, also for a value that is no greeting at all."""
    if not isinstance(hello, dict):
        raise RefusedError("the greeting is missing: expected an object `hello`.")
    try:
        return service.greet(hello)
    except RefusedError:
        raise
    except Exception as error:  # ``hello`` comes from a stranger: one that makes the check fail is refused as well
        raise RefusedError(f"the greeting cannot be read: {type(error).__name__}: {error!s:.200}") from error


def caller_name(hello: Mapping[str, Any]) -> str:
    """Returns the name of a peer in messages, from its greeting."""
    return f"{hello.get('name', 'a peer without a name')!s:.200}"


def check_reply(message: Message) -> Message:
    """Raises `WireError` for a reply that cannot be sent."""
    if message.body.nbytes > MOST_BODY:
        raise WireError(
            f"the reply has {message.body.nbytes} bytes; one message carries at most {MOST_BODY}. Ask for fewer ids per call."
        )
    return message


def fault(error: BaseException) -> dict[str, Any]:
    """Encodes an exception of a handler as a header."""
    return {
        "kind": type(error).__name__,
        "message": str(error)[:_MOST_TEXT],
        "traceback": "".join(traceback.format_exception(error))[-_MOST_TEXT:],
        "expected": isinstance(error, GLTError),
    }


def raise_fault(header: Mapping[str, Any], source: str) -> None:
    """Raises the `RemoteError` for a header of `fault`. source: the operation or stream that failed, for the message."""
    kind, text, trace = (str(header.get(name, "")) for name in ("kind", "message", "traceback"))
    # An error that the package raises on purpose explains itself; for any other one the traceback is needed.
    message = f"{source}: {text}" if header.get("expected") is True else f"{source}: {kind}: {text}\n\n{trace}"
    raise RemoteError(message, kind=kind, traceback=trace)


class Workers:
    """A few daemon threads for handlers, started as they are needed.

    Unlike `concurrent.futures`, a handler that hangs does not keep the interpreter from ending.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        # Guards _threads and _closed: a task that `submit` adds stands before the Nones of `close`, or is dropped.
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
            del task  # or the memory of the last reply would stay in use while this thread waits for the next task

    def close(self, timeout_s: float) -> None:
        """Ends the threads. Waits ``timeout_s`` for each; a handler that takes longer ends later on its daemon thread."""
        with self._lock:
            first, self._closed = not self._closed, True
            if first:
                for _ in self._threads:
                    self._tasks.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout_s)


def _unbounded(_nbytes: int) -> AbstractContextManager[None]:
    return nullcontext()


def caller_is(
    hello: Mapping[str, Any],
    is_gone: Callable[[], bool],
    host: str = "",
    working: Callable[[int], AbstractContextManager[None]] = _unbounded,
) -> Caller:
    """Makes the `Caller` of a greeted peer."""
    return _Greeted(hello, is_gone, host, working)


class _Greeted:
    def __init__(
        self,
        hello: Mapping[str, Any],
        is_gone: Callable[[], bool],
        host: str,
        working: Callable[[int], AbstractContextManager[None]],
    ) -> None:
        self.host, self.working = host, working
        self.hello, self.name, self.is_gone = hello, caller_name(hello), is_gone
