"""The neighbour sampler for a graph whose parts lie on several hosts."""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np

from glt_lightning.data.device_members import DeviceMembers
from glt_lightning.data.kept import Kept
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.ops.khop import Subgraph
from glt_lightning.ops.merge import BatchBuilder, Picks
from glt_lightning.ops.route import Route, Router
from glt_lightning.ops.sample import sample_rows
from glt_lightning.sampler import fields
from glt_lightning.sampler.counters import Counters, DiskUse
from glt_lightning.sampler.request import BatchRequest, SamplerConfig
from glt_lightning.sampler.sample import Draft, edge_key, node_key
from glt_lightning.sampler.source import Expand, RemoteRows, Rows, wire_dtype
from glt_lightning.sampler.table import Answer, Table


class ClusterSampler:
    """Samples the batches of `neighbor.NeighborSampler`, bit for bit, where some parts are held by other processes.

    Of each hop every owner is asked once for the neighbours of its frontier rows and, at the same time, for their
    attributes, which travel while the next hop is sampled; what is ``kept`` here is not asked for. One instance serves
    one thread, and a draft must be written before the next is asked for; several threads hide the latency of each other's
    questions. Attributes of nodes in ``on_device`` are left out, as there. Without ``attributes`` it serves `sample` alone.
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
        self._topology, self._attributes = kept.topology, attributes
        manifest, schema = partition.manifest, partition.schema
        self._config, self._remote, self._view = config, remote, partition.view
        self._builder = BatchBuilder(partition.view, len(config.fanouts), with_edge=config.with_edge)
        self._relations = [(r, int(self._view.dst_types[r])) for r in range(len(schema.edge_types))]
        owner_of_part, owners, wire = remote.owner_of_part, remote.num_owners, wire_dtype(manifest)
        self._nodes = []
        for t, names in enumerate(fields.node_names(manifest)):
            stored = ("n_id", *names)
            bounds = self._view.bounds[t * manifest.num_parts : (t + 1) * manifest.num_parts + 1]
            shards = {name: partition.node_shards(t, name) for name in stored}
            router = Router(bounds, owner_of_part, owners, wire)
            rows = None if kept.rows is None else kept.rows.tables[t]
            learning = kept.learning[t] if kept.learning else None
            members = None if on_device is None else on_device.tables[t]
            self._nodes.append(Table("node", t, stored, shards, router, int(bounds[-1]), rows, learning, members))
        self._edge_names = fields.edge_names(manifest, config)
        self._edges = []
        for r, edge_names in enumerate(self._edge_names):
            bounds = self._view.edge_bounds[r]
            edge_shards = {name: partition.edge_shards(r, name) for name in edge_names.values()}
            router = Router(bounds, owner_of_part, owners, wire)
            edges = kept.topology.edges[r] if kept.topology is not None and edge_names else None
            self._edges.append(
                Table("edge", r, tuple(edge_names.values()), edge_shards, router, int(bounds[-1]), edges)
            )

    def draft(self, request: BatchRequest) -> Draft:
        """Samples one batch and waits for all that owners send. Raises `PeerError`, naming an owner that does not."""
        begin = time.perf_counter()
        found = self.sample(request)
        self._gather(self._nodes, self._route_rows())
        self._wait_for_rows()
        for table in self._nodes:
            table.learn()
        draft = self._draft(request, found)
        self._counters.sample_s = time.perf_counter() - begin - self._counters.remote_s
        return draft

    def sample(self, request: BatchRequest) -> Subgraph:
        """The nodes and edges of a batch, without attributes; ``uid`` is empty. Valid until the next batch."""
        self._counters = Counters()
        for table in (*self._nodes, *self._edges):
            table.clear()
        self._builder.start(request.seeds, self._config.seed_type)
        for hop in range(len(self._config.fanouts)):
            self._sample_hop(request.key, hop)
        return self._builder.result()

    def _sample_hop(self, key: int, hop: int) -> None:
        config, fanouts = self._config, self._config.fanouts[hop]
        attributes = self._route_rows()
        routes = self._route_frontier(attributes)
        wanted = {t for r, t in self._relations if fanouts[r]}
        asked = {}
        for owner in self._owners:
            rows = {t: ids for t in wanted if len(ids := routes[t].of(owner))}
            if rows:
                expand = Expand(key, hop, fanouts, config.replace, config.with_edge, rows)
                asked[owner] = self._remote.expand(owner, expand)
        self._gather(self._nodes, attributes)
        local = {r: self._sample_local(key, hop, r, routes[t]) for r, t in self._relations if fanouts[r]}
        begin = time.perf_counter()
        answers = {owner: picked() for owner, picked in asked.items()}
        self._counters.remote_s += time.perf_counter() - begin
        edge_rows = {}
        for r, own in local.items():
            route = routes[self._relations[r][1]]
            picks = [own, *(answers[o].get(r, _nothing(own)) if o in answers else _nothing(own) for o in self._owners)]
            if len(route.begin) > len(picks) + 1:
                picks.append(self._sample_kept(key, hop, r, route))
            edge_rows[r] = self._builder.merge(r, picks, route.owner)
        if config.with_edge:
            self._gather(self._edges, [self._edges[r].route(rows) for r, rows in _in_order(edge_rows)], [*edge_rows])
        self._builder.end_hop()

    @property
    def _owners(self) -> range:
        return range(1, self._remote.num_owners)

    def _wait_for_rows(self) -> None:
        begin = time.perf_counter()
        for table in (*self._nodes, *self._edges):
            for answer in table.answers:
                answer.gathered()
        self._counters.remote_s += time.perf_counter() - begin

    def _route_rows(self) -> list[Route]:
        """Who has the attributes of the frontier."""
        return [table.route(self._builder.frontier(t)) for t, table in enumerate(self._nodes)]

    def _route_frontier(self, attributes: list[Route]) -> list[Route]:
        """Who has the neighbours of the frontier."""
        routes = []
        for t, (table, route) in enumerate(zip(self._nodes, attributes, strict=True)):
            members = None if self._topology is None else self._topology.members[t]
            owners = table.router.num_owners
            if len(route.begin) > owners + 1 or members is not None or table.on_device is not None:
                ids = self._builder.frontier(t)
                found = None if members is None else members.find(ids)
                route = table.router(ids, np.zeros(owners + 1, dtype=np.int64), found)
            self._counters.frontier_rows += len(route.owner)
            self._counters.cached_frontier_rows += len(route.owner) - route.begin[owners]
            self._counters.remote_frontier_rows += route.begin[owners] - route.begin[1]
            routes.append(route)
        return routes

    def _sample_local(self, key: int, hop: int, relation: int, route: Route) -> Picks:
        config = self._config
        rows = route.of(0).astype(np.int64, copy=False)
        found = sample_rows(
            self._view,
            relation,
            rows,
            config.fanouts[hop][relation],
            batch_key=key,
            hop=hop,
            replace=config.replace,
            with_edge=config.with_edge,
            threads=config.threads,
        )
        return Picks(*found)

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

    def _gather(self, tables: list[Table], routes: list[Route], which: Iterable[int] | None = None) -> None:
        """Asks the owners for the attributes of rows that were just routed: one question per owner."""
        if not self._attributes:
            return
        chosen = [tables[i] for i in which] if which is not None else tables
        for owner in self._owners:
            rows = []
            of_table = []
            for table, route in zip(chosen, routes, strict=True):
                ids = route.of(owner)
                if len(ids) and table.stored:
                    of_table.append((table, int(route.first[owner]), ids))
                    rows.append(Rows(table.kind, table.type, table.stored, ids))
            if rows:
                answer = self._remote.gather(owner, rows)
                for index, (table, first, ids) in enumerate(of_table):
                    table.answers.append(Answer(first, len(ids), answer, index, ids))

    def _draft(self, request: BatchRequest, found: Subgraph) -> Draft:
        threads, counters = self._config.threads, self._counters
        for table in (*self._nodes, *self._edges):
            if table.stored:
                local, kept, asked = table.counts
                counters.local_rows += local
                counters.cached_rows += kept
                counters.remote_rows += asked
                counters.local_bytes += local * table.row_bytes
                counters.cached_bytes += kept * table.row_bytes
                counters.remote_bytes += asked * table.row_bytes
        batch = fields.counts(request, found)
        for t, table in enumerate(self._nodes):
            places, on_disk = _joined(table.places), DiskUse(counters)
            if table.on_device is not None:
                ranks = np.concatenate(table.ranks)
                batch.append(fields.copied(node_key(t, "device_rows"), ranks))
                counters.device_rows += len(ranks) - len(places)
                counters.device_bytes += (len(ranks) - len(places)) * table.row_bytes
            batch.append(fields.gathered_ids(node_key(t, "n_id"), table.shards("n_id"), places, threads))
            for name in table.stored[1:]:
                batch.append(fields.gathered(node_key(t, name), table.shards(name), places, threads, on_disk))
        for r, table in enumerate(self._edges):
            batch.append(fields.edge_index(r, found))
            places, on_disk = _joined(table.places), DiskUse(counters)
            for public, name in self._edge_names[r].items():
                make = fields.gathered_ids if public == "e_id" else fields.gathered
                batch.append(make(edge_key(r, public), table.shards(name), places, threads, on_disk))
        return Draft(batch, counters)


def _nothing(like: Picks) -> Picks:
    empty = np.empty(0, dtype=like.counts.dtype)
    return Picks(empty, empty, empty if like.edge_rows is not None else None)


def _in_order(edge_rows: dict[int, np.ndarray | None]) -> list[tuple[int, np.ndarray]]:
    return [(r, rows) for r, rows in edge_rows.items() if rows is not None]


def _joined(places: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(places) if places else np.empty(0, dtype=np.int64)
