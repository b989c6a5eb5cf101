"""A clock for states that only come after minutes or days."""

from __future__ import annotations

import time


class Clock:
    """The monotonic clock, ``ahead_s`` seconds fast: waits still end, and a test can let hours pass at once."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s
