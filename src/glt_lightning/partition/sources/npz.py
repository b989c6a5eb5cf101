"""Graphs in one ``.npz`` file of plain arrays; `docs/data.md` lists the keys."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from glt_lightning.base import EDGE, NODE, DataError, EdgeType, GraphSchema, NodeType
from glt_lightning.graph import open_regular, read_npy_header
from glt_lightning.partition.sources.base import (
    ArrayEdges,
    EdgeList,
    LazyArray,
    Rows,
    Splits,
    classes_of,
    file_fingerprint,
    folder_name,
    near,
    pick_target,
    width,
)
from glt_lightning.partition.sources.files import FileEdges, NpyFile

_NAME_LENGTH_AT = 26  # in the header that precedes a member of a zip file


# Arrays of other lengths are not attributes; with these names they are mistakes.
CHECKED = ("x", "y", "time", "edge_attr", "edge_weight", "edge_time")


class NpzSource:
    """A homogeneous (``x``, ``edge_index``) or heterogeneous (``TYPE/x``, ``SRC__REL__DST/edge_index``) file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = folder_name(self.path.stem)
        self._shapes = read_headers(self.path)
        keys = set(self._shapes)
        edge_keys = sorted(k for k in keys if k == "edge_index" or k.endswith("/edge_index"))
        if not edge_keys:
            meant = next((k for k in sorted(keys) if near(k, ["edge_index"], cutoff=_LIKE)), None)
            raise DataError(
                f"{self.path}: expected 'edge_index' or 'SRC__REL__DST/edge_index', found {sorted(keys)[:8]}."
                + (f" Is {meant!r} meant as edge_index? Then rename it." if meant else "")
            )
        self._edge_prefix = {self._edge_type(k): k.removesuffix("edge_index") for k in edge_keys}
        homogeneous = edge_keys == ["edge_index"]
        names = {k.split("/")[0] for k in keys if "/" in k} - {k.split("/")[0] for k in edge_keys}
        types = {NODE} if homogeneous else names | {t for s, _, d in self._edge_prefix for t in (s, d)}
        self._node_prefix = {t: "" if homogeneous else f"{t}/" for t in types}
        self.schema = GraphSchema(tuple(types), tuple(self._edge_prefix), homogeneous)

    @cached_property
    def fingerprint(self) -> str:
        found = file_fingerprint(self.path)
        # Masks were node attributes once, and a partition with those has no splits.
        return f"{found}-masks" if any(key in MASK_KEYS for _, _, keys in self._splits for key in keys) else found

    @cached_property
    def num_nodes(self) -> dict[NodeType, int]:
        return {t: self._count(t) for t in self.schema.node_types}

    @property
    def num_features(self) -> dict[NodeType, int | None]:
        shapes = {t: self._shapes.get(self._node_prefix[t] + "x") for t in self.schema.node_types}
        return {t: None if s is None else width(s[0]) for t, s in shapes.items()}

    @cached_property
    def num_classes(self) -> int | None:
        if self.target_type is None or (key := self._node_prefix[self.target_type] + "y") not in self._shapes:
            return None
        return classes_of(self._read(key))

    @cached_property
    def class_names(self) -> list[str] | None:
        """The names of the classes, if the file has a text array ``class_names`` with one for each; else None."""
        prefix = "" if self.target_type is None else self._node_prefix[self.target_type]
        key = prefix + "class_names" if prefix + "class_names" in self._shapes else "class_names"
        shape, dtype = self._shapes.get(key, ((), np.dtype(bool)))
        if dtype.kind != "U" or self.num_classes is None or shape != (self.num_classes,):
            return None  # arrays of text may be there for other readers of the file
        return [str(name) for name in self._read(key)]

    @cached_property
    def target_type(self) -> NodeType | None:
        labelled = [t for t in self.schema.node_types if self._node_prefix[t] + "y" in self._shapes]
        return pick_target(labelled, {t for _, t, _ in self._splits}, self.name)

    @cached_property
    def splits(self) -> Splits:
        found: dict[str, tuple[NodeType, np.ndarray]] = {}
        for name, node_type, keys in self._splits:
            prefix = self._node_prefix[node_type]
            ids = split_ids(f"{self.path}: {prefix}", keys, self._below(prefix), self.num_nodes[node_type])
            found[name] = (node_type, ids)
        return found

    @property
    def edge_splits(self) -> dict[EdgeType, dict[str, dict[str, np.ndarray]]]:
        """The edges to predict in the file: edge type -> split -> ``edge`` and the arrays that belong to it."""
        return {e: splits for e in self.schema.edge_types if (splits := self._edge_splits(e))}

    def _edge_splits(self, edge_type: EdgeType) -> dict[str, dict[str, np.ndarray]]:
        prefix = self._edge_prefix[edge_type]
        found: dict[str, dict[str, np.ndarray]] = {}
        for key, (split, name) in EDGE_SPLIT_KEYS.items():
            if prefix + key in self._shapes:
                found.setdefault(split, {})[name] = self._read(prefix + key)
        if self.schema.homogeneous:  # there train_idx are nodes
            return found
        columns = split_keys({k.removeprefix(prefix) for k in self._shapes if k.startswith(prefix)})
        if columns:
            edges, read = self._read(prefix + "edge_index"), self._below(prefix)
            for split, keys in columns.items():
                ids = split_ids(f"{self.path}: {prefix}", keys, read, edges.shape[1])
                found.setdefault(split, {})["edge"] = edge_columns(f"{self.path}: {prefix}{keys[0]}", edges, ids)
        return found

    def edges(self, edge_type: EdgeType) -> EdgeList:
        key = self._edge_prefix[edge_type] + "edge_index"
        rows = self._lazy(key)
        what = f"{self.path}: {key}"
        return FileEdges(rows, what) if isinstance(rows, NpyFile) else ArrayEdges(rows, what)

    def node_attrs(self, node_type: NodeType) -> Mapping[str, Rows]:
        return self._attrs(self._node_prefix[node_type], self.num_nodes[node_type], of_edges=False)

    def edge_attrs(self, edge_type: EdgeType) -> Mapping[str, Rows]:
        prefix = self._edge_prefix[edge_type]
        return self._attrs(prefix, self._count_edges(prefix), of_edges=True)

    def _attrs(self, prefix: str, count: int, *, of_edges: bool) -> dict[str, Rows]:
        members = self._members(prefix)
        if self.schema.homogeneous:  # nodes and edges have one prefix
            members = {name: key for name, key in members.items() if name.startswith("edge_") == of_edges}
        return {n: self._lazy(k) for n, k in members.items() if n in CHECKED or self._shapes[k][0][:1] == (count,)}

    @property
    def strays(self) -> list[str]:
        """One line for each array that is ignored, and each attribute with almost a known name."""
        types = not self.schema.homogeneous

        def below(prefix: str, attrs: Collection[str], rows: str, known: Collection[str] = KNOWN) -> list[str]:
            names = {key[len(prefix) :]: value for key, value in self._shapes.items() if key.startswith(prefix)}
            found = {name: value for name, value in names.items() if not (types and "/" in name)}
            return stray_arrays(f"{self.path}: {prefix}", found, attrs, rows, known)

        if not types:
            attrs = {*self.node_attrs(NODE), *self.edge_attrs(EDGE)}
            return below("", attrs, rows_of_attrs(self.num_nodes[NODE], self._count_edges("")))
        named = "in a file of several types, arrays are called TYPE/NAME or SRC__REL__DST/NAME"
        said = below("", (), named, ("class_names",))
        for t, prefix in sorted(self._node_prefix.items()):
            said += below(prefix, self.node_attrs(t), rows_of_attrs(self.num_nodes[t]))
        for e, prefix in self._edge_prefix.items():
            said += below(prefix, self.edge_attrs(e), rows_of_attrs(self._count_edges(prefix)), KNOWN - {"x"})
        return said

    def _count_edges(self, prefix: str) -> int:
        return self._shapes[prefix + "edge_index"][0][1]

    def _members(self, prefix: str) -> dict[str, str]:
        """Returns name -> key of the attributes below a prefix: numeric arrays that are neither structure, splits nor names."""
        names = {key.removeprefix(prefix): key for key in sorted(self._shapes) if key.startswith(prefix)}
        skip = {"edge_index", "num_nodes", *SPLIT_KEYS, *MASK_KEYS, *EDGE_SPLIT_KEYS}
        return {
            name: key
            for name, key in names.items()
            if name not in skip and "/" not in name
            if name in CHECKED or self._shapes[key][1].kind in "biuf"
        }

    @cached_property
    def _splits(self) -> list[tuple[str, NodeType, list[str]]]:
        """The splits of the file: (split, node type, keys below the prefix of the type)."""
        return [
            (name, t, keys)
            for t, prefix in sorted(self._node_prefix.items())
            for name, keys in split_keys({k.removeprefix(prefix) for k in self._shapes if k.startswith(prefix)}).items()
        ]

    def _edge_type(self, key: str) -> EdgeType:
        if key == "edge_index":
            return EDGE
        names = key.removesuffix("/edge_index").split("__")
        if len(names) != 3 or not all(names):
            raise DataError(f"{self.path}: {key!r}: expected 'SRC__REL__DST/edge_index'.")
        return names[0], names[1], names[2]

    def _count(self, node_type: NodeType) -> int:
        prefix = self._node_prefix[node_type]
        if prefix + "num_nodes" in self._shapes:
            return int(self._read(prefix + "num_nodes"))
        for key in (prefix + "x", prefix + "y"):
            if key in self._shapes:
                return self._shapes[key][0][0]
        raise DataError(
            f"{self.path}: the number of nodes of type {node_type!r} is unknown. Add '{prefix}x' or '{prefix}num_nodes'."
        )

    def _lazy(self, key: str) -> LazyArray | NpyFile:
        """Returns the rows of an array: an uncompressed one (``numpy.savez``) is read piece by piece, a compressed one whole."""
        shape, dtype = self._shapes[key]
        if key in self._stored and dtype.kind in "biuf" and shape:
            file = NpyFile(self.path, *self._stored[key])
            if not file.transposed or key.endswith("edge_index"):
                return file
        return LazyArray(shape, dtype, lambda: self._read(key))

    @cached_property
    def _stored(self) -> dict[str, tuple[int, int]]:
        return stored_members(self.path)

    def _below(self, prefix: str) -> Callable[[str], np.ndarray]:
        return lambda key: self._read(prefix + key)

    def _read(self, key: str) -> np.ndarray:
        try:
            with np.load(self.path, allow_pickle=False) as file:
                array: np.ndarray = file[key]
                return array
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise DataError(f"{self.path}: cannot read {key!r} ({error}).") from None


