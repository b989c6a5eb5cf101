"""The new numbers of nodes: one contiguous range per part, hottest first within a part."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from glt_lightning.kernels import spread

_PIECE = 1 << 20  # nodes sorted at once: numpy's stable sort takes 16 bytes a node, so 16 MiB


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


def number_nodes(
    parts: np.ndarray, hotness: np.ndarray, degree: np.ndarray, num_parts: int, id_dtype: np.dtype
) -> NodeLayout:
    """Numbers nodes by (part, hotness descending, degree descending, user id). parts, hotness, degree: [N]."""
    user_ids, bounds = _by_part(parts, num_parts, id_dtype)
    for begin, end in pairwise(bounds):
        ids = user_ids[begin:end]
        user_ids[begin:end] = ids[np.lexsort((-degree[ids], -hotness[ids]))]
    new = np.empty(len(parts), id_dtype)
    new[user_ids] = np.arange(len(parts), dtype=id_dtype)
    return NodeLayout(bounds, user_ids, new)


def _by_part(parts: np.ndarray, num_parts: int, id_dtype: np.dtype) -> tuple[np.ndarray, tuple[int, ...]]:
    """User ids by (part, user id), and the bounds of the parts. Sorted in pieces, to bound the memory that it takes."""
    pieces = range(0, len(parts), _PIECE)
    counts = [np.bincount(parts[begin : begin + _PIECE], minlength=num_parts) for begin in pieces]
    bounds = np.concatenate([[0], np.cumsum(sum(counts, start=np.zeros(num_parts, np.int64)))])
    user_ids = np.empty(len(parts), id_dtype)
    cursor = bounds[:-1].copy()
    for begin, sizes in zip(pieces, counts, strict=True):
        order = np.argsort(parts[begin : begin + _PIECE], kind="stable")
        user_ids[spread(cursor, sizes)] = begin + order
        cursor += sizes
    return user_ids, tuple(bounds.tolist())
