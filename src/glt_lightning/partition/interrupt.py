"""Long native calls that Ctrl-C can end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_POLL_S = 0.005


def interruptible(call: Callable[[], T]) -> T:
    """Makes the call in a thread of its own, so that this one still takes signals; raises what the call raises.

    After a KeyboardInterrupt the call runs on, unheard, until the process ends. In the main thread, SIGTERM stays with who
    had it before, but for milliseconds after the call takes it.
    """
    result: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            result.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="glt-native-call", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_POLL_S)
        _handle_sigterm_as_before()
    if errors:
        raise errors[0]
    return result[0]


def _handle_sigterm_as_before() -> None:
    """METIS takes SIGTERM for itself, and crashes when it comes to another thread than its own."""
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
