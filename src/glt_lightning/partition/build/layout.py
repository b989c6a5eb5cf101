"""The new numbers of nodes: one contiguous range per part, hottest first within a part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class NodeLayout:
    """The numbering of the nodes of one type.

    Attributes:
        bounds: P + 1 numbers; part p owns the new numbers [bounds[p], bounds[p + 1]).
        user_ids: [N], user id by new number.
        new: [N], new number by user id.
    """

    bounds: tuple[int, ...]
    user_ids: np.ndarray
    new: np.ndarray


def node_record(id_dtype: np.dtype) -> np.dtype:
    """The record of a node while it is sorted: 16 bytes, or 20 with 64-bit ids."""
    return np.dtype([("degree", "<i8"), ("id", id_dtype), ("hotness", "<f4")])


def number_record(id_dtype: np.dtype) -> np.dtype:
    """A user id and the new number."""
    return np.dtype([("id", id_dtype), ("number", id_dtype)])
