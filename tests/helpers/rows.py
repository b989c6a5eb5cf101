"""Neighbours of rows of one edge type, drawn with options that are named one by one."""

from __future__ import annotations

import numpy as np

from glt_lightning.ops.graph import GraphView
from glt_lightning.ops.sample import RowDraw
from glt_lightning.options import DrawOptions


def sample_rows(
    graph: GraphView, edge_type: int, gids: np.ndarray, fanout: int, *, batch_key: int, hop: int, **draw
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    return RowDraw(graph, edge_type, gids, fanout, batch_key, hop, DrawOptions(**draw)).picks()
