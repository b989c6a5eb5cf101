"""From what a user writes as ``dataset`` to a `GraphSource`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from glt_lightning.errors import DataError
from glt_lightning.partition.sources.base import GraphSource
from glt_lightning.partition.sources.folder import FolderSource, is_graph_folder
from glt_lightning.partition.sources.npz import NpzSource


def open_source(dataset: Any, root: str | Path) -> GraphSource:
    """Opens a data set; nothing large is read before it is asked for."""
    if isinstance(dataset, (str, Path)) and str(dataset).endswith(".npz"):
        return NpzSource(dataset)
    if isinstance(dataset, (str, Path)) and is_graph_folder(Path(dataset)):
        return FolderSource(dataset)
    raise DataError(f"dataset: got {dataset!r}; expected a path of an .npz file.")
