"""Pairs of nodes as hashes, whatever the direction and the number of edges between them; pairs without an edge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.kernels import GOLDEN, mix64

_PAIRS, _DRAWS, _ORDER = 1, 2, 3  # what a hash is for
MOST_NODES = 1 << 32  # two ids make a hash of 64 bits without collisions


@dataclass(frozen=True)
class Pairs:
    """The pairs of one edge type, by hashes that depend on the seed.

    counts: number of source and of destination nodes.
    one_type: whether both ends are of one node type; (u, v) and (v, u) are then one pair, and (u, u) is none.
    """

    counts: tuple[int, int]
    one_type: bool
    seed: int

    @property
    def possible(self) -> int:
        """How many pairs there are, with and without an edge."""
        sources, destinations = self.counts
        return sources * (sources - 1) // 2 if self.one_type else sources * destinations

    def hashes(self, sources: np.ndarray, destinations: np.ndarray) -> np.ndarray:
        """uint64 [E]: equal where the pair is, and nowhere else: `mix64` is a bijection."""
        low, high = sources, destinations
        if self.one_type:
            low, high = np.minimum(sources, destinations), np.maximum(sources, destinations)
        code = (low.astype(np.uint64) << np.uint64(32)) | high.astype(np.uint64)
        return mix64(mix64(code) ^ self._key(_PAIRS))

    def is_pair(self, sources: np.ndarray, destinations: np.ndarray) -> np.ndarray:
        """bool [E]: whether an edge joins two nodes; all but loops."""
        return sources != destinations if self.one_type else np.ones(len(sources), bool)

    def without_edge(self, count: int, linked: np.ndarray) -> np.ndarray:
        """int64 [2, count]: distinct pairs, in either direction where both ends are of one type, none of them in ``linked``.

        linked: uint64, sorted and distinct hashes.  Raises `DataError` where there are fewer.
        """
        free = self.possible - len(linked)
        if count > free:
            raise DataError(
                f"neg_sampling_ratio: {count} negatives are asked for, but only {free} pairs of nodes have no edge. "
                "Take a lower ratio, or fewer validation and test edges."
            )
        # From here on at least every other trial is a pair that can be taken.
        return self._draw(count, linked) if self.possible > 2 * (len(linked) + count) else self._choose(count, linked)

    def _draw(self, count: int, linked: np.ndarray) -> np.ndarray:
        """The first ``count`` trials of a stream that are neither loops, nor in ``linked``, nor pairs for a second time."""
        pairs, hashes, trials = np.empty((2, 0), np.int64), np.empty(0, np.uint64), 0
        while len(hashes) < count:
            size = 2 * (count - len(hashes)) + 64
            drawn = self._trials(trials, size)
            drawn = drawn[:, self.is_pair(*drawn)]
            trials += size
            found = self.hashes(*drawn)
            fresh = ~contains(linked, found)
            pairs = np.concatenate([pairs, drawn[:, fresh]], axis=1)
            hashes = np.concatenate([hashes, found[fresh]])
            _, order, starts = grouped(hashes)
            first = np.sort(np.minimum.reduceat(order, starts)) if len(starts) else order
            pairs, hashes = pairs[:, first], hashes[first]
        return pairs[:, :count]

    def _choose(self, count: int, linked: np.ndarray) -> np.ndarray:
        """``count`` of all pairs that are not in ``linked``, for graphs in which trials would mostly fail."""
        sources, destinations = self.counts
        square = np.indices((sources, destinations)).reshape(2, -1)
        pairs = square[:, square[0] < square[1]] if self.one_type else square
        hashes = self.hashes(*pairs)
        free = ~contains(linked, hashes)
        order = mix64(hashes[free] ^ self._key(_ORDER))
        chosen = pairs[:, free][:, np.argsort(order)[:count]].astype(np.int64)
        if self.one_type:
            turned = np.sort(order)[:count] & np.uint64(1) == 1
            chosen[:, turned] = chosen[::-1, turned]
        return chosen

    def _trials(self, begin: int, size: int) -> np.ndarray:
        """int64 [2, size]: trials ``begin``, ``begin + 1``, ... of sources and destinations, uniform over the nodes."""
        counter = np.arange(begin + 1, begin + size + 1, dtype=np.uint64) * np.uint64(GOLDEN) + self._key(_DRAWS)
        bits = [mix64(counter), mix64(mix64(counter) + np.uint64(GOLDEN))]
        return np.stack([_below(each, n) for each, n in zip(bits, self.counts, strict=True)])

    def _key(self, role: int) -> np.uint64:
        return np.uint64(mix64(np.array([(4 * self.seed + role) * GOLDEN % (1 << 64)], np.uint64))[0])


def _below(bits: np.ndarray, n: int) -> np.ndarray:
    """int64: 64 random bits times n, the high 64 bits of it; n < 2^32."""
    high, low = bits >> np.uint64(32), bits & np.uint64(MOST_NODES - 1)
    return ((high * np.uint64(n) + (low * np.uint64(n) >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)


def contains(sorted_values: np.ndarray, values: np.ndarray) -> np.ndarray:
    """bool: for each of ``values``, whether it is in the sorted array."""
    found = np.zeros(len(values), bool)
    if len(sorted_values):
        order = np.argsort(values)  # 1 M unsorted values take 0.7 s to search for among 3 M, sorted ones 0.04 s
        wanted = values[order]
        at = np.minimum(np.searchsorted(sorted_values, wanted), len(sorted_values) - 1)
        found[order] = sorted_values[at] == wanted
    return found


def grouped(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(distinct values in ascending order, positions in the order of values, where in these each value begins).

    numpy.unique takes 2.4 s for 3 M values, as it hashes them; sorting takes 0.1 s.
    """
    order = np.argsort(values)
    ordered = values[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    return ordered[starts], order, starts


def checked_edges(name: str, edge_index: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """int64 [2, E]. Raises `DataError` for another shape or dtype, or ids that no node has."""
    edges = np.asarray(edge_index)
    if edges.ndim != 2 or len(edges) != 2 or edges.dtype.kind not in "iu":
        raise DataError(f"{name}: expected integers [2, E], got {edges.dtype} {list(edges.shape)}.")
    for row, end, count in zip(edges, ("source", "destination"), counts, strict=True):
        if len(row) and (row.min() < 0 or row.max() >= count):
            at = int(((row < 0) | (row >= count)).argmax())
            raise DataError(f"{name}: edge {at} has the {end} {row[at]}; expected 0 to {count - 1} (num_nodes).")
    return edges.astype(np.int64, copy=False)
