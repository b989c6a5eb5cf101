"""Edges of one type of several relations, and their splits: pairs of nodes with a relation each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from glt_lightning.base import DataError, counted
from glt_lightning.graph import EdgeSplit
from glt_lightning.partition.edge_splits.columns import Buckets, ColumnFile, mask_of, pieces, pieces_of, true_rows
from glt_lightning.partition.edge_splits.labels import EdgeLabels
from glt_lightning.partition.edge_splits.read import RELATION
from glt_lightning.partition.edge_splits.tasks import Kept, LinkTask
from glt_lightning.partition.links import Pairs


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
                buckets.deal(hashes, hashes, relations.astype(np.uint64))
            for hashes, relations in buckets:
                order = np.lexsort((relations, hashes))
                ordered = hashes[order]
                first = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
                keys.add((pairs.count + np.cumsum(first) - 1) * count + relations[order].astype(np.int64))
                pairs.add(ordered[first])
            self._pairs, self._keys = pairs.array()[0], keys.array()[0]

    def contain(self, hashes: np.ndarray, relations: np.ndarray) -> np.ndarray:
        """Returns bool [n]: which pairs are there with their relations."""
        found = np.zeros(len(hashes), bool)
        if len(self._pairs):
            order = np.argsort(hashes)  # as in `contains`; keys are then as good as sorted
            wanted = hashes[order]
            at = np.minimum(np.searchsorted(self._pairs, wanted), len(self._pairs) - 1)
            there = np.flatnonzero(self._pairs[at] == wanted)
            keys = at[there] * self._count + relations[order[there]].astype(np.int64)
            at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
            found[order[there]] = self._keys[at] == keys
        return found


@dataclass(frozen=True)
class RelationTask(LinkTask):
    """One edge type whose edges are of several relations, with splits that are pairs of nodes and a relation each."""

    labels: EdgeLabels

    @property
    def pairs(self) -> Pairs:
        """Those of nodes in one direction: the other one may be an edge of its own."""
        (_, sources), (_, destinations) = self.ends
        return Pairs((sources, destinations), one_type=False, seed=0)

    @cached_property
    def _named(self) -> dict[str, EdgeSplit]:
        """The splits that are given."""
        return {name: self._checked(name, self.read(name, each, True)) for name, each in (self.given or {}).items()}

    def _checked(self, name: str, split: EdgeSplit) -> EdgeSplit:
        what, label, count = f"edge_splits.{name}", split.label, int(self.labels.num_classes or 0)
        if label is None or label.ndim != 1 or label.dtype.kind not in "iu" or split.negative_edges is not None:
            raise DataError(
                f"{what}: expected {{edge, {RELATION}}}, with an integer for each edge, and negatives at most."
            )
        if len(bad := np.flatnonzero((label < 0) | (label >= count))):
            raise DataError(
                f"{what}: edge {bad[0]} has relation {label[bad[0]]}; those of the graph are 0 to {count - 1}."
            )
        return split

    @cached_property
    def splits(self) -> dict[str, EdgeSplit]:
        if "train" in self._named:
            return self._named
        label = true_rows(self.labels.values, self._others, self.folder)
        return {**self._named, "train": EdgeSplit(edge=self.edge_index(self._others), label=label)}

    @cached_property
    def _others(self) -> np.ndarray:
        """bool [E]: the edges that are in no given split."""
        return ~self._are_in(*self._named.values())

    def _are_in(self, *splits: EdgeSplit) -> np.ndarray:
        """Returns bool [E]: the edges that splits have, with their relations."""
        triples, labels = self._triples(*splits), self.labels.values
        edges = pieces_of(self.edges)
        return mask_of(triples.contain(self.pairs.hashes(*ends), labels[piece]) for piece, *ends in edges)

    def _triples(self, *splits: EdgeSplit) -> _Triples:
        given = (each for split in splits for each in self._given(split))
        return _Triples(given, sum(map(len, splits)), int(self.labels.num_classes or 0), self.folder)

    def _given(self, split: EdgeSplit) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the hashes of the pairs of a split, and their relations."""
        for piece in pieces(len(split)):
            yield self.pairs.hashes(*split.edge[:, piece]), np.asarray(split.label)[piece]

    def check_overlap(self, allowed: bool) -> None:
        """Raises `DataError` for edges of training that are in evaluation, too, with the same relation."""
        if "train" not in self._named or allowed:
            return
        trained = self._triples(self._named["train"])
        found = []
        for name in sorted({"val", "test"} & set(self._named)):
            split = self._named[name]
            both = np.flatnonzero(mask_of(trained.contain(*each) for each in self._given(split)))
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

    def kept(self, at_test: bool = False) -> Kept:
        if "train" not in self._named and not (at_test and "val" in self._named):
            return self.with_reverse(self._others)
        names = ("train", "val") if at_test else ("train",)
        return self.with_reverse(self._are_in(*(self.splits[name] for name in names if name in self.splits)))
