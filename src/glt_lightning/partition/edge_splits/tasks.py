"""Edge types to predict, one task each: its splits, and the edges that carry messages."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import DataError, EdgeType, at_least, counted, edge_type_str
from glt_lightning.graph import EdgeSplit
from glt_lightning.partition.edge_splits.columns import (
    ANOTHER_FOLDER,
    Buckets,
    ColumnFile,
    distinct,
    mask_of,
    pieces,
    pieces_of,
    true_rows,
)
from glt_lightning.partition.edge_splits.read import RELATION, Ends, read_edge_split
from glt_lightning.partition.folder import require_space
from glt_lightning.partition.links import (
    MOST_NODES,
    Pairs,
    checked_edges,
    contains,
    grouped,
    negatives_of,
    one_of_each,
    pairs_of,
    sizes_of,
)
from glt_lightning.partition.sources.base import EdgeList, GraphSource, Rows, file_of

_log = logging.getLogger(__name__)

RANDOM = ("num_val", "num_test", "neg_sampling_ratio", "seed")
Given = Mapping[str, Any] | None
_HALF = np.uint64(32)
Kept = dict[EdgeType, np.ndarray]  # bool [E]: the edges that may carry messages


@dataclass(frozen=True)
class LinkTask:
    """One edge type whose edges are predicted, and its reverse, if it has one.

    given: its splits, as of `hold_out_edges`.  folder: of files without names.
    """

    source: GraphSource
    edge_type: EdgeType
    reverse: EdgeType | None
    folder: Path
    given: Given

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

    @cached_property
    def splits(self) -> dict[str, EdgeSplit]:
        """The splits. Without ``train``, all edges that carry messages are trained on."""
        given = self.given
        if given is None:
            own: Mapping[EdgeType, Mapping[str, Any]] = getattr(self.source, "edge_splits", {})
            if columns := getattr(self.source, "edge_columns", {}).get(self.edge_type):
                return {name: self._of_columns(ids) for name, ids in columns.items()}
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
        return {name: self.read(name, each) for name, each in given.items()}

    def read(self, name: str, given: Any, relations: bool = False) -> EdgeSplit:
        return read_edge_split(f"edge_splits.{name}", given, self.ends, relations=relations, folder=self.folder)

    def _of_columns(self, ids: np.ndarray) -> EdgeSplit:
        """A split of the column ``split`` of a table, with the times that the table has."""
        mask = np.zeros(self.edges.num_edges, bool)
        mask[ids] = True
        return self.split_where(mask)

    def split_where(self, mask: np.ndarray) -> EdgeSplit:
        """Makes a split of the edges where a mask is true, with their times."""
        return EdgeSplit(edge=self.edge_index(mask), time=self.times_where(mask, (self.given or {}).get("time")))

    @property
    def edges(self) -> EdgeList:
        return self.source.edges(self.edge_type)

    def times(self, attr: str, edge_type: EdgeType | None = None) -> Rows:
        """Returns the times of edges, integers [E]. edge_type: of these; None: the one to predict. Raises `DataError` for an
        attribute that is none."""
        attrs = self.source.edge_attrs(edge_type or self.edge_type)
        integers = [name for name, rows in attrs.items() if len(rows.shape) == 1 and np.dtype(rows.dtype).kind in "iuM"]
        if attr not in integers:
            raise DataError(
                f"links.edge_splits: time: expected an edge attribute of integers; got {attr!r}, and there is "
                f"{', '.join(sorted(integers)) or 'none'}."
            )
        return attrs[attr]

    def times_where(self, keep: np.ndarray, attr: str | None = None) -> np.ndarray | None:
        """Returns the times of the edges where a mask is true, int64. attr: None: ``edge_time``, if the edges have it."""
        if attr is None and "edge_time" not in self.source.edge_attrs(self.edge_type):
            return None
        return true_rows(self.times(attr or "edge_time"), keep, self.folder, np.int64)

    def require_space(self, needed: int) -> None:
        """Raises `PartitionError` unless the disk has room for files of ``needed`` bytes."""
        require_space(self.folder, needed, "splitting the edges to predict", ANOTHER_FOLDER)

    def edge_index(self, keep: np.ndarray) -> np.ndarray:
        """Reads the edges where a mask is true, int64 [2, E], into a file that is mapped."""
        count = int(np.count_nonzero(keep))
        self.require_space(16 * count)
        with ColumnFile(self.folder, 2, count) as found:
            for ends in self._ends(keep):
                found.add(*ends)
            return found.array()

    def _ends(self, keep: np.ndarray) -> Iterator[list[np.ndarray]]:
        return ([ids[keep[piece]] for ids in ends] for piece, *ends in pieces_of(self.edges))

    def _hashes(self, *names: str) -> np.ndarray:
        """Returns the hashes of the pairs of the splits of these names, ascending."""
        splits = [self.splits[name] for name in names if name in self.splits]
        hashes = (self.pairs.hashes(*split.edge[:, piece]) for split in splits for piece in pieces(len(split)))
        return distinct(hashes, sum(map(len, splits)), self.folder)

    def check_overlap(self, allowed: bool) -> None:
        """Raises `DataError` for pairs of nodes that are in training and in evaluation, in either direction."""
        splits, pairs = self.splits, self.pairs
        hashes = {name: self._hashes(name) for name in ("train", "val")}
        for first, second in (("train", "val"), ("train", "test"), ("val", "test")):
            if first not in splits or second not in splits:
                continue
            edge = splits[second].edge
            shared = (contains(hashes[first], pairs.hashes(*edge[:, piece])) for piece in pieces(edge.shape[1]))
            both = np.flatnonzero(mask_of(shared))
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

    def kept(self, at_test: bool = False) -> Kept:
        """Returns which edges of this edge type and of its reverse may carry messages. at_test: those known at test time, with
        edges of validation."""
        pairs, evaluated = self.pairs, self._hashes("test", *(() if at_test else ("val",)))
        trained = self._hashes("train", *(("val",) if at_test else ())) if "train" in self.splits else None
        masks = []
        for _, *ends in pieces_of(self.edges):
            hashes = pairs.hashes(*ends)
            keep = ~contains(evaluated, hashes)
            if trained is not None:
                keep = contains(trained, hashes) | (keep & ~pairs.is_pair(*ends))
            masks.append(keep)
        held_out = evaluated if trained is None else evaluated[~contains(trained, evaluated)]
        return self.with_reverse(mask_of(masks), held_out)

    def with_reverse(self, keep: np.ndarray, held_out: np.ndarray | None = None) -> Kept:
        """Returns which edges may carry messages, and which of the reverse edge type: those of a pair of which one does.

        held_out: hashes of pairs of which no reverse edge may, also where this edge type has no edge of them; all edges of a pair
        then go together.
        """
        if self.reverse is None:
            return {self.edge_type: keep}
        pairs, more = self.pairs, [] if held_out is None else [held_out]
        left_out = (pairs.hashes(*ends) for ends in self._ends(~keep))
        dropped = distinct(chain(left_out, more), int(np.count_nonzero(~keep)) + sum(map(len, more)), self.folder)
        back = np.empty(0, np.uint64)
        if held_out is None:
            hashes = (pairs.hashes(*ends) for ends in self._ends(keep))
            back = distinct((each[contains(dropped, each)] for each in hashes), len(keep), self.folder)
        reverse = (pairs.hashes(dst, src) for _, src, dst in pieces_of(self.source.edges(self.reverse)))
        kept = mask_of(~contains(dropped, each) | contains(back, each) for each in reverse)
        return {self.edge_type: keep, self.reverse: kept}


@dataclass(frozen=True)
class RandomTask(LinkTask):
    """One edge type whose edges are split at random, by pairs of nodes."""

    @cached_property
    def _drawn(self) -> DrawnSplit:
        (src, sources), (dst, destinations) = self.ends
        reverse = None if self.reverse is None else self.source.edges(self.reverse)
        count = sources if src == dst else (sources, destinations)
        self.require_space(8 * self.edges.num_edges)  # in buckets; how many pairs they link is known afterwards
        return draw_split(self.edges, count, reverse, self.folder, **(self.given or {}))

    @property
    def splits(self) -> dict[str, EdgeSplit]:
        return dict(self._drawn.splits)

    def check_overlap(self, allowed: bool) -> None:
        """There is none."""

    def kept(self, at_test: bool = False) -> Kept:
        drawn = self._drawn
        held_out = drawn.num_test if at_test else drawn.num_held_out
        kept = {self.edge_type: drawn.kept(self.edges, held_out)}
        if self.reverse is not None:
            kept[self.reverse] = drawn.kept_reverse(self.source.edges(self.reverse), held_out)
        return kept


# A random split of the edges of a type, as `random_link_split` draws it, of edges that need not fit in memory.
#
# A pair of nodes is in a split by its hash alone: the lowest are test, then validation. So edges are dealt into buckets of
# hashes, and a bucket at a time is sorted; after that a hash tells the split of an edge.


@dataclass(frozen=True)
class DrawnSplit:
    """A split that was drawn.

    pairs: those of the edge type.  splits: as `LinkSource.edge_splits`.  linked: uint64, the hashes of linked pairs, ascending; a
    map of a file.  num_test, num_held_out: the first of them are test, then validation.
    """

    pairs: Pairs
    splits: dict[str, EdgeSplit]
    linked: np.ndarray
    num_test: int
    num_held_out: int

    def kept(self, edges: EdgeList, held_out: int) -> np.ndarray:
        """Returns bool [E]: the edges of all pairs but the first ``held_out``."""
        limit, pairs = self.linked[held_out], self.pairs  # of a training pair: there is one
        return mask_of((pairs.hashes(*ends) >= limit) | ~pairs.is_pair(*ends) for _, *ends in pieces_of(edges))

    def kept_reverse(self, edges: EdgeList, held_out: int) -> np.ndarray:
        """Returns bool [R]: likewise of the edges of the reverse edge type."""
        left_out = self.linked[:held_out]
        return mask_of(~contains(left_out, self.pairs.hashes(dst, src)) for _, src, dst in pieces_of(edges))


def draw_split(
    edges: EdgeList,
    num_nodes: int | tuple[int, int],
    reverse: EdgeList | None,
    folder: Path,
    *,
    num_val: float = 0.1,
    num_test: float = 0.2,
    neg_sampling_ratio: float = 1.0,
    seed: int = 0,
) -> DrawnSplit:
    """Splits edges as `random_link_split` does. reverse: the edges of the reverse edge type.  folder: of files without names."""
    at_least("seed", seed, 0)
    pairs = pairs_of(num_nodes, seed)
    hashes, ends = _linked(edges, pairs, folder)
    sizes = sizes_of(len(hashes), num_val, num_test)
    begins = {"test": 0, "val": sizes["test"], "train": sizes["test"] + sizes["val"]}
    ends_of = {name: ends[:, begins[name] : begins[name] + sizes.get(name, len(hashes))] for name in begins}
    others = None if reverse is None else _others(reverse, pairs, hashes)
    negatives = negatives_of(pairs, sizes, neg_sampling_ratio, hashes, others)
    splits = {"train": EdgeSplit(edge=ends_of["train"])}
    for name in ("val", "test"):
        if sizes[name]:  # without negatives, they are drawn as in training
            drawn = negatives[name] if negatives[name].size else None
            splits[name] = EdgeSplit(edge=ends_of[name], negative_edges=drawn)
    return DrawnSplit(pairs, splits, hashes, sizes["test"], begins["train"])


def _linked(edges: EdgeList, pairs: Pairs, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the hashes of the linked pairs, uint64 ascending, and the ends of one edge of each, int64 [2, pairs]."""
    with (
        Buckets(folder, 1, edges.num_edges) as buckets,
        ColumnFile(folder, 1, edges.num_edges, np.uint64) as hashes,
        ColumnFile(folder, 2, edges.num_edges) as found,
    ):
        for ends in _checked("edge_index", edges, pairs.counts):
            src, dst = ends[:, pairs.is_pair(*ends)]
            buckets.deal(pairs.hashes(src, dst), src.astype(np.uint64) << _HALF | dst.astype(np.uint64))
        for (codes,) in buckets:
            ends = np.stack([codes >> _HALF, codes & np.uint64(MOST_NODES - 1)]).astype(np.int64)
            distinct, position = one_of_each(ends, pairs.hashes(*ends), pairs.one_type)
            hashes.add(distinct)
            found.add(*ends[:, position])
        return hashes.array()[0], found.array()


def _others(reverse: EdgeList, pairs: Pairs, linked: np.ndarray) -> np.ndarray:
    """Returns the hashes of pairs that only edges of the reverse edge type link, ascending."""
    found = [np.empty(0, np.uint64)]
    for ends in _checked("reverse_edge_index", reverse, pairs.counts[::-1]):
        hashes = pairs.hashes(*ends[::-1])
        found.append(hashes[pairs.is_pair(*ends) & ~contains(linked, hashes)])
    return grouped(np.concatenate(found))[0]


def _checked(name: str, edges: EdgeList, counts: tuple[int, ...]) -> Iterator[np.ndarray]:
    return (checked_edges(name, np.stack(ends), counts, piece.start) for piece, *ends in pieces_of(edges))
