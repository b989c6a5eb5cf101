"""Rows saved beside a checkpoint: a folder of arrays, in the order of the user's ids for any partition, with hashes.

``X.ckpt.rows-NONCE/index.json`` names the tables, and of each array its file, bytes and BLAKE2b; the checkpoint has the nonce
and the hash of the index. The checkpoint is written after the folder and names it, so a crash leaves the old pair or the new
one (docs/tensors.md).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import DataError, WriteError, long_work
from glt_lightning.graph import open_regular, parse_json
from glt_lightning.tensors.reader import GraphReader
from glt_lightning.tensors.space import RowSpace
from glt_lightning.tensors.table import SharedTable
from glt_lightning.tensors.tables import SharedTables

_log = logging.getLogger(__name__)
VERSION = 1
INDEX = "index.json"
WEIGHT = "weight"
_AT_ONCE = 1 << 24  # bytes
_FIELDS = {"name", "of", "optimizer", "arrays"}
_ARRAY_FIELDS = {"file", "dtype", "shape", "bytes", "blake2b"}


@dataclass(frozen=True, eq=False)
class RowsToSave:
    """A table with the states of its optimizer.

    arrays: by name, ``weight`` first: dtype, shape [N, ...], and a function that reads rows int64 [n].
    order: int64 [N], the row of each user id.
    """

    name: str
    of: str
    optimizer: str | None
    arrays: Mapping[str, tuple[np.dtype, tuple[int, ...], Callable[[np.ndarray], np.ndarray]]]
    order: np.ndarray

    @property
    def total(self) -> int:
        """Number of rows of all arrays together."""
        return len(self.order) * len(self.arrays)

    def hash(self, name: str) -> str:
        """Returns the hash of the file that an array would be written to."""
        dtype, shape, read = self.arrays[name]
        return hash_of(_pieces(_npy_head(dtype, shape), read, self.order, dtype, shape, lambda _: None))


def write_rows(folder: Path, tables: Sequence[RowsToSave], graph: str) -> str:
    """Writes a new folder, complete and synced to disk when this returns. Returns the hash of its index.

    Raises `WriteError`, and then leaves no folder.
    """
    made = False
    try:
        folder.mkdir()
        made = True
        with long_work(_log, f"{folder.name}: written", sum(table.total for table in tables)) as advance:
            described = [_write_table(folder, number, table, advance) for number, table in enumerate(tables)]
        text = json.dumps({"version": VERSION, "graph": graph, "tables": described}, indent=1).encode()
        _write_file(folder / INDEX, [text])
        _sync(folder)
        _sync(folder.parent)
    except OSError as error:
        if made:  # a folder that existed before belongs to someone else
            shutil.rmtree(folder, ignore_errors=True)
        raise WriteError(
            f"{folder}: the rows of this checkpoint cannot be written ({error.strerror or error}). Free some space or choose "
            "another folder (default_root_dir, dirpath), then resume from the last checkpoint."
        ) from error
    return hash_of([text])


def _write_table(folder: Path, number: int, table: RowsToSave, advance: Callable[[int], object]) -> dict[str, Any]:
    arrays = {}
    for name, (dtype, shape, read) in table.arrays.items():
        path = folder / f"{number}-{name}.npy"
        head = _npy_head(dtype, shape)
        digest, nbytes = _write_file(path, _pieces(head, read, table.order, dtype, shape, advance))
        arrays[name] = {
            "file": path.name,
            "dtype": dtype.str,
            "shape": list(shape),
            "bytes": nbytes,
            "blake2b": digest,
        }
    return {"name": table.name, "of": table.of, "optimizer": table.optimizer, "arrays": arrays}


def _pieces(
    head: bytes,
    read: Callable[[np.ndarray], np.ndarray],
    order: np.ndarray,
    dtype: np.dtype,
    shape: tuple[int, ...],
    advance: Callable[[int], object],
) -> Iterator[bytes | memoryview]:
    yield head
    most = max(1, _AT_ONCE // max(1, dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))))
    for begin in range(0, len(order), most):
        rows = order[begin : begin + most]
        yield np.ascontiguousarray(read(rows)).reshape(-1).view(np.uint8).data
        advance(len(rows))


def _write_file(path: Path, pieces: Any) -> tuple[str, int]:
    digest, nbytes = hashlib.blake2b(digest_size=16), 0
    with path.open("xb") as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
            nbytes += len(piece)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest(), nbytes


def _npy_head(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """The header that `numpy.save` writes before the values, so that `numpy.load` reads the file."""
    text = repr({"descr": dtype.str, "fortran_order": False, "shape": shape})
    room = -(len(text) + 11) % 64
    line = f"{text}{' ' * room}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def hash_of(pieces: Any) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


class SavedRows:
    """Reads a folder of `write_rows`. digest: hash of its index according to the checkpoint; None: no checkpoint names it.

    Raises `DataError` for a folder that is missing, damaged, or of another checkpoint.
    """

    def __init__(self, folder: Path, digest: str | None) -> None:
        self.folder = folder
        try:
            with open_regular(folder / INDEX) as file:
                text = file.read()
        except OSError as error:
            advice = "A checkpoint with embeddings is a file and the folder beside it; copy both."
            raise DataError(
                f"{folder}: the rows of this checkpoint cannot be read ({error.strerror or error}). {_advice(error, advice)}"
            ) from None
        if digest is not None and hash_of([text]) != digest:
            raise DataError(f"{folder / INDEX}: damaged, or of another checkpoint. Use another checkpoint.")
        try:
            index = parse_json(text)
        except ValueError as error:
            raise DataError(f"{folder / INDEX}: damaged: it is no JSON ({error}).") from None
        version = index.get("version") if isinstance(index, dict) else None
        if version != VERSION:
            raise DataError(f"{folder / INDEX}: version {version!r:.80}; this release reads version {VERSION}.")
        if (odd := _odd(index)) is not None:
            raise DataError(f"{folder / INDEX}: damaged: {odd}. Use another checkpoint.")
        self.tables: dict[str, dict[str, Any]] = {table["name"]: table for table in index["tables"]}
        self.graph = str(index.get("graph"))

    def table(self, name: str) -> dict[str, Any]:
        if name not in self.tables:
            raise DataError(
                f"{self.folder}: no rows of embedding {name!r}; there are those of {', '.join(self.tables) or 'none'}."
            )
        return self.tables[name]

    def without_rows(self, name: str, deleted: Mapping[str, np.ndarray]) -> RowsToSave:
        """Returns a table to save anew: zeros for deleted nodes, and no states of its optimizer. deleted: user ids by type."""
        table, arrays = self.table(name), {}
        states = set(table["arrays"]) - {WEIGHT} if table["optimizer"] is not None else set()
        gone = np.asarray(deleted.get(table["of"], ()), np.int64)
        for array, found in table["arrays"].items():
            if array in states:
                continue
            shape = tuple(found["shape"])
            values = self.open(name, array, shape[1:], np.dtype(found["dtype"]))

            def read(rows: np.ndarray, values: np.ndarray = values) -> np.ndarray:
                some = np.array(values[rows])
                some[np.isin(rows, gone)] = 0
                return some

            arrays[array] = values.dtype, shape, read
        count = min(each[1][0] for each in arrays.values())
        return RowsToSave(name, table["of"], None, arrays, np.arange(count))

    def open(self, name: str, array: str, row_shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Maps an array [N, *row_shape], in the order of user ids, after comparing its bytes with the hash. Raises `DataError`
        for one that is missing, damaged, or of another dtype or shape."""
        table = self.table(name)
        found = table["arrays"].get(array)
        if found is None:
            raise DataError(
                f"{self.folder}: embedding {name!r} was saved without {array!r}, by optimizer {table['optimizer']}; there are "
                f"{', '.join(table['arrays'])}."
            )
        if tuple(found["shape"][1:]) != row_shape or found["dtype"] != dtype.str:
            raise DataError(
                f"{self.folder}: {array} of embedding {name!r} has rows {found['shape'][1:]} of {found['dtype']}; expected "
                f"{list(row_shape)} of {dtype.str}."
            )
        path = self.folder / found["file"]
        try:
            with open_regular(path) as file, long_work(_log, f"{path.name}: checked", found["shape"][0]) as advance:
                whole = hash_of(_read(file, found, advance))
            values: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be read ({error}). {_advice(error, 'Use another checkpoint.')}") from None
        if whole != found["blake2b"]:
            raise DataError(f"{path}: damaged: its hash differs from that of {INDEX}. Use another checkpoint.")
        if values.shape != tuple(found["shape"]) or values.dtype != dtype:
            raise DataError(
                f"{path}: damaged: an array {list(values.shape)} of {values.dtype.str}, and {INDEX} says {found['shape']} of "
                f"{found['dtype']}. Use another checkpoint."
            )
        return values


