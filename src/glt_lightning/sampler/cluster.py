"""The neighbour sampler for a graph whose parts lie on several hosts."""

from __future__ import annotations

import time

import numpy as np

from glt_lightning.data.device_members import DeviceMembers
from glt_lightning.data.kept import Kept
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.ops.khop import Subgraph
from glt_lightning.ops.merge import BatchBuilder, Picks
from glt_lightning.ops.route import Route
from glt_lightning.ops.sample import RowDraw
from glt_lightning.sampler import fields
from glt_lightning.sampler.counters import DiskUse
from glt_lightning.sampler.finder import RowFinder
from glt_lightning.sampler.request import BatchRequest, SamplerConfig
from glt_lightning.sampler.sample import Draft, edge_key, node_key
from glt_lightning.sampler.source import RemoteRows


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
        self._config, self._view = config, partition.view
        self._builder = BatchBuilder(partition.view, len(config.fanouts), with_edge=config.with_edge)
        self._finder = RowFinder(partition, config, remote, kept, on_device, attributes=attributes)

    def draft(self, request: BatchRequest) -> Draft:
        """Samples one batch and waits for all that owners send. Raises `PeerError`, naming an owner that does not."""
        begin, finder = time.perf_counter(), self._finder
        found = self.sample(request)
        finder.ask_rows(finder.nodes, finder.route_rows(self._frontier()))
        finder.wait_for_rows()
        draft = self._draft(request, found)
        finder.counters.sample_s = time.perf_counter() - begin - finder.counters.remote_s
        return draft

    def sample(self, request: BatchRequest) -> Subgraph:
        """The nodes and edges of a batch, without attributes; ``uid`` is empty. Valid until the next batch."""
        self._finder.start()
        self._builder.start(request.seeds, self._config.seed_type)
        for hop in range(len(self._config.fanouts)):
            self._sample_hop(request.key, hop)
        return self._builder.result()

    def _sample_hop(self, key: int, hop: int) -> None:
        finder, fanouts = self._finder, self._config.fanouts[hop]
        frontier = self._frontier()
        attributes = finder.route_rows(frontier)
        routes = finder.route_frontier(frontier, attributes)
        asked = finder.ask_picks(key, hop, routes)
        finder.ask_rows(finder.nodes, attributes)
        local = {r: self._sample_local(key, hop, r, routes[t]) for r, t in finder.relations if fanouts[r]}
        answers = finder.wait_for_picks(asked)
        edge_rows = {}
        for r, own in local.items():
            route = routes[finder.relations[r][1]]
            foreign = finder.foreign_picks(key, hop, r, route, answers, own.counts.dtype)
            rows = self._builder.merge(r, [own, *foreign], route.owner)
            if rows is not None:
                edge_rows[r] = rows
        tables = [finder.edges[r] for r in edge_rows]
        finder.ask_rows(tables, [table.route(edge_rows[table.type]) for table in tables])
        self._builder.end_hop()

    def _frontier(self) -> list[np.ndarray]:
        return [self._builder.frontier(t) for t in range(len(self._finder.nodes))]

    def _sample_local(self, key: int, hop: int, relation: int, route: Route) -> Picks:
        config = self._config
        rows = route.of(0).astype(np.int64, copy=False)
        draw = RowDraw(self._view, relation, rows, config.fanouts[hop][relation], key, hop, config.replace)
        counts = draw.count()
        total = int(counts.sum())
        config.require_room(total * 8 * (1 + config.with_edge))
        neighbors = np.empty(total, dtype=np.int64)
        edge_rows = np.empty_like(neighbors) if config.with_edge else None
        draw.pick(counts, 0, neighbors, edge_rows, threads=config.threads)
        return Picks(counts, neighbors, edge_rows)

    def _draft(self, request: BatchRequest, found: Subgraph) -> Draft:
        finder, threads, counters = self._finder, self._config.threads, self._finder.counters
        finder.count_rows()
        batch = fields.counts(request, found)
        for t, table in enumerate(finder.nodes):
            places, on_disk = table.all_places, DiskUse(counters)
            if table.on_device is not None:
                ranks = np.concatenate(table.ranks)
                batch.append(fields.copied(node_key(t, "device_rows"), ranks))
                counters.device_rows += len(ranks) - len(places)
                counters.device_bytes += (len(ranks) - len(places)) * table.row_bytes
            batch.append(fields.gathered_ids(node_key(t, "n_id"), table.shards("n_id"), places, threads))
            for name in table.stored[1:]:
                batch.append(fields.gathered(node_key(t, name), table.shards(name), places, threads, on_disk))
        for r, table in enumerate(finder.edges):
            batch.append(fields.edge_index(r, found))
            places, on_disk = table.all_places, DiskUse(counters)
            for public, name in finder.edge_names[r].items():
                make = fields.gathered_ids if public == "e_id" else fields.gathered
                batch.append(make(edge_key(r, public), table.shards(name), places, threads, on_disk))
        draft = Draft(batch, counters)
        self._config.require_room(draft.nbytes)
        return draft
