"""Requests and answers of the endpoint, in JSON and Arrow."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from glt_lightning.base import DataError, DeployOptions

ARROW = "application/vnd.apache.arrow.stream"
JSON = "application/json"
_TABLE = b"table"  # key of an Arrow schema's metadata
_FIELDS = ("ids", "pairs", "node_type", "edge_type", "nodes", "edges", "times", "key", "num_neighbors", "embedding")
_MOST_KEY = 1 << 64


class QuestionError(DataError):
    """A request, or a row of it, that cannot be answered. field: what is wrong, such as ``ids``.  row: its number there."""

    def __init__(self, message: str, field: str, row: int | None = None, status: int = 422) -> None:
        super().__init__(message)
        self.field, self.row, self.status = field, row, status

    def to_json(self) -> dict[str, Any]:
        return {"field": self.field, "row": self.row, "message": str(self)}


@dataclass(frozen=True, kw_only=True)
class Question:
    """A request.

    Attributes:
        ids: Nodes to predict, by the user's ids. None: the new nodes.
        pairs: Pairs of nodes to score, (source, destination).
        node_type, edge_type: Types of these; None: the type that the model predicts.
        nodes, edges: New rows, by name of the type.
        times: One for each id or pair.
        key: The key of all draws; None: that of the endpoint.
        num_neighbors: Fan-outs; None: those of the endpoint.
        embedding: Whether the answer has embeddings, too.
    """

    ids: Sequence[Any] | None = None
    pairs: Sequence[Sequence[Any]] | None = None
    node_type: str | None = None
    edge_type: str | None = None
    nodes: Mapping[str, pa.Table] = field(default_factory=dict)
    edges: Mapping[str, pa.Table] = field(default_factory=dict)
    times: Sequence[int] | None = None
    key: int | None = None
    num_neighbors: Sequence[int] | None = None
    embedding: bool = False

    @property
    def num_rows(self) -> int:
        tables = [*self.nodes.values(), *self.edges.values()]
        return len(self.ids or ()) + len(self.pairs or ()) + sum(len(each) for each in tables)


def read_question(body: bytes, content_type: str, limits: DeployOptions) -> Question:
    """Reads a request. Raises `QuestionError`, naming the field, for one that is damaged or beyond the limits."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == ARROW:
        given = _arrow(body, limits)
    elif kind in (JSON, ""):
        given = _json(body)
    else:
        raise QuestionError(f"content type: expected {JSON} or {ARROW}, got {kind!r:.80}.", "content-type", status=415)
    question = _question(given)
    if question.num_rows > limits.max_rows:
        raise _too_many(question.num_rows, limits)
    _check_fanouts(question.num_neighbors, limits)
    return question


def _too_many(rows: int, limits: DeployOptions) -> QuestionError:
    return QuestionError(
        f"the request has {rows} rows; at most {limits.max_rows} are answered at once (endpoint.max_rows). Send several "
        "requests.",
        "body",
        status=413,
    )


def _json(body: bytes) -> dict[str, Any]:
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise QuestionError(f"the body is no JSON ({error}).", "body", status=400) from None
    if not isinstance(given, dict):
        raise QuestionError("the body: expected a JSON object.", "body", status=400)
    return given


def _arrow(body: bytes, limits: DeployOptions) -> dict[str, Any]:
    """Reads Arrow streams, one after the other: ``ids`` and ``pairs`` are tables with these columns, new rows tables whose schema
    has the metadata ``table``, such as ``nodes:paper``. Further fields are in the metadata of the first one."""
    given: dict[str, Any] = {}
    source = pa.BufferReader(body)
    try:
        _require_plain(pa.BufferReader(body))
        while source.tell() < len(body):
            table = pa.ipc.open_stream(source).read_all()
            table.validate(full=True)
            _require_bounded(table, limits)
            meta = dict(table.schema.metadata or {})
            kind, _, name = meta.pop(_TABLE, b"").decode().partition(":")
            given |= {key.decode(): json.loads(value) for key, value in meta.items() if key.decode() in _FIELDS}
            if kind in ("nodes", "edges"):
                given.setdefault(kind, {})[name] = table.replace_schema_metadata(None)
            elif kind:
                raise ValueError(f"a table is named {kind}:{name}")
            else:
                given |= _asked_columns(table)
    except (pa.ArrowException, ValueError, OSError, UnicodeDecodeError, struct.error) as error:
        if isinstance(error, QuestionError):
            raise
        raise QuestionError(f"the body is no Arrow stream ({error!s:.200}).", "body", status=400) from None
    return given


