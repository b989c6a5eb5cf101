"""Simulated faults between two peers of an `InProcessNetwork`, drawn from a seed."""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

_REORDER_S = 0.02  # the longest time that a message is held back so that later ones overtake it


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Probabilities per message of a call. The fate of the n-th message of an operation depends on the seed alone.

    Attributes:
        seed: Of all draws.
        delay_s: Least and most delay of every message, in seconds.
        reorder: A message is overtaken by those that come after it.
        duplicate: A message arrives twice.
        lose_request: A request never arrives.
        lose_reply: The work is done, but its reply never arrives.
        cut_stream: A stream breaks before one of its messages.
        ops: Operations that are affected; None: all.
        addresses: Servers that are affected; None: all.
    """

    seed: int = 0
    delay_s: tuple[float, float] = (0.0, 0.0)
    reorder: float = 0.0
    duplicate: float = 0.0
    lose_request: float = 0.0
    lose_reply: float = 0.0
    cut_stream: float = 0.0
    ops: Collection[str] | None = None
    addresses: Collection[str] | None = None

    def hit(self, address: str, op: str) -> bool:
        """Whether the faults apply to messages of this operation to this server."""
        return (self.ops is None or op in self.ops) and (self.addresses is None or address in self.addresses)

    def arrivals(self, way: str, op: str, number: int) -> list[float]:
        """The delays in seconds after which a message arrives: one, two (duplicated) or none (lost). way: ``request`` or
        ``reply``."""
        draw = random.Random(f"{self.seed}/{way}/{op}/{number}")
        lost, twice, late = draw.random(), draw.random(), draw.random()
        if lost < (self.lose_request if way == "request" else self.lose_reply):
            return []
        delay = draw.uniform(*self.delay_s) + (draw.uniform(0.0, _REORDER_S) if late < self.reorder else 0.0)
        return [delay, delay + draw.uniform(*self.delay_s)] if twice < self.duplicate else [delay]

    def breaks(self, op: str, number: int) -> bool:
        """Whether a stream breaks before its next message."""
        return random.Random(f"{self.seed}/stream/{op}/{number}").random() < self.cut_stream


class Clock:
    """Runs short tasks at a given time, on one thread that starts with the first task."""

    def __init__(self) -> None:
        # Guards the heap and the thread. A task runs without it, since it may call `after`.
        self._state = threading.Condition()
        self._tasks: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    def after(self, delay_s: float, task: Callable[[], None]) -> None:
        """``task`` must not raise. After `close` it is dropped."""
        with self._state:
            if self._closed:
                return
            heapq.heappush(self._tasks, (time.monotonic() + delay_s, next(self._order), task))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="glt-network-clock", daemon=True)
                self._thread.start()
            self._state.notify()

    def _run(self) -> None:
        while True:
            with self._state:
                while not self._closed and (not self._tasks or self._tasks[0][0] > time.monotonic()):
                    self._state.wait(self._tasks[0][0] - time.monotonic() if self._tasks else None)
                if self._closed:
                    return
                _, _, task = heapq.heappop(self._tasks)
            task()

    def close(self) -> None:
        with self._state:
            self._closed = True
            self._tasks.clear()
            self._state.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
