"""Node attributes, written in the order of the new numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from glt_lightning.data.arrays import ArrayWriter
from glt_lightning.data.manifest import ArrayEntry, node_path
from glt_lightning.partition.layout import NodeLayout
from glt_lightning.partition.normalize import Transform, row_bytes
from glt_lightning.partition.sources.base import Rows

_CHUNK_BYTES = 4 << 20


def write_rows(
    folder: Path, index: int, name: str, rows: Rows, layout: NodeLayout, transform: Transform | None
) -> dict[str, ArrayEntry]:
    """Writes attribute ``name`` of node type ``index`` for all parts."""
    step = max(1, _CHUNK_BYTES // max(1, row_bytes(rows)))
    entries = {}
    for part, (begin, end) in enumerate(zip(layout.bounds, layout.bounds[1:], strict=False)):
        path = node_path(part, index, name)
        with ArrayWriter(folder, path, rows.dtype, rows.shape[1:]) as writer:
            for at in range(begin, end, step):
                chunk = rows[layout.user_ids[at : min(at + step, end)]]
                writer.write(chunk if transform is None else transform(chunk))
        entries[path] = writer.close()
    return entries
