"""Random walks through the mapped parts and through the parts of other owners."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from glt_lightning.base import DataError, PeerError
from glt_lightning.graph import LocalPartition, Manifest, bare_view
from glt_lightning.kernels import ExcludedEdges, ExcludedEntries, GraphView, Pairs, Picks, WalkRule, Walks, guarded
from glt_lightning.sampling.counters import Counters
from glt_lightning.sampling.questions.walk import Stepped, Walk
from glt_lightning.sampling.request import SamplerConfig
from glt_lightning.sampling.source import RemoteRows, wire_dtype

_WALK_BYTES = 44  # of a walk in memory, beside 8 for each step
_AT_ONCE = 1 << 20  # walks whose steps are in memory at once


@dataclass(frozen=True, kw_only=True)
class WalkStart:
    """Walks that are to begin.

    roots: int64 [n] gids.  walks: number of walks of each root.  key: 64 bits, from `kernels.mix.hop_key`.
    trees: int32 [n], the trees of the roots in a disjoint batch.  excluded: edges that walks do not go along.
    """

    rule: WalkRule
    roots: np.ndarray
    walks: int
    key: int
    trees: np.ndarray | None = None
    excluded: ExcludedEdges | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the walks in memory."""
        return len(self.roots) * self.walks * (_WALK_BYTES + 8 * self.rule.length)

    def walks_from(self, uids: np.ndarray) -> Walks:
        """Begins the walks. uids: int64 [n], the user's ids of the roots, by which their draws are keyed."""
        return Walks.begin(self.rule, self.roots, uids, self.walks, self.key, self.trees)


def local_walks(view: GraphView, start: WalkStart, threads: int = 1) -> Walks:
    """Takes walks through mapped parts alone. Raises `DataError` for walks that leave them, and as `Walks.advance`."""
    start.rule.require(view.src_types.tolist(), view.dst_types.tolist())
    walks = start.walks_from(view.user_ids_of(int(view.dst_types[start.rule.edge_types[0]]), start.roots))
    walks.advance(view, threads=threads, excluded=None if start.excluded is None else start.excluded.find(view))
    left = walks.under_way(np.arange(len(walks)))
    if len(left):
        raise DataError(f"walk: node {walks.at[left[0]]} is in a part that is not mapped by this process.")
    return walks


@dataclass(frozen=True, kw_only=True)
class Visiting:
    """The definition of neighbours by walks: the ``most`` nodes (-1: all) that walks from a node visit most often, counted after
    every ``every`` steps. walks, key, excluded: as in `WalkStart`.  self_loops: a node may be its own neighbour."""

    rule: WalkRule
    walks: int
    key: int
    every: int
    most: int
    self_loops: bool
    excluded: ExcludedEdges | None = None

    def start(self, roots: np.ndarray, trees: np.ndarray | None) -> WalkStart:
        start = WalkStart(rule=self.rule, roots=roots, walks=self.walks, key=self.key, trees=trees)
        return replace(start, excluded=self.excluded)


