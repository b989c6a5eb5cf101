"""Why a rank of another host ended: it posts its error in the store of the job before it goes.

Without that, the ranks of other hosts would only have the error of the collective call in which they waited for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

_log = logging.getLogger(__name__)

_LOOK_S = 0.5  # between two looks at the store
_READ_S = 3.0  # for the others to read what was posted: the store may end with the process of this rank
_POSTS, _READERS, _REASON = "posts", "readers", "reason"


class FailureStore(Protocol):
    """What is used of torch's store."""

    def set(self, key: str, value: str) -> object: ...

    def get(self, key: str) -> bytes: ...

    def add(self, key: str, amount: int) -> int: ...

    def check(self, keys: list[str]) -> bool: ...


class FailureBoard:
    """Posts why this rank ends, and looks for what another one has posted, on a daemon thread. Close it.

    open_store: opens a client of the job's store with keys of this run alone; called on the thread.
    """

    def __init__(self, open_store: Callable[[], FailureStore], world_size: int) -> None:
        self._open_store, self._world_size = open_store, world_size
        self._mine, self._found = "", ""
        self._woken, self._closed, self._done = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="glt-failures", daemon=True)
        self._thread.start()

    def post(self, reason: str) -> None:
        """Tells the other ranks, unless one has posted before; returns when they have read it, or after a few seconds."""
        self._mine = reason
        self._woken.set()
        self._done.wait(2 * _READ_S)

    def found(self, wait_s: float = 0.0) -> str:
        """What another rank has posted; waits for it that long. Empty: nothing."""
        self._done.wait(wait_s)
        return self._found

    def close(self) -> None:
        """Safe to call twice."""
        self._closed.set()
        self._woken.set()
        self._thread.join(_READ_S)

    def _run(self) -> None:
        try:
            store = self._open_store()
        except RuntimeError as error:
            if not self._closed.is_set():
                _log.warning(
                    "the log of this host will not have the errors of other hosts' ranks: the job's store: %s", error
                )
        else:
            with suppress(RuntimeError):  # of a store whose process has ended
                self._look(store)
        finally:
            self._done.set()

    def _look(self, store: FailureStore) -> None:
        while True:
            self._woken.wait(_LOOK_S)
            if self._mine and store.add(_POSTS, 1) == 1:
                store.set(_REASON, self._mine)
                self._wait_for_readers(store)
                return
            if store.check([_REASON]):
                self._found = store.get(_REASON).decode(errors="replace")
                store.add(_READERS, 1)
                return
            if self._closed.is_set():
                return
            if self._mine:  # another one is about to post
                self._woken.clear()

    def _wait_for_readers(self, store: FailureStore) -> None:
        end = time.monotonic() + _READ_S
        while store.add(_READERS, 0) < self._world_size - 1 and time.monotonic() < end:
            if self._closed.wait(_LOOK_S / 5):
                return
