"""Ranks of a job as threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

_LONGEST_S = 60.0


class Ranks:
    """A barrier, and texts that every rank gets from all: the collective calls of a job."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._barrier = threading.Barrier(count)
        self._texts = [""] * count

    def exchange(self, rank: int, text: str) -> list[str]:
        self._texts[rank] = text
        self._barrier.wait(_LONGEST_S)
        texts = list(self._texts)
        self._barrier.wait(_LONGEST_S)
        return texts

    def abort(self) -> None:
        self._barrier.abort()


def run_ranks(count: int, body: Callable[[int, Callable[[str], list[str]]], Any]) -> list[Any]:
    """What ``body(rank, exchange)`` returns on each rank. Raises the first rank's error that is not about another's."""
    ranks = Ranks(count)
    results: list[Any] = [None] * count
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = body(rank, lambda text: ranks.exchange(rank, text))
            ranks.exchange(rank, "done")  # nobody stops serving before all are done
        except BaseException as error:
            errors.append(error)
            ranks.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * _LONGEST_S)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    errors.sort(key=lambda error: isinstance(error, threading.BrokenBarrierError))
    if errors:
        raise errors[0]
    return results
