"""Node attributes, written in the order of the new numbers, in bounded memory.

A part has one contiguous range of the new numbers of a node type, hottest first.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glt_lightning.base import DataError, OptionError, PartitionOptions, edge_type_str
from glt_lightning.graph import EncodingEntry
from glt_lightning.kernels import BFLOAT16, ENCODINGS, from_bfloat16, row_bytes
from glt_lightning.partition.build.normalize import is_float
from glt_lightning.partition.build.times import TimeAttr, weights_by_type
from glt_lightning.partition.folder import disk_full_speaks
from glt_lightning.partition.sources.base import GraphSource, LazyArray, Rows, in_memory, near, rows_bytes


@dataclass(frozen=True)
class NodeLayout:
    """The numbering of the nodes of one type.

    Attributes:
        bounds: P + 1 numbers; part p owns the new numbers [bounds[p], bounds[p + 1]).
        user_ids: [N], user id by new number.
        new: [N], new number by user id.
    """

    bounds: tuple[int, ...]
    user_ids: np.ndarray
    new: np.ndarray


def node_record(id_dtype: np.dtype) -> np.dtype:
    """The record of a node while it is sorted: 16 bytes, or 20 with 64-bit ids."""
    return np.dtype([("degree", "<i8"), ("id", id_dtype), ("hotness", "<f4")])


def number_record(id_dtype: np.dtype) -> np.dtype:
    """A user id and the new number."""
    return np.dtype([("id", id_dtype), ("number", id_dtype)])


def is_picked(rows: Rows, options: PartitionOptions) -> bool:
    """Tells whether rows are picked at random, as they are in memory or fit in half of it; others are read in their order. The
    processes of a host map one file, so they share the memory that it takes."""
    return isinstance(rows, LazyArray) or in_memory(rows) is not None or rows_bytes(rows) <= options.memory_bytes // 2


def float_matrix(rows: int, columns: int, folder: Path, limit: int) -> np.ndarray:
    """Makes zeros, float32 [rows, columns]: in memory if that takes at most ``limit`` bytes, else in a mapped nameless file."""
    size = 4 * rows * columns
    if size <= limit:
        return np.zeros((rows, columns), np.float32)
    with tempfile.TemporaryFile(dir=folder) as file, disk_full_speaks(folder, size):
        # Reserved first: a write to a mapped page on a full disk would kill the process (SIGBUS).
        os.posix_fallocate(file.fileno(), 0, size)
        return np.memmap(file, np.float32, "r+", shape=(rows, columns))


# The dtype and encoding in which attributes are stored: unchanged, or in fewer bytes (``partition.storage``).


@dataclass(frozen=True)
class StoredAs:
    """The stored form of one attribute: numbers of ``dtype`` in rows of ``row_shape``.

    what: the attribute's name in errors.  entry: the manifest's entry of the encoding; None: stored unchanged.
    allow: the value of ``partition.allow`` that would permit NaN and infinite values; None: they are permitted.
    """

    what: str
    dtype: np.dtype
    row_shape: tuple[int, ...]
    entry: EncodingEntry | None = None
    allow: str | None = None

    @property
    def bytes_per_row(self) -> int:
        return row_bytes(self.dtype, self.row_shape)

    def encode(self, rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Encodes rows for storage. ids: int [n], the user ids of the rows.

        Raises `DataError`, naming the first row that the encoding cannot represent.
        """
        self.require_allowed(rows, ids)
        if self.entry is None:
            return rows
        if self.entry.given == "bfloat16":
            return rows.view(self.dtype)
        if rows.dtype == BFLOAT16:
            rows = from_bfloat16(rows.view("<u2"))
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(rows, dtype=np.float32)
        self._require(np.isfinite(values), rows, "float32", ids)
        stored = ENCODINGS[self.entry.stored].encode(values)
        if self.entry.stored == "float16":
            self._require(np.isfinite(stored), rows, "float16, whose largest value is 65504: use bfloat16", ids)
        elif self.entry.stored == "bfloat16":
            self._require(stored & 0x7F80 != 0x7F80, rows, "bfloat16", ids)
        return stored

    def require_allowed(self, rows: np.ndarray, ids: np.ndarray) -> None:
        """Raises `DataError` for NaN and infinite values as `require_finite`, unless ``partition.allow`` permits them."""
        if self.allow is not None:
            self.require_finite(rows, ids, f", or set partition.allow: [{self.allow}]")

    def require_finite(self, rows: np.ndarray, ids: np.ndarray, remedy: str = "") -> None:
        """Raises `DataError`, naming the user id of the row, if a value is NaN or infinite."""
        at = first_nonfinite(rows)
        if at is not None:
            value = from_bfloat16(rows[at].view("<u2")) if rows.dtype == BFLOAT16 else rows[at]
            column = f", column {', '.join(map(str, at[1:]))}" if len(at) > 1 else ""
            raise DataError(
                f"{self.what}: row {ids[at[0]]}{column} is {value}, and training on it would give NaN. Replace such values, "
                f"for example by numpy.nan_to_num{remedy}."
            )

    def _require(self, good: np.ndarray, rows: np.ndarray, kind: str, ids: np.ndarray) -> None:
        if good.all():
            return
        at = np.unravel_index(int(good.argmin()), good.shape)
        assert self.entry is not None
        fault = f"does not fit {kind}" if np.isfinite(rows[at]) else f"{self.entry.stored} cannot represent"
        name = self.what.partition(" ")[0]
        raise DataError(
            f"{self.what}: row {ids[at[0]]} is {rows[at]}, which {fault}. Correct the data, or drop {name} from "
            "partition.storage."
        )


