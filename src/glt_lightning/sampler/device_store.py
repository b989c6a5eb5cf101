"""Where the graph and the attributes of a partition lie for a GPU that samples them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from glt_lightning.data.arrays import open_array
from glt_lightning.data.device_layout import Placement, need_of, place
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.data.manifest import attr_key, edge_path, node_path
from glt_lightning.errors import SamplerError
from glt_lightning.ops.cuda import Kernels
from glt_lightning.ops.cuda_gather import CudaShards
from glt_lightning.ops.cuda_graph import DeviceGraph, GraphAddresses
from glt_lightning.options import CacheOptions

# torch has few operations on these; they travel as the signed integers with the same bytes
_CARRIED_AS = {"uint16": np.int16, "uint32": np.int32, "uint64": np.int64}


class DeviceStore:
    """The mapped parts of a partition in memory that a device reads. Made by `open_store`. Close it.

    Attributes:
        kernels: Of the device.
        graph_memory, feature_memory: ``device``, ``uva`` or ``hybrid``; attributes also ``cpu``.
        nbytes: Bytes in memory of the device (``device``), and in memory of the host that it reads (``uva``).
    """

    def __init__(self, partition: LocalPartition, kernels: Kernels, placement: Placement, with_edge: bool) -> None:
        self.kernels, self._partition = kernels, partition
        self.graph_memory, self.feature_memory = placement.topology, placement.features
        self.nbytes = {"device": 0, "uva": 0}
        self._keep: list[Tensor] = []
        self._graph: DeviceGraph | None = DeviceGraph(
            kernels, partition.view, GraphAddresses.whole(partition.view, self._address_of_copy)
        )
        self._shards: dict[str, CudaShards] = {}
        if self.feature_memory == "cpu":
            return
        manifest, parts = partition.manifest, range(partition.manifest.num_parts)
        for t in range(len(partition.schema.node_types)):
            for name in manifest.node_attrs(t):
                paths, bounds = [node_path(p, t, name) for p in parts], partition.node_shards(t, name).bounds
                self._shards[attr_key("nodes", t, name)] = self._copied(paths, bounds)
        for r in range(len(partition.schema.edge_types) if with_edge else 0):
            for name in ("edge_ids", *manifest.edge_attrs(r)):
                paths, bounds = [edge_path(p, r, name) for p in parts], partition.edge_shards(r, name).bounds
                self._shards[attr_key("edges", r, name)] = self._copied(paths, bounds)

    @property
    def graph(self) -> DeviceGraph:
        if self._graph is None:
            raise SamplerError("the graph on the device is gone: its store is closed.")
        return self._graph

    def node_shards(self, node_type: int, name: str) -> CudaShards | None:
        """An attribute of nodes by gid, as it is stored; None where the CPU gathers."""
        return None if self.feature_memory == "cpu" else self._shards[attr_key("nodes", node_type, name)]

    def edge_shards(self, edge_type: int, name: str) -> CudaShards | None:
        """An attribute of edges, or ``edge_ids``, by edge row."""
        return None if self.feature_memory == "cpu" else self._shards[attr_key("edges", edge_type, name)]

    def close(self) -> None:
        """Gives the memory back; no kernel may be reading it. Safe to call twice."""
        self._graph = None
        self._shards.clear()
        self._keep.clear()

    def _copied(self, paths: list[str], bounds: np.ndarray) -> CudaShards:
        partition = self._partition
        shards: list[Tensor | None] = [None] * len(paths)
        for p in partition.parts:
            path = paths[p]
            shards[p] = self._copy(open_array(partition.directory, path, partition.manifest.arrays[path]))
        return CudaShards(shards, self.kernels, bounds=bounds)

    def _address_of_copy(self, array: np.ndarray) -> int:
        return self._copy(array).data_ptr()

    def _copy(self, array: np.ndarray) -> Tensor:
        self._keep.append(self.kernels.copy(array.view(_CARRIED_AS.get(array.dtype.name, array.dtype))))
        self.nbytes["device"] += array.nbytes
        return self._keep[-1]


def free_memory(device: torch.device) -> int | None:
    """Bytes of a device that nobody has taken; None where that is not known."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def open_store(
    partition: LocalPartition,
    kernels: Kernels,
    *,
    topology: str = "auto",
    features: str = "auto",
    cache: CacheOptions,
    with_edge: bool = True,
    free_bytes: Callable[[], int | None] | None = None,
) -> DeviceStore:
    """Puts the mapped parts where ``sampling.topology`` and ``sampling.features`` say.

    with_edge: batches have attributes of edges, and their ids.  free_bytes: tells how much memory of the device is free.
    """
    free = free_memory(kernels.device) if free_bytes is None else free_bytes()
    placement = place(topology, features, need_of(partition, with_edge), cache, free)
    return DeviceStore(partition, kernels, placement, with_edge)
