"""Pairs of nodes as hashes that do not depend on the direction and number of edges between them; pairs without an edge."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glt_lightning.base import DataError, OptionError, at_least
from glt_lightning.kernels import keyed, mix64

_PAIRS, _DRAWS, _ORDER = 1, 2, 3  # salts of hashes, by their purpose
MOST_NODES = 1 << 32  # two ids make a hash of 64 bits without collisions
_TRIALS = 1 << 20  # pairs drawn at once


@dataclass(frozen=True)
class Pairs:
    """The pairs of one edge type, by hashes that depend on the seed.

    counts: number of source and of destination nodes.
    one_type: both ends are of one node type: (u, v) and (v, u) are then one pair, and (u, u) is no pair.
    """

    counts: tuple[int, int]
    one_type: bool
    seed: int

    @property
    def possible(self) -> int:
        """Number of pairs, with and without an edge."""
        sources, destinations = self.counts
        return sources * (sources - 1) // 2 if self.one_type else sources * destinations

    def hashes(self, sources: np.ndarray, destinations: np.ndarray) -> np.ndarray:
        """Returns uint64 [E], hashes that are equal exactly for equal pairs, since `mix64` is a bijection."""
        low, high = sources, destinations
        if self.one_type:
            low, high = np.minimum(sources, destinations), np.maximum(sources, destinations)
        code = (low.astype(np.uint64) << np.uint64(32)) | high.astype(np.uint64)
        return mix64(mix64(code) ^ self._key(_PAIRS))

    def is_pair(self, sources: np.ndarray, destinations: np.ndarray) -> np.ndarray:
        """Returns bool [E]: False for self-loops."""
        return sources != destinations if self.one_type else np.ones(len(sources), bool)

    def without_edge(self, count: int, linked: np.ndarray, others: np.ndarray | None = None) -> np.ndarray:
        """Returns int64 [2, count]: distinct pairs, in either direction where both ends are of one type, none of them in
        ``linked`` or ``others``.

        linked, others: uint64, sorted and distinct hashes; none is in both.  Raises `DataError` where there are fewer.
        """
        known = [linked] if others is None else [linked, others]
        free = self.possible - sum(map(len, known))
        if count > free:
            raise DataError(
                f"neg_sampling_ratio: {count} negatives are asked for, but only {free} pairs of nodes have no edge. "
                "Take a lower ratio, or fewer validation and test edges."
            )
        # From here on at least every other trial is a pair that can be taken.
        draw = self._draw if self.possible > 2 * (self.possible - free + count) else self._choose
        return draw(count, known)

    def _draw(self, count: int, known: Sequence[np.ndarray]) -> np.ndarray:
        """Draws ``count`` pairs: the first trials of a stream that are neither self-loops, nor in ``known``, nor repeated."""
        pairs, hashes, trials = np.empty((2, 0), np.int64), np.empty(0, np.uint64), 0
        while (there := len(hashes)) < count:
            taken, codes = [pairs], [hashes]
            while there < count:
                size = min(2 * (count - there) + 64, _TRIALS)
                drawn = self._trials(trials, size)
                drawn = drawn[:, self.is_pair(*drawn)]
                trials += size
                found = self.hashes(*drawn)
                fresh = ~np.any([contains(each, found) for each in known], axis=0)
                taken.append(drawn[:, fresh])
                codes.append(found[fresh])
                there += len(codes[-1])
            pairs, hashes = np.concatenate(taken, axis=1), np.concatenate(codes)
            _, order, starts = grouped(hashes)
            first = np.sort(np.minimum.reduceat(order, starts)) if len(starts) else order
            pairs, hashes = pairs[:, first], hashes[first]
        return pairs[:, :count]

    def _choose(self, count: int, known: Sequence[np.ndarray]) -> np.ndarray:
        """Draws ``count`` pairs from a list of all pairs that are not in ``known``: for dense graphs, where most trials fail."""
        sources, destinations = self.counts
        square = np.indices((sources, destinations)).reshape(2, -1)
        pairs = square[:, square[0] < square[1]] if self.one_type else square
        hashes = self.hashes(*pairs)
        free = ~np.any([contains(each, hashes) for each in known], axis=0)
        order = mix64(hashes[free] ^ self._key(_ORDER))
        chosen = pairs[:, free][:, np.argsort(order)[:count]].astype(np.int64)
        if self.one_type:
            turned = np.sort(order)[:count] & np.uint64(1) == 1
            chosen[:, turned] = chosen[::-1, turned]
        return chosen

    def _trials(self, begin: int, size: int) -> np.ndarray:
        """Returns int64 [2, size]: trials ``begin``, ``begin + 1``, ... of sources and destinations, uniform over the nodes."""
        streams = keyed(self._key(_DRAWS), np.arange(begin, begin + size))
        bits = [streams, keyed(streams, np.zeros(1))]
        return np.stack([_below(each, n) for each, n in zip(bits, self.counts, strict=True)])

    def _key(self, role: int) -> np.uint64:
        return np.uint64(keyed(0, np.array([4 * self.seed + role - 1]))[0])


def joined_by(edges: np.ndarray, others: np.ndarray, counts: tuple[int, int], one_type: bool) -> np.ndarray:
    """Returns bool [E]: which edges [2, E] join a pair of nodes that some of ``others`` join. counts, one_type: as of `Pairs`."""
    pairs = Pairs(counts, one_type, seed=0)
    return contains(np.sort(pairs.hashes(*others)), pairs.hashes(*edges))


def _below(bits: np.ndarray, n: int) -> np.ndarray:
    """Returns int64, uniform in [0, n): the high 64 bits of the product of 64 random bits and n < 2^32."""
    high, low = bits >> np.uint64(32), bits & np.uint64(MOST_NODES - 1)
    return ((high * np.uint64(n) + (low * np.uint64(n) >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)


def contains(sorted_values: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns bool: True for ``values`` that are in the sorted array."""
    found = np.zeros(len(values), bool)
    if len(sorted_values):
        order = np.argsort(values)  # 1 M unsorted values take 0.7 s to search for among 3 M, sorted ones 0.04 s
        wanted = values[order]
        at = np.minimum(np.searchsorted(sorted_values, wanted), len(sorted_values) - 1)
        found[order] = sorted_values[at] == wanted
    return found