def _require_bounded(table: pa.Table, limits: DeployOptions) -> None:
    """Raises `QuestionError` for columns whose values may take far more memory than the body has bytes: nulls, and rows that
    share their bytes, have no bound."""
    if len(table) > limits.max_rows:
        raise _too_many(len(table), limits)
    for name in table.column_names:
        kind = table.schema.field(name).type
        lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
        inner = kind.value_type if lists else kind
        plain = pa.types.is_integer(inner) or pa.types.is_floating(inner) or pa.types.is_boolean(inner)
        texts = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if not (plain or texts or pa.types.is_temporal(kind) or pa.types.is_decimal(kind)):
            raise QuestionError(
                f"column {name!r}: {kind}: expected numbers, text, times, or lists of numbers. Convert it.", name
            )


def _require_plain(source: Any) -> None:
    """Raises `QuestionError` for compressed buffers, whose size nothing says before they are read. Field 3 of a record batch, or
    of the one in a dictionary, has their codec (Arrow's Message.fbs)."""
    reader = pa.ipc.MessageReader.open_stream(source)
    while source.tell() < source.size():
        try:
            message = reader.read_next_message()
        except StopIteration:  # the end of one of several streams
            reader = pa.ipc.MessageReader.open_stream(source)
            continue
        raw = message.metadata.to_pybytes()
        header = _field(raw, struct.unpack_from("<i", raw)[0], 2)
        batch = header if message.type == "record batch" else None
        if message.type == "dictionary" and header is not None:
            batch = _field(raw, header, 1)
        if batch is not None and _field(raw, batch, 3) is not None:
            raise QuestionError(
                "Arrow streams of requests are not compressed. Write them without a codec.", "body", status=415
            )


def _field(raw: bytes, table: int, number: int) -> int | None:
    """Returns where the table is that a field of a table of FlatBuffers points to; None: it is not set."""
    vtable = table - struct.unpack_from("<i", raw, table)[0]
    (size,) = struct.unpack_from("<H", raw, vtable)
    at = 4 + 2 * number
    (offset,) = struct.unpack_from("<H", raw, vtable + at) if at < size else (0,)
    return table + offset + struct.unpack_from("<I", raw, table + offset)[0] if offset else None


def _asked_columns(table: pa.Table) -> dict[str, Any]:
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    found = {name: columns.pop(given) for name, given in (("ids", "id"), ("times", "time")) if given in columns}
    if {"source", "destination"} <= set(columns):
        found["pairs"] = [list(pair) for pair in zip(columns.pop("source"), columns.pop("destination"), strict=True)]
    if columns:
        raise ValueError(f"unknown column {next(iter(columns))!r}; expected id, or source and destination, and time")
    return found


def _question(given: Mapping[str, Any]) -> Question:
    if unknown := [name for name in given if name not in _FIELDS]:
        raise QuestionError(f"{unknown[0]}: unknown; expected any of {', '.join(_FIELDS)}.", unknown[0])
    for name in ("node_type", "edge_type"):
        if not isinstance(given.get(name), str | None):
            raise QuestionError(f"{name}: expected text.", name)
    if not isinstance(given.get("embedding", False), bool):
        raise QuestionError("embedding: expected true or false.", "embedding")
    ids, pairs = _list(given, "ids"), _list(given, "pairs")
    for row, pair in enumerate(pairs or ()):
        if not isinstance(pair, list) or len(pair) != 2:
            raise QuestionError("pairs: expected [source, destination].", "pairs", row)
    times = _list(given, "times")
    for row, each in enumerate(times or ()):
        if type(each) is not int or abs(each) >= 1 << 63:
            raise QuestionError(
                f"times: expected integers as in the graph (of dates in tables microseconds since 1970), got {each!r:.80}.",
                "times",
                row,
            )
    if ids is not None and pairs is not None:
        raise QuestionError("pairs: expected ids or pairs, got both.", "pairs")
    nodes, edges = (_tables(given.get(name), name) for name in ("nodes", "edges"))
    if not (ids or pairs or nodes):
        raise QuestionError("ids: expected some ids, pairs or new nodes, got none.", "ids")
    if times is not None and len(times) != len(ids or pairs or ()):
        raise QuestionError("times: expected one for each id or pair.", "times")
    return Question(
        ids=ids,
        pairs=pairs,
        node_type=given.get("node_type"),
        edge_type=given.get("edge_type"),
        nodes=nodes,
        edges=edges,
        times=times or None,
        key=_key(given.get("key")),
        num_neighbors=_list(given, "num_neighbors"),
        embedding=given.get("embedding", False),
    )


def _list(given: Mapping[str, Any], name: str) -> list[Any] | None:
    found = given.get(name)
    if found is not None and not isinstance(found, list):
        raise QuestionError(f"{name}: expected a list.", name)
    return found


def _key(given: Any) -> int | None:
    if given is None:
        return None
    try:
        key = int(given) if isinstance(given, int | str) and not isinstance(given, bool) else -1
    except ValueError:
        key = -1
    if not 0 <= key < _MOST_KEY:
        raise QuestionError(f"key: expected a number of 64 bits, got {given!r:.80}.", "key")
    return key


