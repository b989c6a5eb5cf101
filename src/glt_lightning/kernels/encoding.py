"""Encodings that store floats in fewer bytes: the layout of a row, and how to encode it. Gathering decodes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# numpy has no such type: two bytes each, the upper half of a float32. Arrays of it only carry them.
BFLOAT16 = np.dtype([("bfloat16", "<u2")])

_SCALE = np.dtype("<f4")


@dataclass(frozen=True)
class Encoding:
    """One way to store float32.

    Attributes:
        number: In ``glt/decode.h``.
        dtype: Of what is stored.
        head: Elements of that dtype before the values of a row; rows with a head have one dimension.
        encode: Finite float32 [n, ...] -> stored [n, ...].
    """

    name: str
    number: int
    dtype: np.dtype
    head: int
    encode: Callable[[np.ndarray], np.ndarray]

    def fits(self, row_shape: tuple[int, ...]) -> bool:
        """Whether rows of this shape can be stored in this encoding."""
        return self.head == 0 or len(row_shape) == 1

    def stored_shape(self, row_shape: tuple[int, ...]) -> tuple[int, ...]:
        return (row_shape[0] + self.head,) if self.head else row_shape

    def row_shape(self, stored_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of a decoded row, from the shape of a stored row."""
        return (stored_shape[0] - self.head,) if self.head else stored_shape


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Floats as uint16, the nearest bfloat16 (ties to even); NaN stays one."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype("<u2")


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """uint16 as float32, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _to_float16(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # the caller looks for infinities
        return values.astype("<f2")


def _to_int8(values: np.ndarray) -> np.ndarray:
    """uint8 [n, 4 + D]: the scale, greatest value / 127, then the values by the scale, rounded with ties to even."""
    stored = np.empty((len(values), _SCALE.itemsize + values.shape[1]), dtype=np.uint8)
    scale = np.abs(values).max(axis=1, initial=0) / np.float32(127)
    stored[:, : _SCALE.itemsize] = scale.astype(_SCALE).view(np.uint8).reshape(len(values), _SCALE.itemsize)
    steps = np.rint(values / np.where(scale == 0, np.float32(np.inf), scale)[:, None])
    stored[:, _SCALE.itemsize :] = np.clip(steps, -127, 127).astype(np.int8).view(np.uint8)
    return stored


ENCODINGS = {
    e.name: e
    for e in (
        Encoding("float16", 1, np.dtype("<f2"), 0, _to_float16),
        Encoding("bfloat16", 2, np.dtype("<u2"), 0, to_bfloat16),
        Encoding("int8", 3, np.dtype("u1"), _SCALE.itemsize, _to_int8),
    )
}
