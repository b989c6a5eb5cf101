"""Normalises features as a stream: statistics are collected in one pass, and applied to each row when it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from glt_lightning.kernels import BFLOAT16, from_bfloat16, row_bytes, to_bfloat16
from glt_lightning.partition.sources.base import Rows

Check = Callable[[np.ndarray, np.ndarray], object]

# Fixed, so that sums round the same way whatever ``partition.memory`` is: parts of several hosts must agree bit by bit.
_CHUNK_BYTES = 4 << 20


def is_float(rows: Rows) -> bool:
    return rows.dtype.kind == "f" or rows.dtype == BFLOAT16


def numbered_chunks(
    rows: Rows, begin: int = 0, end: int | None = None, chunk_bytes: int = _CHUNK_BYTES
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (numbers of the rows, the rows) of [begin, end) in order, about ``chunk_bytes`` at a time."""
    end = len(rows) if end is None else end
    step = max(1, chunk_bytes // max(1, row_bytes(rows.dtype, rows.shape[1:])))
    for at in range(begin, end, step):
        ids = np.arange(at, min(at + step, end))
        yield ids, rows[at : at + len(ids)]


@dataclass(frozen=True)
class Normalization:
    """How rows of floats [n, D] are normalised. Half precision is computed as float32 and returned in the dtype it came in.

    rows: ``normalize: rows``, PyG's ``NormalizeFeatures``: subtracts the smallest value of all rows, then divides each row by its
    sum, or by 1 if the sum is smaller; else columns get mean 0 and standard deviation 1, and constant columns 0.
    shift, scale: the smallest value and [1.0]; or the mean of each column, and 1 / its deviation. Plain floats, as in JSON.
    """

    rows: bool
    shift: list[float]
    scale: list[float]

    def apply(self, chunk: np.ndarray) -> np.ndarray:
        values = _wide(chunk)
        if not self.rows:
            return _like((values.astype(np.float64) - np.array(self.shift)) * np.array(self.scale), chunk.dtype)
        values = values - values.dtype.type(self.shift[0])
        return _like(values / np.maximum(values.sum(axis=1, keepdims=True), 1), chunk.dtype)


def normalization(mode: str, rows: Rows, check: Check = lambda chunk, ids: None) -> Normalization | None:
    """Reads all rows for their statistics; None if they stay as they are.

    check: called with all rows and their user ids before they enter the statistics, since one NaN would spoil all rows.
    """
    if mode == "none" or len(rows) == 0:
        return None
    chunks = _checked(rows, check)
    if mode == "rows":
        return Normalization(True, [float(min((_wide(c).min() for c in chunks if c.size), default=0.0))], [1.0])
    return _standardization(chunks, rows.shape[1])


def _checked(rows: Rows, check: Check) -> Iterator[np.ndarray]:
    for ids, chunk in numbered_chunks(rows):
        check(chunk, ids)
        yield chunk


def _standardization(chunks: Iterator[np.ndarray], columns: int) -> Normalization:
    count, mean, square = 0, np.zeros(columns), np.zeros(columns)
    # Chan, Golub, LeVeque (1979), updating formulae: merges (count, mean, sum of squared deviations)
    for chunk in chunks:
        wide = _wide(chunk).astype(np.float64)
        total = count + len(chunk)
        delta = wide.mean(axis=0) - mean
        square += wide.var(axis=0) * len(chunk) + delta**2 * (count * len(chunk) / total)
        mean += delta * (len(chunk) / total)
        count = total
    deviation = np.sqrt(square / count)
    # Rounding errors give a constant column a deviation that is small, but not 0.
    constant = deviation <= 1e-9 * np.maximum(np.abs(mean), 1e-30)
    scale = np.where(constant, 0.0, 1.0 / np.where(constant, 1.0, deviation))
    return Normalization(False, mean.tolist(), scale.tolist())


def _wide(chunk: np.ndarray) -> np.ndarray:
    if chunk.dtype == BFLOAT16:
        return from_bfloat16(chunk.view("<u2"))
    return chunk.astype(np.float32) if chunk.dtype == np.float16 else chunk


def _like(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return to_bfloat16(values).view(BFLOAT16) if dtype == BFLOAT16 else values.astype(dtype, copy=False)
