"""A graph without the edges that are to be predicted, which carry no messages."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from glt_lightning.base import DataError, EdgeType, GraphSchema, counted, edge_type_str
from glt_lightning.graph import IN_TRAINING, EdgeSplit
from glt_lightning.partition.edge_splits.columns import true_columns
from glt_lightning.partition.edge_splits.labels import BY_TIME, DRAWN, EdgeLabels, LabelTask, TimeTask, labels_of
from glt_lightning.partition.edge_splits.read import SPLITS, KeptEdges, KeptRows, identity
from glt_lightning.partition.edge_splits.relations import RelationTask
from glt_lightning.partition.edge_splits.tasks import RANDOM, Given, LinkTask, RandomTask
from glt_lightning.partition.sources.base import DelegatingSource, EdgeList, GraphSource, Rows, near

_log = logging.getLogger(__name__)

EDGE_KIND = "edge_type"  # the attribute that encoders of relations read
VAL_AT_TEST = "val_edges_at_test"
StoredSplits = dict[tuple[int, str], EdgeSplit]  # (index of the edge type in the schema, name of the split)


def hold_out_edges(
    source: GraphSource,
    edge_splits: Mapping[str, Given],
    reverse_edge_types: Mapping[str, str] | None = None,
    allow: Collection[str] = (),
    val_edges_at_test: bool = False,
    labels: Mapping[str, str | None] | None = None,
    relations: bool = False,
    folder: str | Path | None = None,
) -> LinkSource:
    """Makes the graph for a task that predicts edges: messages are passed over training edges alone, and the partition stores the
    edges of each split.

    An edge whose pair of nodes has no training edge is left out, in either direction, with its parallel edges and its edges of
    the reverse edge type. Self-loops that are in no split stay. Edge ids stay columns of the user's edges.

    Args:
        source: The graph, from `open_source`.
        edge_splits: Edge type (``src__rel__dst``) -> its splits: ``{train, val, test}``, each a path or an array of node ids
            [2, S] or [S, 2], or ``{edge, label, time, negatives}`` of these. Without ``train``: all edges that are not held
            out. ``{num_val, num_test, neg_sampling_ratio, seed}``: a split by `random_link_split`. ``{num_val, num_test,
            time}``: the latest edges by an edge attribute, as `edge_splits.labels.TimeTask` says. None: the splits of the data
            set.
        reverse_edge_types: Edge type -> its reverse edge type. An edge type ``rev_REL`` need not be named.
        allow: As ``partition.allow``: ``overlapping_splits`` permits pairs that are in training and evaluation.
        val_edges_at_test: Store validation edges, too. The edge attribute ``in_training`` (bool) is False for them: name it in
            ``partition.weights``, and draw by it except for the test.
        labels: Edge type -> the edge attribute that has labels to predict, None for the column ``label`` of its table. The edges
            of its splits are then those of the graph, as `edge_splits.labels.LabelTask` says, and those of validation and test
            are left out by column, not by pair; the attribute is no attribute of the graph any more.
        relations: The labels are the relations of the edges, integers, which the graph has as the attribute ``edge_type``.
        folder: For files of up to 32 bytes an edge, with labels and attributes of edges to predict, which are gone with the
            source. None: ``TMPDIR``, else ``/var/tmp``, since ``/tmp`` may be in memory.

    Raises:
        DataError: For an unknown edge type, a missing file, ids out of range, and splits that overlap or are not given.

    Example:
        >>> source = hold_out_edges(open_source("graph.npz", "data"), {"node__to__node": {"num_val": 2, "num_test": 4}})
        >>> {name: len(split) for name, split in source.edge_splits["node", "to", "node"].items()}
        {'train': 14, 'val': 2, 'test': 4}
        >>> partition_graph(source, "links", PartitionOptions(num_parts=2), progress=False).num_edges
        (14,)
    """
    if not edge_splits:
        raise DataError("edge_splits: no edge type is given. Name the edges to predict: input_type: src__rel__dst.")
    given = {_edge_type("input_type", name, source): splits for name, splits in edge_splits.items()}
    reverse = _reverses(source, reverse_edge_types or {})
    return LinkSource(
        source,
        given,
        {e: reverse[e] for e in given if e in reverse},
        "overlapping_splits" in allow,
        val_edges_at_test,
        {_edge_type("input_type", name, source): attr for name, attr in (labels or {}).items()},
        relations,
        Path((os.environ.get("TMPDIR") or "/var/tmp") if folder is None else folder),
    )


@dataclass(eq=False, repr=False)
class LinkSource(DelegatingSource):
    """The graph of `hold_out_edges`. Reads the edges once, when they are first needed. Of what a source need not have, such as
    user_ids, it has what the other graph has."""

    inner: GraphSource
    _given: Mapping[EdgeType, Given]
    _reverse: Mapping[EdgeType, EdgeType]
    _overlap: bool
    _val_at_test: bool
    label_attrs: Mapping[EdgeType, str | None]
    _relations: bool
    _folder: Path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def _load(self) -> GraphSource:
        return self.inner

    def __post_init__(self) -> None:
        self.name = self.inner.name
        for edge_type, splits in self._given.items():
            _check_keys(edge_type, splits, *([DRAWN] if edge_type in self.label_attrs else [RANDOM, BY_TIME]))

    @cached_property
    def edge_splits_hash(self) -> str:
        """A hash that changes with the edges to predict. The graph is not read for it."""
        own: list[Any] = [[e, self._reverse.get(e), self._identity(e)] for e in sorted(self._given)]
        own += [VAL_AT_TEST] if self._val_at_test else []
        kind = "relations" if self._relations else "labels"
        own += [[kind, e, attr] for e, attr in sorted(self.label_attrs.items())]
        return hashlib.blake2b(json.dumps(own, sort_keys=True).encode(), digest_size=8).hexdigest()

    def _identity(self, edge_type: EdgeType) -> Any:
        given = self._given[edge_type]
        if given is None or set(given) <= set(SPLITS):
            return identity(given)
        return {name: each if isinstance(each, str) else identity(each) for name, each in given.items()}

    @property
    def edge_splits(self) -> dict[EdgeType, dict[str, EdgeSplit]]:
        """The edges to predict of each edge type and split."""
        return self._resolved.splits

    @cached_property
    def labels(self) -> dict[EdgeType, EdgeLabels]:
        """The labels of all edges of the types whose labels are predicted."""
        found = self._labels()
        for edge_type, each in found.items() if self._relations else ():
            each.require_relations(edge_type_str(edge_type))
        return found

    def _labels(self) -> dict[EdgeType, EdgeLabels]:
        option = "links.relation" if self._relations else "links.label"
        return {e: labels_of(self.inner, e, attr, option) for e, attr in self.label_attrs.items()}

    def edges(self, edge_type: EdgeType) -> EdgeList:
        columns = self._columns(edge_type)
        edges = self.inner.edges(edge_type)
        return edges if columns is None else KeptEdges(edges, columns)

    def edge_attrs(self, edge_type: EdgeType) -> Mapping[str, Rows]:
        columns, trained = self._columns(edge_type), self._trained(edge_type)
        given = self.inner.edge_attrs(edge_type)
        attrs = {name: rows for name, rows in given.items() if name != self.label_attrs.get(edge_type)}
        if self._relations and edge_type in self.label_attrs:
            attrs[EDGE_KIND] = self.labels[edge_type].values
        if trained is not None and IN_TRAINING in attrs:
            raise DataError(
                f"val_edges_at_test: edges of type {edge_type_str(edge_type)} have an attribute {IN_TRAINING}. Rename it."
            )
        kept = attrs if columns is None else {name: KeptRows(rows, columns) for name, rows in attrs.items()}
        return kept if trained is None else kept | {IN_TRAINING: trained}

    def _columns(self, edge_type: EdgeType) -> np.ndarray | None:
        """The edges that are stored, ascending; None: all."""
        return self._resolved.columns.get(edge_type)

    def _trained(self, edge_type: EdgeType) -> Rows | None:
        """True for stored edges that carry messages in training, if validation edges are stored, too."""
        return self._resolved.trained.get(edge_type)

    def _task(self, edge_type: EdgeType) -> LinkTask:
        given = self._given[edge_type]
        of = (self.inner, edge_type, self._reverse.get(edge_type), self._folder, given)
        if edge_type not in self.label_attrs:
            drawn = set(given or ())
            return TimeTask(*of) if "time" in drawn else RandomTask(*of) if drawn & set(RANDOM) else LinkTask(*of)
        own = given or getattr(self.inner, "edge_splits", {}).get(edge_type) or {}
        if self._relations and any(isinstance(each, Mapping) for each in own.values()):
            return RelationTask(*of[:-1], own, self.labels[edge_type])
        return LabelTask(*of, self.labels[edge_type])

    @cached_property
    def _resolved(self) -> _Resolved:
        splits: dict[EdgeType, dict[str, EdgeSplit]] = {}
        masks: dict[EdgeType, np.ndarray] = {}
        at_test: dict[EdgeType, np.ndarray] = {}
        for edge_type in sorted(self._given):
            task = self._task(edge_type)
            found = task.splits
            may_overlap = self._overlap or (
                self._given[edge_type] is None and getattr(self.inner, "edge_splits_may_overlap", False)
            )
            task.check_overlap(may_overlap)
            _narrow(masks, task.kept())
            if self._val_at_test:
                _narrow(at_test, task.kept(at_test=True))
            if "train" not in found:
                found = {**found, "train": EdgeSplit(edge=task.edge_index(masks[edge_type]))}
            splits[edge_type] = {name: found[name] for name in SPLITS if name in found}
        for edge_type, keep in masks.items():
            _log.info(
                "edge_splits: %s of %s of type %s are in no training edge and carry no messages.",
                f"{np.count_nonzero(~keep):,}",
                counted(len(keep), "edge"),
                edge_type_str(edge_type),
            )
        stored, trained = masks, dict[EdgeType, np.ndarray]()
        if self._val_at_test:
            stored = {e: keep | at_test[e] for e, keep in masks.items()}
            trained = {e: masks[e][keep] for e, keep in stored.items()}
            more = sum(np.count_nonzero(~each) for each in trained.values())
            _log.info(
                "val_edges_at_test: %s edges of validation are stored; they carry messages at test alone.", f"{more:,}"
            )
        columns = {e: true_columns(keep, self._folder) for e, keep in stored.items() if not keep.all()}
        return _Resolved(splits, columns, trained)


class ExpectedSplits(NamedTuple):
    """What the splits of an edge type take.

    kind: ``random``, ``labels``, ``relations`` or ``given``.  edges: number of its edges and of its reverse edge type's.  share:
    of them that stays.  pairs: edges of all splits, about.  drawing_bytes: disk while they are drawn, about.  files_bytes:
    afterwards, until the graph is stored.
    """

    kind: str
    edges: int
    share: float
    pairs: int
    drawing_bytes: int
    files_bytes: int


class ExpectedLinks(LinkSource):
    """The graph of a `LinkSource` before it is made, for plans, which ask for sizes alone: no edge is read, and edges and rows of
    attributes have none.

    Held out are shares of the edges; where numbers of edges or edges themselves are given, all edges are taken to stay.
    """

    def __init__(self, links: LinkSource) -> None:
        vars(self).update(vars(links))

    @cached_property
    def labels(self) -> dict[EdgeType, EdgeLabels]:
        return self._labels()

    @property
    def edge_splits(self) -> dict[EdgeType, dict[str, EdgeSplit]]:
        return {}

    @property
    def splits_of(self) -> dict[EdgeType, ExpectedSplits]:
        """What the splits of each edge type to predict take."""
        found = {}
        for edge_type, given in self._given.items():
            types = {edge_type, self._reverse.get(edge_type, edge_type)}
            drawn = set(given or ()) & {*RANDOM, *DRAWN}
            by_column = edge_type in self.label_attrs or "time" in drawn
            predicts = "relations" if self._relations else "labels"
            kind = predicts if by_column else "random" if drawn else "given"
            count, own = (sum(self.inner.edges(e).num_edges for e in each) for each in (types, [edge_type]))
            share = self._share(given or {}, by_column) if drawn else 1.0
            # an edge of each linked pair: of a type with both directions half of the edges
            pairs = own // (2 if kind == "random" and edge_type[0] == edge_type[2] else 1)
            columns = 8 * round(share * count) if share < 1 else 0
            # hashes of pairs and their ends, and while they are drawn edges in buckets; else edges of the splits with labels
            files = {"random": 24 * pairs, "given": 0}.get(kind, 24 * own)
            drawing = files + 8 * own if kind == "random" else 0
            found[edge_type] = ExpectedSplits(kind, count, share, pairs, drawing, files + columns)
        return found

    def _share(self, given: Mapping[str, Any], by_column: bool) -> float:
        val, test = (0.0, 0.0) if by_column else (0.1, 0.2)
        sizes = [given.get("num_test", test)] + ([] if self._val_at_test else [given.get("num_val", val)])
        return max(0.0, 1 - sum(size for size in sizes if isinstance(size, float)))

    def _columns(self, edge_type: EdgeType) -> np.ndarray | None:
        """As many as there will be, without memory; None: all."""
        for own, each in self.splits_of.items():
            if edge_type in (own, self._reverse.get(own)) and each.share < 1:
                return np.broadcast_to(np.int64(0), round(each.share * self.inner.edges(edge_type).num_edges))
        return None

    def _trained(self, edge_type: EdgeType) -> Rows | None:
        held_out = self._val_at_test and edge_type in {*self._given, *self._reverse}
        return np.broadcast_to(np.True_, self.edges(edge_type).num_edges) if held_out else None


@dataclass(frozen=True)
class _Resolved:
    """The splits, and the edges that are stored.

    columns: the stored columns of the edge types from which some are left out.  trained: bool, True for stored edges that carry
    messages in training, if validation edges are stored, too."""

    splits: dict[EdgeType, dict[str, EdgeSplit]]
    columns: dict[EdgeType, np.ndarray]
    trained: dict[EdgeType, np.ndarray]


def _narrow(masks: dict[EdgeType, np.ndarray], kept: Mapping[EdgeType, np.ndarray]) -> None:
    for edge_type, keep in kept.items():
        masks[edge_type] = masks[edge_type] & keep if edge_type in masks else keep


def stored_splits(source: GraphSource, schema: GraphSchema) -> StoredSplits:
    """Returns the edges to predict, by the index of the edge type in ``schema`` and the name of the split."""
    given = source.edge_splits if isinstance(source, LinkSource) else {}
    return {(schema.edge_index(e), name): split for e, splits in given.items() for name, split in splits.items()}


def _check_keys(edge_type: EdgeType, splits: Given, *drawn: Sequence[str]) -> None:
    if splits is None:
        return
    keys = set(splits)
    if not keys or not any(keys <= set(each) for each in (SPLITS, *drawn)):
        expected = ", or of ".join(", ".join(each) for each in (SPLITS, *drawn))
        raise DataError(
            f"edge_splits: {edge_type_str(edge_type)}: expected any of {expected}; got "
            f"{', '.join(sorted(map(str, keys))) or 'nothing'}."
        )


def _edge_type(option: str, name: str | EdgeType, source: GraphSource) -> EdgeType:
    known = {edge_type_str(e): e for e in source.schema.edge_types}
    text = name if isinstance(name, str) else edge_type_str(name)
    if text not in known:
        raise DataError(f"{option}: unknown edge type {text!r}. The graph has {', '.join(known)}.{near(text, known)}")
    return known[text]


def _reverses(source: GraphSource, given: Mapping[str, str]) -> dict[EdgeType, EdgeType]:
    """Edge type -> its reverse, both ways."""
    found = {}
    for src, rel, dst in source.schema.edge_types:
        if (reverse := (dst, f"rev_{rel}", src)) in source.schema.edge_types:
            found[(src, rel, dst)], found[reverse] = reverse, (src, rel, dst)
    for one, other in given.items():
        first, second = (_edge_type("reverse_edge_types", name, source) for name in (one, other))
        if (first[0], first[2]) != (second[2], second[0]):
            raise DataError(
                f"reverse_edge_types: {edge_type_str(second)} does not lead from {first[2]!r} back to {first[0]!r}, so it is no "
                f"reverse of {edge_type_str(first)}."
            )
        found[first], found[second] = second, first
    return found
