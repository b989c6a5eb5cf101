"""Graphs in a folder of ``.npy`` files, read piece by piece: the way in for graphs larger than memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import numpy as np

from glt_lightning.base import NODE, DataError, EdgeType, GraphSchema, NodeType
from glt_lightning.partition.sources.base import (
    EdgeList,
    Rows,
    Splits,
    classes_of,
    file_fingerprint,
    folder_name,
    width,
)
from glt_lightning.partition.sources.files import CscEdges, FileEdges, NpyFile
from glt_lightning.partition.sources.npz import CHECKED, MASK_KEYS, SPLIT_KEYS, split_ids, split_keys

_X, _Y = ("x", "feat"), ("y", "label")
_SPLITS = {"train": "train", "valid": "val", "val": "val", "test": "test"}
_LATER_SPLITS = (*SPLIT_KEYS, *MASK_KEYS)  # node attributes, or nothing, in releases before
_STRUCTURE = ("indptr", "indices", "edge_index", "num_nodes")


class FolderSource:
    """``indptr.npy`` + ``indices.npy`` (rows are destinations) or ``edge_index.npy``, and node arrays beside them."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = folder_name(self.path.name)
        self.schema = GraphSchema.single()
        self.target_type: NodeType | None = NODE
        files = sorted(self.path.glob("*.npy"))
        if not is_graph_folder(self.path):
            raise DataError(
                f"{self.path}: expected indptr.npy and indices.npy, or edge_index.npy; "
                f"found {[f.name for f in files][:8]}."
            )
        opened = {f.stem: NpyFile(f) for f in files}
        self._files = {k: file if k == "edge_index" else file.by_rows() for k, file in opened.items()}

    @cached_property
    def fingerprint(self) -> str:
        found = file_fingerprint(*(file.path for _, file in sorted(self._files.items())))
        return f"{found}-splits" if any(key in self._files for key in _LATER_SPLITS) else found

    @cached_property
    def num_nodes(self) -> dict[NodeType, int]:
        if "indptr" in self._files:
            return {NODE: len(self._files["indptr"]) - 1}
        for rows in (self._first(_X), self._first(_Y)):
            if rows is not None:
                return {NODE: len(rows)}
        raise DataError(f"{self.path}: the number of nodes is unknown. Add x.npy, or give indptr.npy and indices.npy.")

    @property
    def num_features(self) -> dict[NodeType, int | None]:
        x = self._first(_X)
        return {NODE: None if x is None else width(x.shape)}

    @cached_property
    def num_classes(self) -> int | None:
        y = self._first(_Y)
        return None if y is None else classes_of(y)

    @property
    def splits(self) -> Splits:
        keys = split_keys(self._files, _SPLITS)
        return {
            name: (NODE, split_ids(f"{self.path}: ", each, self._read, self.num_nodes[NODE]))
            for name, each in keys.items()
        }

    def _read(self, key: str) -> np.ndarray:
        return self._files[key][:]

    def edges(self, edge_type: EdgeType) -> EdgeList:
        if "indptr" in self._files:
            return CscEdges(self._files["indptr"], self._files["indices"])
        return FileEdges(self._files["edge_index"])

    def node_attrs(self, node_type: NodeType) -> Mapping[str, Rows]:
        named = {"x": self._first(_X), "y": self._first(_Y)}
        taken = {*_X, *_Y, *_SPLITS, *_LATER_SPLITS, *_STRUCTURE}
        for key, file in self._files.items():
            fits = key in CHECKED or len(file) == self.num_nodes[NODE]
            if key not in taken and not key.startswith("edge_") and fits:
                named[key] = file
        return {name: rows for name, rows in named.items() if rows is not None}

    def edge_attrs(self, edge_type: EdgeType) -> Mapping[str, Rows]:
        count = self.edges(edge_type).num_edges
        files = {k: f for k, f in self._files.items() if k.startswith("edge_") and k not in _STRUCTURE}
        return {k: f for k, f in files.items() if k in CHECKED or len(f) == count}

    def _first(self, names: tuple[str, ...]) -> NpyFile | None:
        return next((self._files[n] for n in names if n in self._files), None)


def is_graph_folder(path: Path) -> bool:
    names = {f.name for f in path.glob("*.npy")} if path.is_dir() else set()
    return "edge_index.npy" in names or {"indptr.npy", "indices.npy"} <= names
