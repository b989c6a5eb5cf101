"""GraphLearn-for-PyTorch's `ConcurrentEventLoop`: coroutines of a script on a thread of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from glt_lightning.base import PeerError, at_least


class ConcurrentEventLoop:
    """Runs at most ``concurrency`` coroutines at once. timeout_s: most that a call here waits for them.

    The first error of a task that nobody waited for is raised by `wait_all`, and so by `shutdown_loop`.

    >>> async def double(x):
    ...     return 2 * x
    >>> loop, found = ConcurrentEventLoop(2), []
    >>> loop.start_loop()
    >>> for x in (1, 2, 3):
    ...     loop.add_task(double(x), found.append)
    >>> loop.run_task(double(4))
    8
    >>> loop.shutdown_loop()
    >>> sorted(found)
    [2, 4, 6]
    """

    def __init__(self, concurrency: int, *, timeout_s: float = 180.0) -> None:
        at_least("concurrency", concurrency, 1)
        self._concurrency, self._timeout_s = concurrency, timeout_s
        self._free = threading.BoundedSemaphore(concurrency)
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start_loop(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop.run_forever, name="ConcurrentEventLoop", daemon=True)
            self._thread.start()

    def add_task(self, coro: Coroutine[Any, Any, Any], callback: Callable[[Any], Any] | None = None) -> None:
        """Starts a coroutine once fewer than ``concurrency`` run. callback: gets its result."""
        self._take()

        def done(future: Future[Any]) -> None:
            try:
                result = future.result()
                if callback is not None:
                    callback(result)
            except BaseException as error:
                self._error = self._error or error
            finally:
                self._free.release()

        asyncio.run_coroutine_threadsafe(coro, self._loop).add_done_callback(done)

    def run_task(self, coro: Coroutine[Any, Any, Any]) -> Any:
        """The result of a coroutine."""
        self._take()
        try:
            return asyncio.run_coroutine_threadsafe(coro, self._loop).result(self._timeout_s)
        finally:
            self._free.release()

    def wait_all(self) -> None:
        """Waits for all tasks, and raises the first error of one."""
        for taken in range(self._concurrency):
            try:
                self._take()
            except PeerError:
                if taken:
                    self._free.release(taken)
                raise
        self._free.release(self._concurrency)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def shutdown_loop(self) -> None:
        """Waits for all tasks and ends the thread. Safe to call twice."""
        try:
            if self._thread is not None:
                self.wait_all()
        finally:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                thread.join(self._timeout_s)
                self._loop.close()

    def _take(self) -> None:
        if not self._free.acquire(timeout=self._timeout_s):
            raise PeerError(f"ConcurrentEventLoop: no task ended within {self._timeout_s:g} s (timeout_s).")
