"""The part of a batch that does not come from the parts mapped here, for a sampler that has those on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from glt_lightning.data.kept import Kept
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.errors import DataError
from glt_lightning.ops.merge import Picks
from glt_lightning.ops.route import Route
from glt_lightning.sampler.counters import Counters
from glt_lightning.sampler.finder import RowFinder
from glt_lightning.sampler.request import SamplerConfig
from glt_lightning.sampler.source import Picked, RemoteRows, wire_dtype
from glt_lightning.sampler.table import Table


@dataclass(frozen=True)
class ForeignPicks:
    """What others picked for the nodes of one relation that they were asked about.

    rows: int64 [n], which of the given nodes each row is.  counts: [n].  neighbors: [E] gids, row after row.
    Where edges are wanted, their attributes can be asked for by their numbers, which go on from relation to relation's next
    hop: those of these picks are ``first_edge`` to ``first_edge + E``.
    """

    rows: np.ndarray
    counts: np.ndarray
    neighbors: np.ndarray
    first_edge: int


class ForeignRows:
    """Neighbours and attributes of nodes whose parts are not mapped here, from what is ``kept`` and from their owners.

    A batch: `start`, for each hop `expand` with its new foreign nodes, `found` with those of the last hop, `finish`, then
    `rows`. Nodes of a type, and edges of a relation, are numbered in the order in which they were given, hop after hop.
    Every owner is asked once a hop for neighbours and once for attributes. One instance serves one thread.

    Attributes:
        nodes, edges: The tables, of a node type and of an edge type.
        edge_names: For each edge type, name in a batch -> name in the partition.
    """

    def __init__(
        self, partition: LocalPartition, config: SamplerConfig, remote: RemoteRows, kept: Kept | None = None
    ) -> None:
        self._finder = RowFinder(partition, config, remote, kept)
        self._config, self._wire = config, wire_dtype(partition.manifest)
        self.nodes, self.edges, self.edge_names = self._finder.nodes, self._finder.edges, self._finder.edge_names
        view = partition.view
        self._sources = [tuple(view.type_offsets[t : t + 2].tolist()) for t in view.src_types.tolist()]

    @property
    def counters(self) -> Counters:
        """Of the batch; complete but for the times when it is finished."""
        return self._finder.counters

    def start(self) -> None:
        """Begins a batch."""
        self._finder.start()
        self._num_edges = [0] * len(self.edges)

    def expand(self, key: int, hop: int, ids: Sequence[np.ndarray]) -> Callable[[], dict[int, ForeignPicks]]:
        """Asks for the neighbours and the attributes of new nodes, int64 [n] gids for each node type.

        What it returns waits for the neighbours, for each edge type that the hop follows from given nodes, and asks for the
        attributes of the edges. It raises `PeerError`, naming an owner that does not answer, and `DataError` for an answer
        that does not fit.
        """
        finder = self._finder
        attributes = finder.route_rows(ids)
        routes = finder.route_frontier(ids, attributes)
        asked = finder.ask_picks(key, hop, routes)
        finder.ask_rows(finder.nodes, attributes)
        return partial(self._picks, key, hop, routes, asked)

    def _picks(
        self, key: int, hop: int, routes: Sequence[Route], asked: Mapping[int, Picked]
    ) -> dict[int, ForeignPicks]:
        finder, found, edge_rows = self._finder, {}, {}
        answers = finder.wait_for_picks(asked)
        for r, t in finder.relations:
            route = routes[t]
            if not self._config.fanouts[hop][r] or not len(route.owner):
                continue
            picks = finder.foreign_picks(key, hop, r, route, answers, self._wire)
            for each, rows in zip(picks, np.diff(route.begin)[1:], strict=True):
                self._require_fit(r, each, int(rows))
            rows = np.argsort(route.owner, kind="stable")
            counts, neighbors = (np.concatenate([getattr(p, name) for p in picks]) for name in ("counts", "neighbors"))
            found[r] = ForeignPicks(rows, counts, neighbors, self._num_edges[r])
            self._num_edges[r] += len(neighbors)
            if self._config.with_edge:
                edge_rows[r] = np.concatenate([p.edge_rows for p in picks if p.edge_rows is not None]).astype(np.int64)
        tables = [self.edges[r] for r in edge_rows]
        finder.ask_rows(tables, [table.route(edge_rows[table.type]) for table in tables])
        return found

    def _require_fit(self, relation: int, picks: Picks, rows: int) -> None:
        """That picks answer what was asked, so that nothing of a batch can lie outside its memory."""
        first, last = self._sources[relation]
        counts, neighbors, edges = picks.counts, picks.neighbors, picks.edge_rows
        fits = (
            counts.dtype == neighbors.dtype
            and counts.dtype in (np.int32, np.int64)
            and counts.shape == (rows,)
            and counts.min(initial=0) >= 0
            and neighbors.shape == (int(counts.sum(dtype=np.int64)),)
            and (not len(neighbors) or (neighbors.min() >= first and neighbors.max() < last))
            and (not self._config.with_edge or (edges is not None and edges.shape == neighbors.shape))
        )
        if not fits:
            raise DataError(
                f"merge: the picks of edge type {relation} do not fit the request: {counts.dtype} {list(counts.shape)} counts "
                f"and {neighbors.dtype} {list(neighbors.shape)} neighbours for {rows} rows, of gids {first} to {last - 1}."
            )

    def found(self, ids: Sequence[np.ndarray]) -> None:
        """Asks for the attributes of the nodes of the last hop."""
        self._finder.ask_rows(self.nodes, self._finder.route_rows(ids))

    def finish(self, num_nodes: Sequence[int], num_edges: Sequence[int], frontier_rows: int) -> None:
        """Waits for all that owners send. The numbers are of the whole batch, for its counters. Raises `PeerError`."""
        finder = self._finder
        finder.wait_for_rows()
        for table, total in zip((*self.nodes, *self.edges), (*num_nodes, *num_edges), strict=True):
            table.counts[0] = total - sum(table.counts[1:])
        finder.counters.frontier_rows = frontier_rows
        finder.count_rows()

    def rows(self, table: Table, name: str, out: np.ndarray) -> None:
        """The attribute of all nodes or edges that were given, as it is stored, into ``out``, [n, *stored row shape]."""
        table.shards(name).raw.gather(table.all_places, out, threads=self._config.threads)
