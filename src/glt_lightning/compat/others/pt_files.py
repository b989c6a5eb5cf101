"""Tensors in files of torch, as other systems write them; nothing else is read from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import DataError, EdgeType
from glt_lightning.graph import open_regular
from glt_lightning.partition import UNREADABLE, host_array, load_saved


def read_tensor(path: Path) -> np.ndarray:
    """A tensor or array of a ``.pt`` or ``.npy`` file. Raises `DataError` for anything else."""
    if path.suffix == ".npy":
        try:
            with open_regular(path) as stream:
                found: np.ndarray = np.load(stream, allow_pickle=False)
        except UNREADABLE as error:
            raise DataError(f"{path}: expected an .npy file ({error}).") from None
        return found
    return as_array(f"{path}", load_saved(path, "a tensor"))


def as_array(where: str, given: Any) -> np.ndarray:
    if not (hasattr(given, "detach") or isinstance(given, np.ndarray)):
        raise DataError(f"{where}: expected a tensor, found {type(given).__name__}.")
    return host_array(where, given)


def ends_of(where: str, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
    """The ends of edges, [n, 2]. Raises `DataError` unless both are integers [n]."""
    if rows.ndim != 1 or rows.shape != cols.shape or rows.dtype.kind not in "iu" or cols.dtype.kind not in "iu":
        found = f"{rows.dtype} {list(rows.shape)} and {cols.dtype} {list(cols.shape)}"
        raise DataError(f"{where}: expected rows and columns of edges, as many integers of each; found {found}.")
    return np.stack([rows.astype(np.int64), cols.astype(np.int64)], axis=1)


def entry_of(where: str, given: Any, key: Any) -> Any:
    """What a dictionary has for a key. Raises `DataError` if it has nothing, or is none."""
    if not isinstance(given, Mapping) or key not in given:
        has = f"keys {', '.join(map(str, given))}" if isinstance(given, Mapping) else type(given).__name__
        raise DataError(f"{where}: expected a dictionary with {key!r}, found {has:.80}.")
    return given[key]


def part_folders(folder: Path, pattern: str) -> list[Path]:
    """``pattern.format(0)``, and so on, as many as there are. Raises `DataError` where there is none, or a gap."""
    parts = [folder / pattern.format(p) for p in range(len([*folder.glob(pattern.format("[0-9]*"))]))]
    missing = [path for path in parts if not path.is_dir()]
    if missing or not parts:
        raise DataError(
            f"{folder}: expected the folders {pattern.format(0)}, {pattern.format(1)} and so on of a partition."
        )
    return parts


def edge_type_of(where: Path | str, text: str) -> EdgeType:
    names = text.split("__")
    if len(names) != 3 or not all(names):
        raise DataError(f"{where}: expected SRC__REL__DST as the name of an edge type, found {text!r}.")
    return names[0], names[1], names[2]