def read_headers(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Reads shape and dtype of each member, without its data."""
    headers = {}
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:  # a FIFO would be waited for
            for member in archive.namelist():
                with archive.open(member) as stream:
                    shape, _, dtype = read_npy_header(stream)
                headers[member.removesuffix(".npy")] = (shape, dtype)
    except FileNotFoundError:
        raise DataError(f"{path}: not found.") from None
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path}: expected an .npz file of plain arrays ({error}). If it was copied or downloaded, it may be incomplete: "
            "fetch it again. Otherwise write it again with numpy.savez."
        ) from None
    return headers


def stored_members(path: Path) -> dict[str, tuple[int, int]]:
    """Finds the uncompressed arrays of an ``.npz`` file: name -> (first byte, number of bytes)."""
    places = {}
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED or not member.filename.endswith(".npy"):
                continue
            file.seek(member.header_offset + _NAME_LENGTH_AT)
            name, extra = struct.unpack("<HH", file.read(4))
            begin = member.header_offset + _NAME_LENGTH_AT + 4 + name + extra
            places[member.filename.removesuffix(".npy")] = (begin, member.file_size)
    return places


# Splits beside a graph: arrays of node ids, or masks over all nodes, under the names that people give them.


SPLIT_KEYS = {"train_idx": "train", "valid_idx": "val", "val_idx": "val", "test_idx": "test"}
MASK_KEYS = {"train_mask": "train", "valid_mask": "val", "val_mask": "val", "test_mask": "test"}

_EDGE_ARRAYS = {
    "": "edge",
    "_label": "label",
    "_time": "time",
    "_negatives": "negatives",
    "_source_negatives": "source_negatives",
}


# train_edge, train_edge_label, ...: edges to predict -> (split, array of it)
EDGE_SPLIT_KEYS = {
    f"{given}_edge{suffix}": (split, name)
    for given, split in (("train", "train"), ("valid", "val"), ("val", "val"), ("test", "test"))
    for suffix, name in _EDGE_ARRAYS.items()
}


# All names of arrays with a meaning.
KNOWN = frozenset({*CHECKED, "edge_index", "num_nodes", "class_names", *SPLIT_KEYS, *MASK_KEYS, *EDGE_SPLIT_KEYS})
_LIKE = 0.85  # train_mask is so like trian_mask; edge_time is 0.78 like edge_type


def stray_arrays(
    where: str,
    arrays: Mapping[str, tuple[tuple[int, ...], np.dtype]],
    attrs: Collection[str],
    rows: str,
    known: Collection[str],
) -> list[str]:
    """Returns one line for each array that is ignored, and each attribute with almost a known name. Arrays of text are left out:
    they may be there for other readers.

    where: beginning of each line.  arrays: name -> shape and dtype.  attrs: those that are attributes.
    rows: which arrays are attributes (`rows_of_attrs`).  known: names with a meaning.
    """
    found, absent = [], [name for name in known if name not in arrays]
    for name, (shape, dtype) in sorted(arrays.items()):
        what, like = f"{where}{name}, {dtype} {list(shape)}", near(name, absent, cutoff=_LIKE)
        if name in known:
            continue
        if name in attrs and like:
            found.append(f"{what}: taken for an attribute.{like}")
        elif name in attrs and "x" in absent and dtype.kind == "f" and len(shape) == 2 and not name.startswith("edge_"):
            found.append(f"{what}: taken for an attribute, and there is no x. If these are the features, call them x.")
        elif name not in attrs and (like or (shape and dtype.kind in "biuf")):
            found.append(f"{what}: ignored, as {rows}.{like or near(name, absent)}")
    return found


def rows_of_attrs(nodes: int, edges: int | None = None) -> str:
    """Returns which arrays are attributes, for `stray_arrays`. edges: number of edges, if a name tells their attributes apart."""
    of_edges = "" if edges is None else f", or a name edge_... and {edges:,} rows"
    return f"an attribute has {nodes:,} rows{of_edges}"


def split_keys(keys: Collection[str], further: Mapping[str, str] = MappingProxyType({})) -> dict[str, list[str]]:
    """Returns split -> the keys that define it, ids before masks. further: other keys of ids -> split."""
    found: dict[str, list[str]] = {}
    for key, split in {**further, **SPLIT_KEYS, **MASK_KEYS}.items():
        if key in keys:
            found.setdefault(split, []).append(key)
    return found


def split_ids(file: str, keys: Sequence[str], read: Callable[[str], np.ndarray], count: int) -> np.ndarray:
    """Reads the ids of a split's nodes. Raises `DataError` for a mask that is not [count], and for arrays that contradict each
    other.

    keys: those of `split_keys`.  file: the beginning of error messages.
    """
    each = [_mask_ids(f"{file}{key}", read(key), count) if key in MASK_KEYS else read(key) for key in keys]
    for key, ids in zip(keys[1:], each[1:], strict=True):
        if not np.array_equal(np.unique(_ids(ids)), np.unique(_ids(each[0]))):
            raise DataError(
                f"{file}{keys[0]} and {key} are two different definitions of one split. Remove one of them."
            )
    return each[0]


def take_splits(
    where: str, arrays: Mapping[str, np.ndarray], count: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns (split -> ids of its nodes, arrays that define no split). where: the beginning of errors, those of `split_ids`.
    count: number of nodes."""
    keys = split_keys(arrays)
    splits = {split: split_ids(where, each, arrays.__getitem__, count) for split, each in keys.items()}
    taken = {name for each in keys.values() for name in each}
    return splits, {name: array for name, array in arrays.items() if name not in taken}


def _mask_ids(what: str, mask: np.ndarray, count: int) -> np.ndarray:
    """Returns the ids of a mask [N], or of the first of S masks [N, S]."""
    first = mask[:, 0] if mask.ndim == 2 and mask.shape[1] else mask
    if first.shape != (count,) or not (first.dtype == np.bool_ or (first.dtype.kind in "iu" and _is_binary(first))):
        raise DataError(
            f"{what}: expected a mask [{count}] of booleans or of 0 and 1, got {mask.dtype} {list(mask.shape)}. Ids of nodes "
            f"are called {what.rpartition(' ')[2].replace('mask', 'idx')}."
        )
    return np.flatnonzero(first)


def _is_binary(mask: np.ndarray) -> bool:
    return bool(((mask == 0) | (mask == 1)).all())


def _ids(split: np.ndarray) -> np.ndarray:
    return np.flatnonzero(split) if split.dtype == np.bool_ else split


def edge_columns(what: str, edge_index: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Returns the edges in some columns, [2, S]. Raises `DataError` for columns that do not exist."""
    count = edge_index.shape[1]
    if (
        columns.ndim != 1
        or columns.dtype.kind not in "iu"
        or (len(columns) and not 0 <= columns.min() <= columns.max() < count)
    ):
        raise DataError(f"{what}: expected columns of edge_index, 0 to {count - 1}.")
    return edge_index[:, columns]


# Converts tensors, arrays and lists given by a script to arrays on the host.


def host_array(name: str, value: Any) -> np.ndarray:
    """Converts a tensor of any device, an array or a list to an array; bfloat16, which numpy lacks, becomes float32."""
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{name}: expected a dense tensor or an array ({str(error).splitlines()[0]}).") from None
