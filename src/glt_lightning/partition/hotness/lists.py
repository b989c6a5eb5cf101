"""The hotness arrays of a part: of its own rows, and of the remote rows that its batches read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from glt_lightning.base import NodeType
from glt_lightning.graph import hot_path, node_path
from glt_lightning.partition.build.layout import NodeLayout

_FLOAT = np.dtype(np.float32)


def hotness_arrays(
    part: int,
    hotness: np.ndarray,
    policy: str,
    layouts: Mapping[NodeType, NodeLayout],
    offsets: Mapping[NodeType, int],
    id_dtype: np.dtype,
) -> Iterator[tuple[str, np.ndarray, np.dtype]]:
    """(path, values, dtype on disk) of one part's hotness of its own rows, and of its remote rows, hottest first.

    hotness: float32 [nodes of all types], expected accesses by a batch of the part.
    """
    for index, (node_type, layout) in enumerate(layouts.items()):
        offset = offsets[node_type]
        values = hotness[offset : offset + len(layout.user_ids)][layout.user_ids]
        begin, end = layout.bounds[part : part + 2]
        yield node_path(part, index, "hotness"), values[begin:end].copy(), _FLOAT
        if len(layout.bounds) == 2:
            continue
        values[begin:end] = 0
        wanted = values > 0
        gids = (np.flatnonzero(wanted) + offset).astype(id_dtype)
        values = values[wanted]
        order = np.argsort(-values, kind="stable")
        yield hot_path(part, policy, index, "gids"), gids[order], id_dtype
        yield hot_path(part, policy, index, "hotness"), values[order], _FLOAT