def _advice(error: Exception, otherwise: str) -> str:
    return "Let this user read it." if isinstance(error, PermissionError) else otherwise


def _odd(index: Mapping[str, Any]) -> str | None:
    """Describes the first fault in the tables of an index; None if they are as `write_rows` describes them."""
    tables = index.get("tables")
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        return "tables: expected a list of objects"
    for number, table in enumerate(tables):
        arrays = table.get("arrays")
        if set(table) != _FIELDS or not (isinstance(table["name"], str) and isinstance(table["of"], str)):
            return f"tables[{number}]: expected {', '.join(sorted(_FIELDS))}"
        if not (table["optimizer"] is None or isinstance(table["optimizer"], str)) or not isinstance(arrays, dict):
            return f"tables[{number}]: expected a name as optimizer, and an object as arrays"
        for name, each in arrays.items():
            if not isinstance(each, dict) or not _is_array(each):
                where = f"tables[{number}].arrays[{name!r:.40}]"
                return f"{where}: expected the name of a file beside {INDEX}, its dtype, shape, bytes and hash"
    return None


def _is_array(found: Mapping[str, Any]) -> bool:
    shape, file = found.get("shape"), found.get("file")
    return (
        set(found) == _ARRAY_FIELDS
        and all(isinstance(found[each], str) for each in ("dtype", "blake2b"))
        and isinstance(file, str)
        and file not in ("", ".", "..")
        and not {"/", "\0"}.intersection(file)
        and isinstance(shape, list)
        and len(shape) > 0
        and all(type(each) is int and each >= 0 for each in [found["bytes"], *shape])
    )


