"""Splits of edges by column: of edges with labels as given, at random or by time, of others by time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from glt_lightning.base import DataError, EdgeType, at_least, counted, edge_type_str
from glt_lightning.graph import EdgeSplit
from glt_lightning.partition.edge_splits.columns import chunks_of, mask_of, pieces_of, true_columns, true_rows
from glt_lightning.partition.edge_splits.read import SPLITS, read_array
from glt_lightning.partition.edge_splits.tasks import Kept, LinkTask
from glt_lightning.partition.links import sizes_of
from glt_lightning.partition.sources.base import GraphSource, Rows, classes_of

BY_TIME = ("num_val", "num_test", "time")
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
class TimeTask(LinkTask):
    """One edge type whose edges are split by time: test are the latest, then validation. The splits are columns of its edges, so
    parallel edges may be in several; loops are in none. No edge that is later than a held out one carries messages.

    given: ``{num_val, num_test, time}``; time: the name of an edge attribute.
    """

    @cached_property
    def splits(self) -> dict[str, EdgeSplit]:
        return {name: self.split_where(self._of(name)) for name in SPLITS if (self._bits & _bit(name)).any()}

    def _known(self) -> np.ndarray:
        """Returns bool [E]: which edges can be in a split."""
        return mask_of(self.pairs.is_pair(*ends) for _, *ends in pieces_of(self.edges))

    @cached_property
    def _bits(self) -> np.ndarray:
        """uint8 [E], a bit for each split that an edge is in."""
        return self._drawn(self.given or {}, self._known())

    def _of(self, name: str) -> np.ndarray:
        """Returns bool [E]: the edges of a split; none for a name that it has not."""
        found: np.ndarray = self._bits & _bit(name) != 0
        return found

    def _drawn(self, given: Mapping[str, Any], known: np.ndarray) -> np.ndarray:
        """Draws splits of the known edges, as `_bits`."""
        count, bits = int(np.count_nonzero(known)), np.zeros(len(known), np.uint8)
        sizes = sizes_of(count, given.get("num_val", 0), given.get("num_test", 0), "edges that can be in a split")
        at_least("seed", given.get("seed", 0), 0)
        begins = np.array([0, count - sum(sizes.values()), count - sizes["test"]])  # of the splits, in their order
        if given.get("time") is None:
            order = true_columns(known, self.folder, np.min_scalar_type(len(known)), "r+")
            np.random.default_rng(given.get("seed", 0)).shuffle(order)
            for name, own in zip(SPLITS, np.split(order, begins[1:]), strict=True):
                for _, each in chunks_of(own):
                    bits[each.astype(np.int64)] = _bit(name)
            return bits
        times = self.times(str(given["time"]))
        ordered, limits = true_rows(times, known, self.folder, np.int64, "r+"), []
        for begin in begins[1:]:
            if begin < count:
                ordered.partition(begin)
            limits.append(ordered[begin] if begin < count else np.iinfo(np.int64).max)
        for piece, each in chunks_of(times):
            # edges of one time are in one split: the later
            split = np.searchsorted(limits, each.astype(np.int64), side="right")
            bits[piece] = known[piece] * (1 << split)
        if not (bits & _bit("train")).any():
            raise DataError(f"links.edge_splits: time: {given['time']}: no edge is earlier than those of val and test.")
        return bits

    def check_overlap(self, allowed: bool) -> None:
        """There is none. A pair with an edge in training and a later one in evaluation is no leak."""

    def kept(self, at_test: bool = False) -> Kept:
        held_out = self._of("test") if at_test else self._of("test") | self._of("val")
        attr, limit = str((self.given or {})["time"]), np.iinfo(np.int64).max
        for piece, each in chunks_of(self.times(attr)):
            limit = min(limit, each[held_out[piece]].astype(np.int64).min(initial=limit))
        keep, reverse = self._before(limit, self.edge_type, attr), self.reverse
        if reverse is not None and attr in self.source.edge_attrs(reverse):
            return {self.edge_type: keep, reverse: self._before(limit, reverse, attr)}
        return self.with_reverse(keep, np.empty(0, np.uint64))

    def _before(self, limit: int, edge_type: EdgeType, attr: str) -> np.ndarray:
        """Returns bool [E]: the edges of a type whose times are below a limit."""
        return mask_of(each.astype(np.int64) < limit for _, each in chunks_of(self.times(attr, edge_type)))


@dataclass(frozen=True)
class LabelTask(TimeTask):
    """One edge type whose labels are predicted. Its splits are columns of its edges, so parallel edges may be in several; only
    edges with a label are in one.

    given: ``{num_val, num_test, seed}`` draws at random, with ``time``, the name of an edge attribute, the latest; ``{train, val,
    test}`` are edge ids or masks; None: the column ``split`` of a table.
    """

    labels: EdgeLabels

    @cached_property
    def splits(self) -> dict[str, EdgeSplit]:
        return {name: self.split_where(self._of(name)) for name in SPLITS if self._ids is None or name in self._ids}

    def split_where(self, mask: np.ndarray) -> EdgeSplit:
        """Makes a split with labels and attributes, too."""
        attrs, own = self.source.edge_attrs(self.edge_type), dict[str, np.ndarray]()
        for key, (name, dtype) in _ATTRS.items():
            if name in attrs and name != self.labels.attr:
                found = true_rows(attrs[name], mask, self.folder, dtype)
                own[key] = found.reshape(len(found), math.prod(found.shape[1:])) if key == "attr" else found
        label = true_rows(self.labels.values, mask, self.folder)
        return replace(super().split_where(mask), label=label, **own)

    def _known(self) -> np.ndarray:
        return self.labels.known()

    @cached_property
    def _ids(self) -> Mapping[str, Any] | None:
        """Edge ids or masks by split; None: they are drawn."""
        if self.given is not None:
            return self.given if set(self.given) <= set(SPLITS) else None
        own: Mapping[EdgeType, Mapping[str, np.ndarray]] = getattr(self.source, "edge_columns", {})
        if not own.get(self.edge_type):
            raise DataError(
                f"links.edge_splits: edges of type {self.name} have no splits. Draw them ({{num_val: 0.1, "
                "num_test: 0.1}, with time: ATTRIBUTE the latest), give edge ids by split, or in their table the column: split."
            )
        return own[self.edge_type]

    @cached_property
    def _bits(self) -> np.ndarray:
        """uint8 [E], a bit for each split that an edge is in."""
        known = self._known()
        if self._ids is None:
            return self._drawn(self.given or {}, known)
        bits = np.zeros(len(known), np.uint8)
        for name, each in self._ids.items():
            bits[_edge_ids(f"links.edge_splits.{name}", each, len(bits))] |= _bit(name)
        bits[~known] = 0
        return bits

    def check_overlap(self, allowed: bool) -> None:
        """Raises `DataError` for an edge that is in two splits."""
        for first, second in (("train", "val"), ("train", "test"), ("val", "test")) if not allowed else ():
            if (both := self._of(first) & self._of(second)).any():
                raise DataError(
                    f"edge_splits: {first} and {second} of {self.name} share {counted(int(both.sum()), 'edge')}, such as edge "
                    f"{int(both.argmax())}. Remove them from one of the two."
                )

    def kept(self, at_test: bool = False) -> Kept:
        keep = ~self._of("test")
        return self.with_reverse(keep if at_test else keep & ~self._of("val"))


def _bit(name: str) -> np.uint8:
    return np.uint8(1 << SPLITS.index(name))


def _edge_ids(what: str, given: Any, count: int) -> np.ndarray:
    ids = read_array(what, given)
    if ids.dtype == np.bool_ and ids.shape == (count,):
        return ids
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or ((ids < 0) | (ids >= count)).any():
        raise DataError(
            f"{what}: expected ids of edges, 0 to {count - 1}, or a mask over them; got {ids.dtype} {list(ids.shape)}."
        )
    return ids.astype(np.int64, copy=False)
