"""Edges of one type with labels, and their splits: by a column, at random, or by time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import DataError, EdgeType, edge_type_str
from glt_lightning.graph import EdgeSplit
from glt_lightning.partition.edge_splits.columns import CHUNK, ColumnFile, chunks_of, true_rows
from glt_lightning.partition.edge_splits.read import SPLITS, read_array
from glt_lightning.partition.sources.base import GraphSource, Rows, classes_of

DRAWN = ("num_val", "num_test", "seed", "time")
_ATTRS = {"attr": ("edge_attr", np.float32), "codes": ("edge_codes", np.int64)}  # by their names in `EdgeSplit`


@dataclass(frozen=True)
class EdgeLabels:
    """The labels of the edges of a type.

    values: [E] or [E, D]; negative integers and NaN are no labels.  class_names: names of the classes 0, 1, ..., or None.
    attr: the edge attribute that they are, None for the column ``label`` of a table.  column: the name of that.
    """

    values: Rows
    class_names: list[str] | None = None
    attr: str | None = None
    column: str | None = None

    @cached_property
    def num_classes(self) -> int | None:
        """Number of classes; None for a regression."""
        return len(self.class_names) if self.class_names is not None else classes_of(self.values)

    def require_relations(self, name: str) -> None:
        """Raises `DataError` unless each edge has a kind. name: the edge type."""
        integers = len(self.values.shape) == 1 and self.values.dtype.kind in "iu"
        least = min((int(each.min()) for _, each in chunks_of(self.values)), default=0) if integers else -1
        if least < 0:
            got = f"{least}" if integers else f"{self.values.dtype} {list(self.values.shape)}"
            raise DataError(
                f"links.relation: edges of type {name}: expected an integer >= 0 for each edge, or text; got {got}."
            )

    def known(self) -> np.ndarray:
        """Returns bool [E]: which edges have a label."""
        found = np.ones(len(self.values), bool)
        for piece, values in chunks_of(self.values) if self.values.dtype.kind != "b" else ():
            there = ~np.isnan(values) if values.dtype.kind == "f" else values >= 0
            found[piece] = there if values.ndim == 1 else there.any(axis=1)
        return found


class _OnlyColumn:
    """The column of an attribute [E, 1], as [E]."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self.shape, self.dtype = rows, tuple(rows.shape[:1]), rows.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: slice | np.ndarray, /) -> np.ndarray:
        return self._rows[index][:, 0]


def labels_of(source: GraphSource, edge_type: EdgeType, attr: str | None, option: str = "links.label") -> EdgeLabels:
    """Finds the labels of the edges of a type. attr: an edge attribute, or the column ``label`` of a table; None: that column.
    option: which names it, in errors.

    Raises `DataError` where there are none.
    """
    name = edge_type_str(edge_type)
    own: Mapping[EdgeType, EdgeLabels] = getattr(source, "edge_labels", {})
    if edge_type in own and attr in (None, own[edge_type].column):
        return own[edge_type]
    attrs = source.edge_attrs(edge_type)
    if attr is None:
        raise DataError(
            f"links.label: edges of type {name} have no labels. Name the edge attribute that has them (this type has "
            f"{', '.join(sorted(attrs)) or 'none'}), or in a table of edges the column: label: COLUMN."
        )
    if attr not in attrs:
        raise DataError(
            f"{option}: edges of type {name} have no attribute {attr!r}; they have {', '.join(sorted(attrs)) or 'none'}."
        )
    values = attrs[attr]
    if len(values.shape) > 2 or np.dtype(values.dtype).kind not in "biuf":
        raise DataError(
            f"{option}: {attr} of edge type {name} is {values.dtype} {list(values.shape)}; expected numbers [E] or [E, D]."
        )
    if len(values.shape) == 2 and values.shape[1] == 1:
        values = _OnlyColumn(values)
    return EdgeLabels(values, attr=attr)


@dataclass(frozen=True)
class SplitColumns:
    """The edges of each split. bits: uint8 [E], a bit for each split that an edge is in."""

    bits: np.ndarray
    names: tuple[str, ...]

    def of(self, name: str) -> np.ndarray:
        """Returns bool [E]: the edges of a split; none for a name that it has not."""
        found: np.ndarray = self.bits & _bit(name) != 0
        return found


def _bit(name: str) -> np.uint8:
    return np.uint8(1 << SPLITS.index(name))


def split_columns(
    source: GraphSource, edge_type: EdgeType, given: Mapping[str, Any] | None, labels: EdgeLabels, folder: Path
) -> SplitColumns:
    """Returns the edges of each split; only edges with a label are in one.

    given: ``{num_val, num_test, seed}`` draws at random, with ``time``, the name of an edge attribute, the latest; ``{train, val,
    test}`` are edge ids or masks; None: the column ``split`` of a table.  folder: of files without names.  Raises `DataError`.
    """
    known = labels.known()
    if given is not None and not set(given) <= set(SPLITS):
        return SplitColumns(_drawn(source, edge_type, given, known, folder), SPLITS)
    if given is None:
        own: Mapping[EdgeType, Mapping[str, np.ndarray]] = getattr(source, "edge_columns", {})
        if not own.get(edge_type):
            raise DataError(
                f"links.edge_splits: edges of type {edge_type_str(edge_type)} have no splits. Draw them ({{num_val: 0.1, "
                "num_test: 0.1}, with time: ATTRIBUTE the latest), give edge ids by split, or in their table the column: split."
            )
        given = own[edge_type]
    bits = np.zeros(len(known), np.uint8)
    for name, each in given.items():
        bits[_ids(f"links.edge_splits.{name}", each, len(bits))] |= _bit(name)
    bits[~known] = 0
    return SplitColumns(bits, tuple(name for name in SPLITS if name in given))


