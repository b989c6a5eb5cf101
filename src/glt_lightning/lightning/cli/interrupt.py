"""Ctrl-C and SIGTERM in the subcommands that write files."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_INTERRUPTED = 130  # exit status, as a shell has it


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
