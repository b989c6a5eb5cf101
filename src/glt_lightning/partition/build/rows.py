"""Node attributes, written in the order of the new numbers, in bounded memory."""

from __future__ import annotations

import difflib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from glt_lightning.base import DataError, OptionError, PartitionOptions, edge_type_str
from glt_lightning.graph import ArrayEntry, ArrayWriter, EncodingEntry, disk_full_speaks, node_path
from glt_lightning.kernels import BFLOAT16, ENCODINGS, from_bfloat16, row_bytes
from glt_lightning.partition.build.finite import first_nonfinite
from glt_lightning.partition.build.layout import NodeLayout
from glt_lightning.partition.build.normalize import Transform, row_chunks
from glt_lightning.partition.build.pread import read_exactly
from glt_lightning.partition.build.times import TimeAttr, weights_by_type
from glt_lightning.partition.sources.base import GraphSource, Rows, in_memory

_CHUNK_BYTES = 2 << 20  # gathered, checksummed and written while it is in the CPU cache


def write_rows(
    folder: Path,
    index: int,
    name: str,
    rows: Rows,
    layout: NodeLayout,
    parts: Sequence[int],
    transform: Transform | None,
    stored: StoredAs,
    memory_bytes: int,
    done: Callable[[int], object],
) -> dict[str, ArrayEntry]:
    """Writes attribute ``name`` of node type ``index`` for the parts. done: called with the number of bytes written."""
    step = max(1, _CHUNK_BYTES // max(1, row_bytes(rows.dtype, rows.shape[1:])))
    entries: dict[str, ArrayEntry] = {}
    with _reader(folder, rows, layout, parts, memory_bytes) as reader:
        for part in parts:
            begin, end = layout.bounds[part : part + 2]
            with ArrayWriter(folder, node_path(part, index, name), stored.dtype, stored.row_shape) as writer:
                while begin < end:
                    piece = reader.read(begin, min(begin + step, end))
                    ids = layout.user_ids[begin : begin + len(piece)]
                    writer.write(stored.encode(piece if transform is None else transform(piece), ids))
                    done(piece.nbytes)
                    begin += len(piece)
            entries[writer.path] = writer.close()
    return entries


def _reader(
    folder: Path, rows: Rows, layout: NodeLayout, parts: Sequence[int], memory_bytes: int
) -> _MemoryReader | _BucketReader:
    array = in_memory(rows)
    if array is None and len(rows) * row_bytes(rows.dtype, rows.shape[1:]) <= memory_bytes // 2:
        array = rows[: len(rows)]
    if array is not None:
        return _MemoryReader(array, layout)
    return _BucketReader(folder, rows, layout, parts, memory_bytes)


class _MemoryReader:
    """Picks rows out of an array in memory."""

    def __init__(self, array: np.ndarray, layout: NodeLayout) -> None:
        self._array, self._layout = array, layout
        self._out = np.empty((0, *array.shape[1:]), array.dtype)

    def read(self, begin: int, end: int) -> np.ndarray:
        """Returns the rows of the new numbers [begin, end); valid until the next call."""
        if len(self._out) < end - begin:  # reused: a new array per piece would cost its page faults each time
            self._out = np.empty((end - begin, *self._array.shape[1:]), self._array.dtype)
        out = self._out[: end - begin]
        # "clip" changes no result, since all ids are in range: with the default, numpy copies through a buffer for ``out``.
        return np.take(self._array, self._layout.user_ids[begin:end], axis=0, out=out, mode="clip")

    def __enter__(self) -> _MemoryReader:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class _BucketReader:
    """Reads the user's rows once, in their order, and sorts them into ranges of new numbers that fit in memory.

    Ranges without a row of a part that is written stay holes in the working file.
    Within a range, rows lie in the order of the user's ids, so the position of a row needs no index.
    """

    def __init__(self, folder: Path, rows: Rows, layout: NodeLayout, parts: Sequence[int], memory_bytes: int) -> None:
        self._rows, self._layout, self._width = rows, layout, row_bytes(rows.dtype, rows.shape[1:])
        self._capacity = max(1, memory_bytes // 4 // self._width)
        self._begin = -self._capacity
        self._bucket = np.empty((0, *rows.shape[1:]), rows.dtype)
        self._place = np.empty(0, np.int64)
        self._scratch = Scratch(len(rows) * self._width, folder, limit=0)
        try:
            self._deal(parts, memory_bytes // 8)
        except BaseException:
            self._scratch.close()
            raise

    def read(self, begin: int, end: int) -> np.ndarray:
        """Returns the rows of the new numbers from ``begin`` on, at least one and at most ``end - begin``."""
        if not self._begin <= begin < self._begin + self._capacity:
            self._load(begin // self._capacity * self._capacity)
        return self._bucket[self._place[begin - self._begin : end - self._begin]]

    def _load(self, begin: int) -> None:
        end = min(begin + self._capacity, len(self._rows))
        data = self._scratch.read(begin * self._width, end * self._width)
        self._bucket = data.view(self._rows.dtype).reshape(-1, *self._rows.shape[1:])
        # `_deal` wrote the range in the order of user ids, so the rank of a row's user id in the range is its place.
        self._place = np.empty(end - begin, np.int64)
        self._place[np.argsort(self._layout.user_ids[begin:end])] = np.arange(end - begin)
        self._begin = begin

    def _deal(self, parts: Sequence[int], chunk_bytes: int) -> None:
        cursor = np.arange(0, len(self._rows), self._capacity)
        wanted = np.zeros(len(cursor), bool)
        for part in parts:
            begin, end = self._layout.bounds[part : part + 2]
            wanted[begin // self._capacity : -(-end // self._capacity)] |= begin < end
        at = 0
        for chunk in row_chunks(self._rows, chunk_bytes):
            bucket = self._layout.new[at : at + len(chunk)] // self._capacity
            dealt = chunk[
                np.argsort(bucket, kind="stable")
            ]  # stable: within a range rows stay in the order of user ids
            sizes = np.bincount(bucket, minlength=len(cursor))
            ends = np.cumsum(sizes)
            for b in np.flatnonzero(sizes * wanted).tolist():
                self._scratch.write(int(cursor[b]) * self._width, dealt[ends[b] - sizes[b] : ends[b]])
            cursor += sizes
            at += len(chunk)

    def __enter__(self) -> _BucketReader:
        return self

    def __exit__(self, *error: object) -> None:
        self._scratch.close()


# Working storage of the partitioner: memory if it fits, else a file without a name.


def float_matrix(rows: int, columns: int, folder: Path, limit: int) -> np.ndarray:
    """Makes zeros, float32 [rows, columns]: in memory if that takes at most ``limit`` bytes, else in a mapped nameless file."""
    size = 4 * rows * columns
    if size <= limit:
        return np.zeros((rows, columns), np.float32)
    with tempfile.TemporaryFile(dir=folder) as file, disk_full_speaks(folder, size):
        # Reserved first: a write to a mapped page on a full disk would kill the process (SIGBUS).
        os.posix_fallocate(file.fileno(), 0, size)
        return np.memmap(file, np.float32, "r+", shape=(rows, columns))


class Scratch:
    """Working storage of ``size`` bytes that are written in pieces and read in ranges.

    Attributes:
        memory: uint8 [size] if the bytes are held in memory, else None.
    """

    def __init__(self, size: int, folder: Path, limit: int) -> None:
        self.memory = np.empty(size, np.uint8) if size <= limit else None
        self._folder, self._size = folder, size
        # Without a name from the start, so that the kernel frees it however this process ends.
        self._buffer = np.empty(0, np.uint8)
        self._file = None if self.memory is not None else tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115

    def write(self, offset: int, array: np.ndarray) -> None:
        data = memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        if self._file is None:
            assert self.memory is not None
            self.memory[offset : offset + len(data)] = data
            return
        with disk_full_speaks(self._folder, self._size):
            while data:
                written = os.pwrite(self._file.fileno(), data, offset)
                data, offset = data[written:], offset + written

    def read(self, begin: int, end: int) -> np.ndarray:
        """Returns the bytes [begin, end), valid until the next read."""
        if self.memory is not None:
            return self.memory[begin:end]
        assert self._file is not None
        if len(self._buffer) < end - begin:
            self._buffer = np.empty(end - begin, np.uint8)
        out = self._buffer[: end - begin]
        read_exactly(self._file.fileno(), out, begin)
        return out

    def close(self) -> None:
        self.memory, self._buffer = None, np.empty(0, np.uint8)
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
        if nonfinite in self._allow or not (rows.dtype.kind == "f" or rows.dtype == BFLOAT16):
            nonfinite = None
        if kind is None:
            if rows.dtype == BFLOAT16:
                entry = EncodingEntry("bfloat16", "bfloat16")
                return StoredAs(what, ENCODINGS["bfloat16"].dtype, row_shape, entry, nonfinite)
            return StoredAs(what, rows.dtype, row_shape, None, nonfinite)
        encoding = ENCODINGS[kind]
        if rows.dtype.kind != "f" and rows.dtype != BFLOAT16:
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
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise OptionError(
            f"partition.storage: {missing} {name!r}; {called}: {', '.join(sorted(known)) or 'none'}.{hint}"
        )