def _read(file: Any, found: Mapping[str, Any], advance: Callable[[int], object]) -> Iterator[bytes]:
    """Yields the bytes of a file. advance: called with the number of rows that were read, in proportion to the bytes."""
    done = read = 0
    while piece := file.read(_AT_ONCE):
        read += len(piece)
        rows = found["shape"][0] * min(read, found["bytes"]) // max(1, found["bytes"])
        advance(rows - done)
        done = rows
        yield piece


def open_saved(found: Mapping[str, Any]) -> SavedRows:
    """Opens the folder that a loaded checkpoint names. Raises `DataError` if its entries are damaged, or the folder is."""
    folder, digest, nonce = found.get("folder"), found.get("index"), found.get("nonce")
    named = is_nonce(nonce) and isinstance(folder, str) and folder.endswith(f".rows-{nonce}") and "\0" not in folder
    if not named or not isinstance(digest, str):
        raise DataError(
            f"rows of embeddings: expected a folder that ends in .rows-{{nonce}} and the hash of its index; the checkpoint has "
            f"{folder!r:.200}, {digest!r:.80}. It is damaged; use another one."
        )
    return SavedRows(Path(str(folder)), digest)


def is_nonce(found: object) -> bool:
    """Tells whether ``found`` is a valid nonce, with which the name of a folder of rows ends."""
    return isinstance(found, str) and found.isalnum() and len(found) <= 64


IDS = "ids"  # of edges, whose ids have gaps; rows of nodes are saved in the order of their ids
_KEYS = "keys"  # in place of ids of edges that share them with their reverses
_SNAPSHOT_AT_ONCE = 1 << 16  # rows


