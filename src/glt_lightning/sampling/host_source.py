"""The mapped parts of a graph as a source of neighbours and attributes, on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.graph import DeviceIndex, LocalPartition, RowDraws
from glt_lightning.kernels import (
    BatchBuilder,
    Drawn,
    ExcludedEdges,
    KHopOp,
    OnDisk,
    Picks,
    Route,
    Subgraph,
    Trees,
    by_source,
    column_pointers,
    widen,
)
from glt_lightning.sampling.request import SamplerConfig
from glt_lightning.sampling.sample import EDGE_WEIGHT, VISITS, Field, copied, edge_key
from glt_lightning.sampling.source import EdgeOwners
from glt_lightning.sampling.table import MappedTables, RowTable

_INT64 = np.dtype(np.int64)


class HostSource(MappedTables):
    """A `LocalSource` in the host's memory. If all parts are mapped, one native call samples a batch, and its attributes are
    gathered straight into the memory of the batch."""

    def __init__(self, partition: LocalPartition, config: SamplerConfig, on_device: DeviceIndex | None = None) -> None:
        super().__init__(partition, config, on_device)
        self._draws = RowDraws.of_parts(partition, config)

    @cached_property
    def _khop(self) -> KHopOp:
        config = self.config
        # Edge ids that are all mapped are read with the neighbours; those that lie on disk are gathered by edge row.
        stored = [table.local.get("edge_ids") for table in self.edges]
        ids = [None if each is None or each.on_disk else each.arrays for each in stored]
        by_row = [any(n != "e_id" or ids[t.type] is None for n in t.names) for t in self.edges]
        if config.subgraph is not None:  # ids are read when all edges are known
            by_row, ids = ["edge_rows" in config.columns] * len(by_row), [None] * len(ids)
        return KHopOp(
            self.view,
            config.fanouts,
            config,
            edge_rows=by_row,
            edge_ids=ids,
            require_room=config.require_room,
            disjoint=config.disjoint,
        )

    @cached_property
    def _builder(self) -> BatchBuilder:
        return BatchBuilder(self.view, self.config)

    def khop(
        self,
        seeds: Mapping[int, np.ndarray],
        key: int,
        excluded: ExcludedEdges | None = None,
        trees: Trees | None = None,
    ) -> Subgraph | None:
        if self.config.picker is not None:  # Python code of the user: it is called for each hop
            return None
        return self._khop(seeds, key, None if excluded is None else excluded.find(self.view), trees)

    def start(self, seeds: Mapping[int, np.ndarray], trees: Trees | None = None) -> BatchBuilder:
        self._builder.start(seeds, trees)
        return self._builder

    def expand(
        self,
        key: int,
        hop: int,
        fanouts: Sequence[int],
        frontier: Sequence[np.ndarray],
        *,
        new: bool = True,
        excluded: ExcludedEdges | None = None,
        trees: Trees | None = None,
    ) -> Mapping[int, Drawn]:
        gids = [frontier[t] for t in self.view.dst_types.tolist()]
        without = {} if excluded is None else excluded.find(self.view)
        drawn = {}
        for r, fanout in enumerate(fanouts):
            if fanout:
                rows = self._draws.of(r, gids[r], fanout, key, hop, without.get(r), trees)
                drawn[r] = Drawn([Picks(*rows.picks(self.config.require_room))])
        return drawn

    def routed(self, frontier: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        return frontier

    def own(self, frontier: Sequence[np.ndarray], routes: Sequence[Route]) -> Sequence[np.ndarray]:
        return [route.of(0).astype(np.int64, copy=False) for route in routes]

    def settle(self, found: Subgraph) -> None:
        """Places the rows of a graph without remote parts; in other graphs `RowTable.route` has placed them already. Raises
        `DataError` for edges without edge rows in a batch that has their attributes."""
        for t, table in enumerate(self.nodes):
            if table.router is None:
                table.place(found.gid[t], {"n_id": found.uid[t]} if found.uid else {})
        for r, table in enumerate(self.edges):
            ids, rows = found.e_id[r] if found.e_id else None, found.edge_row[r]
            missing = rows is None and ids is None if table.router is None else table.num_routed != len(found.src[r])
            if table.names and len(found.src[r]) and missing:
                raise DataError(
                    f"the batch has {len(found.src[r])} edges of edge type {r} with ids and attributes, and their edge rows are "
                    "not known. Give them as edge_row, and to source.reached_edges."
                )
            if table.router is None and table.names:
                table.place(rows if rows is not None else found.src[r], {} if ids is None else {"e_id": ids})

    def complete(self, found: Subgraph, excluded: ExcludedEdges | None, owners: EdgeOwners | None = None) -> None:
        return None

    def put(self, name: str, values: np.ndarray) -> Field:
        return copied(name, values)

    def edge_index(self, name: str, found: Subgraph, edge_type: int) -> Field:
        src, dst = found.src[edge_type], found.dst[edge_type]

        def write(out: np.ndarray) -> None:
            widen(src, out[0])
            widen(dst, out[1])

        return Field(name, _INT64, (2, len(src)), write)

    def column_pointers(self, name: str, found: Subgraph, edge_type: int) -> Field:
        nodes = int(found.nodes_per_hop[self.view.dst_types[edge_type]].sum())
        return Field(name, _INT64, (nodes + 1,), partial(column_pointers, found.dst[edge_type]))

    def by_source(self, name: str, found: Subgraph, edge_type: int) -> Field:
        nodes = int(found.nodes_per_hop[self.view.src_types[edge_type]].sum())
        src, dst = found.src[edge_type], found.dst[edge_type]
        write = partial(by_source, src, dst, nodes, threads=self.config.threads)
        return Field(name, _INT64, (nodes + 1 + 2 * len(src),), write)

    def visits(self, found: Subgraph, edge_type: int) -> list[Field]:
        visits, dst = found.edge_row[edge_type], found.dst[edge_type]
        assert visits is not None
        shares = visits / np.bincount(dst, weights=visits)[dst] if len(dst) else visits
        pairs = ((VISITS, visits), (EDGE_WEIGHT, shares.astype(np.float32)))
        return [copied(edge_key(edge_type, name), values) for name, values in pairs]

    def tree_of(self, name: str, found: Subgraph, node_type: int, examples: np.ndarray | None) -> Field:
        assert found.tree is not None
        tree = found.tree[node_type]
        return copied(name, tree.astype(np.int64) if examples is None else examples[tree])

    def row_numbers(self, name: str, found: Subgraph, node_type: int) -> Field:
        gids = found.gid[node_type]
        subtract = partial(np.subtract, gids, self.view.type_offsets[node_type])
        return Field(name, _INT64, gids.shape, lambda out: subtract(out=out))

    def rows(self, name: str, table: RowTable, public: str, on_disk: OnDisk) -> Field:
        at_hand = table.at_hand.get(public)
        if at_hand is not None:
            is_wide = at_hand.dtype != np.int32
            return copied(name, at_hand) if is_wide else Field(name, _INT64, at_hand.shape, partial(widen, at_hand))
        shards, places = table.shards(table.names[public]), table.all_places
        gather = partial(shards.gather, places, threads=self.config.threads, on_disk=on_disk)
        if public not in ("n_id", "e_id") or shards.dtype != np.int32:
            return Field(name, shards.dtype, (len(places), *shards.row_shape), gather)

        def write(out: np.ndarray) -> None:  # ids reach the user as int64 however they are stored
            narrow = out.view(np.int32)[len(out) :]  # the upper half; widening front to back never overtakes it
            widen(gather(narrow), out)

        return Field(name, _INT64, (len(places),), write)
