"""The fitted encoding of a graph's tables: written beside the converted tables and into the partition, read from both."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from glt_lightning.base import DataError, EdgeType, edge_type_str
from glt_lightning.graph import MANIFEST, Manifest, open_array, open_regular, parse_json
from glt_lightning.partition.sources.tables.columns import feature_types
from glt_lightning.partition.sources.tables.encoders import (
    CategoryEncoder,
    CodeEncoder,
    Encoder,
    PlainEncoder,
    encoder_from_json,
)
from glt_lightning.partition.sources.tables.files import TableFiles, TablePiece
from glt_lightning.partition.stored_tables import TABLE_ENCODING

FILE = "encoding.json"
_FORMAT = "glt_lightning.table_encoding"


@dataclass(frozen=True)
class TableEncoding:
    """The features of one table.

    Attributes:
        encoders: The encoders of its columns, in the order of the features.
        asked: The keys of the user's mapping by which they were fitted.
        classes: Names of the labels 0, 1, ..., if labels are text.
    """

    encoders: Sequence[Encoder] = ()
    asked: Mapping[str, Any] | None = None
    classes: list[str] | None = None

    @cached_property
    def floats(self) -> list[Encoder]:
        return [each for each in self.encoders if not isinstance(each, CodeEncoder)]

    @cached_property
    def codes(self) -> list[CodeEncoder]:
        return [each for each in self.encoders if isinstance(each, CodeEncoder)]

    @property
    def num_codes(self) -> list[int]:
        """Number of codes of each column of codes."""
        return [each.num_codes for each in self.codes]

    def types(self, table: TableFiles) -> dict[str, pa.DataType]:
        """Returns the types by which the columns are read."""
        plain = [each.column for each in self.encoders if isinstance(each, PlainEncoder)]
        return table.read_types(each.column for each in self.encoders) | feature_types(table, plain)

    def unknown(self, rows: TablePiece) -> Counter[str]:
        """Counts the rows whose value is no known category, by column: such values are zeros, or code 0."""
        return Counter({e.column: e.unknown(rows) for e in self.encoders if isinstance(e, CategoryEncoder)})

    def read_floats(self, rows: TablePiece) -> np.ndarray:
        """Encodes the rows as features, float32 [N, D]."""
        return np.concatenate([each.encode(rows) for each in self.floats], axis=1, dtype=np.float32)

    def read_codes(self, rows: TablePiece) -> np.ndarray:
        """Encodes the rows as codes, int32 [N, C]."""
        return np.concatenate([each.encode(rows) for each in self.codes], axis=1)

    def to_json(self) -> dict[str, Any]:
        encoders = [each.to_json() for each in self.encoders]
        names = [name for each in self.floats for name in each.names]
        return {"asked": self.asked, "classes": self.classes, "columns": encoders, "features": names}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> TableEncoding:
        return cls([encoder_from_json(each) for each in raw["columns"]], raw["asked"], raw["classes"])


@dataclass(frozen=True, kw_only=True)
class GraphEncoding:
    """The features of all tables, by node type and by edge type written as SRC__REL__DST."""

    nodes: Mapping[str, TableEncoding]
    edges: Mapping[str, TableEncoding]
    target_type: str | None = None
    num_classes: int | None = None

    def to_bytes(self) -> bytes:
        raw = {
            "format": _FORMAT,
            "target_type": self.target_type,
            "num_classes": self.num_classes,
            "nodes": {t: table.to_json() for t, table in self.nodes.items()},
            "edges": {e: table.to_json() for e, table in self.edges.items()},
        }
        return json.dumps(raw, indent=1, ensure_ascii=False).encode()

    @classmethod
    def load(cls, folder: str | Path) -> GraphEncoding:
        """Loads the encoding of a partition, or of converted tables. Raises `DataError` if there is none."""
        found, where = encoding_bytes(folder)
        try:
            raw: Any = parse_json(found)
            if raw["format"] != _FORMAT:
                raise ValueError(f"format {raw['format']!r}")
            return cls(
                nodes={t: TableEncoding.from_json(table) for t, table in raw["nodes"].items()},
                edges={e: TableEncoding.from_json(table) for e, table in raw["edges"].items()},
                target_type=raw["target_type"],
                num_classes=raw["num_classes"],
            )
        except (ValueError, KeyError, TypeError, StopIteration) as error:
            raise DataError(
                f"{where}: not a valid encoding of tables ({error!r}). Delete its folder; the next run creates it "
                "again."
            ) from None


def encoding_bytes(folder: str | Path) -> tuple[bytes, Path]:
    """Reads the stored encoding. Returns its bytes and its file."""
    folder = Path(folder).expanduser()
    if (folder / MANIFEST).is_file():
        manifest = Manifest.load(folder)
        if TABLE_ENCODING in manifest.arrays:
            stored = open_array(folder, TABLE_ENCODING, manifest.arrays[TABLE_ENCODING])
            return stored.tobytes(), folder / TABLE_ENCODING
    elif (folder / FILE).is_file():
        with open_regular(folder / FILE) as stream:
            return stream.read(), folder / FILE
    else:
        raise DataError(f"{folder}: expected the folder of a partition (data.partition_dir) or of converted tables.")
    raise DataError(
        f"{folder}: this partition has no encoding of tables: its data set is not tables, or an earlier release made it. "
        "Partition the tables again."
    )


# The fitted encoding of a graph's tables, applied to rows that come later.


_log = logging.getLogger(__name__)


def encode_rows(
    folder: str | Path, table: Any, node_type: str | None = None, *, edge_type: EdgeType | str | None = None
) -> dict[str, np.ndarray]:
    """Encodes rows of a table as the features that a model was trained on.

    folder: the partition that was made of tables, or the folder of the converted tables.
    table: pandas DataFrame, pyarrow Table or mapping of columns, with the columns of the features under their names.
    node_type: needed when the graph has several.
    edge_type: for rows of a table of edges, (source, relation, destination) or ``source__relation__destination``.
    Returns ``x`` float32 [N, D] and ``x_codes`` int32 [N, C], for edges ``edge_attr`` and ``edge_codes``, if the table has
    such features. A value that is no known category is zeros, or code 0; their number is logged.

    Raises:
        DataError: For a folder without an encoding, and for rows without its columns.

    Example:
        >>> encode_rows("papers", {"year": [2001], "kind": ["book"]}, "paper")["x"].shape  # year, and two kinds
        (1, 3)
    """
    encoding = _chosen(GraphEncoding.load(folder), node_type, edge_type)
    if not encoding.encoders:
        raise DataError(
            f"encode_rows: {folder}: these rows have no features, because the mapping of the tables lists none."
        )
    rows = TablePiece(_columns(table, encoding), "encode_rows: row {}".format)
    names = ("x", "x_codes") if edge_type is None else ("edge_attr", "edge_codes")
    found = {names[0]: encoding.read_floats(rows)} if encoding.floats else {}
    if encoding.codes:
        found[names[1]] = encoding.read_codes(rows)
    log_unknown("encode_rows", encoding.unknown(rows), len(rows))
    return found


def log_unknown(what: str, counts: Mapping[str, int], rows: int) -> None:
    """Logs how many of some rows have no known category, by column."""
    for column, count in counts.items():
        if count:
            _log.warning("%s: column %s: %d of %d rows have no known category", what, column, count, rows)


def _chosen(graph: GraphEncoding, node_type: str | None, edge_type: EdgeType | str | None) -> TableEncoding:
    name, tables, key = "node_type", graph.nodes, node_type
    if edge_type is not None:
        name, tables = "edge_type", graph.edges
        key = edge_type if isinstance(edge_type, str) else edge_type_str(edge_type)
    elif key is None and len(tables) == 1:
        key = next(iter(tables))
    if key is None or key not in tables:
        raise DataError(f"encode_rows: {name}: expected one of {', '.join(tables)}; got {key!r}.")
    return tables[key]


def _columns(table: Any, encoding: TableEncoding) -> pa.RecordBatch:
    wanted = [each.column for each in encoding.encoders]
    try:
        known = list(table.column_names if hasattr(table, "column_names") else table.keys())
    except AttributeError:
        raise DataError(
            "encode_rows: table: expected a pandas DataFrame, a pyarrow Table or a mapping of columns; "
            f"got {type(table).__name__}."
        ) from None
    if missing := [name for name in wanted if name not in known]:
        raise DataError(
            f"encode_rows: table: lacks the columns {', '.join(missing)}; it has {', '.join(map(str, known[:20]))}."
        )
    try:
        return pa.record_batch([_array(table[name]) for name in wanted], wanted)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"encode_rows: table: cannot be read as columns of one length ({error}).") from None


def _array(values: Any) -> pa.Array:
    array = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values, from_pandas=True)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
