"""The types of values that tables have, by the names that torch and numpy share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.kernels import from_bfloat16, to_bfloat16

_NAMES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class ValueType:
    """The dtype of a tensor, by torch's name. Values are stored in numpy's ``dtype``; bfloat16, which numpy lacks, as uint16.

    >>> ValueType.of("bfloat16").dtype
    dtype('uint16')
    """

    name: str

    @classmethod
    def of(cls, given: Any) -> ValueType:
        """The type for a dtype of torch or numpy, or for a name. Raises `DataError` for one that tables do not support."""
        name = str(given).removeprefix("torch.")
        if name not in _NAMES:
            try:
                name = np.dtype(given).name
            except TypeError:
                name = ""
        if name not in _NAMES:
            raise DataError(f"dtype: expected one of {', '.join(_NAMES)}; got {given!r:.80}.")
        return cls(name)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype("<u2") if self.is_bfloat16 else np.dtype(self.name)

    @property
    def is_bfloat16(self) -> bool:
        return self.name == "bfloat16"

    @property
    def is_float(self) -> bool:
        return "float" in self.name

    def stored(self, values: np.ndarray) -> np.ndarray:
        """Converts numbers to the stored dtype. For bfloat16, uint16 values are taken as bits and left as they are."""
        if self.is_bfloat16 and values.dtype != np.uint16:
            return to_bfloat16(values)
        return values.astype(self.dtype, copy=False)

    def sums(self, stored: np.ndarray, added: np.ndarray) -> np.ndarray:
        """Adds two arrays in their stored form."""
        if self.is_bfloat16:
            return to_bfloat16(from_bfloat16(stored) + from_bfloat16(added))
        return np.asarray(stored + added)

    def count_nonzero(self, stored: np.ndarray) -> int:
        return int(np.count_nonzero(stored & 0x7FFF if self.is_bfloat16 else stored))  # without the sign: -0.0 is zero
