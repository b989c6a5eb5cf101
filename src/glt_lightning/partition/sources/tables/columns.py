"""Columns of tables as arrays: features, labels, splits, times and other attributes."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from glt_lightning.base import DataError, EdgeType, NodeType, edge_type_str
from glt_lightning.graph import open_regular, parse_json
from glt_lightning.partition.sources.tables.files import TableFiles, TablePiece
from glt_lightning.partition.sources.tables.ids import has_ids, load_ids, named
from glt_lightning.partition.sources.tables.raw_values import is_list, is_number, is_text, is_time

NUMBER_OR_DATE = r"^([+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]{4}-[0-9]{2}-[0-9]{2}.*)$"
SPLITS = ("train", "val", "test")
_SPLIT_CODES = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2, "": -1, "none": -1}


def feature_columns(table: TableFiles, given: Iterable[str], taken: Iterable[str]) -> list[str]:
    """Returns the columns that match names and patterns. A pattern leaves out columns that have another use."""
    known, found = table.columns, list[str]()
    for each in given:
        if each in known:
            found.append(each)
            continue
        matching = [name for name in known if fnmatch.fnmatchcase(name, each) and name not in set(taken)]
        if not matching:
            raise DataError(
                f"dataset: {table.what}: features: {each!r} neither names nor matches a column of "
                f"{table.paths[0]}, which has {', '.join(known[:20])}."
            )
        found += matching
    return list(dict.fromkeys(found))


def feature_types(table: TableFiles, columns: list[str]) -> dict[str, pa.DataType]:
    """Returns the types by which features are read: numbers as float32, lists unchanged."""
    if table.is_text:
        return dict.fromkeys(columns, pa.float32())
    types = table.types(columns)
    for name, kind in types.items():
        if not (is_list(kind) and is_number(kind.value_type)) and not is_number(kind):
            raise DataError(
                f"{table.paths[0]}: column {name!r} is {kind}; features are numbers, or lists of numbers of one "
                f"length. {remedy(name, kind)}"
            )
    return {name: kind if is_list(kind) else pa.float64() for name, kind in types.items()}


def remedy(name: str, kind: pa.DataType) -> str:
    """Returns advice about a column that is neither numbers nor lists of numbers."""
    if is_time(kind):
        return f"Set encode: {{{name}: date}} for days since 1970, or leave it out."
    if is_list(kind) or pa.types.is_nested(kind):
        return "Leave it out or convert it."
    return f"If it holds categories, set encode: {{{name}: category}}; else leave it out or convert it."


def values(piece: TablePiece, name: str) -> np.ndarray:
    """Reads an attribute: numbers and booleans unchanged, times as int64 microseconds since 1970."""
    array = piece.column(name)
    kind = array.type
    if is_time(kind):
        no_null(piece, name, array, "give it a time or leave the row out")
        return pc.cast(array, pa.timestamp("us"), safe=False).cast(pa.int64()).to_numpy()
    if not is_number(kind):
        _require_alike(piece, name, array)
        row = int(pc.is_valid(array).index(True).as_py())
        value = repr(array[row].as_py()) if row >= 0 else "the column"
        advice = f"A category is a feature: features: {name}, encode: {{{name}: category}}."
        raise piece.error(name, max(row, 0), f"{value} is {kind}; attributes are numbers, booleans or times. {advice}")
    no_null(piece, name, array, "give it a value or leave the row out")
    return array.to_numpy(zero_copy_only=False)


def _require_alike(piece: TablePiece, name: str, array: pa.Array) -> None:
    """Raises `DataError` if a text file's column is text because of a single word among numbers or times."""
    if not is_text(array.type):
        return
    good = pc.fill_null(pc.match_substring_regex(array, NUMBER_OR_DATE), True)
    row, alike = good.index(False).as_py(), good.index(True).as_py()
    if row >= 0 and alike >= 0 and pc.is_valid(array)[alike].as_py():
        raise piece.error(
            name,
            row,
            f"{array[row].as_py()!r} is neither a number nor a time, but {array[alike].as_py()!r} is. Correct the "
            "value.",
        )


def times(piece: TablePiece, name: str) -> np.ndarray:
    """Reads times, int64 [rows]. Raises `DataError` for other values."""
    found = values(piece, name)
    if found.dtype.kind not in "iu":
        raise piece.error(name, 0, f"{found.dtype}: expected integers or timestamps as times.")
    return found.astype(np.int64)


def weights(piece: TablePiece, name: str) -> np.ndarray:
    """Reads weights, float32 [rows]. Raises `DataError` for one that is not finite."""
    with np.errstate(over="ignore"):  # what overflows is found below
        found = values(piece, name).astype(np.float32)
    if (bad := ~np.isfinite(found)).any():
        row = int(bad.argmax())
        raise piece.error(name, row, f"weight {found[row]} is not a finite float32. Replace this value.")
    return found


