"""Edge types to predict, one task each: its splits, and the edges that carry messages."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import DataError, EdgeType, counted, edge_type_str
from glt_lightning.graph import EdgeSplit
from glt_lightning.partition.edge_splits.columns import CHUNK, ColumnFile
from glt_lightning.partition.edge_splits.drawn import DrawnSplit, draw_split
from glt_lightning.partition.edge_splits.labels import EdgeLabels, edge_split, split_columns, times_of
from glt_lightning.partition.edge_splits.read import RELATION, Ends, read_edge_split
from glt_lightning.partition.links import Pairs, contains
from glt_lightning.partition.sources.base import GraphSource, file_of

_log = logging.getLogger(__name__)

RANDOM = ("num_val", "num_test", "neg_sampling_ratio", "seed")
Given = Mapping[str, Any] | None


@dataclass(frozen=True)
class LinkTask:
    """One edge type whose edges are predicted, and its reverse, if it has one. folder: of files without names."""

    source: GraphSource
    edge_type: EdgeType
    reverse: EdgeType | None
    folder: Path

    @property
    def name(self) -> str:
        return edge_type_str(self.edge_type)

    @property
    def ends(self) -> Ends:
        (src, _, dst), counts = self.edge_type, self.source.num_nodes
        return (src, int(counts[src])), (dst, int(counts[dst]))

    @property
    def pairs(self) -> Pairs:
        (src, sources), (dst, destinations) = self.ends
        return Pairs((sources, destinations), src == dst, seed=0)

    def read(self, given: Given) -> dict[str, EdgeSplit]:
        if given is None:
            own: Mapping[EdgeType, Mapping[str, Any]] = getattr(self.source, "edge_splits", {})
            if columns := getattr(self.source, "edge_columns", {}).get(self.edge_type):
                return self._of_columns(columns)
            if not own.get(self.edge_type):
                raise DataError(
                    f"{file_of(self.source)}edge_splits: the data set has none for edge type {self.name}. Give files as "
                    "edge_splits: {train, val, test}, draw them: {num_val: 0.1, num_test: 0.2}, or in a table name the column: "
                    "split."
                )
            given = own[self.edge_type]
        if any(isinstance(each, Mapping) and RELATION in each for each in given.values()):
            raise DataError(
                f"edge_splits: the edges of type {self.name} have relations. Name the edge attribute that has those of the "
                "graph: links.relation."
            )
        return {name: read_edge_split(f"edge_splits.{name}", each, self.ends) for name, each in given.items()}

    def _of_columns(self, columns: Mapping[str, np.ndarray]) -> dict[str, EdgeSplit]:
        """Those of the column ``split`` of a table, with the times that the table has."""
        edges, attrs = self.edge_index(self.edge_type), self.source.edge_attrs(self.edge_type)
        times = times_of(self.source, self.edge_type, "edge_time") if "edge_time" in attrs else None
        return {
            name: EdgeSplit(edge=edges[:, ids], time=None if times is None else times[ids])
            for name, ids in columns.items()
        }

    def edge_index(self, edge_type: EdgeType, keep: np.ndarray | None = None) -> np.ndarray:
        """Reads the edges of a type, int64 [2, E], into a file that is mapped. keep: bool [E], takes only these."""
        edges, at = self.source.edges(edge_type), 0
        with ColumnFile(self.folder, 2, edges.num_edges) as found:
            for ends in edges.chunks(CHUNK):
                own = slice(None) if keep is None else keep[at : at + len(ends[0])]
                found.add(*(each[own] for each in ends))
                at += len(ends[0])
            return found.array()

    def check_overlap(self, splits: Mapping[str, EdgeSplit], allowed: bool) -> None:
        """Raises `DataError` for pairs of nodes that are in training and in evaluation, in either direction."""
        hashes = {name: np.sort(self.pairs.hashes(*split.edge)) for name, split in splits.items()}
        for first, second in (("train", "val"), ("train", "test"), ("val", "test")):
            if first not in splits or second not in splits:
                continue
            both = np.flatnonzero(contains(hashes[first], self.pairs.hashes(*splits[second].edge)))
            if not len(both):
                continue
            pair = " and ".join(map(str, splits[second].edge[:, both[0]]))
            found = f"edge_splits: {first} and {second} of {self.name} share {counted(len(both), 'pair')} of nodes"
            found = f"{found} (for example {pair}, in one direction or the other)"
            if first == "train" and not allowed:
                raise DataError(
                    f"{found}. Messages would cross the edges that are to be predicted. Split by pairs "
                    "(edge_splits: {num_val: 0.1, num_test: 0.2}), or set partition.allow: [overlapping_splits]."
                )
            _log.warning("%s.", found)

    def kept(self, splits: Mapping[str, EdgeSplit]) -> dict[EdgeType, np.ndarray]:
        """Returns bool [E] of this edge type and of its reverse: the edges that may carry messages."""
        pairs, empty = self.pairs, np.zeros((2, 0), np.int64)
        held_out = [splits[name].edge for name in ("val", "test") if name in splits]
        evaluated = np.sort(pairs.hashes(*np.concatenate([empty, *held_out], axis=1)))
        trained = np.sort(pairs.hashes(*splits["train"].edge)) if "train" in splits else None
        masks, dropped = [], [evaluated if trained is None else evaluated[~contains(trained, evaluated)]]
        for src, dst in self.source.edges(self.edge_type).chunks(CHUNK):
            hashes = pairs.hashes(src, dst)
            keep = ~contains(evaluated, hashes)
            if trained is not None:
                keep = contains(trained, hashes) | (keep & ~pairs.is_pair(src, dst))
            masks.append(keep)
            dropped.append(hashes[~keep])
        kept = {self.edge_type: _joined(masks)}
        if self.reverse is not None:
            left_out = np.sort(np.concatenate(dropped))
            chunks = self.source.edges(self.reverse).chunks(CHUNK)
            kept[self.reverse] = _joined([~contains(left_out, pairs.hashes(dst, src)) for src, dst in chunks])
        return kept

    def with_val(self, splits: Mapping[str, EdgeSplit]) -> dict[str, EdgeSplit]:
        """Returns the splits with the validation edges among the training edges: the edges known at test time."""
        found = {name: split for name, split in splits.items() if name != "val"}
        if {"train", "val"} <= set(splits):
            found["train"] = EdgeSplit(edge=np.concatenate([splits["train"].edge, splits["val"].edge], axis=1))
        return found

    def _with_reverse(self, edges: np.ndarray, keep: np.ndarray) -> dict[EdgeType, np.ndarray]:
        """Returns which edges may carry messages, and which of the reverse edge type: those of a pair of which one does."""
        kept, pairs = {self.edge_type: keep}, self.pairs
        if self.reverse is not None:
            hashes = pairs.hashes(*edges)
            left_out = np.setdiff1d(hashes[~keep], hashes[keep])
            chunks = self.source.edges(self.reverse).chunks(CHUNK)
            kept[self.reverse] = _joined([~contains(left_out, pairs.hashes(dst, src)) for src, dst in chunks])
        return kept


@dataclass(frozen=True)
class RandomTask(LinkTask):
    """One edge type whose edges are split at random, by pairs of nodes."""

    _drawn: list[DrawnSplit] = field(default_factory=list)  # once it is

    def read(self, given: Given) -> dict[str, EdgeSplit]:
        (src, sources), (dst, destinations) = self.ends
        reverse = None if self.reverse is None else self.source.edges(self.reverse)
        count = sources if src == dst else (sources, destinations)
        self._drawn.append(draw_split(self.source.edges(self.edge_type), count, reverse, self.folder, **(given or {})))
        return dict(self._drawn[-1].splits)

    def check_overlap(self, splits: Mapping[str, EdgeSplit], allowed: bool) -> None:
        """There is none."""

    def with_val(self, splits: Mapping[str, EdgeSplit]) -> dict[str, EdgeSplit]:
        return {name: split for name, split in splits.items() if name != "val"}

    def kept(self, splits: Mapping[str, EdgeSplit]) -> dict[EdgeType, np.ndarray]:
        drawn = self._drawn[-1]
        held_out = drawn.num_held_out if "val" in splits else drawn.num_test
        kept = {self.edge_type: drawn.kept(self.source.edges(self.edge_type), held_out)}
        if self.reverse is not None:
            kept[self.reverse] = drawn.kept_reverse(self.source.edges(self.reverse), held_out)
        return kept


@dataclass(frozen=True)
class LabelTask(LinkTask):
    """One edge type whose labels are predicted. Its splits are columns of its edges, so parallel edges may be in several."""

    labels: EdgeLabels
    columns: dict[str, np.ndarray] = field(default_factory=dict)  # of each split, once they are read

    def read(self, given: Given) -> dict[str, EdgeSplit]:
        self.columns.update(split_columns(self.source, self.edge_type, given, self.labels))
        edges = self.edge_index(self.edge_type)
        by_time = None if given is None else given.get("time")
        time = by_time or ("edge_time" if "edge_time" in self.source.edge_attrs(self.edge_type) else None)
        return {
            name: edge_split(self.source, self.edge_type, edges, self.labels, ids, time)
            for name, ids in self.columns.items()
        }

    def check_overlap(self, splits: Mapping[str, EdgeSplit], allowed: bool) -> None:
        """Raises `DataError` for an edge that is in two splits."""
        for first, second in (("train", "val"), ("train", "test"), ("val", "test")):
            both = np.intersect1d(self.columns.get(first, ()), self.columns.get(second, ()))
            if len(both) and not allowed:
                raise DataError(
                    f"edge_splits: {first} and {second} of {self.name} share {counted(len(both), 'edge')}, such as edge "
                    f"{int(both[0])}. Remove them from one of the two."
                )

    def kept(self, splits: Mapping[str, EdgeSplit]) -> dict[EdgeType, np.ndarray]:
        edges = self.edge_index(self.edge_type)
        keep = np.ones(edges.shape[1], bool)
        for name in ("val", "test"):
            if name in splits:
                keep[self.columns[name]] = False
        return self._with_reverse(edges, keep)


@dataclass(frozen=True)
class RelationTask(LinkTask):
    """One edge type whose edges are of several relations, with splits that are pairs of nodes and a relation each."""

    labels: EdgeLabels

    def read(self, given: Given) -> dict[str, EdgeSplit]:
        given = getattr(self.source, "edge_splits", {})[self.edge_type] if given is None else given
        found = {
            name: read_edge_split(f"edge_splits.{name}", each, self.ends, relations=True)
            for name, each in given.items()
        }
        for name, each in found.items():
            self._check(f"edge_splits.{name}", each)
        if "train" not in found:
            keep = self.kept(found)[self.edge_type]
            found["train"] = EdgeSplit(edge=self.edge_index(self.edge_type, keep), label=self._relations[keep])
        return found

    def _check(self, what: str, split: EdgeSplit) -> None:
        label, count = split.label, int(self.labels.num_classes or 0)
        if label is None or label.ndim != 1 or label.dtype.kind not in "iu" or split.negative_edges is not None:
            raise DataError(
                f"{what}: expected {{edge, {RELATION}}}, with an integer for each edge, and negatives at most."
            )
        if len(bad := np.flatnonzero((label < 0) | (label >= count))):
            raise DataError(
                f"{what}: edge {bad[0]} has relation {label[bad[0]]}; those of the graph are 0 to {count - 1}."
            )

    @property
    def _relations(self) -> np.ndarray:
        return np.asarray(self.labels.values[0 : len(self.labels.values)])

    def _of(self, splits: Mapping[str, EdgeSplit], relation: int) -> dict[str, EdgeSplit]:
        return {n: EdgeSplit(edge=each.edge[:, np.asarray(each.label) == relation]) for n, each in splits.items()}

    @property
    def pairs(self) -> Pairs:
        """Those of nodes in one direction: the other one may be an edge of its own."""
        (_, sources), (_, destinations) = self.ends
        return Pairs((sources, destinations), one_type=False, seed=0)

    def check_overlap(self, splits: Mapping[str, EdgeSplit], allowed: bool) -> None:
        """Raises `DataError` for edges of training that are in evaluation, too, with the same relation."""
        for relation in np.unique(self._relations) if "train" in splits and not allowed else ():
            own = self._of(splits, relation)
            trained = np.sort(self.pairs.hashes(*own["train"].edge))
            for name in sorted({"val", "test"} & set(own)):
                edges = own[name].edge
                both = np.flatnonzero(contains(trained, self.pairs.hashes(*edges)))
                if len(both):
                    pair = " and ".join(map(str, edges[:, both[0]]))
                    raise DataError(
                        f"edge_splits: train and {name} of {self.name} share {counted(len(both), 'edge')} of relation {relation} "
                        f"(for example {pair}). Remove them from one of the two, or set partition.allow: [overlapping_splits]."
                    )

    def kept(self, splits: Mapping[str, EdgeSplit]) -> dict[EdgeType, np.ndarray]:
        edges, relations, pairs = self.edge_index(self.edge_type), self._relations, self.pairs
        keep = np.ones(len(relations), bool)
        for relation in np.unique(relations):
            some, own = relations == relation, self._of(splits, relation)
            hashes = pairs.hashes(*edges[:, some])
            if "train" in own:
                keep[some] = contains(np.sort(pairs.hashes(*own["train"].edge)), hashes)
            else:
                held_out = np.concatenate([each.edge for each in own.values()], axis=1)
                keep[some] = ~contains(np.sort(pairs.hashes(*held_out)), hashes)
        return self._with_reverse(edges, keep)


def _joined(masks: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(masks) if masks else np.zeros(0, bool)
