"""Edge types to predict, one task each: its splits, and the edges that carry messages."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import DataError, EdgeType, counted, edge_type_str
from glt_lightning.graph import EdgeSplit
from glt_lightning.partition.edge_splits.columns import CHUNK, Buckets, ColumnFile, distinct, true_rows
from glt_lightning.partition.edge_splits.drawn import DrawnSplit, draw_split
from glt_lightning.partition.edge_splits.labels import EdgeLabels, SplitColumns, edge_split, split_columns, times_of
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
        timed, found = "edge_time" in self.source.edge_attrs(self.edge_type), {}
        for name, ids in columns.items():
            mask = np.zeros(self.source.edges(self.edge_type).num_edges, bool)
            mask[ids] = True
            times = None
            if timed:
                rows = times_of(self.source, self.edge_type, "edge_time")
                times = true_rows(rows, mask, self.folder, np.int64)
            found[name] = EdgeSplit(edge=self.edge_index(self.edge_type, mask), time=times)
        return found

    def edge_index(self, edge_type: EdgeType, keep: np.ndarray) -> np.ndarray:
        """Reads the edges of a type where a mask is true, int64 [2, E], into a file that is mapped."""
        with ColumnFile(self.folder, 2, int(np.count_nonzero(keep))) as found:
            for ends in self._ends(edge_type, keep):
                found.add(*ends)
            return found.array()

    def _ends(self, edge_type: EdgeType, keep: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        at = 0
        for src, dst in self.source.edges(edge_type).chunks(CHUNK):
            own, at = keep[at : at + len(src)], at + len(src)
            yield src[own], dst[own]

    def _hashes(self, *splits: EdgeSplit) -> np.ndarray:
        """Returns the hashes of the pairs of splits, ascending."""
        hashes = (self.pairs.hashes(*split.edge[:, piece]) for split in splits for piece in _pieces(split))
        return distinct(hashes, sum(map(len, splits)), self.folder)

    def check_overlap(self, splits: Mapping[str, EdgeSplit], allowed: bool) -> None:
        """Raises `DataError` for pairs of nodes that are in training and in evaluation, in either direction."""
        hashes = {name: self._hashes(splits[name]) for name in ("train", "val") if name in splits}
        for first, second in (("train", "val"), ("train", "test"), ("val", "test")):
            if first not in splits or second not in splits:
                continue
            edge = splits[second].edge
            shared = [contains(hashes[first], self.pairs.hashes(*edge[:, piece])) for piece in _pieces(splits[second])]
            both = np.flatnonzero(_joined(shared))
            if not len(both):
                continue
            pair = " and ".join(map(str, edge[:, both[0]]))
            found = f"edge_splits: {first} and {second} of {self.name} share {counted(len(both), 'pair')} of nodes"
            found = f"{found} (for example {pair}, in one direction or the other)"
            if first == "train" and not allowed:
                raise DataError(
                    f"{found}. Messages would cross the edges that are to be predicted. Split by pairs "
                    "(edge_splits: {num_val: 0.1, num_test: 0.2}), or set partition.allow: [overlapping_splits]."
                )
            _log.warning("%s.", found)

    def kept(self, splits: Mapping[str, EdgeSplit], at_test: bool = False) -> dict[EdgeType, np.ndarray]:
        """Returns bool [E] of this edge type and of its reverse: the edges that may carry messages. at_test: those known at test
        time, with edges of validation."""
        pairs, evaluated = self.pairs, self._hashes(*_held_out(splits, at_test))
        trained = self._hashes(*_trained(splits, at_test)) if "train" in splits else None
        masks = []
        for src, dst in self.source.edges(self.edge_type).chunks(CHUNK):
            hashes = pairs.hashes(src, dst)
            keep = ~contains(evaluated, hashes)
            if trained is not None:
                keep = contains(trained, hashes) | (keep & ~pairs.is_pair(src, dst))
            masks.append(keep)
        kept = {self.edge_type: _joined(masks)}
        if self.reverse is not None:
            left_out = self._dropped(kept[self.edge_type])
            masks = []
            for src, dst in self.source.edges(self.reverse).chunks(CHUNK):
                hashes = pairs.hashes(dst, src)
                only = contains(evaluated, hashes)
                if trained is not None:
                    only &= ~contains(trained, hashes)
                masks.append(~(only | contains(left_out, hashes)))
            kept[self.reverse] = _joined(masks)
        return kept

    def _dropped(self, keep: np.ndarray) -> np.ndarray:
        """Returns the hashes of the edges that carry no messages, ascending."""
        hashes = (self.pairs.hashes(*ends) for ends in self._ends(self.edge_type, ~keep))
        return distinct(hashes, int(np.count_nonzero(~keep)), self.folder)

    def _with_reverse(self, keep: np.ndarray) -> dict[EdgeType, np.ndarray]:
        """Returns which edges may carry messages, and which of the reverse edge type: those of a pair of which one does."""
        kept, pairs = {self.edge_type: keep}, self.pairs
        if self.reverse is not None:
            dropped = self._dropped(keep)
            hashes = (pairs.hashes(*ends) for ends in self._ends(self.edge_type, keep))
            back = distinct((each[contains(dropped, each)] for each in hashes), len(keep), self.folder)
            reverse = (pairs.hashes(dst, src) for src, dst in self.source.edges(self.reverse).chunks(CHUNK))
            kept[self.reverse] = _joined([~contains(dropped, each) | contains(back, each) for each in reverse])
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

    def kept(self, splits: Mapping[str, EdgeSplit], at_test: bool = False) -> dict[EdgeType, np.ndarray]:
        drawn = self._drawn[-1]
        held_out = drawn.num_test if at_test else drawn.num_held_out
        kept = {self.edge_type: drawn.kept(self.source.edges(self.edge_type), held_out)}
        if self.reverse is not None:
            kept[self.reverse] = drawn.kept_reverse(self.source.edges(self.reverse), held_out)
        return kept


@dataclass(frozen=True)
class LabelTask(LinkTask):
    """One edge type whose labels are predicted. Its splits are columns of its edges, so parallel edges may be in several."""

    labels: EdgeLabels
    _columns: list[SplitColumns] = field(default_factory=list)  # of the splits, once they are read

    def read(self, given: Given) -> dict[str, EdgeSplit]:
        columns = split_columns(self.source, self.edge_type, given, self.labels, self.folder)
        self._columns.append(columns)
        by_time = None if given is None else given.get("time")
        time = by_time or ("edge_time" if "edge_time" in self.source.edge_attrs(self.edge_type) else None)
        found = {}
        for name in columns.names:
            mask = columns.of(name)
            edge = self.edge_index(self.edge_type, mask)
            found[name] = edge_split(self.source, self.edge_type, edge, self.labels, mask, time, self.folder)
        return found

    def check_overlap(self, splits: Mapping[str, EdgeSplit], allowed: bool) -> None:
        """Raises `DataError` for an edge that is in two splits."""
        of = self._columns[-1].of
        for first, second in (("train", "val"), ("train", "test"), ("val", "test")) if not allowed else ():
            if (both := of(first) & of(second)).any():
                raise DataError(
                    f"edge_splits: {first} and {second} of {self.name} share {counted(int(both.sum()), 'edge')}, such as edge "
                    f"{int(both.argmax())}. Remove them from one of the two."
                )

    def kept(self, splits: Mapping[str, EdgeSplit], at_test: bool = False) -> dict[EdgeType, np.ndarray]:
        keep = ~self._columns[-1].of("test")
        return self._with_reverse(keep if at_test else keep & ~self._columns[-1].of("val"))


class _Triples:
    """Pairs of nodes with their relations, in files.

    given: hashes of pairs, and a relation of each below ``count``.  most: their number at most.  folder: of files without names.
    """

    def __init__(self, given: Iterable[tuple[np.ndarray, np.ndarray]], most: int, count: int, folder: Path) -> None:
        self._count = count
        with (
            Buckets(folder, 2, most) as buckets,
            ColumnFile(folder, 1, most, np.uint64) as pairs,
            ColumnFile(folder, 1, most) as keys,
        ):
            for hashes, relations in given:
                buckets.add(hashes, hashes, relations.astype(np.uint64))
            for hashes, relations in buckets:
                order = np.lexsort((relations, hashes))
                ordered = hashes[order]
                first = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
                keys.add((pairs.count + np.cumsum(first) - 1) * count + relations[order].astype(np.int64))
                pairs.add(ordered[first])
            self._pairs, self._keys = pairs.array()[0], keys.array()[0]

    def contain(self, hashes: np.ndarray, relations: np.ndarray) -> np.ndarray:
        """Returns bool [n]: which pairs are there with their relations."""
        order = np.argsort(hashes)
        at = np.searchsorted(self._pairs, hashes[order])
        found = contains(self._pairs, hashes)
        found[order] &= contains(self._keys, at * self._count + relations[order].astype(np.int64))
        return found


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
            label = true_rows(self.labels.values, keep, self.folder)
            found["train"] = EdgeSplit(edge=self.edge_index(self.edge_type, keep), label=label)
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
    def pairs(self) -> Pairs:
        """Those of nodes in one direction: the other one may be an edge of its own."""
        (_, sources), (_, destinations) = self.ends
        return Pairs((sources, destinations), one_type=False, seed=0)

    def _given(self, split: EdgeSplit) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the hashes of the pairs of a split, and their relations."""
        for piece in _pieces(split):
            yield self.pairs.hashes(*split.edge[:, piece]), np.asarray(split.label)[piece]

    def _triples(self, *splits: EdgeSplit) -> _Triples:
        given = (each for split in splits for each in self._given(split))
        return _Triples(given, sum(map(len, splits)), int(self.labels.num_classes or 0), self.folder)

    def check_overlap(self, splits: Mapping[str, EdgeSplit], allowed: bool) -> None:
        """Raises `DataError` for edges of training that are in evaluation, too, with the same relation."""
        if "train" not in splits or allowed:
            return
        trained = self._triples(splits["train"])
        found = []
        for name in sorted({"val", "test"} & set(splits)):
            split = splits[name]
            both = np.flatnonzero(_joined([trained.contain(*each) for each in self._given(split)]))
            relations = np.asarray(split.label)[both]
            lowest = int(relations.min(initial=np.iinfo(np.int64).max))
            found.append((lowest, name, split.edge[:, both[relations == lowest]]))
        relation, name, edges = min(found, key=lambda each: each[:2], default=(0, "", np.zeros((2, 0))))
        if edges.shape[1]:
            raise DataError(
                f"edge_splits: train and {name} of {self.name} share {counted(edges.shape[1], 'edge')} of relation {relation} "
                f"(for example {edges[0, 0]} and {edges[1, 0]}). Remove them from one of the two, or set partition.allow: "
                "[overlapping_splits]."
            )

    def kept(self, splits: Mapping[str, EdgeSplit], at_test: bool = False) -> dict[EdgeType, np.ndarray]:
        trains = "train" in splits
        named = self._triples(*(_trained if trains else _held_out)(splits, at_test))
        masks, at = [], 0
        for src, dst in self.source.edges(self.edge_type).chunks(CHUNK):
            relations, at = self.labels.values[at : at + len(src)], at + len(src)
            masks.append(named.contain(self.pairs.hashes(src, dst), relations) == trains)
        return self._with_reverse(_joined(masks))


def _held_out(splits: Mapping[str, EdgeSplit], at_test: bool) -> list[EdgeSplit]:
    return [splits[name] for name in (("test",) if at_test else ("val", "test")) if name in splits]


def _trained(splits: Mapping[str, EdgeSplit], at_test: bool) -> list[EdgeSplit]:
    return [splits[name] for name in (("train", "val") if at_test else ("train",)) if name in splits]


def _pieces(split: EdgeSplit) -> Iterator[slice]:
    return (slice(begin, begin + CHUNK) for begin in range(0, len(split), CHUNK))


def _joined(masks: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(masks) if masks else np.zeros(0, bool)