def split_codes(piece: TablePiece, name: str) -> np.ndarray:
    """Returns int8 [rows]: position in train, val, test; -1 for none."""
    array = piece.column(name)
    if not pa.types.is_large_string(array.type):
        raise piece.error(name, 0, f"{array.type}: expected text: train, val (or valid), test, or nothing.")
    words = array.fill_null("").dictionary_encode()
    codes = [_SPLIT_CODES.get(word.strip().lower()) for word in words.dictionary.to_pylist()]
    if None in codes:
        row = int(pc.index(words.indices, codes.index(None)).as_py())
        message = f"unknown split {array[row].as_py()!r}; expected train, val (or valid), test, or an empty cell."
        raise piece.error(name, row, message)
    return np.array(codes, np.int8)[words.indices.to_numpy()]


class LabelColumn:
    """Reads a column of labels: text gives classes, integers stay, floats are a regression.

    name: of the column.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._codes: dict[str, int] | None = None

    @property
    def classes(self) -> list[str] | None:
        """Names of the classes that were read so far, in the order in which they came; None if labels are not text."""
        return None if self._codes is None else [*self._codes]

    def read(self, piece: TablePiece) -> np.ndarray:
        """Returns the labels of some rows, int64 or float32: of text the positions in ``classes``, -1 for none."""
        array = piece.column(self._name)
        if pa.types.is_large_string(array.type):
            known = self._codes = {} if self._codes is None else self._codes
            words = array.dictionary_encode()
            names = words.dictionary.to_pylist()
            codes = [known.setdefault(name, len(known)) for name in names]
            return np.array([*codes, -1], np.int64)[words.indices.fill_null(len(names)).to_numpy()]
        if pa.types.is_integer(array.type) or pa.types.is_boolean(array.type):
            return np.asarray(pc.cast(array, pa.int64()).fill_null(-1).to_numpy())
        if not pa.types.is_floating(array.type):
            raise piece.error(self._name, 0, f"{array.type}: expected text, integers or floats as labels.")
        found: np.ndarray = pc.cast(array, pa.float32(), safe=False).to_numpy(zero_copy_only=False)
        if (bad := ~np.isfinite(found)).any():
            message = "a float column is a regression and needs a finite label for each node. Store classes as integers"
            raise piece.error(self._name, int(bad.argmax()), f"{message} (in pandas: Int64) or text.")
        return found


def no_null(piece: TablePiece, name: str, array: pa.Array, advice: str) -> None:
    """Raises `DataError`, with the advice, for a missing value."""
    if array.null_count:
        raise piece.error(name, int(pc.index(pc.is_null(array), True).as_py()), f"the value is missing; {advice}.")


# Folders of converted tables: what is in one, and the way from ``n_id`` of batches back to the user's ids.


FACTS = "tables.json"
_FORMAT = "glt_lightning.tables"


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """Facts about a converted table of nodes. classes: names of the labels 0, 1, ..., None if labels are not text."""

    num_nodes: int
    classes: list[str] | None


def node_folder(folder: Path, node_type: NodeType) -> Path:
    return folder / "nodes" / node_type


def edge_folder(folder: Path, edge_type: EdgeType) -> Path:
    return folder / "edges" / edge_type_str(edge_type)


def save_facts(folder: Path, nodes: Mapping[NodeType, NodeFacts]) -> None:
    facts = {"format": _FORMAT, "nodes": {t: asdict(each) for t, each in nodes.items()}}
    (folder / FACTS).write_text(json.dumps(facts, indent=1, ensure_ascii=False), "utf-8")


def load_facts(folder: Path) -> dict[NodeType, NodeFacts]:
    path = folder / FACTS
    try:
        with open_regular(path) as stream:
            facts: Any = parse_json(stream.read())
        if facts["format"] != _FORMAT:
            raise ValueError(f"format {facts['format']!r}")
        return {t: NodeFacts(**each) for t, each in facts["nodes"].items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: not a valid description of converted tables ({error}). Delete its folder; the next run "
            "creates it again."
        ) from None


def user_ids(folder: str | Path, n_id: Any, node_type: NodeType | None = None) -> np.ndarray:
    """Looks up the ids of nodes in the user's table.

    folder: the folder of the converted tables (``open_source(dataset, root).folder``).
    n_id: integers [K], as in batches and predictions; an array, a list or a tensor.
    node_type: needed when the graph has several.
    Returns int64 [K], or objects [K] that are text; ``n_id`` itself if the ids of nodes are their rows.

    Raises:
        DataError: For a folder that holds no converted tables, or an id out of range.

    Example:
        >>> source = open_source(tables, "data")  # paper W-1 is row 0 of papers.csv
        >>> user_ids(source.folder, [2, 0])
        array(['W-3', 'W-1'], dtype=object)
    """
    nodes = load_facts(Path(folder))
    if node_type is None and len(nodes) == 1:
        node_type = next(iter(nodes))
    if node_type not in nodes:
        raise DataError(f"user_ids: node_type: expected one of {', '.join(nodes)}; got {node_type!r}.")
    rows = np.asarray(n_id)
    rows = rows.astype(np.int64) if rows.size == 0 else rows
    count = nodes[node_type].num_nodes
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or ((rows < 0) | (rows >= count)).any():
        raise DataError(
            f"user_ids: n_id: expected integers [K] of 0..{count - 1}, got {rows.dtype} {list(rows.shape)}."
        )
    place = node_folder(Path(folder), node_type)
    if not has_ids(place):
        return rows.astype(np.int64)
    return named(load_ids(place, rows))
