"""The neighbour sampler for a graph of which a GPU samples the mapped parts, and other processes hold the others."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt_lightning.data.kept import Kept
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.ops.cuda.gather import CudaShards
from glt_lightning.ops.cuda.kernels import raise_if
from glt_lightning.ops.cuda.khop_batch import SentHome
from glt_lightning.ops.cuda.merge import PartsElsewhere
from glt_lightning.ops.merge import require_seeds
from glt_lightning.sampler.counters import DiskUse
from glt_lightning.sampler.device_cluster_khop import ClusterHops
from glt_lightning.sampler.device_sampler import DeviceRowsOf
from glt_lightning.sampler.device_store import DeviceStore
from glt_lightning.sampler.foreign import ForeignRows
from glt_lightning.sampler.request import BatchRequest, SamplerConfig
from glt_lightning.sampler.sample import Sample, edge_key, node_key, seed_key
from glt_lightning.sampler.source import RemoteRows
from glt_lightning.sampler.table import Table


class DeviceClusterSampler:
    """Samples the batches of `cluster.ClusterSampler`, bit for bit, as tensors on the device of ``store``.

    Of each hop the device samples the frontier's nodes of mapped parts while owners are asked about the others. Attributes
    of the latter come through pinned memory. One instance serves one thread; several hide the latency of each other's
    questions. The host waits for the device once a hop, and once more where the CPU reads attributes.
    """

    def __init__(
        self,
        store: DeviceStore,
        partition: LocalPartition,
        config: SamplerConfig,
        remote: RemoteRows,
        kept: Kept | None = None,
    ) -> None:
        partition = partition.as_stored if config.stored else partition
        kernels, view = store.kernels, partition.view
        self._store, self._kernels, self._config, self._view = store, kernels, config, view
        self._manifest, self._id_dtype = partition.manifest, getattr(torch, partition.manifest.id_dtype)
        self._foreign = ForeignRows(partition, config, remote, kept)
        self._is_foreign = remote.owner_of_part != 0
        elsewhere = torch.from_numpy(self._is_foreign).to(kernels.device)
        self._inner_bounds = [table.router.bounds[1:-1] for table in self._foreign.nodes]
        self._elsewhere = [PartsElsewhere(kernels.copy(inner), elsewhere) for inner in self._inner_bounds]
        self._edge_ends = [table.end for table in self._foreign.edges]
        self._error = kernels.new_error()
        self._said = kernels.pinned(5, dtype=torch.int64).zero_()  # what the error was behind the last batch

    def make(self, request: BatchRequest) -> Sample:
        """Samples one batch. Its arrays are good for work that comes behind it on the stream that is current now.

        Raises `PeerError`, naming an owner that does not answer, and else as `device_sampler.DeviceSampler`.
        """
        request.require_one_type()
        begin, foreign = time.perf_counter(), self._foreign
        hops = self._sample(request)
        raise_if(self._said.tolist(), "gather")  # of the batch before, which the device has done by now
        nodes, edges = (np.array(per_hop, dtype=np.int64) for per_hop in (hops.nodes_per_hop, hops.edges_per_hop))
        edges = edges.reshape(-1, self._view.num_relations)
        foreign.finish(nodes.sum(axis=0).tolist(), edges.sum(axis=0).tolist(), int(nodes[:-1].sum()))
        counters, sampled = foreign.counters, time.perf_counter()
        counters.sample_s = sampled - begin - counters.remote_s
        arrays: dict[str, Any] = {
            "input_id": self._kernels.put(request.input_id),
            **{seed_key(name): self._kernels.put(values) for name, values in request.extras.items()},
            "num_sampled_nodes": nodes.T,
            "num_sampled_edges": edges.T,
        }
        for t, table in enumerate(foreign.nodes):
            self._add_nodes(arrays, t, table, hops)
        for r, table in enumerate(foreign.edges):
            arrays[edge_key(r, "edge_index")] = hops.edge_index(r)
            if table.stored:
                self._add_edges(arrays, r, table, hops.edge_places(r))
        self._said.copy_(self._error, non_blocking=True)
        counters.gather_s += time.perf_counter() - sampled
        return Sample(request.number, arrays, counters)

    def _sample(self, request: BatchRequest) -> ClusterHops:
        config, foreign, seeds = self._config, self._foreign, request.seeds
        require_seeds(self._view, seeds, config.seed_type)
        part = np.searchsorted(self._inner_bounds[config.seed_type], seeds, side="right")
        graph, ends = self._store.graph, self._edge_ends
        foreign.start()
        hops = ClusterHops(graph, config, self._elsewhere, ends, request, self._is_foreign[part])
        for hop in range(len(config.fanouts)):
            hops.expand(hop, foreign.expand(request.key, hop, hops.foreign_gids))
        foreign.found(hops.foreign_gids)
        return hops

    def _add_nodes(self, arrays: dict[str, Any], node_type: int, table: Table, hops: ClusterHops) -> None:
        """``n_id`` and the attributes of one type."""
        frontiers = [each[node_type] for each in hops.frontiers]
        local = torch.cat([each.local + each.first for each in frontiers])
        foreign = torch.cat([each.foreign + each.first for each in frontiers])
        n_id = torch.empty_like(hops.gid[node_type])
        n_id.index_copy_(0, local, torch.cat([each.uids for each in frontiers]))
        n_id.index_copy_(0, foreign, self._sent(table, "n_id").view(self._id_dtype).to(torch.int64))
        arrays[node_key(node_type, "n_id")] = n_id
        end = table.end
        numbers = torch.arange(end, end + len(foreign), device=n_id.device)
        places = hops.gid[node_type].index_copy(0, foreign, numbers)
        names = {name: name for name in table.stored[1:]}
        for name, rows in self._gather(table, names, places).items():
            arrays[node_key(node_type, name)] = rows

    def _add_edges(self, arrays: dict[str, Any], edge_type: int, table: Table, places: Tensor) -> None:
        for name, rows in self._gather(table, self._foreign.edge_names[edge_type], places).items():
            arrays[edge_key(edge_type, name)] = rows.to(torch.int64) if name == "e_id" else rows

    def _gather(self, table: Table, names: dict[str, str], places: Tensor) -> dict[str, Tensor]:
        """Attributes (name in the batch -> in the partition) of the rows at ``places``, int64 [n]: the id of a row that is
        mapped here, or the number of a foreign one, from ``table.end`` on."""
        store, kind = self._store, f"{table.kind}s"
        shards_of = store.node_shards if table.kind == "node" else store.edge_shards
        on_disk, found, host_places = DiskUse(self._foreign.counters), {}, None
        for public, name in names.items():
            on_device = shards_of(table.type, name, self._config.stored)
            if on_device is None and host_places is None:
                host_places = _places_of(table, SentHome(places, self._kernels).wait())
            bfloat16 = self._manifest.is_bfloat16(kind, table.type, name)
            rows = self._with_foreign(table, name, on_device)
            on_host = table.shards(name) if on_device is None else table.local[name]
            reader = DeviceRowsOf(store, rows, on_host, bfloat16, self._error, self._config.threads)
            found[public] = reader.gather(places, host_places, on_disk)
        return found

    def _with_foreign(self, table: Table, name: str, shards: CudaShards | None) -> CudaShards | None:
        """Shards that have the rows of others, too, under their numbers."""
        n = len(table.all_places)
        if shards is None or not n:
            return shards
        rows = self._sent(table, name).view(shards.stored_dtype).reshape(n, *table.local[name].stored_row_shape)
        return shards.extended([(table.end, rows)], table.end + n)

    def _sent(self, table: Table, name: str) -> Tensor:
        """An attribute of all foreign rows, as it is stored, on the device: uint8, row after row."""
        like, n = table.local[name], len(table.all_places)
        pinned = self._kernels.pinned(n * like.row_bytes, dtype=torch.uint8)
        self._foreign.rows(table, name, pinned.numpy().view(like.stored_dtype).reshape(n, *like.stored_row_shape))
        return pinned.to(self._kernels.device, non_blocking=True)


def _places_of(table: Table, places: np.ndarray) -> np.ndarray:
    """Where `Table.shards` has what `DeviceClusterSampler` has at ``places``."""
    found, foreign = places.copy(), places >= table.end
    found[foreign] = table.all_places[places[foreign] - table.end]
    return found
