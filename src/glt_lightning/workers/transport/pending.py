"""A call in flight, the same for every transport."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from glt_lightning.base import PeerError, PeerLostError
from glt_lightning.workers.transport.dispatch import raise_fault
from glt_lightning.workers.transport.message import EMPTY, Message, decode_header


class Waiting:
    """A `Pending` call. One thread resolves it, other threads wait. The waiting thread decodes the reply, so that the reading
    thread is free for the next one."""

    def __init__(self, op: str) -> None:
        self._op = op
        self._done = threading.Event()
        self._header: Any = b""
        self._body = EMPTY
        self._failed = False
        self._error: PeerError | None = None

    def resolve(self, failed: bool, header: Any, body: np.ndarray) -> None:
        """Sets the reply, or the header of `dispatch.fault` instead of it. Only the first one counts."""
        if not self._done.is_set():
            self._failed, self._header, self._body = failed, header, body
            self._done.set()

    def fail(self, error: PeerError) -> None:
        """Ends the call without a reply: `result` raises ``error``."""
        if not self._done.is_set():
            self._error = error
            self._done.set()

    def result(self, timeout_s: float) -> Message:
        if not self._done.wait(timeout_s):
            raise PeerLostError(f"no answer to {self._op!r} within {timeout_s:g} s")
        if self._error is not None:
            raise again(self._error)
        return received(self._failed, self._header, self._body, self._op)


def received(failed: bool, header: Any, body: np.ndarray, op: str) -> Message:
    """Decodes a reply. Raises `RemoteError` if it is a fault."""
    decoded = decode_header(header)
    if failed:
        raise_fault(decoded, op)
    return Message(decoded, body)


def again(error: PeerError) -> PeerError:
    """Copies an error for another thread: one object that is raised twice would collect both tracebacks."""
    return type(error)(*error.args)
