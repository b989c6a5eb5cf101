"""A graph of which some parts are remote: local rows from one source, remote rows from their owners and the remote cache."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.ops.excluded import ExcludedEdges, Pairs
from glt_lightning.ops.has_edges import require_pairs
from glt_lightning.ops.induce import Among
from glt_lightning.ops.merge import Drawn, Picks
from glt_lightning.ops.route import Route, Router
from glt_lightning.ops.trees import Trees
from glt_lightning.ops.walks import Walks
from glt_lightning.sampler.neighbors import Found, LocalSource
from glt_lightning.sampler.source import Expand, Induced, Picked, RemoteRows, wire_dtype
from glt_lightning.sampler.table import RowTable, ask_owners
from glt_lightning.sampler.walks import RoutedWalks, Visiting, WalkStart
from glt_lightning.store.remote_cache import RemoteCache


class RoutedSource:
    """`neighbors.NeighborSource` over the parts of ``local`` and those of ``remote`` owners.

    Of each hop every owner is asked once for the neighbours of its frontier rows and, at the same time, for their
    attributes, which travel while the next hop is sampled. Rows and neighbour lists in ``cache`` are not asked for. Several
    sources, each with a thread of its own, hide the latency of each other's questions. attributes: False asks for none.
    """

    def __init__(
        self,
        local: LocalSource,
        partition: LocalPartition,
        remote: RemoteRows,
        cache: RemoteCache | None = None,
        *,
        attributes: bool = True,
    ) -> None:
        cache = cache or RemoteCache()
        view, parts = partition.view, partition.manifest.num_parts
        self.config, self.view, self.nodes, self.edges = local.config, view, local.nodes, local.edges
        self.local, self._remote, self._topology, self._attributes = local, remote, cache.topology, attributes
        self._others = range(1, remote.num_owners)
        self._edge_types = list(enumerate(view.dst_types.tolist()))
        self._wire = wire_dtype(partition.manifest)
        self._no_picks = Picks.none(self._wire, self.config)
        stored, weights = partition.with_stored_edges, self.config.weights
        self._stored = stored.view
        self._walks = RoutedWalks(stored.weighted(weights), remote, weights, self._wire, self.config.threads)
        for t, table in enumerate(self.nodes):
            rows = None if cache.rows is None else cache.rows.tables[t]
            dynamic = cache.dynamic[t] if cache.dynamic else None
            if not table.names:  # nothing is asked for
                rows = dynamic = None
            router = self._router(view.bounds[t * parts : (t + 1) * parts + 1])
            table.route_by(router, rows, dynamic, repeats=self.config.disjoint)
        for r, table in enumerate(self.edges):
            edges = cache.topology.edges[r] if cache.topology is not None and table.names else None
            table.route_by(self._router(view.edge_bounds[r]), edges, repeats=self.config.disjoint)
        for r, table in local.targets.items():
            table.route_by(self._router(stored.view.edge_bounds[r]))

    def _router(self, bounds: np.ndarray) -> Router:
        return Router(bounds, self._remote.owner_of_part, self._remote.num_owners, self._wire)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Counts the time as that of waiting for owners."""
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
        asked = self._ask_picks(whole, routes, without)
        if attributes is not None:
            self._ask_rows(self.nodes, attributes)
        mine, in_trees = self.local.own(frontier, routes), _trees_of(trees, 0, dict(enumerate(routes)))
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
        """Who has the neighbours of nodes. attributes: who has their attributes, if that was asked; often the same."""
        routes, owners = [], self._remote.num_owners
        for t, (table, gids) in enumerate(zip(self.nodes, ids, strict=True)):
            cached = self._topology is not None and self._topology.nodes[t] is not None
            route = None if attributes is None else attributes[t]
            apart = (
                cached or table.on_device is not None or self.config.disjoint
            )  # asked for once, drawn from in each tree
            if route is None or len(route.begin) > owners + 1 or apart:
                route = self._route_lists(t, gids)
            self.local.counters.cached_frontier_rows += len(route.owner) - route.begin[owners]
            self.local.counters.remote_frontier_rows += route.begin[owners] - route.begin[1]
            routes.append(route)
        return routes

    def _route_lists(self, node_type: int, gids: np.ndarray) -> Route:
        """Who has the neighbour lists of nodes: a process, or the cache."""
        members = None if self._topology is None else self._topology.nodes[node_type]
        router = self.nodes[node_type].router
        assert router is not None
        found = None if members is None else members.find(gids)
        return router(gids, np.zeros(self._remote.num_owners + 1, dtype=np.int64), found)

    def _by_owner(self, excluded: ExcludedEdges | None) -> list[ExcludedEdges | None]:
        """The excluded edges in the rows of each owner, this process first; those in cached lists, with ranks for dst, last."""
        shares: list[dict[int, Pairs]] = [{} for _ in range(self._remote.num_owners + 1)]
        for r, (dst, src) in ({} if excluded is None else excluded.pairs).items():
            require_pairs(self.view, r, dst, src, "excluded")
            route = self._route_lists(int(self.view.dst_types[r]), np.ascontiguousarray(dst, dtype=np.int64))
            for owner in np.unique(route.owner).tolist():
                shares[owner][r] = route.of(owner), src[route.owner == owner].astype(self._wire)
        return [ExcludedEdges(share) if share else None for share in shares]

    def _ask_picks(
        self, whole: Expand, routes: Sequence[Route], without: Sequence[ExcludedEdges | None]
    ) -> dict[int, Picked]:
        """Asks the owners for the neighbours of their rows: owner -> answer. whole: the hop, with the trees of all rows."""
        wanted, asked = {t for r, t in self._edge_types if whole.fanouts[r]}, {}
        for owner in self._others:
            rows = {t: ids for t in wanted if len(ids := routes[t].of(owner))}
            if rows:
                trees = _trees_of(whole.trees, owner, {t: routes[t] for t in rows})
                share = replace(whole, rows=rows, excluded=without[owner], trees=trees)
                asked[owner] = self._remote.expand(owner, share)
        return asked

    def _cached_picks(self, whole: Expand, edge_type: int, route: Route, without: ExcludedEdges | None) -> Picks:
        """Those of the nodes of which the neighbour lists are cached."""
        assert self._topology is not None
        owner, node_type = self._remote.num_owners, int(self.view.dst_types[edge_type])
        pairs = None if without is None else without.pairs.get(edge_type)
        trees = _trees_of(whole.trees, owner, {node_type: route})
        rows, fanout, labor = route.of(owner), whole.fanouts[edge_type], self.local.view.labor
        return self._topology.sample(edge_type, rows, fanout, whole.key, whole.hop, self.config, pairs, trees, labor)

    def has_edges(self, edge_type: int, dst: np.ndarray, src: np.ndarray, *, weighted: bool = True) -> np.ndarray:
        require_pairs(self._stored, edge_type, dst, src)
        node_type, owners = int(self._stored.dst_types[edge_type]), self._remote.num_owners
        weights = self.config.weights if weighted else ()
        route = self._route_lists(node_type, np.ascontiguousarray(dst, dtype=np.int64))
        mine = [np.flatnonzero(route.owner == owner) for owner in range(len(route.begin) - 1)]
        asked = {
            owner: self._remote.has_edges(
                owner, edge_type, route.of(owner), src[mine[owner]].astype(self._wire), weights
            )
            for owner in self._others
            if len(mine[owner])
        }
        found = np.empty(len(dst), dtype=np.bool_)
        found[mine[0]] = self.local.has_edges(edge_type, route.of(0), src[mine[0]], weighted=weighted)
        if len(mine) > owners:
            assert self._topology is not None
            found[mine[owners]] = self._topology.has_edges(edge_type, route.of(owners), src[mine[owners]], weights)
        with self._waiting():
            for owner, answer in asked.items():
                found[mine[owner]] = answer()
        return found

    def induce(self, asked: Sequence[Among], *, weighted: bool = True) -> list[Picks]:
        return [answer() for answer in self.ask_edges(asked, weighted=weighted)]

    def ask_edges(self, asked: Sequence[Among], *, weighted: bool = True) -> list[Induced]:
        return [self._ask_among(among, weighted) for among in asked]

    def _ask_among(self, among: Among, weighted: bool) -> Induced:
        """Asks the owners of the rows at once; the local rows are read when the answer is waited for."""
        owners, weights = self._remote.num_owners, self.config.weights if weighted else ()
        route = self._route_lists(int(self._stored.dst_types[among.edge_type]), among.rows)
        shares = [replace(among, rows=route.of(owner)) for owner in range(len(route.begin) - 1)]
        asked = {o: self._remote.induce(o, shares[o], weights) for o in self._others if len(shares[o].rows)}
        none = Picks(*(np.empty(0, dtype=np.int64) for _ in range(3)))

        def answer() -> Picks:
            mine = replace(shares[0], rows=shares[0].rows.astype(np.int64))
            picks = self.local.induce([mine], weighted=weighted) if len(mine.rows) else [none]
            with self._waiting():
                picks = [*picks, *(asked[o]() if o in asked else none for o in self._others)]
            if len(shares) > owners:
                assert self._topology is not None
                picks.append(self._topology.induce(shares[owners], weights))
            return Drawn(picks, route.owner).stitched()

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
        """Who has the attributes of new nodes, by node type."""
        return [table.route(gids) for table, gids in zip(self.nodes, ids, strict=True)]

    def _ask_rows(self, tables: Sequence[RowTable], routes: Iterable[Route]) -> None:
        """Asks the owners for the attributes of rows that were just routed."""
        if self._attributes:
            ask_owners(self._remote, [(table, r) for table, r in zip(tables, routes, strict=True) if table.names])

    def settle(self, found: Found) -> None:
        """Caches that learn are offered the rows of nodes that owners sent."""
        with self._waiting():
            for table in (*self.nodes, *self.edges):
                for answer in table.answers:
                    answer.gathered()
        for table in self.nodes:
            table.learn()
        self.local.settle(found)


def _trees_of(trees: Trees | None, owner: int, routes: Mapping[int, Route]) -> Trees | None:
    """The trees of the rows of a frontier that an owner has, by node type; the last owner may be the cache."""
    if trees is None:
        return None
    return trees.of_rows({t: trees.of[t][route.owner == owner] for t, route in routes.items()})
