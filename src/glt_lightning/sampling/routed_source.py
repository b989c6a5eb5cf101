"""A graph of which some parts are remote: local rows from one source, remote rows from their owners and the remote cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from glt_lightning.graph import LocalPartition, RemoteCache
from glt_lightning.kernels import Drawn, ExcludedEdges, Pairs, Picks, Route, Router, Trees, Walks
from glt_lightning.sampling.neighbors import Found, LocalSource
from glt_lightning.sampling.questions.expand import Expand, trees_of
from glt_lightning.sampling.questions.has_edges import KnowsEdges
from glt_lightning.sampling.source import RemoteRows, RowsQuestion, wire_dtype
from glt_lightning.sampling.table import RowTable, ask_owners
from glt_lightning.sampling.walks import RoutedWalks, Visiting, WalkStart

A = TypeVar("A")


class RoutedSource(KnowsEdges):
    """A `NeighborSource` over the parts of ``local`` and the parts of ``remote`` owners.

    In each hop every owner is asked once for the neighbours of its frontier rows and, at the same time, for their
    attributes, which travel while the next hop is sampled. Rows and neighbour lists in ``cache`` are not requested. Several
    sources, each with a thread of its own, hide the latency of each other's questions.
    """

    def __init__(
        self,
        local: LocalSource,
        partition: LocalPartition,
        remote: RemoteRows,
        cache: RemoteCache | None = None,
    ) -> None:
        cache = cache or RemoteCache()
        view, parts = partition.view, partition.manifest.num_parts
        self.config, self.view, self.nodes, self.edges = local.config, view, local.nodes, local.edges
        self.local, self._remote, self._topology = local, remote, cache.topology
        self._others = range(1, remote.num_owners)
        self._edge_types = list(enumerate(view.dst_types.tolist()))
        self._wire = wire_dtype(partition.manifest)
        self._no_picks = Picks.none(self._wire, self.config)
        stored, weights = partition.with_stored_edges, self.config.weights
        self._stored = stored.view
        self._walks = RoutedWalks(stored.weighted(weights), remote, weights, self._wire, self.config.threads)
        for t, table in enumerate(self.nodes):
            rows = None if cache.rows is None else cache.rows.tables[t]
            if not table.names:  # no attributes are requested, so none has to be found in the cache
                rows = None
            router = self._router(view.bounds[t * parts : (t + 1) * parts + 1])
            table.route_by(router, rows, repeats=self.config.disjoint)
        for r, table in enumerate(self.edges):
            edges = cache.topology.edges[r] if cache.topology is not None and table.names else None
            table.route_by(self._router(view.edge_bounds[r]), edges, repeats=self.config.disjoint)
        for r, table in local.targets.items():
            table.route_by(self._router(stored.view.edge_bounds[r]))

    def _router(self, bounds: np.ndarray) -> Router:
        return Router(bounds, self._remote.owner_of_part, self._remote.num_owners, self._wire)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Counts the time of a block as waiting for owners."""
        begin = time.perf_counter()
        yield
        self.local.counters.remote_s += time.perf_counter() - begin

    def begin(self) -> None:
        self.local.begin()

    def khop(self, *_: Any) -> Found | None:
        return None

    def expand(
        self,
        key: int,
        hop: int,
        fanouts: Sequence[int],
        frontier: Sequence[Any],
        *,
        new: bool = True,
        excluded: ExcludedEdges | None = None,
        trees: Trees | None = None,
    ) -> Mapping[int, Drawn]:
        ids = self.local.routed(frontier)
        attributes = self._route_rows(ids) if new else None
        routes, without = self._route(ids, attributes), self._by_owner(excluded)
        whole = Expand(key, hop, tuple(fanouts), self.config, {}, self.config.require_room, trees=trees)
        by_type = dict(enumerate(routes))
        asked = {
            owner: self._remote.ask(owner, share)
            for owner in self._others
            if (share := whole.of_owner(owner, by_type, without[owner], self.view)) is not None
        }
        if attributes is not None:
            self._ask_rows(self.nodes, attributes)
        # Only now that all questions are on their way: the owners work while this process draws its own rows.
        mine, in_trees = self.local.own(frontier, routes), trees_of(trees, 0, by_type)
        own = self.local.expand(key, hop, fanouts, mine, excluded=without[0], trees=in_trees)
        with self._waiting():
            answers = {owner: picked() for owner, picked in asked.items()}
        drawn = {}
        for r, t in self._edge_types:
            if fanouts[r]:
                picks = [answer.get(r, self._no_picks) for answer in (answers.get(o, {}) for o in self._others)]
                if len(routes[t].begin) > self._remote.num_owners + 1:
                    picks.append(self._cached_picks(whole, r, routes[t], without[-1]))
                drawn[r] = Drawn([own[r].picks[0] if r in own else None, *picks], routes[t].owner)
        return drawn

    def _route(self, ids: Sequence[np.ndarray], attributes: Sequence[Route] | None) -> list[Route]:
        """Finds the owners of the neighbour lists of nodes. attributes: the routes of their attributes, if they were requested;
        often these are the same, and are used again."""
        routes, owners = [], self._remote.num_owners
        for t, (table, gids) in enumerate(zip(self.nodes, ids, strict=True)):
            cached = self._topology is not None and self._topology.nodes[t] is not None
            route = None if attributes is None else attributes[t]
            # Other rows than those of the attributes: cached lists are not cached rows, rows on the device have no route, and
            # in a disjoint batch a node's attributes are requested once, and its neighbours drawn in each tree.
            apart = cached or table.on_device is not None or self.config.disjoint
            if route is None or len(route.begin) > owners + 1 or apart:
                route = self._route_lists(t, gids)
            self.local.counters.cached_frontier_rows += len(route.owner) - route.begin[owners]
            self.local.counters.remote_frontier_rows += route.begin[owners] - route.begin[1]
            routes.append(route)
        return routes

    def _route_lists(self, node_type: int, gids: np.ndarray) -> Route:
        """Finds the owners of the neighbour lists of nodes: this process, other processes, and as the last one the cache."""
        members = None if self._topology is None else self._topology.nodes[node_type]
        router = self.nodes[node_type].router
        assert router is not None
        found = None if members is None else members.find(gids)
        return router(gids, np.zeros(self._remote.num_owners + 1, dtype=np.int64), found)

    def _by_owner(self, excluded: ExcludedEdges | None) -> list[ExcludedEdges | None]:
        """Splits the excluded edges by the owners of their rows: this process first, cached lists, with ranks for dst, last."""
        shares: list[dict[int, Pairs]] = [{} for _ in range(self._remote.num_owners + 1)]
        for r, (dst, src) in ({} if excluded is None else excluded.pairs).items():
            self.view.require_pairs(r, dst, src, "excluded")
            route = self._route_lists(int(self.view.dst_types[r]), np.ascontiguousarray(dst, dtype=np.int64))
            for owner in np.unique(route.owner).tolist():
                shares[owner][r] = route.of(owner), src[route.owner == owner].astype(self._wire)
        return [ExcludedEdges(share) if share else None for share in shares]

    def _cached_picks(self, whole: Expand, edge_type: int, route: Route, without: ExcludedEdges | None) -> Picks:
        """Draws the neighbours of the nodes whose neighbour lists are cached."""
        assert self._topology is not None
        owner, node_type = self._remote.num_owners, int(self.view.dst_types[edge_type])
        pairs = None if without is None else without.pairs.get(edge_type)
        trees = trees_of(whole.trees, owner, {node_type: route})
        rows, fanout, labor = route.of(owner), whole.fanouts[edge_type], self.local.view.labor
        return self._topology.sample(edge_type, rows, fanout, whole.key, whole.hop, self.config, pairs, trees, labor)

    def ask(self, question: RowsQuestion[A]) -> Callable[[], A]:
        """Asks the owners of the rows at once. Returns a function that reads the local rows and waits for the answers."""
        owners, route = self._remote.num_owners, self._route_lists(*question.rows(self._stored))
        shares = {
            owner: question.of_rows(route.of(owner), route.owner == owner)
            for owner in range(len(route.begin) - 1)
            if len(route.of(owner))
        }
        asked = {owner: self._remote.ask(owner, shares[owner]) for owner in self._others if owner in shares}

        def answer() -> A:
            answers: list[A | None] = [None] * (len(route.begin) - 1)
            if 0 in shares:
                answers[0] = self.local.ask(shares[0])()
            if owners in shares:
                assert self._topology is not None
                answers[owners] = shares[owners].answer_cached(self._topology)
            with self._waiting():
                for owner, wait in asked.items():
                    answers[owner] = wait()
            return question.stitch(route.owner, answers)

        return answer

    def walk(self, start: WalkStart) -> Walks:
        self.config.require_room(start.nbytes)
        return self._walks(start, self.local.counters)

    def most_visited(self, asked: Visiting, frontier: Any, trees: np.ndarray | None) -> Any:
        return self.local.most_visited(asked, frontier, trees, self._walks)

    def complete(self, found: Found, excluded: ExcludedEdges | None) -> Found | None:
        return self.local.complete(found, excluded, self)

    def read_targets(self, edge_type: int, edges: np.ndarray) -> dict[str, np.ndarray]:
        table = self.local.targets[edge_type]
        table.clear()
        self._ask_rows([table], [table.route(edges)])
        with self._waiting():
            return table.gathered(self.config.threads)

    def reached_edges(self, edges: Mapping[int, np.ndarray]) -> None:
        tables = [self.edges[r] for r in edges]
        self._ask_rows(tables, [table.route(edges[table.type]) for table in tables])

    def reached_nodes(self, frontier: Sequence[Any]) -> None:
        self._ask_rows(self.nodes, self._route_rows(self.local.routed(frontier)))

    def _route_rows(self, ids: Sequence[np.ndarray]) -> list[Route]:
        """Finds the owners of the attributes of new nodes, by node type."""
        return [table.route(gids) for table, gids in zip(self.nodes, ids, strict=True)]

    def _ask_rows(self, tables: Sequence[RowTable], routes: Iterable[Route]) -> None:
        """Requests the attributes of rows that were just routed from their owners."""
        ask_owners(self._remote, [(table, r) for table, r in zip(tables, routes, strict=True) if table.names])

    def settle(self, found: Found) -> None:
        """Waits for the rows that were requested of owners."""
        with self._waiting():
            for table in (*self.nodes, *self.edges):
                for answer in table.answers:
                    answer.gathered()
        self.local.settle(found)
