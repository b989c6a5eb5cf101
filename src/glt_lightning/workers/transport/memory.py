"""Recycled memory for received bodies: fresh memory costs more than the copy into it (page faults)."""

from __future__ import annotations

import threading

import numpy as np

from glt_lightning.workers.slots import Slot, SlotPool


class Recycler:
    """Lends memory that comes back when the last view of it is gone. Thread-safe. slots: the number of pieces in use at once
    that are recycled; further ones get memory of their own."""

    def __init__(self, slots: int = 256) -> None:
        # `SlotPool.take` is for one thread at a time. Slots come back without the lock: appending to a deque is atomic.
        self._lock = threading.Lock()
        self._slots = SlotPool(Slot, slots)

    def take(self, nbytes: int) -> np.ndarray:
        """uint8 [nbytes], writable, uninitialised."""
        with self._lock:
            slot = self._slots.take()
        if slot is None:
            return np.empty(nbytes, dtype=np.uint8)
        return self._slots.lend_room(slot, nbytes)

    def close(self) -> None:
        self._slots.close()


def keep_freed_memory() -> None:
    """Lets malloc keep memory that is free instead of handing it back to the system: gRPC frees and takes some MB for each
    piece of a body. Without this, 80,000 to 170,000 pages per GB were faulted in anew, a quarter of the CPU time of
    receiving.

    This holds for the whole process, and is what glibc does by itself in any that frees a large array: from then on arrays
    up to that size (32 MB at most) lie in malloc's arenas, each of which may keep twice that size at its end. One of 31 MB
    is freed here; its pages are never touched. Settings of malloc in the environment (``MALLOC_TRIM_THRESHOLD_``) prevail.
    """
    np.empty(31 << 20, dtype=np.uint8)
