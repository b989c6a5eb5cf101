"""The hotness arrays of a part: of its own rows, and of the remote rows that its batches read most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from glt_lightning.base import NodeType
from glt_lightning.graph import hot_path, node_path
from glt_lightning.partition.build.layout import NodeLayout

_FLOAT = np.dtype(np.float32)
_LEAST_LISTED = 1 << 20  # rows, 8 MB: small graphs have whole lists
_LISTED_PER_OWN = 4  # a host with a larger cache than four times its part would rather have larger parts
_BLOCK = 1 << 22  # rows looked at together


def hotness_arrays(
    part: int,
    hotness: np.ndarray,
    policy: str,
    layouts: Mapping[NodeType, NodeLayout],
    offsets: Mapping[NodeType, int],
    id_dtype: np.dtype,
) -> Iterator[tuple[str, np.ndarray, np.dtype]]:
    """(path, values, dtype on disk) of one part's hotness of its own rows, and of its hottest remote rows, hottest first.

    hotness: float32 [nodes of all types], expected accesses by a batch of the part.
    """
    for index, (node_type, layout) in enumerate(layouts.items()):
        offset, num_parts = offsets[node_type], len(layout.bounds) - 1
        values = hotness[offset : offset + len(layout.user_ids)]
        begin, end = layout.bounds[part : part + 2]
        yield node_path(part, index, "hotness"), values[layout.user_ids[begin:end]], _FLOAT
        if num_parts == 1:
            continue
        rows, listed = hottest_remote(values, layout, part, listed_rows(len(values), num_parts))
        yield hot_path(part, policy, index, "gids"), (rows + offset).astype(id_dtype), id_dtype
        yield hot_path(part, policy, index, "hotness"), listed, _FLOAT


def listed_rows(num_nodes: int, num_parts: int) -> int:
    """Returns the largest number of remote rows of a type that a part lists. All lists together are so at most as long as
    `_LISTED_PER_OWN` times the nodes, whatever the number of parts."""
    return max(_LEAST_LISTED, _LISTED_PER_OWN * -(-num_nodes // num_parts))


def hottest_remote(hotness: np.ndarray, layout: NodeLayout, part: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of the hottest remote rows, int64 [at most ``most`` ], hottest first, equally hot ones in ascending
    order; and their hotness.

    hotness: float32 [N], by user id.  Memory is that of twice ``most`` rows and a block.
    """
    rows, values = np.empty(0, np.int64), np.empty(0, _FLOAT)
    begin, end = layout.bounds[part : part + 2]
    for low, high in ((0, begin), (end, layout.bounds[-1])):
        for first in range(low, high, _BLOCK):
            found = hotness[layout.user_ids[first : min(first + _BLOCK, high)]]
            wanted = np.flatnonzero(found > 0)
            rows, values = np.concatenate([rows, wanted + first]), np.concatenate([values, found[wanted]])
            if len(rows) > 2 * most:
                rows, values = _first(rows, values, most)
    return _first(rows, values, most)


def _first(rows: np.ndarray, values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    # Stable: those that were sorted before have smaller numbers than those behind them.
    order = np.argsort(-values, kind="stable")[:most]
    return rows[order], values[order]
