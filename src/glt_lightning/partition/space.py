"""How much disk a partition takes at least, asked before hours of work rather than after."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from glt_lightning.data.arrays import DATA_OFFSET
from glt_lightning.errors import PartitionError
from glt_lightning.partition.normalize import row_bytes
from glt_lightning.partition.sources.base import Rows


def rows_bytes(attrs: Mapping[str, Rows]) -> int:
    """Bytes of all attributes of one type."""
    return sum(len(rows) * row_bytes(rows) for rows in attrs.values())


def require_space(folder: Path, arrays: Iterable[int]) -> None:
    """Raises `PartitionError` unless the disk of ``folder`` has room for arrays of so many bytes each."""
    needed = sum(size + DATA_OFFSET for size in arrays)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise PartitionError(
            f"{folder.parent}: a partition of this graph takes {needed:,} bytes at least, {free:,} are free. "
            "Free some space or choose another folder (partition.dir)."
        )
