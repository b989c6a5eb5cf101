"""How the threads of torch's products of matrices wait for work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_WAIT_POLICY = "OMP_WAIT_POLICY"
_WAITS = "passive"


@contextmanager
def threads_that_sleep() -> Iterator[None]:
    """Has the threads of OpenMP sleep while they wait for work, in processes that are started in the ``with`` block and in this
    one if torch is loaded in it, unless the user chose another policy: by default they spin, and take the cores that samplers
    and other ranks need."""
    chosen = _WAIT_POLICY in os.environ
    os.environ.setdefault(_WAIT_POLICY, _WAITS)
    try:
        yield
    finally:
        if not chosen:
            os.environ.pop(_WAIT_POLICY, None)


def how_threads_wait() -> str | None:
    """A line for the log; None where the policy is not that of `threads_that_sleep`."""
    if os.environ.get(_WAIT_POLICY) != _WAITS:
        return None
    return f"threads of torch sleep while they wait ({_WAIT_POLICY}={_WAITS}; set active where nothing else needs the cores)"
