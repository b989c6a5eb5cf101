"""Sparse matrices: entry (i, j) is an edge from i to j. Of scipy's files, only plain arrays are read."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import EDGE, NODE, DataError, GraphSchema
from glt_lightning.graph import open_regular
from glt_lightning.partition.sources.base import (
    ArraySource,
    DelegatingSource,
    Rows,
    array_fingerprint,
    classes_of,
    file_fingerprint,
    folder_name,
)
from glt_lightning.partition.sources.files import NpyFile
from glt_lightning.partition.sources.npz import host_array, split_keys

_KEYS = {"csr": ("indptr", "indices"), "csc": ("indptr", "indices"), "coo": ("row", "col")}


@dataclass(frozen=True, kw_only=True)
class SparseEdges:
    """The stored entries of a matrix, zeros and duplicates included.

    source, destination: integers [E].  weight: float32 [E], None if all are one.
    """

    shape: tuple[int, int]
    source: np.ndarray
    destination: np.ndarray
    weight: np.ndarray | None


def is_matrix(value: object) -> bool:
    """Tells whether a value is a sparse matrix or array of scipy. Does not import scipy: if there is such a value, it is
    imported already."""
    scipy = sys.modules.get("scipy.sparse")
    return scipy is not None and bool(scipy.issparse(value))


def is_matrix_file(path: Path) -> bool:
    """Tells whether an ``.npz`` file was written by ``scipy.sparse.save_npz``."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:  # a FIFO would be waited for
            return {"format.npy", "shape.npy", "data.npy"} <= set(archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


class MatrixSource(DelegatingSource):
    """A graph given as a square matrix, in memory or in a file."""

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix
        self.name = folder_name(matrix.stem) if isinstance(matrix, Path) else "matrix"

    @cached_property
    def fingerprint(self) -> str:
        if isinstance(self._matrix, Path):
            return file_fingerprint(self._matrix)
        edges = self._edges
        arrays = [("shape", np.array(edges.shape)), ("source", edges.source), ("destination", edges.destination)]
        return array_fingerprint(arrays if edges.weight is None else [*arrays, ("weight", edges.weight)])

    @cached_property
    def _edges(self) -> SparseEdges:
        return read_sparse(self._matrix) if isinstance(self._matrix, Path) else from_matrix(self._matrix)

    def _load(self) -> ArraySource:
        matrix, edges = self._matrix, self._edges
        what = str(matrix) if isinstance(matrix, Path) else "dataset"
        if edges.shape[0] != edges.shape[1]:
            raise DataError(
                f"{what}: a matrix {list(edges.shape)} joins two node types; expected a square one, or a mapping: nodes: "
                "{a: {path: ...}, b: {path: ...}}, edges: {a__to__b: FILE.npz}."
            )
        return ArraySource(
            name=self.name,
            fingerprint="",
            schema=GraphSchema.single(),
            num_nodes={NODE: edges.shape[0]},
            edge_index={EDGE: np.stack([edges.source, edges.destination])},
            edge={EDGE: {} if edges.weight is None else {"edge_weight": edges.weight}},
            target_type=NODE,
        )


def from_matrix(matrix: Any) -> SparseEdges:
    """Entries of a sparse matrix or array in memory, in the order of its ``tocoo()``."""
    if matrix.ndim != 2:
        raise DataError(f"dataset: expected a sparse matrix [N, N], got one of shape {list(matrix.shape)}.")
    coo = matrix.tocoo()
    return _edges("dataset", coo.shape, coo.row, coo.col, coo.data)


def read_sparse(path: Path) -> SparseEdges:
    """Entries of a file of ``scipy.sparse.save_npz``, in the order in which they are stored."""
    try:
        with open_regular(path) as stream, np.load(stream, allow_pickle=False) as file:
            keys = set(file.files)
            kind = _kind(path, file["format"]) if {"format", "shape", "data"} <= keys else ""
            if not kind or not set(_KEYS[kind]) <= keys:
                raise DataError(f"{path}: expected a file of scipy.sparse.save_npz, found {sorted(keys)[:8]}.")
            shape, data = file["shape"], file["data"]
            first, second = (file[key] for key in _KEYS[kind])
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: not found.") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zipfile.LargeZipFile) as error:
        raise DataError(
            f"{path}: expected a readable file of scipy.sparse.save_npz ({error}). It may be truncated: save or copy it again."
        ) from None
    if shape.shape != (2,) or data.ndim != 1 or first.ndim != 1 or second.ndim != 1:
        raise DataError(f"{path}: expected a matrix of two dimensions, got shape {shape.tolist()}.")
    sides = (int(shape[0]), int(shape[1]))
    if kind == "coo":
        return _edges(str(path), sides, first, second, data)
    rows = _expanded(path, first, sides[kind == "csc"], len(second))
    if kind == "csc":
        rows, second = second, rows
    return _edges(str(path), sides, rows, second, data)


def _kind(path: Path, stored: np.ndarray) -> str:
    kind = stored.item()
    kind = kind.decode("ascii", "replace") if isinstance(kind, bytes) else str(kind)
    if kind not in _KEYS:
        raise DataError(f"{path}: the matrix is stored as {kind!r}; expected {', '.join(_KEYS)}. Save matrix.tocsr().")
    return kind


def _expanded(path: Path, indptr: np.ndarray, count: int, entries: int) -> np.ndarray:
    if (indptr.dtype.kind not in "iu" or len(indptr) != count + 1 or indptr[0] != 0 or indptr[-1] != entries) or (
        indptr[1:] < indptr[:-1]
    ).any():
        raise DataError(f"{path}: indptr: expected {count + 1} row pointers that rise from 0 to {entries}.")
    return np.repeat(np.arange(count, dtype=np.int64), np.diff(indptr))


def _edges(what: str, shape: tuple[int, int], rows: np.ndarray, columns: np.ndarray, data: np.ndarray) -> SparseEdges:
    if not len(rows) == len(columns) == len(data):
        raise DataError(
            f"{what}: expected as many row indices as column indices and values, got {len(rows)}, {len(columns)} and {len(data)}."
        )
    for ids, count, name in ((rows, shape[0], "row"), (columns, shape[1], "column")):
        if ids.dtype.kind not in "iu" or (len(ids) and (ids.min() < 0 or ids.max() >= count)):
            raise DataError(f"{what}: a {name} is not in 0..{count - 1}.")
    if data.dtype.kind not in "biuf":
        raise DataError(f"{what}: values are {data.dtype}; expected numbers or booleans.")
    weight = None
    if not (data == 1).all():
        with np.errstate(over="ignore"):  # what overflows is found below
            weight = data.astype(np.float32)
        if (bad := ~np.isfinite(weight)).any():
            at = int(bad.argmax())
            raise DataError(
                f"{what}: entry ({rows[at]}, {columns[at]}) is {data[at]}; a weight is a finite float32. Replace it."
            )
    # Copies: where the matrix is changed later, the graph is not.
    return SparseEdges(
        shape=(int(shape[0]), int(shape[1])),
        source=rows.astype(np.int64),
        destination=columns.astype(np.int64),
        weight=weight,
    )


# A sparse matrix with features, labels and splits beside it: ``{matrix: a.npz, x: x.npy, y: y.npy, splits: {train: ...}}``.


_MATRIX_GRAPH_KEYS = ("matrix", "x", "y", "attrs", "splits", "name")
_SPLITS = {"train": "train", "val": "val", "valid": "val", "test": "test"}


class MatrixGraph(MatrixSource):
    """A graph of a matrix and node arrays. Each value is the path of a file or, in a script, an array, a tensor or (for the
    matrix and ``x``) a matrix of scipy."""

    def __init__(self, given: Mapping[str, Any] | Namespace) -> None:
        plain = {key: _plain(value) for key, value in _plain(given).items()}
        for key in plain:
            if key not in _MATRIX_GRAPH_KEYS:
                raise DataError(f"dataset: unknown key {key!r} beside matrix; known: {', '.join(_MATRIX_GRAPH_KEYS)}.")
        attrs, self._split_values = (_mapping(key, plain.get(key)) for key in ("attrs", "splits"))
        for key in self._split_values:
            if key not in _SPLITS:
                raise DataError(f"dataset: splits: {key!r}: expected any of {', '.join(_SPLITS)}.")
        if {"val", "valid"} <= set(self._split_values):
            raise DataError("dataset: splits: val and valid are the same split. Leave one of them out.")
        self._values = {key: plain[key] for key in ("x", "y") if plain.get(key) is not None} | attrs
        matrix = plain["matrix"]
        super().__init__(Path(matrix).expanduser() if isinstance(matrix, (str, Path)) else matrix)
        if not isinstance(self._matrix, Path) and not is_matrix(matrix):
            raise DataError(
                f"dataset: matrix: expected a file of scipy.sparse.save_npz or a matrix, got {matrix!r:.80}."
            )
        if plain.get("name") is not None:
            self.name = folder_name(str(plain["name"]))

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.blake2b(super().fingerprint.encode(), digest_size=16)
        for key, value in self._all():
            if isinstance(value, (str, Path)):
                path = _existing(key, value)
                digest.update(f"{key}:{file_fingerprint(path)}".encode())
            elif is_matrix(value):
                edges = from_matrix(value)
                parts = [("i", edges.source), ("j", edges.destination), ("v", _values_of(edges))]
                digest.update(f"{key}:{edges.shape}:{array_fingerprint(parts)}".encode())
            else:
                digest.update(f"{key}:{array_fingerprint([(key, host_array(f'dataset: {key}', value))])}".encode())
        return digest.hexdigest()

    def _all(self) -> Iterator[tuple[str, Any]]:
        yield from sorted(self._values.items())
        yield from ((f"splits.{key}", value) for key, value in sorted(self._split_values.items()))

    def _load(self) -> ArraySource:
        graph = super()._load()
        node = {name: _rows(name, value) for name, value in self._values.items()}
        if "y" in node:
            node["y"] = _one_column(node["y"][: len(node["y"])])
        splits = {}
        for split, keys in split_keys(self._split_values, _SPLITS).items():
            rows = _rows(f"splits.{keys[0]}", self._split_values[keys[0]])
            splits[split] = (NODE, rows[: len(rows)])
        classes = classes_of(node["y"]) if "y" in node else None
        return replace(graph, node={NODE: node}, splits=splits, num_classes=classes)


def _plain(value: Any) -> Any:
    return vars(value) if isinstance(value, Namespace) else value


def _mapping(key: str, value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise DataError(f"dataset: {key}: expected {{name: file}}, got {value!r:.80}.")
    return dict(value or {})


def _existing(key: str, value: str | Path) -> Path:
    path = Path(value).expanduser()
    if not path.is_file():
        raise DataError(f"dataset: {key}: there is no file {str(value)!r} (in {Path.cwd()}).")
    return path


def _rows(key: str, value: Any) -> Rows:
    if isinstance(value, (str, Path)):
        path = _existing(key, value)
        if path.suffix == ".npz":
            return _dense(read_sparse(path))
        if path.suffix != ".npy":
            raise DataError(f"dataset: {key}: {path}: expected an .npy file, or an .npz file of scipy.sparse.save_npz.")
        return NpyFile(path).by_rows()
    return _dense(from_matrix(value)) if is_matrix(value) else host_array(f"dataset: {key}", value)


def _dense(edges: SparseEdges) -> np.ndarray:
    """Makes a dense array, float32 [N, D]. Entries that are stored twice are added, as scipy does."""
    dense = np.zeros(edges.shape, np.float32)
    np.add.at(dense, (edges.source, edges.destination), _values_of(edges))
    return dense


def _values_of(edges: SparseEdges) -> np.ndarray:
    return np.ones(len(edges.source), np.float32) if edges.weight is None else edges.weight


def _one_column(y: np.ndarray) -> np.ndarray:
    return y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
