"""A user's graph as processes beside the first one open it: a JSON description of files, and the source that reads them.

What is not in files yet, such as arrays in memory, is written once into the working folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import GraphSchema
from glt_lightning.kernels import BFLOAT16
from glt_lightning.partition.arrays import ArrayWriter
from glt_lightning.partition.build.normalize import numbered_chunks
from glt_lightning.partition.edge_splits.read import KeptEdges, KeptRows
from glt_lightning.partition.sources.base import ArraySource, EdgeList, GraphSource, Rows
from glt_lightning.partition.sources.files import CscEdges, EndFiles, FileEdges, NpyFile

_CHUNK = 1 << 20  # edges copied at once
_KINDS: dict[str, Callable[..., Any]] = {
    kind.__name__: kind for kind in (FileEdges, EndFiles, CscEdges, KeptEdges, KeptRows)
}
_FILE = "file"
Described = list[Any]  # the name of a kind and the descriptions of its arguments; or that of a file and its place


@dataclass
class SharedSource(ArraySource):
    """The graph of a description by `describe`: its structure and attributes, and no splits."""

    path: str | None = None

    @classmethod
    def opened(cls, raw: Mapping[str, Any]) -> SharedSource:
        types = tuple(map(tuple, raw["edge_types"]))
        return cls(
            name=raw["name"],
            fingerprint="",
            schema=GraphSchema(tuple(raw["num_nodes"]), types, raw["homogeneous"]),
            num_nodes=raw["num_nodes"],
            edge_index=dict(zip(types, map(_open, raw["edges"]), strict=True)),
            node={t: _open_all(attrs) for t, attrs in raw["node_attrs"].items()},
            edge=dict(zip(types, map(_open_all, raw["edge_attrs"]), strict=True)),
            path=raw["path"],
        )


def describe(source: GraphSource, folder: Path) -> dict[str, Any]:
    """Describes a source for other processes, as JSON. folder: of files for what is not in files."""
    path, schema = getattr(source, "path", None), source.schema
    return {
        "name": source.name,
        "path": None if path is None else str(path),
        "homogeneous": schema.homogeneous,
        "edge_types": schema.edge_types,
        "num_nodes": {t: int(source.num_nodes[t]) for t in schema.node_types},
        "edges": [_edges(source.edges(e), folder / f"edges{r}") for r, e in enumerate(schema.edge_types)],
        "node_attrs": {
            t: {name: _rows(rows, folder / f"nodes{i}" / name) for name, rows in source.node_attrs(t).items()}
            for i, t in enumerate(schema.node_types)
        },
        "edge_attrs": [
            {name: _rows(rows, folder / f"edges{r}" / name) for name, rows in source.edge_attrs(e).items()}
            for r, e in enumerate(schema.edge_types)
        ],
    }


def _edges(edges: EdgeList, folder: Path) -> Described:
    if isinstance(edges, (FileEdges, EndFiles, CscEdges)):
        return [type(edges).__name__, *map(_file, edges.files)]
    if isinstance(edges, KeptEdges):
        return [KeptEdges.__name__, _edges(edges.edges, folder), _copy(edges.columns, folder / "columns")]
    with (
        ArrayWriter(folder, "source.npy", np.int64, hashed=False) as source,
        ArrayWriter(folder, "destination.npy", np.int64, hashed=False) as destination,
    ):
        for src, dst in edges.chunks(_CHUNK):
            source.write(src)
            destination.write(dst)
    return [EndFiles.__name__, *(_file(NpyFile(folder / writer.path)) for writer in (source, destination))]


def _rows(rows: Rows, file: Path) -> Described:
    if isinstance(rows, NpyFile):
        return _file(rows)
    if isinstance(rows, KeptRows):
        columns = _copy(rows.columns, file.with_name(f"{file.name}.columns"))
        return [KeptRows.__name__, _rows(rows.rows, file), columns]
    return _copy(rows, file)


def _copy(rows: Rows, file: Path) -> Described:
    bfloat16 = rows.dtype == BFLOAT16
    dtype = np.dtype("<u2") if bfloat16 else rows.dtype
    with ArrayWriter(file.parent, f"{file.name}.npy", dtype, tuple(rows.shape[1:]), hashed=False) as writer:
        for _, chunk in numbered_chunks(rows):
            writer.write(chunk.view("<u2") if bfloat16 else chunk)
    return _file(NpyFile(file.parent / writer.path), bfloat16)


def _file(file: NpyFile, bfloat16: bool = False) -> Described:
    return [_FILE, str(file.path.absolute()), *file.range, bfloat16]


def _open(described: Described) -> Any:
    kind, *given = described
    if kind != _FILE:
        return _KINDS[kind](*map(_open, given))
    path, at, nbytes, bfloat16 = given
    file = NpyFile(Path(path), at, nbytes)
    file.dtype = BFLOAT16 if bfloat16 else file.dtype
    return file


def _open_all(attrs: Mapping[str, Described]) -> dict[str, Rows]:
    return {name: _open(each) for name, each in attrs.items()}
