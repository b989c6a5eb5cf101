"""Long native calls that Ctrl-C can end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_POLL_S = 0.2


def interruptible(call: Callable[[], T]) -> T:
    """Makes the call in a thread of its own, so that this one still takes signals; raises what the call raises.

    After a KeyboardInterrupt the call runs on, unheard, until the process ends.
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
    if errors:
        raise errors[0]
    return result[0]
