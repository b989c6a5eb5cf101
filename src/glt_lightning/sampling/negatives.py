"""Negative edges: drawn among the user's ids by keyed trials, so that they do not depend on how the graph is partitioned or which
process draws them (docs/links.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from glt_lightning.base import DataError, EdgeType, edge_type_str
from glt_lightning.kernels import keyed
from glt_lightning.sampling.draws import draw64, role_key

TRIALS = 32
_DRAWS = 8192  # made at once: 16,384 take 0.15 ms so and 0.33 ms in one piece, whose temporary arrays leave the caches
_NONE = np.empty(0, dtype=np.int64)
# Trials that are tested at once. A round costs a round trip to owners, so there are few; here it costs the scan of a row for
# each trial, and most first trials pass.
_ROUNDS_NEAR, _ROUNDS_FAR = ((0, 1), (1, 4), (4, TRIALS)), ((0, 4), (4, TRIALS))

HasEdges = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (dst gids, src gids) -> bool [n]


class NodeWeights:
    """Draws nodes in exact proportion to their weights, by integer prefix sums.

    weights: [N], numbers >= 0. Integers are used unchanged if their sum is below 2^62; other numbers are multiplied by a
    power of two that makes it so, and rounded, but never to 0.
    """

    def __init__(self, weights: np.ndarray) -> None:
        if weights.dtype.kind == "f" or int(weights.max()) > (1 << 62) // len(weights):
            values = weights.astype(np.float64)
            room = 61 - int(len(values) - 1).bit_length()  # of one weight, in bits
            scaled = np.rint(np.ldexp(values, room - int(np.frexp(values.max())[1])))
            weights = np.where(values > 0, np.maximum(scaled, 1), 0)
        self.ends = np.cumsum(weights.astype(np.uint64), dtype=np.uint64)
        self.total = int(self.ends[-1])

    def nodes(self, drawn: np.ndarray) -> np.ndarray:
        """Returns the nodes for random numbers in [0, total), of any shape, as int64."""
        return np.searchsorted(self.ends, drawn.astype(np.uint64), side="right")


class Trials(Protocol):
    """The pairs that are tried for negatives, in the user's ids."""

    def dst(self, numbers: np.ndarray, begin: int, end: int) -> np.ndarray:
        """Returns int64 [n, end - begin]: destinations of the trials ``begin`` to ``end`` of the negatives with these numbers."""

    def src(self, numbers: np.ndarray, begin: int, end: int) -> np.ndarray:
        """Returns int64 [n, end - begin]: sources of the trials ``begin`` to ``end`` of the negatives with these numbers."""


