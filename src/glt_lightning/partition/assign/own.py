"""Assignments by the user: an array on disk, or a class."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import DataError, OptionError
from glt_lightning.partition.assign.base import Assigner, Assignment, GraphToPartition


class FileAssigner(Assigner):
    """Integers [N] in an ``.npy`` file, or one such array per node type in an ``.npz`` file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        if not self.path.is_file():
            raise OptionError(
                f"partition.algorithm: file {str(self.path)!r} not found. Give an .npy or .npz file of part numbers, the name of "
                "an algorithm, or the import path of a class."
            )

    @property
    def made_by(self) -> dict[str, str]:
        with open(self.path, "rb") as stream:
            return {"algorithm": hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=8)).hexdigest()}

    def assign(self, graph: GraphToPartition) -> Assignment:
        loaded = self._load()
        if isinstance(loaded, np.ndarray):
            if len(graph.num_nodes) > 1:
                raise DataError(
                    f"{self.path}: this file has one array, but the graph has node types {', '.join(graph.num_nodes)}. "
                    "Give an .npz file with one array of part numbers per node type."
                )
            return dict.fromkeys(graph.num_nodes, loaded)
        if unknown := sorted(set(loaded) - set(graph.num_nodes)):
            raise DataError(
                f"{self.path}: array {unknown[0]!r} names no node type; the graph has {', '.join(graph.num_nodes)}. "
                "Give one array of part numbers per node type."
            )
        return loaded

    def _load(self) -> np.ndarray | dict[str, np.ndarray]:
        try:
            loaded = np.load(self.path, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            with loaded:
                return {name: loaded[name] for name in loaded.files}
        except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
            raise DataError(
                f"{self.path}: not readable as an .npy or .npz file of part numbers ({error}). Save it with numpy.save or "
                "numpy.savez."
            ) from None


def own_class(path: str, arguments: dict[str, Any] | None) -> Assigner:
    """Makes an object of the user's class. Raises `OptionError` if the class cannot be imported, or is no complete subclass of
    `Assigner`."""
    module, _, name = path.rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # a path like `.a` raises the last two
        raise OptionError(
            f"partition.algorithm: {path!r} cannot be imported ({error}). Give the import path of a class, such as "
            "mypackage.module.Class, of a package that is installed or in the working directory."
        ) from None
    if not isinstance(kind, type) or not issubclass(kind, Assigner):
        raise OptionError(f"partition.algorithm: {path} is not a subclass of glt_lightning.partition.Assigner.")
    if inspect.isabstract(kind):
        raise OptionError(f"partition.algorithm: {path} does not define {', '.join(sorted(kind.__abstractmethods__))}.")
    try:
        inspect.signature(kind).bind(**(arguments or {}))
    except TypeError as error:
        raise OptionError(f"partition.algorithm: {path}: init_args: {error}.") from None
    return kind(**(arguments or {}))
