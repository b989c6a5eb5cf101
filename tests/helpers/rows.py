"""Neighbours of rows of one edge type, drawn with options that are named one by one."""

from __future__ import annotations

import numpy as np

from glt_lightning.base import DrawOptions
from glt_lightning.kernels import GraphView, RowDraw


def sample_rows(
    graph: GraphView, edge_type: int, gids: np.ndarray, fanout: int, *, batch_key: int, hop: int, **draw
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    return RowDraw(graph, edge_type, gids, fanout, batch_key, hop, DrawOptions(**draw)).picks()
