"""The mapped parts of a graph as a source of neighbours and attributes, on a GPU; batches lie in its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt_lightning.graph import DeviceStore, LocalPartition
from glt_lightning.kernels import (
    CudaKHopOp,
    CudaShards,
    DeviceHops,
    DeviceSubgraph,
    Drawn,
    ExcludedEdges,
    Frontier,
    OnDisk,
    Route,
    Trees,
    relabel,
)
from glt_lightning.sampling.device_edges import DeviceEdges
from glt_lightning.sampling.request import SamplerConfig
from glt_lightning.sampling.sample import Field
from glt_lightning.sampling.table import RowTable


class DeviceNeighbors(DeviceEdges):
    """A `LocalSource` on the device of ``store``. Attributes that the store leaves to the CPU, and attributes that owners sent,
    come through pinned memory.

    is_remote: bool [P], True for parts that are not mapped; None: all are mapped.
    """

    def __init__(
        self, store: DeviceStore, partition: LocalPartition, config: SamplerConfig, is_remote: np.ndarray | None = None
    ) -> None:
        super().__init__(partition, config, store.kernels, is_remote)
        self._store, kernels = store, store.kernels
        reads_rows = any(map(any, config.fanouts)) or config.subgraph is not None
        self._graph = self._walked = store.graph_for(config) if reads_rows else store.graph
        if config.importance is not None:
            self._graph = self._graph.without_edges(self.view.src_types.tolist(), self.view.dst_types.tolist())
        self._manifest = (partition.as_stored if config.stored else partition).manifest
        self._khop = CudaKHopOp(self._graph, config.fanouts, config)
        self._error = kernels.new_error()
        self._error_before = kernels.pinned(5, dtype=torch.int64).zero_()  # a copy of ``_error`` after the last batch
        self._n_id: list[Tensor] = []
        self._places: dict[tuple[str, int], Tensor] = {}  # by kind and type, int64 [n]: ids, or numbers of remote rows
        self._host_places: dict[tuple[str, int], tuple[np.ndarray, Tensor | None]] = {}

    def begin(self) -> None:
        super().begin()
        # Read in `settle`, where the host has waited for this batch's sizes, and with them for this copy: no wait of its own.
        self._error_before.copy_(self._error, non_blocking=True)
        self._n_id, self._places = [], {}  # else the device holds two batches while the next one is made

    def khop(
        self,
        seeds: Mapping[int, np.ndarray],
        key: int,
        excluded: ExcludedEdges | None = None,
        trees: Trees | None = None,
    ) -> DeviceSubgraph | None:
        put = {t: self._kernels.put(gids) for t, gids in seeds.items()}
        return self._khop(put, key, self.put_excluded(excluded), trees)

    def start(self, seeds: Mapping[int, np.ndarray], trees: Trees | None = None) -> DeviceHops:
        each = self.view.require_seeds(seeds)
        put = [self._kernels.put(gids) for gids in each]
        return DeviceHops(self._graph, put, self.config, remote=self._remote, host_seeds=each, trees=trees)

    def expand(
        self,
        key: int,
        hop: int,
        fanouts: Sequence[int],
        frontier: Sequence[Frontier],
        *,
        new: bool = True,
        excluded: ExcludedEdges | None = None,
        trees: Trees | None = None,
    ) -> Mapping[int, Drawn]:
        return self._khop.expand(key, hop, fanouts, frontier, excluded=self.put_excluded(excluded), trees=trees)

    def routed(self, frontier: Sequence[Frontier]) -> Sequence[np.ndarray]:
        return [nodes.remote_gids for nodes in frontier]

    def own(self, frontier: Sequence[Frontier], routes: Sequence[Route]) -> Sequence[Frontier]:
        return frontier

    def settle(self, found: DeviceSubgraph) -> None:
        """Notes the places of the batch's rows. Raises `DataError` if edges of the batch before lead out of the graph."""
        self._kernels.raise_error(self._error_before, "gather")
        self._n_id = found.uid
        self._places = {("node", t): gids for t, gids in enumerate(found.gid)}
        self._places |= {("edge", r): rows for r, rows in enumerate(found.edge_row) if rows is not None}
        self._host_places.clear()
        for t, table in enumerate(self.nodes):
            others = sum(table.counts[1:]) if found.remote is None else len(found.remote[t])
            table.counts[0] = len(found.gid[t]) - others
        for r, table in enumerate(self.edges):
            table.counts[0] = found.edge_index[r].shape[1] - sum(table.counts[1:])
        if found.remote is not None:
            self._n_id = list(found.uid)
            for t, lids in enumerate(found.remote):
                self._settle_remote_nodes(t, lids)
            for r, table in enumerate(self.edges):
                self._settle_remote_edges(r, table)

    def _settle_remote_nodes(self, node_type: int, lids: Tensor) -> None:
        """Sets the user ids of remote nodes, and their places, which follow the gids. lids: in the order in which they were
        routed."""
        table = self.nodes[node_type]
        ids = self._sent(table, "n_id").view(getattr(torch, self._manifest.id_dtype)).to(torch.int64)
        _, copies = table.distinct_places
        numbers = torch.arange(len(lids), device=lids.device) if copies is None else self._kernels.put(copies)
        self._n_id[node_type] = self._n_id[node_type].index_copy(0, lids, ids.index_select(0, numbers))
        placed = numbers.to(torch.int64) + table.end
        self._places["node", node_type] = self._places["node", node_type].index_copy(0, lids, placed)

    def _settle_remote_edges(self, edge_type: int, table: RowTable) -> None:
        """Gives remote edges that several trees have a common place behind the edge rows."""
        _, copies = table.distinct_places
        places = self._places.get(("edge", edge_type))
        if copies is not None and len(copies) and places is not None:
            at = (places - table.end).clamp(0, len(copies) - 1)
            numbers = self._kernels.put(copies).to(torch.int64).index_select(0, at) + table.end
            self._places["edge", edge_type] = torch.where(places < table.end, places, numbers)

    def put(self, name: str, values: np.ndarray) -> Field:
        return self._field(name, self._kernels.put(values))

    def edge_index(self, name: str, found: DeviceSubgraph, edge_type: int) -> Field:
        return self._field(name, found.edge_index[edge_type])

    def column_pointers(self, name: str, found: DeviceSubgraph, edge_type: int) -> Field:
        nodes = int(found.nodes_per_hop[self.view.dst_types[edge_type]].sum())
        return self._field(name, _pointers(found.dst[edge_type], nodes))

    def by_source(self, name: str, found: DeviceSubgraph, edge_type: int) -> Field:
        nodes = int(found.nodes_per_hop[self.view.src_types[edge_type]].sum())
        sources, perm = torch.sort(found.src[edge_type], stable=True)
        return self._field(name, torch.cat([_pointers(sources, nodes), found.dst[edge_type][perm], perm]))

    def tree_of(self, name: str, found: DeviceSubgraph, node_type: int, examples: np.ndarray | None) -> Field:
        assert found.tree is not None
        tree = found.tree[node_type]
        return self._field(name, tree if examples is None else self._kernels.put(examples).index_select(0, tree))

    def row_numbers(self, name: str, found: DeviceSubgraph, node_type: int) -> Field:
        return self._field(name, found.gid[node_type] - self._manifest.offsets[node_type])

    def visits(self, found: DeviceSubgraph, edge_type: int) -> list[Field]:
        return [self._field(name, values) for name, values in self.visit_columns(found, edge_type)]

    def rows(self, name: str, table: RowTable, public: str, on_disk: OnDisk) -> Field:
        if public == "n_id":
            return self._field(name, self._n_id[table.type])
        stored = table.names[public]
        places, shards = self._places[table.kind, table.type], self._shards(table, stored)
        is_bfloat16 = self._manifest.is_bfloat16(f"{table.kind}s", table.type, stored)
        dtype = torch.bfloat16 if is_bfloat16 else getattr(torch, table.local[stored].dtype.name)
        if shards is None:
            rows = self._read_by_cpu(table, stored, dtype, on_disk)
        else:
            rows = _seen_as(shards.gather(places, error=self._error), dtype)
        return self._field(name, rows.to(torch.int64) if public == "e_id" else rows)

    def _shards(self, table: RowTable, name: str) -> CudaShards | None:
        """Returns an attribute on the device, with the rows of owners at their places; None if the CPU reads it."""
        shards_of = self._store.node_shards if table.kind == "node" else self._store.edge_shards
        shards, remote = shards_of(table.type, name, self.config.stored), len(table.distinct_places[0])
        if shards is None or not remote:
            return shards
        row_shape = table.local[name].stored_row_shape
        rows = self._sent(table, name).view(shards.stored_dtype).reshape(remote, *row_shape)
        return shards.extended([(table.end, rows)], table.end + remote)

    def _sent(self, table: RowTable, name: str) -> Tensor:
        """Copies an attribute of all remote rows, each once, as it is stored, to the device: uint8, row after row."""
        shards, places = table.shards(name).raw, table.distinct_places[0]
        pinned = self._kernels.pinned(len(places) * shards.row_bytes, dtype=torch.uint8)
        rows = pinned.numpy().view(shards.stored_dtype).reshape(len(places), *shards.stored_row_shape)
        shards.gather(places, rows, threads=self.config.threads)
        return pinned.to(self._kernels.device, non_blocking=True)

    def _read_by_cpu(self, table: RowTable, name: str, dtype: torch.dtype, on_disk: OnDisk) -> Tensor:
        shards, (places, copies) = table.shards(name), self._on_host(table)
        rows = self._kernels.pinned(len(places), *shards.row_shape, dtype=dtype)
        out = _seen_as(rows, torch.int16).numpy().view(shards.dtype) if dtype == torch.bfloat16 else rows.numpy()
        shards.gather(places, out, threads=self.config.threads, on_disk=on_disk)
        there = rows.to(self._kernels.device, non_blocking=True)
        return there if copies is None else there.index_select(0, copies)

    def _on_host(self, table: RowTable) -> tuple[np.ndarray, Tensor | None]:
        """Returns the places of a batch's distinct rows in `RowTable.shards`, int64 [d], and for each row its number among these,
        or None if they are one to one. Waits for the device, once per table and batch."""
        key = table.kind, table.type
        if key not in self._host_places:
            places, copies = self._kernels.fetch(self._places[key]), None
            routed, _ = table.distinct_places
            if len(routed):
                remote = places >= table.end
                places[remote] = routed[places[remote] - table.end]
            if self.config.disjoint:
                places, lids = relabel(places)
                copies = self._kernels.put(lids)
            self._host_places[key] = places, copies
        return self._host_places[key]

    def _field(self, name: str, value: Tensor) -> Field:
        """Makes a field of a value on the device. Writing it copies it to the host on the stream that is current now."""
        bits = value.view(torch.uint16) if value.dtype == torch.bfloat16 else value  # numpy has no bfloat16
        dtype = np.dtype(str(bits.dtype).removeprefix("torch."))
        stream = torch.cuda.current_stream(value.device) if value.is_cuda else None
        return Field(name, dtype, tuple(bits.shape), partial(_fetch, bits, stream), value)


def _pointers(ends: Tensor, nodes: int) -> Tensor:
    """Returns int64 [nodes + 1]: where the edges of each node begin. ends: int64 [E], ascending."""
    return torch.searchsorted(ends, torch.arange(nodes + 1, device=ends.device))


def _fetch(values: Tensor, stream: Any, out: np.ndarray) -> None:
    with torch.cuda.stream(stream):
        torch.from_numpy(out).copy_(values)  # waits: the written memory may be sent at once


def _seen_as(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values if values.dtype == dtype else values.view(dtype)
