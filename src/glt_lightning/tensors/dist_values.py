"""Between torch tensors and the numpy arrays of tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import DataError
from glt_lightning.graph import INTEGER_MASK, is_integer_mask
from glt_lightning.tensors.values import ValueType


def torch_dtype(kind: ValueType) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, kind.name)
    return dtype


def to_array(values: Tensor) -> np.ndarray:
    """As tables store it: bfloat16 as uint16. It shares the memory of a tensor on the CPU."""
    values = values.detach().cpu()
    if values.dtype == torch.bfloat16:
        return values.view(torch.int16).numpy().view(np.uint16)
    return values.numpy()


def to_tensor(array: np.ndarray, kind: ValueType) -> Tensor:
    """The same memory as a tensor."""
    if kind.is_bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def rows_of_index(index: Any, count: int) -> np.ndarray:
    """int64 [n]: the rows that an index names: integers, a slice, a mask [count]. Raises `DataError` for anything else."""
    if isinstance(index, slice):
        return np.arange(*index.indices(count), dtype=np.int64)
    ids = np.asarray(to_array(index) if isinstance(index, Tensor) else index)
    if ids.ndim == 0 and ids.dtype.kind in "iu":
        ids = ids.reshape(1)
    if ids.dtype == np.bool_ and ids.shape == (count,):
        return np.flatnonzero(ids)
    if is_integer_mask(ids, count):
        raise DataError(f"rows: {INTEGER_MASK}")
    if ids.ndim == 1 and (ids.dtype.kind in "iu" or not len(ids)):
        return ids.astype(np.int64)
    raise DataError(
        f"rows: expected integers [n], a slice or a mask of bool [{count}]; got {ids.dtype} {list(ids.shape)}."
    )


def values_for(values: Any, kind: ValueType, shape: tuple[int, ...], name: str) -> np.ndarray:
    """``values``, a tensor, an array or numbers, as rows of ``shape``; one row or one number stands for all.
    Raises `DataError` for another dtype or shape."""
    given, dtype = values, torch_dtype(kind)
    values = (
        torch.as_tensor(values) if isinstance(values, (Tensor, np.ndarray)) else torch.as_tensor(values, dtype=dtype)
    )
    if values.dtype != dtype:
        raise DataError(f"tensor {name!r}: expected values of {dtype}, got {values.dtype}. Convert them.")
    try:
        spread = torch.broadcast_to(values, shape)
    except RuntimeError:
        got = list(np.shape(given)) if not isinstance(given, Tensor) else list(given.shape)
        raise DataError(f"tensor {name!r}: expected values {list(shape)}, or of one row; got {got}.") from None
    return np.ascontiguousarray(to_array(spread.contiguous()))
