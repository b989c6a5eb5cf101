"""Tensors in files of torch, as other systems write them; nothing else is read from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.errors import DataError
from glt_lightning.partition.sources.arrays import host_array
from glt_lightning.partition.sources.saved import load_saved
from glt_lightning.types import EdgeType


def read_tensor(path: Path) -> np.ndarray:
    """A tensor or array of a ``.pt`` or ``.npy`` file. Raises `DataError` for anything else."""
    if path.suffix == ".npy":
        try:
            found: np.ndarray = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: expected an .npy file ({error}).") from None
        return found
    return as_array(f"{path}", load_saved(path, "a tensor"))


def as_array(where: str, given: Any) -> np.ndarray:
    if not (hasattr(given, "detach") or isinstance(given, np.ndarray)):
        raise DataError(f"{where}: expected a tensor, found {type(given).__name__}.")
    return host_array(where, given)


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
