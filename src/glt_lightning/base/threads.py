"""How the threads of torch's products of matrices wait for work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_WAIT_POLICY = "OMP_WAIT_POLICY"
_WAITS = "passive"
# GNU's OpenMP then looks for work some 40 us before it sleeps, in which the next of many small products comes: it takes longer
# to wake a thread, and a run on a graph of several types took 1.2 times as long.
_SETTINGS = {_WAIT_POLICY: _WAITS, "GOMP_SPINCOUNT": "4000"}


@contextmanager
def threads_that_sleep() -> Iterator[None]:
    """Has the threads of OpenMP sleep while they wait for work, in processes that are started in the ``with`` block and in this
    one if torch is loaded in it, unless the user chose another policy: by default they spin, and take the cores that samplers
    and other ranks need."""
    settings = {} if _WAIT_POLICY in os.environ else {k: v for k, v in _SETTINGS.items() if k not in os.environ}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in settings:
            os.environ.pop(name, None)


def how_threads_wait() -> str | None:
    """A line for the log; None where the policy is not that of `threads_that_sleep`."""
    if os.environ.get(_WAIT_POLICY) != _WAITS:
        return None
    return f"threads of torch sleep while they wait ({_WAIT_POLICY}={_WAITS}; set active where nothing else needs the cores)"