class LocalWalks:
    """The walks of a source of the mapped parts. stored_view: the stored edges, by the weights of the config."""

    config: SamplerConfig
    counters: Counters
    stored_view: GraphView

    @property
    def local(self) -> Self:
        """The source that draws from and reads the mapped parts: this one."""
        return self

    def reached_edges(self, edges: Mapping[int, np.ndarray]) -> None:
        """Does nothing, as `reached_nodes`: there are no owners to ask."""

    def reached_nodes(self, frontier: Sequence[Any]) -> None: ...

    def walk(self, start: WalkStart) -> Walks:
        self.config.require_room(start.nbytes)
        return local_walks(self.stored_view, start, self.config.threads)

    def most_visited(
        self, asked: Visiting, frontier: Any, trees: np.ndarray | None, remote: RoutedWalks | None = None
    ) -> Any:
        """Finds neighbours by walks, as `NeighborSource.most_visited`. remote: continues walks in remote parts."""
        step, threads, pieces = max(1, _AT_ONCE // asked.walks), self.config.threads, []
        for begin in range(0, max(1, len(frontier)), step):
            some = np.ascontiguousarray(frontier[begin : begin + step])
            start = asked.start(some, None if trees is None else np.ascontiguousarray(trees[begin : begin + step]))
            self.config.require_room(start.nbytes)
            walks = local_walks(self.stored_view, start, threads) if remote is None else remote(start, self.counters)
            roots = None if asked.self_loops else some
            pieces.append(walks.visits(asked.walks, asked.every, asked.most, roots, threads))
        return Picks.joined(pieces)


@dataclass(frozen=True)
class ExcludedShares:
    """Edges that walks do not go along. of: by owner, the edges in its rows.  own: by edge type, entries of the mapped parts."""

    of: Sequence[ExcludedEdges | None]
    own: Mapping[int, ExcludedEntries]


class RoutedWalks:
    """Takes walks through the mapped parts, ``view``, and the parts of ``remote`` owners.

    An owner continues walks for as long as they stay in its parts: so it is asked once in a round for all of them, and there
    are at most as many rounds as steps. weights: the weights of ``view``.  wire: dtype of ids in questions.
    """

    def __init__(
        self,
        view: GraphView,
        remote: RemoteRows,
        weights: tuple[str | None, ...],
        wire: np.dtype,
        threads: int,
    ) -> None:
        self._view, self._remote, self._weights, self._wire, self._threads = view, remote, weights, wire, threads

    def __call__(self, start: WalkStart, counters: Counters) -> Walks:
        """Takes walks to their ends. Raises `PeerError`, with the name of an owner that does not answer, and as
        `Walks.advance`."""
        without = self.without(start.excluded)
        walks = self.begin(start, without, counters)
        left = walks.under_way(np.arange(len(walks)))
        while len(left):
            walks.restart(left)
            left = walks.under_way(left)
            self.take_on(walks, left, without, counters)
            left = walks.under_way(left)
        return walks

    def without(self, excluded: ExcludedEdges | None) -> ExcludedShares:
        """Splits excluded edges by the owners of their rows."""
        shares: list[dict[int, Pairs]] = [{} for _ in range(self._remote.num_owners)]
        for r, (dst, src) in ({} if excluded is None else excluded.pairs).items():
            self._view.require_pairs(r, dst, src, "excluded")
            for owner, which in self._by_owner(dst, np.arange(len(dst))).items():
                shares[owner][r] = dst[which].astype(self._wire), src[which].astype(self._wire)
        own = ExcludedEdges(shares[0]).find(self._view) if shares[0] else {}
        return ExcludedShares([ExcludedEdges(share) if share else None for share in shares], own)

    def take_on(self, walks: Walks, which: np.ndarray, without: ExcludedShares, counters: Counters) -> None:
        """Takes walks one round further: each goes on until it leaves the parts of the owner at whose node it stands (this
        process or another). which: int64 [m], numbers of walks, none of which restarts before its next step."""
        shares = self._by_owner(walks.at[which], which)
        # Owners are asked first, so that they work while this process takes its own walks further.
        asked = {owner: self._ask_on(walks, owner, mine, without.of[owner]) for owner, mine in shares.items() if owner}
        if 0 in shares:
            walks.advance(self._view, shares[0], self._threads, without.own)
        for owner, answer in asked.items():
            began = time.perf_counter()
            found = answer()
            counters.remote_s += time.perf_counter() - began
            self._add(walks, shares[owner], found)

    def begin(self, start: WalkStart, without: ExcludedShares, counters: Counters) -> Walks:
        """Takes walks through their first round. Owners also return the user's ids of their roots, which key the draws: this
        process does not have them."""
        start.rule.require(self._view.src_types.tolist(), self._view.dst_types.tolist())
        shares = self._by_owner(start.roots, np.arange(len(start.roots)))
        asked = {
            owner: self._ask_first(start, owner, which, without.of[owner]) for owner, which in shares.items() if owner
        }
        uids = np.zeros(len(start.roots), dtype=np.int64)
        own, each = shares.get(0, np.empty(0, np.int64)), np.arange(start.walks)
        if len(own):
            uids[own] = self._view.user_ids_of(int(self._view.dst_types[start.rule.edge_types[0]]), start.roots[own])
        began = time.perf_counter()
        answers = {owner: answer() for owner, answer in asked.items()}
        counters.remote_s += time.perf_counter() - began
        for owner, found in answers.items():
            assert found.user_ids is not None
            uids[shares[owner]] = found.user_ids
        counters.remote_frontier_rows += len(uids) - len(own)
        walks = start.walks_from(uids)
        walks_of = {owner: (roots[:, None] * start.walks + each).reshape(-1) for owner, roots in shares.items()}
        if 0 in walks_of:
            walks.advance(self._view, walks_of[0], self._threads, without.own)
        for owner, found in answers.items():
            self._add(walks, walks_of[owner], found)
        return walks

    def _by_owner(self, gids: np.ndarray, which: np.ndarray) -> dict[int, np.ndarray]:
        """Splits ``which`` by the owners of the nodes ``gids``."""
        segments = np.searchsorted(self._view.bounds, gids, side="right") - 1
        owners = self._remote.owner_of_part[segments % self._view.num_parts]
        return {int(owner): which[owners == owner] for owner in np.unique(owners)}

    def _ask_first(
        self, start: WalkStart, owner: int, which: np.ndarray, without: ExcludedEdges | None
    ) -> Callable[[], Stepped]:
        trees = None if start.trees is None else start.trees[which]
        roots = start.roots[which].astype(self._wire)
        question = Walk(rule=start.rule, roots=roots, weights=self._weights, trees=trees, excluded=without)
        return self._remote.ask(owner, replace(question, key=start.key, walks=start.walks))

    def _ask_on(
        self, walks: Walks, owner: int, which: np.ndarray, without: ExcludedEdges | None
    ) -> Callable[[], Stepped]:
        roots, at = (ids[which].astype(self._wire) for ids in (walks.roots, walks.at))
        question = Walk(rule=walks.rule, roots=roots, weights=self._weights, at=at, excluded=without)
        return self._remote.ask(owner, replace(question, streams=walks.streams[which], step=walks.step[which]))

    def _add(self, walks: Walks, which: np.ndarray, found: Stepped) -> None:
        """Adds the steps that an owner took. Raises `PeerError` for steps that are not possible."""
        counts = found.counts.astype(np.int64)
        begin, nodes = np.cumsum(counts) - counts, found.nodes.astype(np.int64)
        to = walks.step[which] + counts
        if to.max(initial=0) > walks.rule.length:
            raise PeerError("an owner took more steps of a walk than it was asked for.")
        walk = np.repeat(which, counts)
        step = np.arange(len(nodes)) + np.repeat(walks.step[which] - begin, counts)
        last = begin + counts - 1
        self._require_nodes(walks.rule, nodes, step, last)
        walks.trace[walk, step] = nodes
        walks.at[which] = nodes[last]
        walks.step[which] = np.where(nodes[last] < 0, walks.rule.length, to)

    def _require_nodes(self, rule: WalkRule, nodes: np.ndarray, step: np.ndarray, last: np.ndarray) -> None:
        """Raises `PeerError` unless each node has the type that its step leads to, or ends its walk."""
        types = self._view.src_types[np.array(rule.edge_types)][step % len(rule.edge_types)]
        first = self._view.bounds[types * self._view.num_parts]
        end = self._view.bounds[(types + 1) * self._view.num_parts]
        fits = (first <= nodes) & (nodes < end)
        fits[last] |= nodes[last] == -1
        if not fits.all():
            bad = int(np.flatnonzero(~fits)[0])
            raise PeerError(
                f"an owner led a walk to {nodes[bad]}, which is no node of type {types[bad]} (gids {first[bad]} to "
                f"{end[bad] - 1})."
            )


@guarded()  # a truncated file becomes an error
def walk_through(
    manifest: Manifest,
    partition: LocalPartition | None,
    remote: RemoteRows | None,
    start: WalkStart,
    weights: tuple[str | None, ...],
) -> Walks:
    """Takes walks through a graph. partition: the parts that this process maps; None: none.  remote: the owners of the other
    parts; None: all are mapped.  weights: as in `DrawOptions`."""
    view = bare_view(manifest) if partition is None else partition.weighted(weights)
    if remote is None:
        return local_walks(view, start)
    return RoutedWalks(view, remote, weights, wire_dtype(manifest), 1)(start, Counters())
