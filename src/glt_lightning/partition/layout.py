"""The new numbers of nodes: one contiguous range per part, hottest first within a part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class NodeLayout:
    """How the nodes of one type are numbered.

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
    small = parts.astype(np.int16) if num_parts <= 1 << 15 else parts  # numpy sorts 16 bits by radix
    by_heat = np.argsort(-degree, kind="stable")
    by_heat = by_heat[np.argsort(-hotness[by_heat], kind="stable")]
    order = by_heat[np.argsort(small[by_heat], kind="stable")]
    sizes = np.bincount(parts, minlength=num_parts)
    new = np.empty(len(parts), id_dtype)
    new[order] = np.arange(len(parts), dtype=id_dtype)
    bounds = (0, *(int(b) for b in np.cumsum(sizes)))
    return NodeLayout(bounds, order.astype(id_dtype), new)