def _ids(what: str, given: Any, count: int) -> np.ndarray:
    ids = read_array(what, given)
    if ids.dtype == np.bool_ and ids.shape == (count,):
        return ids
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or ((ids < 0) | (ids >= count)).any():
        raise DataError(
            f"{what}: expected ids of edges, 0 to {count - 1}, or a mask over them; got {ids.dtype} {list(ids.shape)}."
        )
    return ids.astype(np.int64, copy=False)


def _drawn(
    source: GraphSource, edge_type: EdgeType, given: Mapping[str, Any], known: np.ndarray, folder: Path
) -> np.ndarray:
    """Draws splits of the edges with a label. Returns `SplitColumns.bits`."""
    count, bits = int(np.count_nonzero(known)), np.zeros(len(known), np.uint8)
    sizes = {name: _size(f"num_{name}", given.get(f"num_{name}", 0), count) for name in ("val", "test")}
    if sum(sizes.values()) >= count:
        raise DataError(
            f"links.edge_splits: num_val and num_test take {sum(sizes.values())} of {count} edges with labels, and leave "
            "none for training."
        )
    begins = np.array([0, count - sum(sizes.values()), count - sizes["test"]])  # of the splits, in their order
    if given.get("time") is None:
        with ColumnFile(folder, 1, count, np.min_scalar_type(len(known))) as columns:
            for begin in range(0, len(known), CHUNK):
                columns.add(np.flatnonzero(known[begin : begin + CHUNK]) + begin)
            order = columns.array("r+")[0]
        np.random.default_rng(int(given.get("seed") or 0)).shuffle(order)
        for name, first, end in zip(SPLITS, begins, [*begins[1:], count], strict=True):
            for begin in range(first, end, CHUNK):
                bits[order[begin : min(begin + CHUNK, end)].astype(np.int64)] = _bit(name)
        return bits
    times = times_of(source, edge_type, str(given["time"]))
    ordered, limits = true_rows(times, known, folder, np.int64, "r+"), []
    for begin in begins[1:]:
        if begin < count:
            ordered.partition(begin)
        limits.append(ordered[begin] if begin < count else np.iinfo(np.int64).max)
    for piece, each in chunks_of(times):
        split = np.searchsorted(limits, each.astype(np.int64), side="right")  # edges of one time are in one: the later
        bits[piece] = known[piece] * (1 << split)
    if not (bits & _bit("train")).any():
        raise DataError(f"links.edge_splits: time: {given['time']}: no edge is earlier than those of val and test.")
    return bits


def _size(name: str, given: Any, count: int) -> int:
    if (
        isinstance(given, bool)
        or not isinstance(given, (int, float))
        or given < 0
        or (isinstance(given, float) and given >= 1)
    ):
        raise DataError(
            f"links.edge_splits: {name}: expected a share below 1, or a number of edges; got {given!r:.80}."
        )
    return round(given * count) if isinstance(given, float) else given


def times_of(source: GraphSource, edge_type: EdgeType, attr: str) -> Rows:
    """Returns the times of edges, integers [E]. Raises `DataError` for an attribute that is none."""
    attrs = source.edge_attrs(edge_type)
    if attr not in attrs or len(attrs[attr].shape) != 1 or np.dtype(attrs[attr].dtype).kind not in "iuM":
        integers = [name for name, rows in attrs.items() if len(rows.shape) == 1 and np.dtype(rows.dtype).kind in "iuM"]
        raise DataError(
            f"links.edge_splits: time: expected an edge attribute of integers; got {attr!r}, and there is "
            f"{', '.join(sorted(integers)) or 'none'}."
        )
    return attrs[attr]


def edge_split(
    source: GraphSource,
    edge_type: EdgeType,
    edge: np.ndarray,
    labels: EdgeLabels,
    mask: np.ndarray,
    time: str | None,
    folder: Path,
) -> EdgeSplit:
    """Makes a split of the edges where a mask is true: with labels, attributes and times. edge: int64 [2, S], these edges.  time:
    an edge attribute.  folder: of files without names."""
    attrs, own = source.edge_attrs(edge_type), dict[str, np.ndarray]()
    for key, (name, dtype) in _ATTRS.items():
        if name in attrs and name != labels.attr:
            found = true_rows(attrs[name], mask, folder, dtype)
            own[key] = found.reshape(len(found), math.prod(found.shape[1:])) if key == "attr" else found
    if time is not None:
        own["time"] = true_rows(times_of(source, edge_type, time), mask, folder, np.int64)
    return EdgeSplit(edge=edge, label=true_rows(labels.values, mask, folder), **own)
