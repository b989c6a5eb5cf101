"""Rows that train: sums of the gradients of each row, and the steps of the sparse optimizers, in a fixed order of float32."""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_void_p
from dataclasses import dataclass
from math import inf

import numpy as np

from glt_lightning.errors import DataError
from glt_lightning.ops.native import BAD_ARG, BAD_ID, I32, I64, P, Signatures, bind, call, check

_SIGNATURES: Signatures = {
    "glt_merge_rows": [P, P, P, I64, I64, P, P, P, P, I32, P],
    "glt_sgd_rows": [P, P, P, I32, P],
    "glt_adagrad_rows": [P, P, P, I32, P, I32, P],
    "glt_adam_rows": [P, P, P, P, P, I64, P, I32, P],
}
_library = bind(_SIGNATURES)


class RowGradientsStruct(ctypes.Structure):
    """``glt_row_gradients`` of ``glt/embedding.h``."""

    _fields_ = [
        ("num_rows", c_int64),
        ("width", c_int64),
        ("n", c_int64),
        ("rows", c_void_p),
        ("values", c_void_p),
        ("adjust", c_void_p),
    ]


@dataclass(frozen=True)
class RowSums:
    """Different rows, ascending, each with the sum of its values and the number of occurrences that it stands for.

    rows: int64 [n].  values: float32 [n, D].  counts: int64 [n].
    """

    rows: np.ndarray
    values: np.ndarray
    counts: np.ndarray

    @classmethod
    def none(cls, width: int) -> RowSums:
        return cls(np.empty(0, np.int64), np.empty((0, width), np.float32), np.empty(0, np.int64))


@dataclass(frozen=True)
class Adjust:
    """What is done to a gradient before its step: times ``factor``, then clipped by value, then by the norm of each row."""

    factor: float = 1.0
    clip_value: float = inf
    clip_row_norm: float = inf

    @property
    def numbers(self) -> np.ndarray:
        return np.array([self.factor, self.clip_value, self.clip_row_norm], np.float64)


AS_IS = Adjust()


def merge_rows(rows: np.ndarray, values: np.ndarray, counts: np.ndarray | None = None, *, threads: int = 1) -> RowSums:
    """Each different row once, with the sum of its values, added in float32 in the order in which they come.

    rows: int64 [n].  values: float32 [n, D].  counts: int64 [n], or None for 1 each.  The bits do not depend on ``threads``.
    """
    n, width = values.shape
    rows, values = np.ascontiguousarray(rows, np.int64), np.ascontiguousarray(values, np.float32)
    merged, merged_counts = np.empty(n, np.int64), np.empty(n, np.int64)
    sums, num = np.empty((n, width), np.float32), np.zeros(1, np.int64)
    given = None if counts is None else np.ascontiguousarray(counts, np.int64)
    status, detail = call(
        _library().glt_merge_rows, rows, values, given, n, width, merged, sums, merged_counts, num, threads
    )
    check(status, detail, "merge_rows")
    return RowSums(*(each[: num[0]] for each in (merged, sums, merged_counts)))


def sgd_rows(weight: np.ndarray, gradients: RowSums, *, lr: float, adjust: Adjust = AS_IS, threads: int = 1) -> None:
    """One step of SGD of the rows that have a gradient. weight: float32 [R, D]. Raises `DataError`, as do the others, for a row
    that is not in [0, R); nothing is written then."""
    _step("sgd_rows", weight, gradients, adjust, [], _rule(lr), threads)


def adagrad_rows(
    weight: np.ndarray,
    sums: np.ndarray,
    gradients: RowSums,
    *,
    lr: float,
    eps: float,
    adjust: Adjust = AS_IS,
    threads: int = 1,
) -> None:
    """One step of Adagrad. sums: float32 [R, D], or [R, 1]: of each row the mean of the squares (row-wise Adagrad)."""
    rowwise = sums.shape[1] == 1 and weight.shape[1] > 1
    _step("adagrad_rows", weight, gradients, adjust, [sums, int(rowwise)], _rule(lr, eps), threads)


def adam_rows(
    weight: np.ndarray,
    moments: tuple[np.ndarray, np.ndarray],
    steps: np.ndarray | int,
    gradients: RowSums,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    adjust: Adjust = AS_IS,
    threads: int = 1,
) -> None:
    """One step of Adam. moments: float32 [R, D] each.  steps: int32 [R], the steps that each row has had, which are counted
    here; or the number of this step, from 1, as torch's SparseAdam counts."""
    of_rows = None if isinstance(steps, int) else steps
    step = steps if isinstance(steps, int) else 0
    _step("adam_rows", weight, gradients, adjust, [*moments, of_rows, step], _rule(lr, *betas, eps), threads)


def _rule(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float64)


def _step(
    name: str,
    weight: np.ndarray,
    gradients: RowSums,
    adjust: Adjust,
    states: list[np.ndarray | int | None],
    rule: np.ndarray,
    threads: int,
) -> None:
    for array in (weight, *(each for each in states if isinstance(each, np.ndarray))):
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert len(array) == len(weight)
    rows, values, numbers = gradients.rows, np.ascontiguousarray(gradients.values), adjust.numbers
    assert values.shape == (len(rows), weight.shape[1])
    given = RowGradientsStruct(
        len(weight), weight.shape[1], len(rows), *(each.ctypes.data for each in (rows, values, numbers))
    )
    function = getattr(_library(), f"glt_{name}")
    status, detail = call(function, ctypes.addressof(given), weight, *states, rule, threads)
    if status == BAD_ID:
        raise DataError(
            f"{name}: row {detail[1]} at position {detail[0]}: the table has the rows 0 to {len(weight) - 1}."
        )
    if status == BAD_ARG:
        raise DataError(f"{name}: row {detail[1]} at position {detail[0]}: rows have to ascend. Merge them first.")
    check(status, detail, name)
