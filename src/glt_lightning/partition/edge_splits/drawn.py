"""A random split of the edges of a type, as `random_link_split` draws it, of edges that need not fit in memory.

A pair of nodes is in a split by its hash alone: the lowest are test, then validation. So edges are dealt into buckets of hashes,
and a bucket at a time is sorted; after that a hash tells the split of an edge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glt_lightning.base import at_least
from glt_lightning.graph import EdgeSplit
from glt_lightning.partition.edge_splits.columns import Buckets, ColumnFile, mask_of, pieces_of
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
from glt_lightning.partition.sources.base import EdgeList

_HALF = np.uint64(32)


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
