"""OGB data sets that come as one large ``data.npz`` (ogbn-papers100M, ogbl-vessel), read piece by piece.

OGB's own loader holds all of it in memory, twice.
"""

from __future__ import annotations

import gzip
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from glt_lightning.base import NODE, DataError, EdgeType, GraphSchema, NodeType
from glt_lightning.graph import disk_full_speaks, open_regular
from glt_lightning.partition.folder import exclusive, whole_file
from glt_lightning.partition.sources.base import EdgeList, Rows, Splits
from glt_lightning.partition.sources.files import FileEdges, NpyFile
from glt_lightning.partition.sources.npz import stored_members
from glt_lightning.partition.sources.ogb.layout import nan_to_unlabelled

_LOCK_S = 6 * 3600.0
_COPY = 16 << 20
_COUNTS = ("num_nodes_list", "num_edges_list")


@dataclass(frozen=True)
class OgbBinary:
    """One homogeneous graph: ``raw/data.npz`` and, unless links are to be predicted, ``raw/node-label.npz`` in ``folder``.

    name, fingerprint, num_classes, splits: of the data set; without labels, num_classes is None.
    """

    folder: Path
    name: str
    fingerprint: str
    num_classes: int | None
    splits: Splits

    schema = GraphSchema.single()

    @property
    def target_type(self) -> NodeType | None:
        return None if self.num_classes is None else NODE

    @cached_property
    def num_nodes(self) -> dict[NodeType, int]:
        counts = self._members["num_nodes_list"]
        if len(counts) != 1:
            raise DataError(f"{self.folder / 'raw' / 'data.npz'}: expected one graph, found {len(counts)}.")
        return {NODE: int(counts[:1].reshape(-1)[0])}

    @property
    def num_features(self) -> dict[NodeType, int | None]:
        x = self._members.get("node_feat")
        return {NODE: None if x is None else x.shape[1]}

    def edges(self, edge_type: EdgeType) -> EdgeList:
        return FileEdges(self._members["edge_index"])

    def node_attrs(self, node_type: NodeType) -> Mapping[str, Rows]:
        attrs: dict[str, Rows] = self._named("node_", {"node_feat": "x"})
        return attrs if self.num_classes is None else attrs | {"y": self._labels}

    def edge_attrs(self, edge_type: EdgeType) -> Mapping[str, Rows]:
        return self._named("edge_", {"edge_feat": "edge_attr"})

    def _named(self, prefix: str, names: Mapping[str, str]) -> dict[str, Rows]:
        members = {k: f for k, f in self._members.items() if k.startswith(prefix) and k != "edge_index"}
        return {names.get(key, key): file for key, file in members.items()}

    @cached_property
    def _labels(self) -> np.ndarray:
        path = self.folder / "raw" / "node-label.npz"
        try:
            with open_regular(path) as stream, np.load(stream, allow_pickle=False) as file:
                y = file["node_label"]
        except (OSError, ValueError, LookupError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: expected an array node_label ({error}).") from None
        return nan_to_unlabelled(y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y)

    @cached_property
    def _members(self) -> dict[str, NpyFile]:
        """The arrays of ``data.npz``; compressed ones are unpacked beside it once."""
        path = self.folder / "raw" / "data.npz"
        try:
            stored = stored_members(path)
            with zipfile.ZipFile(path) as archive:
                names = [m.removesuffix(".npy") for m in archive.namelist()]
            members = {n: NpyFile(path, *stored[n]) if n in stored else _unpacked(path, n) for n in names}
        except (OSError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: expected an .npz file of plain arrays ({error}).") from None
        missing = {"edge_index", *_COUNTS} - set(members)
        if missing:
            raise DataError(f"{path}: has no {', '.join(sorted(missing))}; remove {self.folder} to download it again.")
        return {name: f if name == "edge_index" else f.by_rows() for name, f in members.items()}


def _unpacked(path: Path, name: str) -> NpyFile:
    target = path.parent / "unpacked" / f"{name}.npy"
    if not target.exists():
        with exclusive(target, _LOCK_S):  # ranks that start together would unpack the same
            if not target.exists():
                with zipfile.ZipFile(path) as archive, whole_file(target) as temporary:
                    size = archive.getinfo(f"{name}.npy").file_size
                    with (
                        disk_full_speaks(target.parent, size),
                        archive.open(f"{name}.npy") as packed,
                        open(temporary, "wb") as out,
                    ):
                        shutil.copyfileobj(packed, out, _COPY)
    return NpyFile(target)


def read_split(folder: Path) -> dict[str, np.ndarray]:
    """``train``, ``valid``, ``test`` -> int64 ids, from files that hold one per line."""
    ids = {}
    for name in ("train", "valid", "test"):
        path = folder / f"{name}.csv.gz"
        try:
            with gzip.open(path, "rb") as stream:
                ids[name] = np.array(stream.read().split(), np.int64)
        except (OSError, EOFError, ValueError) as error:
            raise DataError(f"{path}: expected node ids, one per line ({error}).") from None
    return ids
