"""Ctrl-C and SIGTERM in the subcommands that write files, and in those that serve until they are told to end."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

_INTERRUPTED = 130  # exit status, as a shell has it
_STEP_S = 0.2  # how often the main thread wakes to run a signal's handler: the longest delay after SIGTERM


@contextmanager
def interruptible(state: str) -> Iterator[None]:
    """Ctrl-C and SIGTERM unwind the block once, so that it cleans up, and end the process with one line."""

    def unwind(number: int, _frame: Any) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)  # a second Ctrl-C must not end the cleaning up
        raise KeyboardInterrupt

    before = {number: signal.signal(number, unwind) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        print(f"interrupted; {state}.", file=sys.stderr, flush=True)
        sys.exit(_INTERRUPTED)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Told:
    """SIGTERM and SIGINT, in its block: what waits for them returns; before that, they end the process in order."""

    _NUMBERS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self._event, self._waited_for = threading.Event(), False

    def wait(self, announce: Callable[[], object] = lambda: None) -> None:
        """announce: tells others that they may send a signal now; it is called when one would no longer end the process."""
        self._waited_for = True
        announce()
        # In steps: the kernel may give a signal to any thread, which does so for one that follows SIGCONT at once. Python
        # runs our handler in the main thread alone, once that wakes; waiting without end, it would never.
        while not self._event.wait(_STEP_S):
            continue

    def _tell(self, number: int, _frame: Any) -> None:
        self._event.set()
        if not self._waited_for:
            sys.exit(128 + number)

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._tell) for number in self._NUMBERS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
