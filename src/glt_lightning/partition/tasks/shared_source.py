"""A user's graph as processes beside the first one open it: a JSON description of files, and the source that reads them.

What is not in files yet, such as arrays in memory, is written once into the working folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import EdgeType, GraphSchema, NodeType
from glt_lightning.kernels import BFLOAT16
from glt_lightning.partition.arrays import ArrayWriter
from glt_lightning.partition.build.normalize import numbered_chunks
from glt_lightning.partition.edge_splits.read import KeptEdges, KeptRows
from glt_lightning.partition.sources.base import EdgeList, GraphSource, Rows
from glt_lightning.partition.sources.files import CscEdges, EndFiles, FileEdges, NpyFile

_CHUNK = 1 << 20  # edges copied at once
_KINDS: dict[str, Callable[..., EdgeList]] = {kind.__name__: kind for kind in (FileEdges, EndFiles, CscEdges)}


class SharedSource:
    """The graph of a description by `describe`: its structure and attributes, and no splits."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        self._described = described
        self.name, self.fingerprint, self.path = described["name"], "", described["path"]
        types = tuple(map(tuple, described["edge_types"]))
        self.schema = GraphSchema(tuple(described["num_nodes"]), types, described["homogeneous"])
        self.num_nodes: dict[NodeType, int] = described["num_nodes"]
        self.num_features: dict[NodeType, int | None] = dict.fromkeys(self.num_nodes)
        self.num_classes = self.target_type = None
        self.splits: dict[str, tuple[NodeType, np.ndarray]] = {}

    def edges(self, edge_type: EdgeType) -> EdgeList:
        return _edges(self._described["edges"][self.schema.edge_index(edge_type)])

    def node_attrs(self, node_type: NodeType) -> Mapping[str, Rows]:
        return {name: _rows(each) for name, each in self._described["node_attrs"][node_type].items()}

    def edge_attrs(self, edge_type: EdgeType) -> Mapping[str, Rows]:
        attrs = self._described["edge_attrs"][self.schema.edge_index(edge_type)]
        return {name: _rows(each) for name, each in attrs.items()}


def describe(source: GraphSource, folder: Path) -> dict[str, Any]:
    """Describes a source for other processes, as JSON. folder: of files for what is not in files."""
    path, schema = getattr(source, "path", None), source.schema
    return {
        "name": source.name,
        "path": None if path is None else str(path),
        "homogeneous": schema.homogeneous,
        "edge_types": schema.edge_types,
        "num_nodes": {t: int(source.num_nodes[t]) for t in schema.node_types},
        "edges": [_describe_edges(source.edges(e), folder / f"edges{r}") for r, e in enumerate(schema.edge_types)],
        "node_attrs": {
            t: {name: _describe_rows(rows, folder / f"nodes{i}" / name) for name, rows in source.node_attrs(t).items()}
            for i, t in enumerate(schema.node_types)
        },
        "edge_attrs": [
            {name: _describe_rows(rows, folder / f"edges{r}" / name) for name, rows in source.edge_attrs(e).items()}
            for r, e in enumerate(schema.edge_types)
        ],
    }


def _describe_edges(edges: EdgeList, folder: Path) -> dict[str, Any]:
    if isinstance(edges, (FileEdges, EndFiles, CscEdges)):
        return {"kind": type(edges).__name__, "files": [*map(_describe_file, edges.files)]}
    if isinstance(edges, KeptEdges):
        columns = _copied(edges.columns, folder / "columns")
        return {"kind": "kept", "edges": _describe_edges(edges.edges, folder), "columns": columns}
    with (
        ArrayWriter(folder, "source.npy", np.int64, hashed=False) as source,
        ArrayWriter(folder, "destination.npy", np.int64, hashed=False) as destination,
    ):
        for src, dst in edges.chunks(_CHUNK):
            source.write(src)
            destination.write(dst)
    return {
        "kind": EndFiles.__name__,
        "files": [{"path": str(folder / f"{name}.npy")} for name in ("source", "destination")],
    }


def _describe_rows(rows: Rows, file: Path) -> dict[str, Any]:
    if isinstance(rows, NpyFile):
        return {"kind": "file", "file": _describe_file(rows)}
    if isinstance(rows, KeptRows):
        columns = _copied(rows.columns, file.with_name(f"{file.name}.columns"))
        return {"kind": "kept", "rows": _describe_rows(rows.rows, file), "columns": columns}
    return {"kind": "file", "file": _copied(rows, file)}


def _describe_file(file: NpyFile) -> dict[str, Any]:
    at, nbytes = file.range
    return {"path": str(file.path.absolute()), "at": at, "nbytes": nbytes}


def _copied(rows: Rows, file: Path) -> dict[str, Any]:
    bfloat16 = rows.dtype == BFLOAT16
    dtype = np.dtype("<u2") if bfloat16 else rows.dtype
    with ArrayWriter(file.parent, f"{file.name}.npy", dtype, tuple(rows.shape[1:]), hashed=False) as writer:
        for _, chunk in numbered_chunks(rows):
            writer.write(chunk.view("<u2") if bfloat16 else chunk)
    return {"path": f"{file}.npy", "bfloat16": bfloat16}


def _edges(described: Mapping[str, Any]) -> EdgeList:
    if described["kind"] == "kept":
        return KeptEdges(_edges(described["edges"]), _file(described["columns"]).mapped())
    return _KINDS[described["kind"]](*map(_file, described["files"]))


def _rows(described: Mapping[str, Any]) -> Rows:
    if described["kind"] == "kept":
        return KeptRows(_rows(described["rows"]), _file(described["columns"]).mapped())
    return _file(described["file"])


def _file(described: Mapping[str, Any]) -> NpyFile:
    file = NpyFile(Path(described["path"]), described.get("at", 0), described.get("nbytes"))
    if described.get("bfloat16"):
        file.dtype = BFLOAT16
    return file
