"""The hotness arrays of a part: of its own rows, and of the remote rows that its batches read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from glt_lightning.base import NodeType
from glt_lightning.graph import hot_path, node_path
from glt_lightning.partition.build.layout import NodeLayout
from glt_lightning.partition.build.topology import GraphTopology
from glt_lightning.partition.hotness.rank import Hotness

_FLOAT = np.dtype(np.float32)


def hotness_arrays(
    part: int, topology: GraphTopology, layouts: Mapping[NodeType, NodeLayout], hotness: Hotness, id_dtype: np.dtype
) -> Iterator[tuple[str, np.ndarray, np.dtype]]:
    """(path, values, dtype on disk) of one part's hotness of its own rows, and of its remote rows, hottest first."""
    by_type = topology.split(hotness.of_part(part))
    for index, (node_type, layout) in enumerate(layouts.items()):
        values = by_type[node_type][layout.user_ids]
        begin, end = layout.bounds[part : part + 2]
        yield node_path(part, index, "hotness"), values[begin:end], _FLOAT
        if len(layout.bounds) == 2:
            continue
        values[begin:end] = 0
        wanted = values > 0
        gids = (np.flatnonzero(wanted) + topology.offset(node_type)).astype(id_dtype)
        values = values[wanted]
        order = np.argsort(-values, kind="stable")
        yield hot_path(part, hotness.policy, index, "gids"), gids[order], id_dtype
        yield hot_path(part, hotness.policy, index, "hotness"), values[order], _FLOAT
