"""Keyed random numbers over arrays. The native twin is ``cuda/random.h``, the reference is in ``tests/reference``."""

from __future__ import annotations

import hashlib

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.kernels import keyed, mix64

_MASK = (1 << 64) - 1
_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


def _mix(value: int) -> int:
    return int(mix64(np.array([value & _MASK], dtype=np.uint64))[0])


def role_key(batch_key: int, role: str) -> int:
    """Returns the key of a batch's draws for a purpose other than neighbours, such as ``negative`` edges: without it, the draws
    of two purposes would be the same numbers."""
    name = int.from_bytes(hashlib.blake2b(role.encode(), digest_size=8).digest(), "little")
    return _mix(batch_key ^ _mix(name))


def draw64(streams: np.ndarray, i: np.ndarray, n: int) -> np.ndarray:
    """Returns int64, the i-th draw of each stream, uniform in [0, n): the high half of the product of 64 random bits and n.

    streams, i: uint64 arrays, broadcast. Raises `DataError` for n that is not in 1 to 2^63 - 1.
    """
    if not 1 <= n < 1 << 63:
        raise DataError(f"draw64: expected n from 1 to 2^63 - 1, got {n}.")
    bits = keyed(streams, i)
    high, low = bits >> _HALF, bits & _LOW
    n_high, n_low = np.uint64(n >> 32), np.uint64(n & 0xFFFFFFFF)
    middle = high * n_low + (low * n_low >> _HALF)  # below 2^64: (2^32 - 1)^2 + 2^32 - 1
    if not n_high:
        return (middle >> _HALF).view(np.int64)
    return (high * n_high + (middle >> _HALF) + ((low * n_high + (middle & _LOW)) >> _HALF)).view(np.int64)
