"""Graphs in a folder of ``.npy`` files, read piece by piece: the way in for graphs larger than memory."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from glt_lightning.base import EDGE, NODE, DataError, GraphSchema
from glt_lightning.partition.sources.base import (
    ArraySource,
    DelegatingSource,
    Rows,
    Splits,
    classes_of,
    file_fingerprint,
    folder_name,
)
from glt_lightning.partition.sources.files import CscEdges, FileEdges, NpyFile
from glt_lightning.partition.sources.npz import (
    CHECKED,
    KNOWN,
    MASK_KEYS,
    SPLIT_KEYS,
    rows_of_attrs,
    split_ids,
    split_keys,
    stray_arrays,
)

_X, _Y = ("x", "feat"), ("y", "label")
_SPLITS = {"train": "train", "valid": "val", "val": "val", "test": "test"}
_LATER_SPLITS = (*SPLIT_KEYS, *MASK_KEYS)  # node attributes, or nothing, in releases before
_STRUCTURE = ("indptr", "indices", "edge_index", "num_nodes")


class FolderSource(DelegatingSource):
    """``indptr.npy`` + ``indices.npy`` (rows are destinations) or ``edge_index.npy``, and node arrays beside them."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = folder_name(self.path.name)
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
    def num_classes(self) -> int | None:
        y = self._first(_Y)
        return None if y is None else classes_of(y)

    @property
    def splits(self) -> Splits:
        keys, count = split_keys(self._files, _SPLITS), self.num_nodes[NODE]
        return {
            name: (NODE, split_ids(f"{self.path}: ", each, lambda key: self._files[key][:], count))
            for name, each in keys.items()
        }

    @property
    def strays(self) -> list[str]:
        """One line for each file that is ignored, and each attribute with almost a known name."""
        graph, files = self._graph, self._files
        known = {*KNOWN, *_X, *_Y, *_SPLITS, *_STRUCTURE} - ({"x"} if "feat" in files else set())
        rows = rows_of_attrs(self.num_nodes[NODE], graph.edges(EDGE).num_edges)
        attrs = {*graph.node_attrs(NODE), *graph.edge_attrs(EDGE)}
        return stray_arrays(f"{self.path}/", {k: (f.shape, f.dtype) for k, f in files.items()}, attrs, rows, known)

    def _load(self) -> ArraySource:
        files = self._files
        named = {"x": self._first(_X), "y": self._first(_Y)}
        node: dict[str, Rows] = {name: rows for name, rows in named.items() if rows is not None}
        edges = CscEdges(files["indptr"], files["indices"]) if "indptr" in files else FileEdges(files["edge_index"])
        if "indptr" not in files and not node:
            raise DataError(
                f"{self.path}: the number of nodes is unknown. Add x.npy, or give indptr.npy and indices.npy."
            )
        count = len(files["indptr"]) - 1 if "indptr" in files else len(next(iter(node.values())))
        edge: dict[str, Rows] = {}
        for key in sorted(files.keys() - {*_X, *_Y, *_SPLITS, *_LATER_SPLITS, *_STRUCTURE}):
            of_edges = key.startswith("edge_")
            if key in CHECKED or len(files[key]) == (edges.num_edges if of_edges else count):
                (edge if of_edges else node)[key] = files[key]
        return ArraySource(
            name=self.name,
            fingerprint="",
            schema=GraphSchema.single(),
            num_nodes={NODE: count},
            edge_index={EDGE: edges},
            node={NODE: node},
            edge={EDGE: edge},
            target_type=NODE,
        )

    def _first(self, names: tuple[str, ...]) -> NpyFile | None:
        return next((self._files[n] for n in names if n in self._files), None)


def is_graph_folder(path: Path) -> bool:
    names = {f.name for f in path.glob("*.npy")} if path.is_dir() else set()
    return "edge_index.npy" in names or {"indptr.npy", "indices.npy"} <= names