def grouped(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Groups values. Returns the distinct values in ascending order, the positions in the order of values, and the index in
    these at which each value begins.

    numpy.unique takes 2.4 s for 3 M values, since it hashes them; sorting takes 0.1 s.
    """
    order = np.argsort(values)
    ordered = values[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    return ordered[starts], order, starts


def checked_edges(
    name: str, edge_index: np.ndarray, counts: Sequence[int], first: int = 0, known: Sequence[str] = ("num_nodes",) * 2
) -> np.ndarray:
    """Returns int64 [2, E]. counts: number of sources and of destinations.  first: number of the first edge.  known: what errors
    say of the counts.

    Raises `DataError` for another shape or dtype, or ids that no node has.
    """
    edges = np.asarray(edge_index)
    if edges.ndim != 2 or len(edges) != 2 or edges.dtype.kind not in "iu":
        raise DataError(
            f"{name}: expected integers [2, E] (sources, destinations), got {edges.dtype} {list(edges.shape)}."
        )
    for row, end, count, what in zip(edges, ("source", "destination"), counts, known, strict=True):
        if len(row) and (row.min() < 0 or row.max() >= count):
            at = int(((row < 0) | (row >= count)).argmax())
            raise DataError(f"{name}: edge {first + at} has the {end} {row[at]}; expected 0 to {count - 1} ({what}).")
    return edges.astype(np.int64, copy=False)


# A random split of the edges of one edge type, without leaks between its parts.


_SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class LinkSplit:
    """The result of `random_link_split`: the edges to predict, and the split of each stored edge.

    Attributes:
        edge_splits: ``train``, ``val``, ``test`` -> ``edge`` int64 [2, S], user ids, each linked pair once. ``val`` and
            ``test`` also have ``negatives`` int64 [2, M], pairs without an edge.
        position: Split -> int64 [S], the column of ``edge_index`` that has the edge, to look up its label, time or weight.
        split_of_edge: int8 [E], for each column of ``edge_index``: 0 train, 1 val, 2 test.
        split_of_reverse: int8 [R], likewise for ``reverse_edge_index``; None without it.

    Example:
        >>> ring = np.stack([np.arange(10), np.roll(np.arange(10), 1)])
        >>> split = random_link_split(ring, num_nodes=10, num_val=1, num_test=2)
        >>> np.bincount(split.split_of_edge), split.edge_splits["test"]["negatives"].shape
        (array([7, 1, 2]), (2, 2))
        >>> bool((ring[:, split.position["val"]] == split.edge_splits["val"]["edge"]).all())
        True
    """

    edge_splits: Mapping[str, Mapping[str, np.ndarray]]
    position: Mapping[str, np.ndarray]
    split_of_edge: np.ndarray
    split_of_reverse: np.ndarray | None = None


def random_link_split(
    edge_index: np.ndarray,
    num_nodes: int | tuple[int, int],
    num_val: float = 0.1,
    num_test: float = 0.2,
    *,
    reverse_edge_index: np.ndarray | None = None,
    neg_sampling_ratio: float = 1.0,
    seed: int = 0,
) -> LinkSplit:
    """Splits edges at random into training, validation and test edges that share no pair of nodes.

    All edges between two nodes, in either direction, parallel or of the reverse edge type, are in one split. So message passing
    over the stored edges of ``train`` never crosses a pair that is to be predicted. Negatives are distinct pairs without any
    edge in either direction, and ``val`` and ``test`` share none. The split depends on user ids and the seed, not on the
    order of the edges.

    Args:
        edge_index: Integers [2, E], sources and destinations, user ids; the edges to predict. Loops stay training edges and
            are no targets.
        num_nodes: Number of nodes, if both ends are of one node type; else (number of sources, number of destinations).
        num_val: Validation edges: a share of the linked pairs, or an int, their number. 0: none.
        num_test: Test edges, likewise.
        reverse_edge_index: Integers [2, R], the edges of the reverse edge type, if there is one: from destinations to
            sources, in any order. Edges of pairs that ``edge_index`` does not link are training edges.
        neg_sampling_ratio: Negatives for each validation and test edge.
        seed: Seed of the split and of the negatives.

    Raises:
        OptionError: For numbers that cannot be used, or leave no training edge.
        DataError: For edges that are no integers [2, E], for ids that no node has, and for more negatives than there are.

    Example:
        >>> edge_index = np.array([[0, 1, 1, 2, 2, 3, 3, 0], [1, 0, 2, 1, 3, 2, 0, 3]])  # 4 pairs, in both directions
        >>> split = random_link_split(edge_index, num_nodes=100, num_val=1, num_test=1)
        >>> train = edge_index[:, split.split_of_edge == 0]  # for message passing
        >>> {name: arrays["edge"].shape[1] for name, arrays in split.edge_splits.items()}, train.shape
        ({'train': 2, 'val': 1, 'test': 1}, (2, 4))
    """
    at_least("seed", seed, 0)
    pairs = pairs_of(num_nodes, seed)
    edges = checked_edges("edge_index", edge_index, pairs.counts)
    hashes = pairs.hashes(*edges)
    links = np.flatnonzero(pairs.is_pair(*edges))
    linked, position = one_of_each(edges[:, links], hashes[links], pairs.one_type)
    position = links[position]
    sizes = sizes_of(len(linked), num_val, num_test)
    limits = np.cumsum([sizes["test"], sizes["val"]])  # pairs in the order of their hashes: first those of test
    splits = dict(zip(("test", "val", "train"), np.split(position, limits), strict=True))

    reverse_split, known = None, linked
    if reverse_edge_index is not None:
        reverse = checked_edges("reverse_edge_index", reverse_edge_index, pairs.counts[::-1])[::-1]
        reverse_hashes = pairs.hashes(*reverse)
        reverse_split = _split_of(reverse_hashes, linked, limits)
        held_out = np.flatnonzero(reverse_split)
        reverse_split[held_out[~contains(linked, reverse_hashes[held_out])]] = 0
        known = grouped(np.concatenate([linked, reverse_hashes[pairs.is_pair(*reverse)]]))[0]
    negatives = negatives_of(pairs, sizes, neg_sampling_ratio, known)
    edge_splits = {name: {"edge": edges[:, splits[name]]} for name in _SPLITS}
    for name, each in negatives.items():
        edge_splits[name]["negatives"] = each
    edge_split = np.zeros(len(hashes), np.int8)
    edge_split[links] = _split_of(hashes[links], linked, limits)
    return LinkSplit(edge_splits, {name: splits[name] for name in _SPLITS}, edge_split, reverse_split)


def pairs_of(num_nodes: Any, seed: int) -> Pairs:
    counts = num_nodes if isinstance(num_nodes, (tuple, list)) else [num_nodes] * 2
    if len(counts) != 2 or not all(_is_int(n) and 0 < n < MOST_NODES for n in counts):
        raise OptionError(f"num_nodes: expected a number of nodes below 2^32, or a pair of them; got {num_nodes!r}.")
    return Pairs((int(counts[0]), int(counts[1])), counts is not num_nodes, seed)


def _is_int(given: Any) -> bool:
    return isinstance(given, (int, np.integer)) and not isinstance(given, bool)


def one_of_each(edges: np.ndarray, hashes: np.ndarray, one_type: bool) -> tuple[np.ndarray, np.ndarray]:
    """Chooses one edge of each pair. Returns the distinct hashes in ascending order, and the column chosen for each.

    It is the first edge in one direction. The direction is random if both are stored: if targets always ran from the lower to
    the higher id, and negatives in either direction, a model could tell them apart by that.
    """
    distinct, order, starts = grouped(hashes)
    if not len(order):
        return distinct, order
    last = order
    if one_type:  # those in the other direction come last
        other = (edges[0] < edges[1]) != (hashes & np.uint64(1) == 1)
        last = order + len(order) * other[order]
    return distinct, np.minimum.reduceat(last, starts) % len(order)


def _split_of(hashes: np.ndarray, linked: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Returns int8 [E]: 0 train, 1 val, 2 test. limits: positions in ``linked`` at which test and val end; at least one pair
    of train follows."""
    test, held_out = linked[limits]
    split: np.ndarray = (hashes < test).astype(np.int8)
    split += hashes < held_out
    return split


def negatives_of(
    pairs: Pairs, sizes: Mapping[str, int], ratio: float, linked: np.ndarray, others: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Draws the negatives of validation and test, int64 [2, M] each. sizes: pairs of each split.  ratio: negatives for each.
    linked, others: as of `Pairs.without_edge`."""
    wanted = [math.ceil(round(sizes[name] * _ratio(ratio), 9)) for name in ("val", "test")]
    drawn = pairs.without_edge(sum(wanted), linked, others)
    return dict(zip(("val", "test"), np.split(drawn, [wanted[0]], axis=1), strict=True))


def sizes_of(count: int, num_val: float, num_test: float, what: str = "linked pairs of nodes") -> dict[str, int]:
    """Number of edges of validation and test. count: of all that are split.  what: they are."""
    sizes = {"val": _size("num_val", num_val, count, what), "test": _size("num_test", num_test, count, what)}
    if sum(sizes.values()) >= count:
        raise OptionError(
            f"num_val, num_test: {num_val!r} and {num_test!r} leave no training edge of {count} {what}. Take smaller ones."
        )
    return sizes


def _size(name: str, given: Any, count: int, what: str) -> int:
    if _is_int(given) and given >= 0:
        return int(given)
    if not isinstance(given, (float, np.floating)) or not 0 <= given < 1:
        raise OptionError(f"{name}: expected a share of the edges in [0, 1), or their number as an int; got {given!r}.")
    size = round(float(given) * count)
    if given and not size:
        raise OptionError(f"{name}: {given!r} of {count} {what} is none. Give a number of edges, or 0.")
    return size


def _ratio(given: Any) -> float:
    if not (_is_int(given) or isinstance(given, (float, np.floating))) or not 0 <= given < math.inf:
        raise OptionError(f"neg_sampling_ratio: expected a number of at least 0; got {given!r}.")
    return float(given)