@dataclass(frozen=True)
class DrawnTrials:
    """Trials that are drawn: trial t of negative i has draws 2 t (destination) and 2 t + 1 (source) of stream i of the batch's
    role ``negative``.

    num_src, num_dst: number of nodes, for uniform draws, or their weights.
    """

    key: int
    num_src: int | NodeWeights
    num_dst: int | NodeWeights

    def dst(self, numbers: np.ndarray, begin: int, end: int) -> np.ndarray:
        return self._draw(self.num_dst, numbers, 2 * np.arange(begin, end))

    def src(self, numbers: np.ndarray, begin: int, end: int) -> np.ndarray:
        return self._draw(self.num_src, numbers, 2 * np.arange(begin, end) + 1)

    def _draw(self, among: int | NodeWeights, numbers: np.ndarray, draws: np.ndarray) -> np.ndarray:
        each, wide = keyed(role_key(self.key, "negative"), numbers)[:, None], draws.astype(np.uint64)
        total = among.total if isinstance(among, NodeWeights) else among
        drawn, rows = np.empty((len(numbers), len(draws)), np.int64), max(1, _DRAWS // len(draws))
        for begin in range(0, len(numbers), rows):
            drawn[begin : begin + rows] = draw64(each[begin : begin + rows], wide, total)
        return among.nodes(drawn) if isinstance(among, NodeWeights) else drawn


@dataclass(frozen=True)
class GivenTrials:
    """Trials that the trainer has drawn, because it has the weights of nodes: int64 [N, TRIALS]."""

    all_src: np.ndarray
    all_dst: np.ndarray

    def dst(self, numbers: np.ndarray, begin: int, end: int) -> np.ndarray:
        return self.all_dst[numbers, begin:end]

    def src(self, numbers: np.ndarray, begin: int, end: int) -> np.ndarray:
        return self.all_src[numbers, begin:end]


@dataclass(frozen=True)
class NegativeTest:
    """The test that a strict negative is neither an edge nor a self-loop.

    has_edges: asks the graph.  one_type: sources and destinations are of one node type, so a pair may be a self-loop.
    near: all edges are on this host.  where: the loader, for errors.
    """

    has_edges: HasEdges
    one_type: bool
    self_loops: bool
    near: bool
    where: str

    def rounds(self, tested: bool) -> Sequence[tuple[int, int]]:
        if not tested:
            return ((0, 1),)
        return _ROUNDS_NEAR if self.near else _ROUNDS_FAR

    def passed(self, dst: np.ndarray, src: np.ndarray, rejected: np.ndarray) -> np.ndarray:
        """Returns bool [n]: True for pairs that pass. dst, src: int64 [n] gids.  rejected: bool [n], edges of the loader, which
        need not be in the graph."""
        good = ~rejected
        if self.one_type and not self.self_loops:
            good &= dst != src
        asked = np.flatnonzero(good)
        good[asked] = ~self.has_edges(dst[asked], src[asked])
        return good


@dataclass(frozen=True)
class NodeTimes:
    """The condition that the nodes of a negative exist at the time of its edge.

    src, dst: int64 [N], the times of all nodes of the type, by the user's id; None: they have none.  edges: int64 [P], the times
    of the batch's edges: negative j belongs to edge j modulo P.  oldest: take the oldest nodes if no trial gives nodes that
    exist; else that is an error.
    """

    src: np.ndarray | None
    dst: np.ndarray | None
    edges: np.ndarray
    oldest: bool

    def oldest_of(self, trials: Trials, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns (src, dst), int64 [n, 1] user ids of the oldest nodes; for a type without times, the nodes of the first
        trial."""
        whole = np.zeros((len(numbers), 1), np.int64)
        src = trials.src(numbers, 0, 1) if self.src is None else whole + int(self.src.argmin())
        return src, trials.dst(numbers, 0, 1) if self.dst is None else whole + int(self.dst.argmin())

    def exist(self, numbers: np.ndarray, src: np.ndarray | None, dst: np.ndarray) -> np.ndarray:
        """Returns bool [n, T]: True if the nodes of a trial exist. src, dst: int64 [n, T] user ids; src None: the sources of the
        edges, which do."""
        until = self.edges[numbers % len(self.edges), None]
        good = np.ones(dst.shape, bool)
        for times, ids in ((self.src, src), (self.dst, dst)):
            if times is not None and ids is not None:
                good &= times[ids] <= until
        return good


def draw_negatives(
    trials: Trials,
    numbers: np.ndarray,
    test: NegativeTest,
    *,
    strict: bool,
    src: np.ndarray | None,
    gids: tuple[np.ndarray, np.ndarray],
    rejected: np.ndarray = _NONE,
    times: NodeTimes | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Draws negatives: for each the first trial that passes. Returns (src, dst), int64 [n] gids.

    numbers: int64 [n], numbers of the negatives in the batch.  src: int64 [n], gids of their sources; None: sources are
    drawn, too.  gids: the gids of all nodes by user id, of the type of sources and of that of destinations.  rejected:
    sorted numbers * TRIALS + trial, of trials that are edges of the loader.  times: the times at which their nodes have to
    exist; None: nodes have no times.

    Raises `DataError` for a negative that none of its trials gives.
    """
    found_src, found_dst = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.int64)
    left = np.arange(len(numbers))
    for begin, end in test.rounds(strict or times is not None):
        mine = numbers[left]
        dst_ids = trials.dst(mine, begin, end)
        dst, src_ids = gids[1][dst_ids].astype(np.int64, copy=False), None
        if src is None:
            src_ids = trials.src(mine, begin, end)
            some_src = gids[0][src_ids].astype(np.int64, copy=False)
        else:
            some_src = np.repeat(src[left, None], end - begin, axis=1)
        good = np.ones(dst.shape, bool) if times is None else times.exist(mine, src_ids, dst_ids)
        if strict:
            bad = ~good.ravel()
            if len(rejected):
                bad |= np.isin((mine[:, None] * TRIALS + np.arange(begin, end)).ravel(), rejected)
            good = test.passed(dst.ravel(), some_src.ravel(), bad).reshape(dst.shape)
        first = good.argmax(axis=1)
        done = good[np.arange(len(first)), first]
        rows = np.flatnonzero(done)
        found_src[left[rows]], found_dst[left[rows]] = some_src[rows, first[rows]], dst[rows, first[rows]]
        left = left[~done]
        if not len(left):
            return found_src, found_dst
    if times is not None and times.oldest:
        src_ids, dst_ids = times.oldest_of(trials, numbers[left])
        if times.exist(numbers[left], src_ids if src is None else None, dst_ids).all():
            found_dst[left] = gids[1][dst_ids[:, 0]]
            found_src[left] = gids[0][src_ids[:, 0]] if src is None else src[left]
            return found_src, found_dst
    raise _no_negative(test.where, None if src is None else int(np.flatnonzero(gids[0] == src[left[0]])[0]), times)


def _no_negative(where: str, user_id: int | None, times: NodeTimes | None) -> DataError:
    among = "of the graph" if user_id is None else f"of the node {user_id}"
    if times is not None:
        remedy = "Draw other nodes (dst_weight), or set neg_sampling.unresolved to oldest."
        if times.oldest:
            remedy = "Even the oldest node is younger. Remove such edges, or give their negatives."
        return DataError(
            f"{where}: neg_sampling: none of {TRIALS} drawn pairs {among} is a negative that exists at the time of its edge. "
            f"{remedy}"
        )
    return DataError(
        f"{where}: neg_sampling.strict: none of {TRIALS} drawn pairs {among} is a negative: all are edges or loops. Draw other "
        "nodes (src_weight, dst_weight, self_loops), or set neg_sampling.strict to false."
    )


def key_of_type(key: int, edge_type: EdgeType, num_types: int) -> int:
    """Returns the key of the draws of negatives of an edge type: the batch's own key if its edges are of one type alone."""
    return key if num_types == 1 else role_key(key, edge_type_str(edge_type))


_MOST_PAIRS = 1 << 20  # of a mask that are tested at once: 16 MiB of gids


def negative_mask(src: np.ndarray, dst: np.ndarray, test: NegativeTest, rejected: np.ndarray = _NONE) -> np.ndarray:
    """Returns bool [P, K]: True if (src[i], dst[k]) may be a negative. src: int64 [P].  dst: int64 [K].  rejected: sorted
    i * K + k, of edges of the loader."""
    mask = np.ones(len(src) * len(dst), bool)
    mask[rejected] = False
    for begin in range(0, mask.size, _MOST_PAIRS):
        some = np.arange(begin, min(mask.size, begin + _MOST_PAIRS))
        mask[some] = test.passed(dst[some % len(dst)], src[some // len(dst)], ~mask[some])
    return mask.reshape(len(src), len(dst))
