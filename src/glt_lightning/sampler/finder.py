"""Who has the rows that a batch needs, and the questions to those of other processes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from glt_lightning.data.device_members import DeviceMembers
from glt_lightning.data.kept import Kept
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.ops.merge import Picks
from glt_lightning.ops.route import Route, Router
from glt_lightning.sampler import fields
from glt_lightning.sampler.counters import Counters
from glt_lightning.sampler.request import SamplerConfig
from glt_lightning.sampler.source import Expand, Picked, RemoteRows, Rows, wire_dtype
from glt_lightning.sampler.table import Answer, Table


class RowFinder:
    """The tables of all types for one batch at a time, and what owners are asked: each once per hop for neighbours and, at
    the same time, for attributes; what is ``kept`` here is not asked for. One instance serves one thread.

    Attributes:
        nodes, edges: A table for each node type, and each edge type.
        edge_names: For each edge type, name in a batch -> name in the partition.
        counters: Of the batch.
    """

    def __init__(
        self,
        partition: LocalPartition,
        config: SamplerConfig,
        remote: RemoteRows,
        kept: Kept | None = None,
        on_device: DeviceMembers | None = None,
        *,
        attributes: bool = True,
    ) -> None:
        kept = kept or Kept()
        partition = partition.as_stored if config.stored else partition
        manifest, view = partition.manifest, partition.view
        self._config, self._remote, self._topology, self._attributes = config, remote, kept.topology, attributes
        self.owners = range(1, remote.num_owners)
        self.relations = [(r, int(t)) for r, t in enumerate(view.dst_types)]
        self.counters = Counters()
        owner_of_part, owners, wire = remote.owner_of_part, remote.num_owners, wire_dtype(manifest)
        self.nodes = []
        for t, names in enumerate(fields.node_names(manifest)):
            stored = ("n_id", *names)
            bounds = view.bounds[t * manifest.num_parts : (t + 1) * manifest.num_parts + 1]
            shards = {name: partition.node_shards(t, name) for name in stored}
            router = Router(bounds, owner_of_part, owners, wire)
            rows = None if kept.rows is None else kept.rows.tables[t]
            learning = kept.learning[t] if kept.learning else None
            members = None if on_device is None else on_device.tables[t]
            self.nodes.append(Table("node", t, stored, shards, router, int(bounds[-1]), rows, learning, members))
        self.edge_names = fields.edge_names(manifest, config)
        self.edges = []
        for r, edge_names in enumerate(self.edge_names):
            bounds = view.edge_bounds[r]
            edge_shards = {name: partition.edge_shards(r, name) for name in edge_names.values()}
            router = Router(bounds, owner_of_part, owners, wire)
            edges = kept.topology.edges[r] if kept.topology is not None and edge_names else None
            self.edges.append(Table("edge", r, tuple(edge_names.values()), edge_shards, router, int(bounds[-1]), edges))

    def start(self) -> None:
        """Begins a batch."""
        self.counters = Counters()
        for table in (*self.nodes, *self.edges):
            table.clear()

    def route_rows(self, frontier: Sequence[np.ndarray]) -> list[Route]:
        """Who has the attributes of new nodes, int64 [F] for each type."""
        return [table.route(ids) for table, ids in zip(self.nodes, frontier, strict=True)]

    def route_frontier(self, frontier: Sequence[np.ndarray], attributes: Sequence[Route]) -> list[Route]:
        """Who has their neighbours. attributes: of `route_rows`."""
        routes, topology = [], self._topology
        for t, (table, ids, route) in enumerate(zip(self.nodes, frontier, attributes, strict=True)):
            members = None if topology is None else topology.members[t]
            owners = table.router.num_owners
            if len(route.begin) > owners + 1 or members is not None or table.on_device is not None:
                found = None if members is None else members.find(ids)
                route = table.router(ids, np.zeros(owners + 1, dtype=np.int64), found)
            self.counters.frontier_rows += len(route.owner)
            self.counters.cached_frontier_rows += len(route.owner) - route.begin[owners]
            self.counters.remote_frontier_rows += route.begin[owners] - route.begin[1]
            routes.append(route)
        return routes

    def ask_picks(self, key: int, hop: int, routes: Sequence[Route]) -> dict[int, Picked]:
        """Asks the owners for the neighbours of their rows: owner -> answer."""
        config, fanouts, asked = self._config, self._config.fanouts[hop], {}
        wanted = {t for r, t in self.relations if fanouts[r]}
        for owner in self.owners:
            rows = {t: ids for t in wanted if len(ids := routes[t].of(owner))}
            if rows:
                expand = Expand(key, hop, fanouts, config.replace, config.with_edge, rows, config.require_room)
                asked[owner] = self._remote.expand(owner, expand)
        return asked

    def wait_for_picks(self, asked: Mapping[int, Picked]) -> dict[int, Mapping[int, Picks]]:
        begin = time.perf_counter()
        answers = {owner: picked() for owner, picked in asked.items()}
        self.counters.remote_s += time.perf_counter() - begin
        return answers

    def foreign_picks(
        self,
        key: int,
        hop: int,
        relation: int,
        route: Route,
        answers: Mapping[int, Mapping[int, Picks]],
        like: np.dtype,
    ) -> list[Picks]:
        """Those of all owners, and those of kept lists behind them, where a route tells of these. like: dtype of none."""
        none = _no_picks(like, self._config.with_edge)
        picks = [answers[o].get(relation, none) if o in answers else none for o in self.owners]
        if len(route.begin) > len(picks) + 2:
            picks.append(self._sample_kept(key, hop, relation, route))
        return picks

    def _sample_kept(self, key: int, hop: int, relation: int, route: Route) -> Picks:
        config, topology = self._config, self._topology
        assert topology is not None
        return topology.sample(
            relation,
            route.of(self._remote.num_owners),
            config.fanouts[hop][relation],
            batch_key=key,
            hop=hop,
            replace=config.replace,
            with_edge=config.with_edge,
            threads=config.threads,
        )

    def ask_rows(self, tables: Sequence[Table], routes: Iterable[Route]) -> None:
        """Asks the owners for the attributes of rows that were just routed: one question per owner."""
        if not self._attributes:
            return
        routed = [(table, route) for table, route in zip(tables, routes, strict=True) if table.stored]
        for owner in self.owners:
            rows = []
            of_table = []
            for table, route in routed:
                ids = route.of(owner)
                if len(ids):
                    of_table.append((table, int(route.first[owner]), ids))
                    rows.append(Rows(table.kind, table.type, table.stored, ids))
            if rows:
                answer = self._remote.gather(owner, rows)
                for index, (table, first, ids) in enumerate(of_table):
                    table.answers.append(Answer(first, len(ids), answer, index, ids))

    def wait_for_rows(self) -> None:
        """Waits for all attributes that were asked for; caches that learn are offered those of nodes."""
        begin = time.perf_counter()
        for table in (*self.nodes, *self.edges):
            for answer in table.answers:
                answer.gathered()
        self.counters.remote_s += time.perf_counter() - begin
        for table in self.nodes:
            table.learn()

    def count_rows(self) -> None:
        """Notes in the counters where the rows of the batch come from."""
        counters = self.counters
        for table in (*self.nodes, *self.edges):
            if table.stored:
                local, kept, asked = table.counts
                counters.local_rows += local
                counters.cached_rows += kept
                counters.remote_rows += asked
                counters.local_bytes += local * table.row_bytes
                counters.cached_bytes += kept * table.row_bytes
                counters.remote_bytes += asked * table.row_bytes


def _no_picks(dtype: np.dtype, with_edge: bool) -> Picks:
    empty = np.empty(0, dtype=dtype)
    return Picks(empty, empty, empty if with_edge else None)
