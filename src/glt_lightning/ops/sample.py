"""Sampling the rows of one relation."""

from __future__ import annotations

import numpy as np

from glt_lightning.errors import DataError
from glt_lightning.ops.graph import GraphView
from glt_lightning.ops.native import GROW, check, library, pointer

_ROW = 64  # entries a row is first given room for


def sample_rows(
    graph: GraphView,
    relation: int,
    gids: np.ndarray,
    fanout: int,
    *,
    batch_key: int,
    hop: int,
    replace: bool = False,
    with_edge: bool = False,
    threads: int = 1,
    most: int | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Picks neighbours for rows of one edge type.

    gids: int64 [F], destination nodes, all local.  fanout: -1 (all) or >= 1.  most: neighbours that may be found at all.
    Returns (counts int64 [F], neighbours int64 [sum of counts] in row order, edge rows like neighbours or None).
    Raises `DataError` for an id that is not a local node of the destination type or for more than ``most`` neighbours,
    `PartitionError` for a damaged row.
    """
    counts = np.empty(len(gids), dtype=np.int64)
    detail = np.zeros(4, dtype=np.int64)
    cap = len(gids) * (min(fanout, _ROW) if fanout > 0 else _ROW)
    while True:
        neighbors = np.empty(cap, dtype=np.int64)
        edge_rows = np.empty(cap, dtype=np.int64) if with_edge else None
        status = library().glt_sample_rows(
            graph.address,
            relation,
            gids.ctypes.data,
            len(gids),
            fanout,
            batch_key,
            hop,
            replace,
            threads,
            counts.ctypes.data,
            neighbors.ctypes.data,
            pointer(edge_rows),
            cap,
            detail.ctypes.data,
        )
        if status != GROW:
            break
        cap = int(detail[2])
        if most is not None and cap > most:
            raise DataError(f"sample: {len(gids)} rows have {cap} neighbours, more than {most}. Use smaller fan-outs.")
    check(status, detail, "sample")
    total = int(counts.sum())
    return counts, neighbors[:total], None if edge_rows is None else edge_rows[:total]