def _check_fanouts(given: Sequence[Any] | None, limits: DeployOptions) -> None:
    if given is None:
        return
    if not 1 <= len(given) <= limits.max_hops:
        raise QuestionError(
            f"num_neighbors: expected 1 to {limits.max_hops} fan-outs (endpoint.max_hops), got {len(given)}.",
            "num_neighbors",
        )
    for each in given:
        if type(each) is not int or not 1 <= each <= limits.max_fanout:
            raise QuestionError(
                f"num_neighbors: expected fan-outs of 1 to {limits.max_fanout} (endpoint.max_fanout), got {each!r:.80}.",
                "num_neighbors",
            )


# New rows


def _tables(given: Any, name: str) -> dict[str, pa.Table]:
    """Reads new rows by type. Those of the only type may stand alone; their type is then empty."""
    if given is None:
        return {}
    by_type = {"": given} if isinstance(given, list) else given
    if not isinstance(by_type, dict):
        raise QuestionError(f"{name}: expected rows by type, such as {{paper: [...]}}.", name)
    return {
        t: rows if isinstance(rows, pa.Table) else _table(rows, f"{name}.{t}".rstrip("."))
        for t, rows in by_type.items()
    }


def _table(given: Any, name: str) -> pa.Table:
    if isinstance(given, list):
        for row, each in enumerate(given):
            if not isinstance(each, dict):
                raise QuestionError(f"{name}: expected an object with columns, got {each!r:.80}.", name, row)
        names = dict.fromkeys(column for each in given for column in each)
        if not names:  # nodes without attributes: rows and no columns
            return pa.table({"": pa.nulls(len(given))}).select([])
        given = {column: [each.get(column) for each in given] for column in names}
    if not isinstance(given, dict) or not all(isinstance(column, list) for column in given.values()):
        raise QuestionError(f"{name}: expected a list of rows, or columns.", name)
    if len({len(column) for column in given.values()}) > 1:
        raise QuestionError(f"{name}: expected columns of one length.", name)
    return pa.table({column: _array(values) for column, values in given.items()})


def _array(values: list[Any]) -> pa.Array:
    """Makes a column; one with values of several kinds is text, as in a CSV file, so that its reader names the row at fault."""
    try:
        found = pa.array(values)
    except (pa.ArrowException, OverflowError):
        found = pa.array([None if each is None else _text(each) for each in values], pa.large_string())
    return found.cast(pa.large_string()) if pa.types.is_null(found.type) else found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# Answers


@dataclass(frozen=True)
class Answer:
    """The answer to a question.

    Attributes:
        names: What the rows were asked by: column -> values, of all rows.
        rows: Positions of those rows that have a prediction.
        columns: Column -> array [len(rows), ...].
        errors: What was wrong with the other rows, and with new rows.
        facts: What the answer is of: hash of the model, version of the graph, key.
    """

    names: Mapping[str, Sequence[Any]]
    rows: np.ndarray
    columns: Mapping[str, np.ndarray]
    errors: Sequence[QuestionError]
    facts: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        count = len(next(iter(self.names.values()), ()))
        predictions = [{name: values[row] for name, values in self.names.items()} for row in range(count)]
        listed = {name: values.tolist() for name, values in self.columns.items()}
        for at, row in enumerate(self.rows.tolist()):
            predictions[row] |= {name: values[at] for name, values in listed.items()}
        for error in self.errors:
            if error.row is not None and error.field in ("ids", "pairs", "times"):
                predictions[error.row]["error"] = error.to_json()
        return {"predictions": predictions, "errors": [error.to_json() for error in self.errors], **self.facts}

    def to_arrow(self) -> bytes:
        """Returns a stream with a row for each id, null where it has no prediction; ``facts`` and ``errors`` are metadata."""
        count = len(next(iter(self.names.values()), ()))
        at = np.full(count, -1)
        at[self.rows] = np.arange(len(self.rows))
        take = pa.array(at, mask=at < 0)
        arrays = {name: _names(values) for name, values in self.names.items()}
        arrays |= {name: _column(values).take(take) for name, values in self.columns.items()}
        meta = {**self.facts, "errors": [error.to_json() for error in self.errors]}
        table = pa.table(arrays).replace_schema_metadata({name: json.dumps(value) for name, value in meta.items()})
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue()


def _names(values: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except pa.ArrowException:
        return pa.array([str(each) for each in values])


def _column(values: np.ndarray) -> pa.Array:
    if values.dtype == object:
        return pa.array(values.tolist())
    if values.ndim == 1:
        return pa.array(values)
    flat = pa.array(np.ascontiguousarray(values).reshape(len(values), -1).ravel())
    return pa.FixedSizeListArray.from_arrays(flat, max(1, int(np.prod(values.shape[1:]))))
