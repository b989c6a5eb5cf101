"""Trained rows: sums of the gradients of each row, and the steps of the sparse optimizers, with float32 operations in a fixed
order."""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_void_p
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.kernels.native import BAD_ARG, BAD_ID, I32, I64, P, Signatures, bind, call, check

_SIGNATURES: Signatures = {
    "glt_merge_rows": [P, P, P, I64, I64, P, P, P, P, P, I32, P],
    "glt_row_squares": [P, P, I32, P],
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
        ("at", c_void_p),
        ("counts", c_void_p),
        ("adjust", c_void_p),
    ]


@dataclass(frozen=True)
class Adjust:
    """The adjustment of a gradient before its step: it is divided by ``divisor``, or by the count of the row, times ``factor``,
    then clipped by value, then by the norm of each row."""

    factor: float = 1.0
    clip_value: float = inf
    clip_row_norm: float = inf
    divisor: float = 1.0
    by_count: bool = False

    @property
    def numbers(self) -> np.ndarray:
        return np.array([self.factor, self.clip_value, self.clip_row_norm, self.divisor], np.float64)


AS_IS = Adjust()


@dataclass(frozen=True)
class RowSums:
    """Distinct rows, ascending, each with the sum of its values and the number of its occurrences.

    rows: int64 [n].  values: float32 [n, D].  counts: int64 [n].
    at: int64 [n], the position of each row's sum in ``values``; None: sums are in the order of the rows.
    """

    rows: np.ndarray
    values: np.ndarray
    counts: np.ndarray
    at: np.ndarray | None = None

    def pick(self, which: np.ndarray | slice) -> RowSums:
        """Returns some of the rows."""
        if self.at is None:
            return RowSums(self.rows[which], self.values[which], self.counts[which])
        return RowSums(self.rows[which], self.values, self.counts[which], self.at[which])

    def copied(self) -> RowSums:
        """Returns the sums in the order of the rows; copies them if they are in another order."""
        return self if self.at is None else RowSums(self.rows, self.sums, self.counts)

    @property
    def sums(self) -> np.ndarray:
        """float32 [n, D], in the order of the rows."""
        return self.values if self.at is None else self.values[self.at]

    @classmethod
    def none(cls, width: int) -> RowSums:
        return cls(np.empty(0, np.int64), np.empty((0, width), np.float32), np.empty(0, np.int64))

    @classmethod
    def merge(
        cls, rows: np.ndarray, values: np.ndarray, counts: np.ndarray | None = None, *, threads: int = 1
    ) -> RowSums:
        """Merges equal rows: returns each distinct row with the sum of its values, added in float32 in the order in which they
        come.

        rows: int64 [n].  values: float32 [n, D].  counts: int64 [n], or None for 1 each.  The bits do not depend on ``threads``.
        """
        n, width = values.shape
        rows, values = np.ascontiguousarray(rows, np.int64), np.ascontiguousarray(values, np.float32)
        merged, merged_counts, at = (np.empty(n, np.int64) for _ in range(3))
        sums, num = np.empty((n, width), np.float32), np.zeros(1, np.int64)
        given = None if counts is None else np.ascontiguousarray(counts, np.int64)
        status, detail = call(
            _library().glt_merge_rows, rows, values, given, n, width, merged, sums, merged_counts, at, num, threads
        )
        check(status, detail, "merge_rows")
        if num[0] == n:  # nothing to add
            return cls(merged, values, merged_counts, at)
        return cls(*(each[: num[0]] for each in (merged, sums, merged_counts)))

    def squares(self, adjust: Adjust = AS_IS, *, threads: int = 1) -> np.ndarray:
        """Returns float64 [n]: the sum of squares of the gradient of each row, after the division of ``adjust``."""
        if self.at is not None and len(self.at) == len(self.values) and not adjust.by_count:
            # in the order of the values, which come faster so
            by_value: np.ndarray = replace(self, at=None).squares(adjust, threads=threads)[self.at]
            return by_value
        found = np.empty(len(self.rows), np.float64)
        given, _kept = self._struct(adjust, 0)
        status, detail = call(_library().glt_row_squares, ctypes.addressof(given), found, threads)
        check(status, detail, "row_squares")
        return found

    def sgd(self, weight: np.ndarray, *, lr: float, adjust: Adjust = AS_IS, threads: int = 1) -> None:
        """Takes a step of SGD for the rows, whose sums are gradients. weight: float32 [R, D]. Raises `DataError`, as the other
        optimizers do, for a row that is not in [0, R); nothing is written then."""
        self._step("sgd_rows", weight, adjust, [], _rule(lr), threads)

    def adagrad(
        self,
        weight: np.ndarray,
        sums: np.ndarray,
        *,
        lr: float,
        eps: float,
        adjust: Adjust = AS_IS,
        threads: int = 1,
    ) -> None:
        """Takes a step of Adagrad. sums: float32 [R, D]; or [R, 1], the mean of the squares of each row (row-wise Adagrad)."""
        rowwise = sums.shape[1] == 1 and weight.shape[1] > 1
        self._step("adagrad_rows", weight, adjust, [sums, int(rowwise)], _rule(lr, eps), threads)

    def adam(
        self,
        weight: np.ndarray,
        moments: tuple[np.ndarray, np.ndarray],
        steps: np.ndarray | int,
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        adjust: Adjust = AS_IS,
        threads: int = 1,
    ) -> None:
        """Takes a step of Adam. moments: float32 [R, D] each.  steps: int32 [R], the number of steps of each row, which is
        increased here; or the number of this step, from 1, as torch's SparseAdam counts."""
        of_rows = None if isinstance(steps, int) else steps
        step = steps if isinstance(steps, int) else 0
        self._step("adam_rows", weight, adjust, [*moments, of_rows, step], _rule(lr, *betas, eps), threads)

    def _struct(self, adjust: Adjust, num_rows: int) -> tuple[RowGradientsStruct, list[np.ndarray | None]]:
        """Makes the native description of the gradients. Returns it and the arrays that it points to, which have to live as
        long."""
        rows, values = self.rows, np.ascontiguousarray(self.values)
        counts = self.counts if adjust.by_count else None
        arrays = [rows, values, self.at, counts, adjust.numbers]
        for each in (rows, self.at, counts):
            assert each is None or (each.dtype == np.int64 and each.flags.c_contiguous and len(each) == len(rows))
        assert values.dtype == np.float32
        pointers = (None if each is None else each.ctypes.data for each in arrays)
        return RowGradientsStruct(num_rows, values.shape[1], len(rows), *pointers), arrays

    def _step(
        self,
        name: str,
        weight: np.ndarray,
        adjust: Adjust,
        states: list[np.ndarray | int | None],
        rule: np.ndarray,
        threads: int,
    ) -> None:
        for array in (weight, *(each for each in states if isinstance(each, np.ndarray))):
            assert array.flags.c_contiguous
            assert array.flags.writeable
            assert len(array) == len(weight)
        assert self.values.shape[1] == weight.shape[1]
        given, _kept = self._struct(adjust, len(weight))
        function = getattr(_library(), f"glt_{name}")
        status, detail = call(function, ctypes.addressof(given), weight, *states, rule, threads)
        if status == BAD_ID:
            raise DataError(
                f"{name}: row {detail[1]} at position {detail[0]}: the table has the rows 0 to {len(weight) - 1}."
            )
        if status == BAD_ARG:
            raise DataError(f"{name}: row {detail[1]} at position {detail[0]}: rows have to ascend. Merge them first.")
        check(status, detail, name)


def _rule(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float64)
