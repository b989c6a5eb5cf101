"""A random split of the edges of one edge type, without leaks between its parts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from glt_lightning.base import OptionError, at_least
from glt_lightning.partition.link_pairs import MOST_NODES, Pairs, checked_edges, contains, grouped

_SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class LinkSplit:
    """What `random_link_split` returns: the edges to predict, and the split of each stored edge.

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
    over the stored edges of ``train`` never crosses a pair that is to be predicted. Negatives are pairs without any edge,
    each once in whatever direction, and are not shared by ``val`` and ``test``. The split depends on user ids and the seed,
    not on the order of the edges.

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
    pairs = _pairs(num_nodes, seed)
    edges = checked_edges("edge_index", edge_index, pairs.counts)
    hashes = pairs.hashes(*edges)
    links = np.flatnonzero(pairs.is_pair(*edges))
    linked, position = _one_of_each(edges[:, links], hashes[links], pairs.one_type)
    position = links[position]
    sizes = _sizes(len(linked), num_val, num_test)
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
    wanted = [math.ceil(round(sizes[name] * _ratio(neg_sampling_ratio), 9)) for name in ("val", "test")]
    negatives = np.split(pairs.without_edge(sum(wanted), known), [wanted[0]], axis=1)
    edge_splits = {name: {"edge": edges[:, splits[name]]} for name in _SPLITS}
    edge_splits["val"]["negatives"], edge_splits["test"]["negatives"] = negatives
    edge_split = np.zeros(len(hashes), np.int8)
    edge_split[links] = _split_of(hashes[links], linked, limits)
    return LinkSplit(edge_splits, {name: splits[name] for name in _SPLITS}, edge_split, reverse_split)


def _pairs(num_nodes: Any, seed: int) -> Pairs:
    counts = num_nodes if isinstance(num_nodes, (tuple, list)) else [num_nodes] * 2
    if len(counts) != 2 or not all(_is_int(n) and 0 < n < MOST_NODES for n in counts):
        raise OptionError(f"num_nodes: expected a number of nodes below 2^32, or a pair of them; got {num_nodes!r}.")
    return Pairs((int(counts[0]), int(counts[1])), counts is not num_nodes, seed)


def _is_int(given: Any) -> bool:
    return isinstance(given, (int, np.integer)) and not isinstance(given, bool)


def _one_of_each(edges: np.ndarray, hashes: np.ndarray, one_type: bool) -> tuple[np.ndarray, np.ndarray]:
    """(distinct hashes in ascending order, the column that stands for each).

    It is the first of the edges in one direction. Which one is random where both are stored: if targets ran from the
    lower to the higher id, and negatives in either direction, a model could tell them apart by that.
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
    """int8 [E]: 0 train, 1 val, 2 test. There is a pair behind the last limit: one of train."""
    test, held_out = linked[limits]
    split: np.ndarray = (hashes < test).astype(np.int8)
    split += hashes < held_out
    return split


def _sizes(pairs: int, num_val: float, num_test: float) -> dict[str, int]:
    """Number of pairs of each split."""
    sizes = {"val": _size("num_val", num_val, pairs), "test": _size("num_test", num_test, pairs)}
    if sum(sizes.values()) >= pairs:
        raise OptionError(
            f"num_val, num_test: {num_val!r} and {num_test!r} leave no training edge: the edges link {pairs} pairs of "
            "nodes. Take smaller ones."
        )
    return sizes


def _size(name: str, given: Any, pairs: int) -> int:
    if _is_int(given) and given >= 0:
        return int(given)
    if not isinstance(given, (float, np.floating)) or not 0 <= given < 1:
        raise OptionError(f"{name}: expected a share of the edges in [0, 1), or their number as an int; got {given!r}.")
    size = round(float(given) * pairs)
    if given and not size:
        raise OptionError(f"{name}: {given!r} of {pairs} linked pairs of nodes is none. Give a number of edges, or 0.")
    return size


def _ratio(given: Any) -> float:
    if not (_is_int(given) or isinstance(given, (float, np.floating))) or not 0 <= given < math.inf:
        raise OptionError(f"neg_sampling_ratio: expected a number of at least 0; got {given!r}.")
    return float(given)