class Storage:
    """The stored form of all attributes of a source.

    Attributes:
        nodes, edges: The encoding of each attribute by type.
        weights: The attributes of each edge type whose prefix sums are stored.
        time_attr: The times that rows are ordered by, or None.

    Raises `OptionError` if ``storage``, ``weights`` or ``time_attr`` of the options name an attribute that the graph does not
    have, or that does not fit.
    """

    def __init__(self, source: GraphSource, options: PartitionOptions) -> None:
        self._wanted, self._allow = dict(options.storage), options.allow
        self.nodes = {t: self._all(source.node_attrs(t), t, f"node type {t!r}") for t in source.schema.node_types}
        self.edges = {
            e: self._all(source.edge_attrs(e), edge_type_str(e), f"edge type {edge_type_str(e)}")
            for e in source.schema.edge_types
        }
        self.weights = weights_by_type(source, options.weights)
        self.time_attr = None if options.time_attr is None else TimeAttr(source, options.time_attr)
        attrs = {t: set(found) for t, found in self.nodes.items()}
        attrs |= {edge_type_str(e): set(found) for e, found in self.edges.items()}
        for name, kind in self._wanted.items():
            if isinstance(kind, str):
                _require("the graph has no attribute", name, set().union(*attrs.values()), "its attributes")
                continue
            _require("the graph has no node or edge type", name, set(attrs), "its types")
            for own in kind:
                _require(f"{name} has no attribute", own, attrs[name], "its attributes")

    def _all(self, attrs: Mapping[str, Rows], of: str, owner: str) -> dict[str, StoredAs]:
        of_type = self._wanted.get(of)
        own = of_type if isinstance(of_type, dict) else {}
        made = {}
        for name, rows in attrs.items():
            kind, at = (own[name], f"{of}.{name}") if name in own else (self._wanted.get(name), name)
            made[name] = self._one(name, rows, f"{name} of {owner}", kind if isinstance(kind, str) else None, at)
        return made

    def _one(self, name: str, rows: Rows, what: str, kind: str | None, option: str) -> StoredAs:
        """Makes the stored form of one attribute. kind: its encoding; None: unchanged.  option: the key of ``partition.storage``
        that sets it."""
        row_shape = tuple(rows.shape[1:])
        nonfinite: str | None = "nonfinite_labels" if name == "y" else "nonfinite_features"
        if nonfinite in self._allow or not is_float(rows):
            nonfinite = None
        if kind is None:
            if rows.dtype == BFLOAT16:
                entry = EncodingEntry("bfloat16", "bfloat16")
                return StoredAs(what, ENCODINGS["bfloat16"].dtype, row_shape, entry, nonfinite)
            return StoredAs(what, rows.dtype, row_shape, None, nonfinite)
        encoding = ENCODINGS[kind]
        if not is_float(rows):
            raise OptionError(
                f"partition.storage.{option}: {kind} encodes floats, but {what} is {rows.dtype}. Drop this option: {name} is "
                "then stored unchanged."
            )
        if not encoding.fits(row_shape):
            raise OptionError(
                f"partition.storage.{option}: {kind} needs an attribute of shape [N, D], but {what} is {list(rows.shape)}. Use "
                "float16 or bfloat16."
            )
        return StoredAs(what, encoding.dtype, encoding.stored_shape(row_shape), EncodingEntry(kind, "float32"))


def _require(missing: str, name: str, known: set[str], called: str) -> None:
    """Raises `OptionError` unless the name is known."""
    if name not in known:
        listed = ", ".join(sorted(known)) or "none"
        raise OptionError(f"partition.storage: {missing} {name!r}; {called}: {listed}.{near(name, known)}")


# NaN and infinite values in rows that are written, found while they are in the CPU cache. Measured cost: 14 of the 178 ms of CPU
# time that it takes to partition 154 MB of features with hardly any edges.

_EXPONENTS = {"float16": 0x7C00, "bfloat16": 0x7F80}  # all bits set in NaN and infinities, and in nothing else


def first_nonfinite(rows: np.ndarray) -> tuple[int, ...] | None:
    """Index of the first NaN or infinite value; None if all are finite, or the rows are not floats."""
    half = "bfloat16" if rows.dtype == BFLOAT16 else rows.dtype.name
    if half in _EXPONENTS:  # numpy's isfinite is ten times slower for these
        bad = rows.view("<u2") & _EXPONENTS[half] == _EXPONENTS[half]
    elif rows.dtype.kind == "f":
        finite = np.isfinite(rows)
        if finite.all():
            return None
        bad = ~finite
    else:
        return None
    return tuple(map(int, np.unravel_index(int(bad.argmax()), bad.shape))) if bad.any() else None
