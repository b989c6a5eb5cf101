"""A sparse matrix with features, labels and splits beside it: ``{matrix: a.npz, x: x.npy, y: y.npy, splits: {train: ...}}``."""

from __future__ import annotations

import hashlib
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import NODE, DataError
from glt_lightning.partition.sources.arrays import host_array
from glt_lightning.partition.sources.base import ArraySource, Rows, classes_of
from glt_lightning.partition.sources.files import NpyFile
from glt_lightning.partition.sources.fingerprint import array_fingerprint, file_fingerprint, folder_name
from glt_lightning.partition.sources.scipy_sparse import MatrixSource, SparseEdges, from_matrix, is_matrix, read_sparse
from glt_lightning.partition.sources.split_arrays import split_keys

_KEYS = ("matrix", "x", "y", "attrs", "splits", "name")
_SPLITS = {"train": "train", "val": "val", "valid": "val", "test": "test"}


class MatrixGraph(MatrixSource):
    """Each value is the path of a file or, in a script, an array, a tensor or (matrix and ``x``) a matrix of scipy."""

    def __init__(self, given: Mapping[str, Any] | Namespace) -> None:
        plain = {key: _plain(value) for key, value in _plain(given).items()}
        for key in plain:
            if key not in _KEYS:
                raise DataError(f"dataset: unknown key {key!r} beside matrix; known: {', '.join(_KEYS)}.")
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
        classes = classes_of(node["y"][: len(node["y"])]) if "y" in node else None
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
    """float32 [N, D]; entries that are stored twice are added, as scipy does."""
    dense = np.zeros(edges.shape, np.float32)
    np.add.at(dense, (edges.source, edges.destination), _values_of(edges))
    return dense


def _values_of(edges: SparseEdges) -> np.ndarray:
    return np.ones(len(edges.source), np.float32) if edges.weight is None else edges.weight


def _one_column(y: np.ndarray) -> np.ndarray:
    return y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
