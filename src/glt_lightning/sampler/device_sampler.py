"""The neighbour sampler whose graph a GPU samples, and whose batches lie in the GPU's memory."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.ops.cuda.gather import CudaShards
from glt_lightning.ops.cuda.kernels import raise_if
from glt_lightning.ops.cuda.khop import CudaKHopOp
from glt_lightning.ops.gather import Shards
from glt_lightning.ops.tiered import OnDisk, TieredShards
from glt_lightning.sampler import fields
from glt_lightning.sampler.counters import Counters, DiskUse
from glt_lightning.sampler.device_store import DeviceStore
from glt_lightning.sampler.request import BatchRequest, SamplerConfig
from glt_lightning.sampler.sample import Sample, edge_key, node_key, seed_key


class DeviceRowsOf:
    """One attribute, read by the device where it can and else by the CPU. Gives tensors on the device, as batches have them.

    on_device: None where the CPU reads ``on_host``.  error: int64 [5] on the device, where a wrong id is noted.
    """

    def __init__(
        self,
        store: DeviceStore,
        on_device: CudaShards | None,
        on_host: Shards,
        bfloat16: bool,
        error: Tensor,
        threads: int,
    ) -> None:
        self._kernels, self._on_device, self._on_host = store.kernels, on_device, on_host
        self._dtype = torch.bfloat16 if bfloat16 else getattr(torch, on_host.dtype.name)
        self._error, self._threads = error, threads
        self.row_bytes = on_host.row_bytes

    @property
    def by_cpu(self) -> bool:
        return self._on_device is None

    def gather(self, ids: Tensor, host_ids: np.ndarray | None, on_disk: OnDisk) -> Tensor:
        """Rows ``ids`` (int64 [n], on the device; ``host_ids``: the same ids for the CPU). on_disk: hears of its reads."""
        if self._on_device is not None:
            return _seen_as(self._on_device.gather(ids, error=self._error), self._dtype)
        assert host_ids is not None
        shards = self._on_host
        rows = self._kernels.pinned(len(host_ids), *shards.row_shape, dtype=self._dtype)
        out = _seen_as(rows, torch.int16).numpy().view(shards.dtype) if self._dtype == torch.bfloat16 else rows.numpy()
        if isinstance(shards, TieredShards):
            shards.gather(host_ids, out, threads=self._threads, on_disk=on_disk)
        else:
            shards.gather(host_ids, out, threads=self._threads)
        return rows.to(self._kernels.device, non_blocking=True)


class DeviceSampler:
    """Samples k-hop batches with all node and edge attributes from a partition whose parts are all local: the batches of
    `neighbor.NeighborSampler`, bit for bit, as tensors on the device of ``store``.

    One instance serves one thread, which waits for the device once a batch, and once more where the CPU reads attributes.
    """

    def __init__(self, store: DeviceStore, partition: LocalPartition, config: SamplerConfig) -> None:
        partition = partition.as_stored if config.stored else partition
        self._kernels, self._config = store.kernels, config
        self._error = store.kernels.new_error()
        self._said = store.kernels.pinned(5, dtype=torch.int64).zero_()  # what the error was behind the last batch
        self._khop = CudaKHopOp(store.graph, config.fanouts, replace=config.replace, with_edge=config.with_edge)
        manifest, threads = partition.manifest, config.threads
        self._id_bytes = np.dtype(manifest.id_dtype).itemsize
        self._nodes: list[list[tuple[str, DeviceRowsOf]]] = []
        for t, names in enumerate(fields.node_names(manifest)):
            rows = []
            for name in names:
                host, bfloat16 = partition.node_shards(t, name), manifest.is_bfloat16("nodes", t, name)
                each = DeviceRowsOf(
                    store, store.node_shards(t, name, config.stored), host, bfloat16, self._error, threads
                )
                rows.append((node_key(t, name), each))
            self._nodes.append(rows)
        self._edges: list[list[tuple[str, DeviceRowsOf]]] = []
        for r, edge_names in enumerate(fields.edge_names(manifest, config)):
            rows = []
            for public, name in edge_names.items():
                host, bfloat16 = partition.edge_shards(r, name), manifest.is_bfloat16("edges", r, name)
                each = DeviceRowsOf(
                    store, store.edge_shards(r, name, config.stored), host, bfloat16, self._error, threads
                )
                rows.append((edge_key(r, public), each))
            self._edges.append(rows)

    def make(self, request: BatchRequest) -> Sample:
        """Samples one batch. Its arrays are good for work that comes behind it on the stream that is current now.

        Raises as `ops.cuda_khop.CudaKHopOp`, and `DataError` in the batch behind one whose edges lead out of the graph.
        """
        request.require_one_type()
        begin, put = time.perf_counter(), self._kernels.put
        found = self._khop(put(request.seeds), self._config.seed_type, request.key)
        raise_if(self._said.tolist(), "gather")  # of the batch before, which the device has done by now
        sampled = time.perf_counter()
        counters = Counters(sample_s=sampled - begin, frontier_rows=int(found.nodes_per_hop[:, :-1].sum()))
        arrays: dict[str, Any] = {
            "input_id": put(request.input_id),
            **{seed_key(name): put(values) for name, values in request.extras.items()},
            "num_sampled_nodes": found.nodes_per_hop,
            "num_sampled_edges": found.edges_per_hop,
        }
        for t, rows in enumerate(self._nodes):
            arrays[node_key(t, "n_id")] = found.uid[t]
            self._gather(arrays, rows, found.gid[t], counters, self._id_bytes)
        for r, rows in enumerate(self._edges):
            arrays[edge_key(r, "edge_index")] = found.edge_index[r]
            ids = found.edge_row[r]
            if ids is not None and rows:
                self._gather(arrays, rows, ids, counters, 0)
                arrays[edge_key(r, "e_id")] = arrays[edge_key(r, "e_id")].to(torch.int64)
        self._said.copy_(self._error, non_blocking=True)
        counters.gather_s += time.perf_counter() - sampled
        return Sample(request.number, arrays, counters)

    def _gather(
        self, arrays: dict[str, Any], rows: list[tuple[str, DeviceRowsOf]], ids: Tensor, counters: Counters, beside: int
    ) -> None:
        counters.local_rows += len(ids)
        counters.local_bytes += len(ids) * (beside + sum(each.row_bytes for _, each in rows))
        host_ids = ids.cpu().numpy() if any(each.by_cpu for _, each in rows) else None
        on_disk = DiskUse(counters)
        for name, each in rows:
            arrays[name] = each.gather(ids, host_ids, on_disk)


def _seen_as(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values if values.dtype == dtype else values.view(dtype)
