"""Converts tables of nodes and edges to arrays, by tasks (``tasks.py``): reads each table once, and looks up ends of edges among
the ids of nodes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from glt_lightning.base import DataError, EdgeType, NodeType, Progress, edge_type_str
from glt_lightning.partition.arrays import ArrayWriter, read_rows, seal_array
from glt_lightning.partition.sources.scipy_sparse import read_sparse
from glt_lightning.partition.sources.tables.columns import SPLITS, NodeFacts, edge_folder, save_facts
from glt_lightning.partition.sources.tables.encoders import Encoder, PlainEncoder
from glt_lightning.partition.sources.tables.encoding import GraphEncoding, TableEncoding
from glt_lightning.partition.sources.tables.files import Layout, Range, Scan, block_count, chosen_types
from glt_lightning.partition.sources.tables.fit import Fits, Fitting
from glt_lightning.partition.sources.tables.ids import BUCKET, EDGES_AT_ONCE, StoredIds, joined_facts
from glt_lightning.partition.sources.tables.job import IdFacts, Plan, TableJob, piece_name
from glt_lightning.partition.sources.tables.mapping import EdgeTable
from glt_lightning.partition.sources.tables.tasks import ENDS, INT32_MAX, row_dtype
from glt_lightning.partition.sources.tables.writers import encoding_of
from glt_lightning.partition.tasks.exchange import cut
from glt_lightning.partition.tasks.run import Calls

_ROWS = 1 << 20  # of labels and splits that are copied at once
_SCANNED = 64  # blocks of text that a task counts
_ID_BYTES = 512  # of memory for an id that is looked up: its bucket, those of edges, a hash table of about 200 bytes


class Conversion:
    """Converts the tables of a job, those of nodes first.

    width: how many tasks run at a time.  keys: what each type's ids are called in errors.
    """

    def __init__(
        self, job: TableJob, calls: Calls, width: int, progress: Progress, keys: Mapping[NodeType, str] | None = None
    ) -> None:
        self._job, self._calls, self._width, self._progress, self._keys = job, calls, width, progress, keys

    def _reading(self, name: str) -> _Reading:
        return _Reading(self._job, self._calls, self._width, self._progress, name)

    def nodes(self, t: NodeType, fitted: TableEncoding | None) -> tuple[NodeFacts, TableEncoding]:
        """Converts a table of nodes. fitted: the encoding to apply; None: fit one."""
        table, reading = self._job.tables.nodes[t], self._reading(f"nodes.{t}")
        found, encoding = reading.run([table.id] if table.id else [], fitted, "rows")
        if table.id is None:
            self._job.save_about(reading.name, IdFacts(count=reading.count, keys=False))
        else:
            if reading.count > INT32_MAX:
                raise DataError(
                    f"dataset: {reading.files.what}: has {reading.count} nodes with ids, and at most {INT32_MAX} are supported; "
                    "remove id."
                )
            self._store_ids(t, table.id, reading, [each["ids"] for each in found])
        return NodeFacts(num_nodes=reading.count, classes=encoding.classes), encoding

    def _store_ids(self, t: NodeType, column: str, reading: _Reading, found: Sequence[Mapping[str, Any]]) -> None:
        job, name, count = self._job, reading.name, reading.count
        is_text, first = joined_facts(found)
        at_once = max(1, min(BUCKET, job.memory_bytes // _ID_BYTES))
        buckets = -(-count // at_once) if count > at_once and first is None else 0
        bases = np.concatenate([[0], np.cumsum([each["nbytes"] for each in found])]).tolist()
        how = {"table": name, "is_text": is_text, "buckets": buckets}
        places = [how | {"rows": rows, "base": base} for rows, base in zip(reading.ranges, bases[:-1], strict=True)]
        self._calls.run("place_ids", places)
        folder = job.array_folder(name)
        if is_text:
            seal_array(folder, "ids_offsets.npy", np.dtype(np.int64), (count + 1,))
            seal_array(folder, "ids_bytes.npy", np.dtype(np.uint8), (bases[-1],))
        else:
            seal_array(folder, "ids.npy", np.dtype(np.int64), (count,))
        shutil.rmtree(job.scratch(name) / "ids", ignore_errors=True)
        pieces = tuple(map(piece_name, reading.ranges)) if buckets else ()
        job.save_about(
            name, IdFacts(count=count, keys=True, is_text=is_text, first=first, buckets=buckets, pieces=pieces)
        )
        if first is None:
            groups = cut(max(1, buckets), max(1, buckets // (4 * self._width)))
            checks = [{"table": name, "low": low, "high": high} for low, high in groups]
            again = [each for each in self._calls.run("check_ids", checks) if each is not None]
            if again:
                row, earlier, given = min(again, key=lambda each: each[0])
                raise DataError(
                    f"{reading.files.place(row)}, column {column!r}: id {given!r} was given before "
                    f"({reading.files.place(earlier)}); a node has one row. Remove one of them."
                )

    def edges(self, e: EdgeType, fitted: TableEncoding | None) -> TableEncoding:
        """Converts a table of edges. fitted: as for `nodes`."""
        table, reading = self._job.tables.edges[e], self._reading(f"edges.{edge_type_str(e)}")
        columns = [str(table.source), str(table.destination)]
        found, encoding = reading.run(columns, fitted, "edges")
        for end, column in enumerate(columns):
            unknown = [each["ends"][end] for each in found if each["ends"][end] is not None]
            ids, at = self._job.ids((e[0], e[2])[end]), ENDS[end]
            if isinstance(ids, StoredIds) and ids.buckets is not None:
                unknown += self._join(reading, end, ids.buckets.count, place=not unknown)
            if unknown:
                edge, given = min(unknown, key=lambda each: each[0])
                raise self._unknown(reading.files.place(edge), column, given, e, end, columns, reading.types[column])
            seal_array(self._job.array_folder(reading.name), f"{at}.npy", np.dtype(row_dtype(ids)), (reading.count,))
        return encoding

    def _join(self, reading: _Reading, end: int, buckets: int, place: bool) -> list[Any]:
        """Looks up ends that were dealt out, and writes their rows. Returns those that are no nodes: the edge, and its id.

        place: whether to write the rows, if all are found.
        """
        how = {"table": reading.name, "end": end, "edges": reading.count}
        groups = cut(buckets, max(1, buckets // (4 * self._width)))
        pieces = [*map(piece_name, reading.ranges)]
        joins = [how | {"pieces": pieces, "low": low, "high": high} for low, high in groups]
        chunks = -(-reading.count // EDGES_AT_ONCE)
        parts = cut(chunks, max(1, chunks // (4 * self._width)))
        starts = [low for low, _ in groups]
        places = [how | {"groups": starts, "low": low, "high": high} for low, high in parts]
        with self._progress.phase(
            f"joining {ENDS[end]} of {reading.files.what}", len(groups) + len(places), "tasks"
        ) as done:
            unknown = [each for each in self._calls.run("join_ends", joins, lambda _: done(1)) if each is not None]
            if place and not unknown:
                self._calls.run("place_ends", places, lambda _: done(1))
                shutil.rmtree(self._job.scratch(reading.name) / ENDS[end], ignore_errors=True)
        return unknown

    def _unknown(
        self, place: str, column: str, given: Any, e: EdgeType, end: int, columns: Sequence[str], kind: pa.DataType
    ) -> DataError:
        """Makes the error about an end that is no node. given: its id."""
        own, other = (e[0], e[2]) if end == 0 else (e[2], e[0])
        # The lookup compared it as the ids of the nodes are, text or numbers; the message has it as the table does.
        given = str(given) if pa.types.is_large_string(kind) else int(given)
        advice = "Add that node or remove the edge."
        one = pa.array([given], pa.large_string() if isinstance(given, str) else pa.int64())
        if own != other and self._job.ids(other).find(one)[0] >= 0:
            source, destination = columns
            advice = (
                f"It is an id of nodes: {other}. Are source and destination swapped? Then set source: {destination}, "
                f"destination: {source}, or exchange the node types in the name of the edge type."
            )
        return DataError(f"{place}, column {column!r}: {given!r} is not an id of {self._key(own)}. {advice}")

    def _key(self, t: NodeType) -> str:
        if self._keys is not None:
            return self._keys[t]
        table = self._job.tables.nodes[t]
        named = f"column {table.id!r} of {table.path[0]}" if table.id else "which have no ids, but rows from 0"
        return f"{self._job.what(f'nodes.{t}')} ({named})"


class _Reading:
    """The reading of one table.

    Attributes:
        count, ranges, types: Number of rows, the ranges that tasks read, and as which types; after `run`.
    """

    def __init__(self, job: TableJob, calls: Calls, width: int, progress: Progress, name: str) -> None:
        self._job, self._calls, self._parts, self._progress, self.name = job, calls, 4 * width, progress, name
        self.files = job.files(name)
        self.count, self.ranges, self.types = 0, list[Range](), dict[str, pa.DataType]()

    def run(
        self, ids: list[str], fitted: TableEncoding | None, unit: str
    ) -> tuple[list[Mapping[str, Any]], TableEncoding]:
        """Reads the table. Returns what each task found, and the encoding with the names of the classes.

        ids: columns of ids.  fitted: as of `Conversion.nodes`.
        """
        job, name, table = self._job, self.name, self._job.table(self.name)
        used = [*ids, table.label, table.split]
        self.files.check_columns([each for each in used if each])
        self._layout = _layout(job, self._calls, name, self._parts)
        job.save_about(name, self._layout)
        self.count = self._layout.num_rows
        self.files.infer = self._infer
        encoding, types = encoding_of(self.files, table, used, fitted, self._fit)
        types |= self.files.types(column for column in (table.label, table.split) if column)
        types |= self.files.read_types(ids)  # of text until all are known: 007 is another id than 7
        # If only the length of a table is needed, its first column is read.
        self.types = types or self.files.read_types(self.files.columns[:1])
        encoding = self._with_widths(encoding)
        job.save_about(name, Plan(types=self.types, encoding=encoding))
        self.ranges = self.files.ranges(self._layout, len(self.types), self._parts)
        calls = [{"table": name, "rows": rows} for rows in self.ranges]
        with self._progress.phase(f"converting {self.files.what}", self.count, unit) as done:
            found = self._calls.run("convert_rows", calls, done, [rows.rows for rows in self.ranges])
        folder = job.array_folder(name)
        folder.mkdir(parents=True, exist_ok=True)
        for array, (dtype, shape) in found[0]["arrays"].items():
            seal_array(folder, f"{array}.npy", np.dtype(dtype), (self.count, *shape))
        classes = None if fitted is None else fitted.classes
        if table.label is not None:
            classes = self._write_labels(found, classes)
        if table.split is not None:
            self._write_splits()
        return found, replace(encoding, classes=classes)

    def _infer(self, columns: list[str], missing: Sequence[str]) -> dict[str, pa.DataType]:
        if not columns:
            return {}
        ranges = self.files.ranges(self._layout, len(columns), self._parts)
        calls = [{"table": self.name, "columns": columns, "missing": missing, "rows": rows} for rows in ranges]
        with self._progress.phase(f"reading {self.files.what}", self.count, "rows") as done:
            return chosen_types(self._calls.run("find_types", calls, done, [rows.rows for rows in ranges]))

    def _fit(self, fitting: Fitting) -> Mapping[str, Encoder]:
        fits = Fits.begun(self.files, fitting)
        self._job.save_about(self.name, fits.fitting)
        ranges = self.files.ranges(self._layout, len(fits.fitting.types), self._parts)
        calls = [{"table": self.name, "rows": rows} for rows in ranges]
        with self._progress.phase(f"fitting {self.files.what}", self.count, "rows") as done:
            results = self._calls.run("fit_rows", calls, done, [rows.rows for rows in ranges])
        for rows, found in zip(ranges, results, strict=True):
            fits.add(found, self._job.fit_folder(self.name, rows))
        fitted = fits.finish()
        shutil.rmtree(self._job.scratch(self.name) / "fits", ignore_errors=True)
        return fitted

    def _with_widths(self, encoding: TableEncoding) -> TableEncoding:
        """Completes the encoding by the widths of lists of numbers, which are those of the first row."""
        found = encoding.encoders
        types = {e.column: self.types[e.column] for e in found if isinstance(e, PlainEncoder) and e.width is None}
        if not types or not self.count:
            return encoding
        first = next(self.files.read(self.files.ranges(self._layout, len(types), 1)[0], types, self._layout))
        head = replace(first, batch=first.batch.slice(0, 1))
        encoders = [
            replace(e, width=e.encode(head).shape[1]) if isinstance(e, PlainEncoder) and e.width is None else e
            for e in found
        ]
        return replace(encoding, encoders=encoders)

    def _write_labels(self, found: Sequence[Mapping[str, Any]], known: list[str] | None) -> list[str] | None:
        """Writes the labels, and returns the names of the classes. known: the classes of an encoding that is applied, by which
        labels are numbered."""
        dtype, names = np.dtype(found[0]["scratch"]["y"][0]), [each["classes"] for each in found]
        classes = None if names[0] is None else sorted({name for each in names for name in each})
        if known is not None:
            if classes is None or not set(classes) <= set(known):
                other = "numbers" if classes is None else repr(min(set(classes) - set(known)))
                raise DataError(
                    f"dataset: {self.files.what}: label: expected the classes of the encoding, {', '.join(known[:20])}; found "
                    f"{other}."
                )
            classes = known
        code = {name: at for at, name in enumerate(classes or ())}
        with ArrayWriter(self._job.array_folder(self.name), "y.npy", dtype, hashed=False) as writer:
            for rows, own in zip(self.ranges, names, strict=True):
                codes = None if own is None else np.array([*(code[name] for name in own), -1], np.int64)
                for y in self._scratch_rows("y.npy", dtype, rows.first, rows.first + rows.rows):
                    writer.write(y if codes is None else codes[y])
        return classes

    def _write_splits(self) -> None:
        folder = self._job.array_folder(self.name) / "splits"
        for code, name in enumerate(SPLITS):
            with ExitStack() as stack:
                at, writer = 0, None
                for codes in self._scratch_rows("splits.npy", np.dtype(np.int8), 0, self.count):
                    if len(ids := np.flatnonzero(codes == code)):
                        if writer is None:  # a split without rows has no file
                            writer = stack.enter_context(ArrayWriter(folder, f"{name}.npy", np.int64, hashed=False))
                        writer.write(ids + at)
                    at += len(codes)

    def _scratch_rows(self, path: str, dtype: np.dtype, begin: int, end: int) -> Iterator[np.ndarray]:
        for first in range(begin, end, _ROWS):
            yield read_rows(self._job.scratch(self.name), path, dtype, (min(_ROWS, end - first),), first)


def _layout(job: TableJob, calls: Calls, name: str, parts: int) -> Layout:
    """Counts the rows of the files of a table."""
    files = job.files(name)
    if not files.is_text:
        return Layout(files.row_groups(), [None] * len(files.paths))
    rows: list[list[int]] = [[] for _ in files.paths]
    cuts: list[list[int] | None] = [None if path.name.endswith(".gz") else [0] for path in files.paths]
    is_open = [False] * len(files.paths)
    scans: list[dict[str, Any]] = [
        {"table": name, "file": index, "begin": begin, "end": end}
        for index, path in enumerate(files.paths)
        if cuts[index] is not None
        for begin, end in cut(block_count(path), min(_SCANNED, -(-block_count(path) // parts)))
    ]
    for call, found in zip(scans, calls.run("scan_text", scans), strict=True):
        file = call["file"]
        if (known := cuts[file]) is not None:
            scan = Scan(*found[is_open[file]])
            rows[file] += scan.rows
            cuts[file] = [*accumulate([*known, *scan.cuts], max)] if scan.good else None
            is_open[file] = scan.open
    counted: list[dict[str, Any]] = [
        {"table": name, "file": index} for index, known in enumerate(cuts) if known is None
    ]
    for call, count in zip(counted, calls.run("count_text", counted), strict=True):
        rows[call["file"]] = [count]
    for index, known in enumerate(cuts):
        if known is not None:
            rows[index][0] -= 1  # the header
    return Layout(rows, cuts)


def convert_matrix(edges: EdgeTable, what: str, folder: Path, shape: tuple[int, int]) -> None:
    path = Path(edges.path[0]).expanduser()
    matrix = read_sparse(path)
    if matrix.shape != shape:
        raise DataError(
            f"{path}: the matrix is {list(matrix.shape)} (dataset: {what}), but the nodes of its rows and columns are "
            f"{list(shape)}; entry (i, j) is an edge from row i to row j of the tables of nodes."
        )
    arrays = {"source": matrix.source, "destination": matrix.destination, "edge_weight": matrix.weight}
    for name, array in arrays.items():
        if array is not None:
            with ArrayWriter(folder, f"{name}.npy", array.dtype, hashed=False) as writer:
                writer.write(array)


def convert_tables(
    job: TableJob, calls: Calls, width: int, progress: Progress, fitted: GraphEncoding | None
) -> GraphEncoding:
    """Writes all tables below ``job.out``.

    width: how many tasks run at a time.  fitted: the encoding to apply; None: fit one. Returns the encoding that was used.
    """
    conversion, tables = Conversion(job, calls, width, progress), job.tables
    node_features: dict[str, TableEncoding] = {}
    edge_features: dict[str, TableEncoding] = {}
    facts: dict[NodeType, NodeFacts] = {}
    for t in tables.nodes:
        stored = None if fitted is None else fitted.nodes.get(t, TableEncoding())
        facts[t], node_features[t] = conversion.nodes(t, stored)
    for e, edges in tables.edges.items():
        if edges.is_matrix:
            shape = facts[e[0]].num_nodes, facts[e[2]].num_nodes
            convert_matrix(edges, tables.key_of(e), edge_folder(job.out, e), shape)
        else:
            name = edge_type_str(e)
            stored = None if fitted is None else fitted.edges.get(name, TableEncoding())
            edge_features[name] = conversion.edges(e, stored)
    save_facts(job.out, facts)
    return GraphEncoding(nodes=node_features, edges=edge_features)
