"""Normalises features as a stream: statistics are collected in one pass, and applied to each row when it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from glt_lightning.kernels import BFLOAT16, from_bfloat16, row_bytes, to_bfloat16
from glt_lightning.partition.sources.base import Rows

Transform = Callable[[np.ndarray], np.ndarray]
Check = Callable[[np.ndarray, np.ndarray], object]

# Fixed, so that sums round the same way whatever ``partition.memory`` is: parts of several hosts must agree bit by bit.
_CHUNK_BYTES = 4 << 20


def row_chunks(rows: Rows, chunk_bytes: int = _CHUNK_BYTES) -> Iterator[np.ndarray]:
    """Yields the rows in order, about ``chunk_bytes`` at a time."""
    step = max(1, chunk_bytes // max(1, row_bytes(rows.dtype, rows.shape[1:])))
    for begin in range(0, len(rows), step):
        yield rows[begin : begin + step]


def numbered_chunks(rows: Rows) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (numbers of the rows, the rows), a chunk at a time."""
    begin = 0
    for chunk in row_chunks(rows):
        yield np.arange(begin, begin + len(chunk)), chunk
        begin += len(chunk)


def transform_for(mode: str, rows: Rows, check: Check = lambda chunk, ids: None) -> Transform | None:
    """The function that normalises rows of floats [n, D] by ``normalize: mode``; None if they stay as they are.

    Half precision is computed as float32 and returned in the dtype it came in.
    check: called with all rows and their user ids before they enter the statistics, since one NaN would spoil all rows.
    """
    if mode == "none" or len(rows) == 0:
        return None
    chunks = _checked(rows, check)
    return _rows(chunks) if mode == "rows" else _standardize(chunks, rows.shape[1])


def _checked(rows: Rows, check: Check) -> Iterator[np.ndarray]:
    for ids, chunk in numbered_chunks(rows):
        check(chunk, ids)
        yield chunk


def _rows(chunks: Iterator[np.ndarray]) -> Transform:
    """Normalises rows as PyG's ``NormalizeFeatures`` does: subtracts the smallest value of all rows, then divides each row by its
    sum, or by 1 if the sum is smaller."""
    least = min((_wide(chunk).min() for chunk in chunks if chunk.size), default=np.float32(0))

    def apply(chunk: np.ndarray) -> np.ndarray:
        values = _wide(chunk) - least
        return _like(values / np.maximum(values.sum(axis=1, keepdims=True), 1), chunk.dtype)

    return apply


def _standardize(chunks: Iterator[np.ndarray], columns: int) -> Transform:
    """Normalises columns to mean 0 and standard deviation 1; constant columns become 0."""
    count, mean, square = 0, np.zeros(columns), np.zeros(columns)
    for (
        chunk
    ) in chunks:  # Chan, Golub, LeVeque (1979), updating formulae: merges (count, mean, sum of squared deviations)
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

    def apply(chunk: np.ndarray) -> np.ndarray:
        return _like((_wide(chunk).astype(np.float64) - mean) * scale, chunk.dtype)

    return apply


def _wide(chunk: np.ndarray) -> np.ndarray:
    if chunk.dtype == BFLOAT16:
        return from_bfloat16(chunk.view("<u2"))
    return chunk.astype(np.float32) if chunk.dtype == np.float16 else chunk


def _like(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return to_bfloat16(values).view(BFLOAT16) if dtype == BFLOAT16 else values.astype(dtype, copy=False)
