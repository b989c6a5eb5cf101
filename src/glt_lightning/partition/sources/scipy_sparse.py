"""Sparse matrices: entry (i, j) is an edge from i to j. Of scipy's files, only plain arrays are read."""

from __future__ import annotations

import sys
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import EDGE, NODE, DataError, GraphSchema
from glt_lightning.graph import open_regular
from glt_lightning.partition.sources.base import ArraySource, DelegatingSource
from glt_lightning.partition.sources.fingerprint import array_fingerprint, file_fingerprint, folder_name

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
    """Whether this is a sparse matrix or array of scipy; who holds one has imported scipy."""
    scipy = sys.modules.get("scipy.sparse")
    return scipy is not None and bool(scipy.issparse(value))


def is_matrix_file(path: Path) -> bool:
    """Whether an ``.npz`` file was written by ``scipy.sparse.save_npz``."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:  # a FIFO would be waited for
            return {"format.npy", "shape.npy", "data.npy"} <= set(archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


class MatrixSource(DelegatingSource):
    """A graph that is no more than a square matrix: a matrix in memory, or a file of one."""

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
