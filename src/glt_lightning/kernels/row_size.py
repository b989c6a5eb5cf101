"""How many bytes a row takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def row_bytes(dtype: Any, row_shape: Sequence[int]) -> int:
    """Bytes of one row, ``row_shape`` numbers of a numpy dtype, its name, or a dtype of torch.

    >>> row_bytes("float32", (128,))
    512
    """
    size = getattr(dtype, "itemsize", None)  # a dtype of torch has it, too; a name has not
    return (int(np.dtype(dtype).itemsize) if size is None else int(size)) * math.prod(row_shape)
