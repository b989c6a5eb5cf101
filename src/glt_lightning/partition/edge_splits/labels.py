"""Edges of one type with labels, and their splits: by a column, at random, or by time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from glt_lightning.base import DataError, EdgeType, edge_type_str
from glt_lightning.graph import EdgeSplit
from glt_lightning.partition.edge_splits.read import SPLITS, read_array
from glt_lightning.partition.sources.base import GraphSource, Rows, classes_of

DRAWN = ("num_val", "num_test", "seed", "time")
_ATTRS = {"attr": "edge_attr", "codes": "edge_codes"}  # of edges to predict, by their names in `EdgeSplit`


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
        values = self.values[0 : len(self.values)]
        integers = values.ndim == 1 and values.dtype.kind in "iu"
        if not integers or (values < 0).any():
            got = f"{int(values.min())}" if integers else f"{values.dtype} {list(values.shape)}"
            raise DataError(
                f"links.relation: edges of type {name}: expected an integer >= 0 for each edge, or text; got {got}."
            )

    def known(self) -> np.ndarray:
        """Returns bool [E]: which edges have a label."""
        values = self.values[0 : len(self.values)]
        if values.dtype.kind == "b":
            return np.ones(len(values), bool)
        there = ~np.isnan(values) if values.dtype.kind == "f" else values >= 0
        return np.asarray(there if values.ndim == 1 else there.any(axis=1))


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
        values = np.asarray(values[0 : len(values)])[:, 0]
    return EdgeLabels(values, attr=attr)


def split_columns(
    source: GraphSource, edge_type: EdgeType, given: Mapping[str, Any] | None, labels: EdgeLabels
) -> dict[str, np.ndarray]:
    """Returns the columns of each split, ascending; only edges with a label are in one.

    given: ``{num_val, num_test, seed}`` draws at random, with ``time``, the name of an edge attribute, the latest; ``{train, val,
    test}`` are edge ids or masks; None: the column ``split`` of a table. Raises `DataError`.
    """
    count, known = len(labels.values), labels.known()
    if given is None:
        own: Mapping[EdgeType, Mapping[str, np.ndarray]] = getattr(source, "edge_columns", {})
        if not own.get(edge_type):
            raise DataError(
                f"links.edge_splits: edges of type {edge_type_str(edge_type)} have no splits. Draw them ({{num_val: 0.1, "
                "num_test: 0.1}, with time: ATTRIBUTE the latest), give edge ids by split, or in their table the column: split."
            )
        found = {name: np.asarray(ids) for name, ids in own[edge_type].items()}
    elif set(given) <= set(SPLITS):
        found = {name: _ids(f"links.edge_splits.{name}", each, count) for name, each in given.items()}
    else:
        found = _drawn(source, edge_type, given, np.flatnonzero(known))
    return {name: ids[known[ids]] for name in SPLITS if name in found and (ids := found[name]) is not None}


def _ids(what: str, given: Any, count: int) -> np.ndarray:
    ids = read_array(what, given)
    if ids.dtype == np.bool_ and ids.shape == (count,):
        return np.flatnonzero(ids)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or ((ids < 0) | (ids >= count)).any():
        raise DataError(
            f"{what}: expected ids of edges, 0 to {count - 1}, or a mask over them; got {ids.dtype} {list(ids.shape)}."
        )
    return np.unique(ids.astype(np.int64))


def _drawn(
    source: GraphSource, edge_type: EdgeType, given: Mapping[str, Any], columns: np.ndarray
) -> dict[str, np.ndarray]:
    sizes = {name: _size(f"num_{name}", given.get(f"num_{name}", 0), len(columns)) for name in ("val", "test")}
    if sum(sizes.values()) >= len(columns):
        raise DataError(
            f"links.edge_splits: num_val and num_test take {sum(sizes.values())} of {len(columns)} edges with labels, and leave "
            "none for training."
        )
    if given.get("time") is None:
        order = np.random.default_rng(int(given.get("seed") or 0)).permutation(columns)
        ends = np.cumsum([len(columns) - sum(sizes.values()), sizes["val"]])
        return dict(zip(SPLITS, (np.sort(each) for each in np.split(order, ends)), strict=True))
    times = times_of(source, edge_type, str(given["time"]))[columns]
    ordered, found = np.sort(times), {}
    begins = [len(columns) - sizes["val"] - sizes["test"], len(columns) - sizes["test"]]
    # Edges of one time are in one split: the later
    first, second = (ordered[begin] if begin < len(columns) else np.iinfo(np.int64).max for begin in begins)
    for name, chosen in (
        ("train", times < first),
        ("val", (times >= first) & (times < second)),
        ("test", times >= second),
    ):
        found[name] = columns[chosen]
    if not len(found["train"]):
        raise DataError(f"links.edge_splits: time: {given['time']}: no edge is earlier than those of val and test.")
    return found


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


def times_of(source: GraphSource, edge_type: EdgeType, attr: str) -> np.ndarray:
    """Reads the times of edges, int64 [E]. Raises `DataError` for an attribute that is none."""
    attrs = source.edge_attrs(edge_type)
    if attr not in attrs or len(attrs[attr].shape) != 1 or np.dtype(attrs[attr].dtype).kind not in "iuM":
        integers = [name for name, rows in attrs.items() if len(rows.shape) == 1 and np.dtype(rows.dtype).kind in "iuM"]
        raise DataError(
            f"links.edge_splits: time: expected an edge attribute of integers; got {attr!r}, and there is "
            f"{', '.join(sorted(integers)) or 'none'}."
        )
    return np.asarray(attrs[attr][0 : len(attrs[attr])]).astype(np.int64)


def edge_split(
    source: GraphSource,
    edge_type: EdgeType,
    edges: np.ndarray,
    labels: EdgeLabels,
    columns: np.ndarray,
    time: str | None,
) -> EdgeSplit:
    """Makes a split of some columns of edges int64 [2, E]: with labels, attributes and times. time: an edge attribute."""
    attrs = source.edge_attrs(edge_type)
    own = {
        key: np.asarray(attrs[name][columns]) for key, name in _ATTRS.items() if name in attrs and name != labels.attr
    }
    if "attr" in own:
        own["attr"] = own["attr"].reshape(len(columns), math.prod(own["attr"].shape[1:])).astype(np.float32)
    if "codes" in own:
        own["codes"] = own["codes"].astype(np.int64)
    times = None if time is None else times_of(source, edge_type, time)[columns]
    return EdgeSplit(edge=edges[:, columns], label=np.asarray(labels.values[columns]), time=times, **own)