def save_tables(folder: Path, tables: SharedTables, named: Mapping[str, SharedTable], reader: GraphReader) -> None:
    """Writes tables to a new folder. A collective call. Raises `WriteError`, on other ranks `PeerError`."""

    def write() -> None:
        if tables.ranks.rank == 0:
            write_rows(folder, rows_to_save(named, reader), reader.manifest.options_hash)

    tables.ranks.all_or_none(write, lambda _: None)


def rows_to_save(named: Mapping[str, SharedTable], reader: GraphReader) -> list[RowsToSave]:
    return [_to_save(name, table, reader) for name, table in named.items()]


def _to_save(name: str, table: SharedTable, reader: GraphReader) -> RowsToSave:
    keys = _keys(reader, table.space, np.arange(table.num_rows))
    order = np.argsort(keys, kind="stable")
    arrays = {table.kind.name: (table.dtype, (len(keys), *table.row_shape), table.read)}
    if table.space.kind == "edge":
        arrays[_keys_name(reader, table.space)] = (keys.dtype, keys.shape, lambda rows: keys[rows])
    return RowsToSave(name, table.space.label, None, arrays, order)


def _keys_name(reader: GraphReader, space: RowSpace) -> str:
    columns = reader.manifest.edge_columns
    return IDS if columns is None or columns[space.index].reverse_of != space.index else _KEYS


def _keys(reader: GraphReader, space: RowSpace, rows: np.ndarray) -> np.ndarray:
    """Returns int64 [n]: a number for each row that is its own in every partition of the graph: the user's id, and where an edge
    shares it with its reverse, twice that, plus one for the edge from the greater node id to the lower."""
    ids = reader.user_ids(space, rows)
    if space.kind == "node" or _keys_name(reader, space) == IDS:
        return ids
    nodes = next(s for s in reader.spaces if s.kind == "node" and s.of == space.of[0])
    src, dst = (reader.user_ids(nodes, ends) for ends in reader.edge_ends(space, rows))
    return 2 * ids + (src > dst)


def kind_and_shape(saved: SavedRows, name: str) -> tuple[str, tuple[int, ...]]:
    """Returns the dtype name and the row shape of a saved table."""
    arrays = saved.table(name)["arrays"]
    kind = next(each for each in arrays if each not in (IDS, _KEYS))
    return kind, tuple(arrays[kind]["shape"][1:])


def load_table(saved: SavedRows, tables: SharedTables, table: SharedTable, reader: GraphReader) -> None:
    """Reads the rows of this host, on its first rank. Raises `DataError` if they are not of the nodes or edges of this graph."""
    homes = tables.homes
    if not homes.is_first:
        return
    values = saved.open(table.name, table.kind.name, table.row_shape, table.dtype)
    of_edges = table.space.kind == "edge"
    name = _keys_name(reader, table.space) if of_edges else ""
    keys = saved.open(table.name, name, (), np.dtype(np.int64)) if of_edges else None
    if len(values) != table.num_rows:
        raise _other_rows(saved, table.name, table.space, len(values))
    pieces = [
        (each.first + begin, each.begin + begin, min(_SNAPSHOT_AT_ONCE, each.count - begin))
        for each in table.own_parts
        for begin in range(0, each.count, _SNAPSHOT_AT_ONCE)
    ]
    with long_work(_log, f"tensor {table.name!r}: loaded", len(table.own)) as advance:
        for first, begin, count in pieces:
            wanted = _keys(reader, table.space, np.arange(first, first + count))
            at = wanted if keys is None else np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            if keys is not None and not np.array_equal(keys[at], wanted):
                raise _other_rows(saved, table.name, table.space, len(values))
            table.own[begin : begin + count] = values[at]
            advance(count)


def _other_rows(saved: SavedRows, name: str, space: RowSpace, rows: int) -> DataError:
    return DataError(
        f"{saved.folder}: tensor {name!r} has {rows} rows of another graph; {space.label!r} has {space.num_rows} rows here."
    )
