"""The memory in which a GPU that samples reads the graph and the attributes of a partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import DrawOptions, GpuBudgets, OptionError, SamplerError
from glt_lightning.graph.arrays import open_array
from glt_lightning.graph.device_choice import DeviceAttributes, DeviceLists, choose_attributes, choose_lists
from glt_lightning.graph.local_partition import LocalPartition
from glt_lightning.graph.manifest import attr_key, edge_path, node_path
from glt_lightning.graph.placement import BatchArrays, Placement, place
from glt_lightning.graph.shared_arrays import SharedArrays
from glt_lightning.graph.uva import copy_for_uva
from glt_lightning.kernels import CudaShards, DeviceGraph, Encoding, GraphAddresses, Kernels, Registered, RowsAt

# Returns arrays of the host that hold at least the requested ones (`Placement.on_host`), the same to all its processes.
Share = Callable[[Sequence[str]], SharedArrays | None]


class DeviceStore:
    """The mapped parts of a partition in memory that a device reads. Made by `open`. Close it.

    Attributes:
        kernels: The kernels of the device.
        graph_memory, feature_memory: ``device``, ``uva`` or ``hybrid``; for attributes also ``cpu``.
        lists, attributes: The rows on the device if that is ``hybrid``; else none.
    """

    def __init__(
        self,
        batch: BatchArrays,
        kernels: Kernels,
        placement: Placement,
        shared: SharedArrays | None,
    ) -> None:
        partition = batch.partition
        self.kernels, self._partition, self._batch = kernels, partition, batch
        self.graph_memory, self.feature_memory = placement.topology, placement.features
        self._memory = DeviceMemory(partition, kernels, shared, bool(placement.on_host))
        try:
            self.lists = _lists_on_device(batch, placement)
            self._graph: DeviceGraph | None = self._lay_graph()
            self._graph_bytes = self._memory.nbytes["device"]
            self.attributes = _attributes_on_device(batch, placement)
            self._shards = {} if placement.features == "cpu" else self._lay_attributes()
        except torch.OutOfMemoryError as error:
            self.close()
            raise OptionError(
                f"sampling.topology {self.graph_memory!r}, sampling.features {self.feature_memory!r}: {kernels.device} has no "
                f"memory for them ({str(error).splitlines()[0]}). Choose hybrid with a lower sampling.topology_bytes and "
                "sampling.feature_bytes, or uva."
            ) from None
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(
        cls,
        batch: BatchArrays,
        kernels: Kernels,
        *,
        topology: str = "auto",
        features: str = "auto",
        budgets: GpuBudgets,
        share: Share | None = None,
        free_bytes: Callable[[], int | None] | None = None,
        agree: Callable[[Callable[[], Placement]], Placement] = lambda place_it: place_it(),
    ) -> DeviceStore:
        """Copies the mapped parts into the memory that ``sampling.topology`` and ``sampling.features`` choose.

        batch: the arrays that batches are made from.  share: returns the arrays that the device reads on the host, to all
        processes that call it at the same time; None: makes a copy for this process.  free_bytes: returns the free memory of the
        device.
        agree: runs a callback on every process that shares host memory; returns its result if it raised on none of them.
        Raises `OptionError` if the device, or the host, has too little memory.
        """
        free = cls.free_bytes(kernels.device) if free_bytes is None else free_bytes()
        placement = agree(lambda: place(topology, features, batch.need, budgets, free))
        shared = None
        if share is not None:
            shared = share(placement.on_host)
        elif placement.on_host:
            shared = copy_for_uva(batch, placement.on_host)
        return cls(batch, kernels, placement, shared)

    @staticmethod
    def free_bytes(device: torch.device) -> int | None:
        """Returns the free bytes of a device; None if unknown."""
        return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None

    @property
    def graph(self) -> DeviceGraph:
        if self._graph is None:
            raise SamplerError("the graph on the device is gone: its store is closed.")
        return self._graph

    def graph_for(self, draw: DrawOptions) -> DeviceGraph:
        """Returns the graph to draw from. Raises `OptionError` unless it has the arrays that these options need: user ids of all
        nodes for LABOR, weights, times."""
        if draw.labor and not self._batch.labor:
            raise OptionError(
                "sampling.method: labor: the GPU that samples has the graph without what LABOR draws by. Start graph servers "
                "whose GPUs sample with the method of their clients."
            )
        weights, mine = draw.weights, self._batch.weights
        if any(weights) and tuple(weights) != tuple(mine):
            raise OptionError(
                f"sampling.weight_attr: {list(weights)}: the GPU that samples has the graph with the weights "
                f"{list(mine)}. Start graph servers whose GPUs sample with the weight_attr of their clients."
            )
        if draw.timed and not self._batch.timed:
            raise OptionError(
                "sampling.time_attr: the GPU that samples has the graph without its times. Start graph servers whose GPUs sample "
                "with the time_attr of their clients."
            )
        more = (any(mine) and not any(weights)) or (self._batch.labor and not draw.labor)
        return self.graph.drawn_by(sums=any(weights), labor=draw.labor) if more else self.graph

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes by kind: ``device``: in memory of the device; ``uva``: in memory of the host that the device reads."""
        return self._memory.nbytes

    def node_shards(self, node_type: int, name: str, stored: bool = False) -> CudaShards | None:
        """Returns an attribute of nodes, addressed by gid; None if the CPU gathers it. stored: not decoded, as in
        `Manifest.as_stored`."""
        return self._attribute("nodes", node_type, name, stored)

    def edge_shards(self, edge_type: int, name: str, stored: bool = False) -> CudaShards | None:
        """Returns an attribute of edges, or ``edge_ids``, addressed by edge row; else as `node_shards`."""
        return self._attribute("edges", edge_type, name, stored)

    def _attribute(self, kind: str, index: int, name: str, stored: bool) -> CudaShards | None:
        if self.feature_memory == "cpu":
            return None
        shards = self._shards.get(attr_key(kind, index, name))
        if shards is None:  # of edges, which only some loaders want
            _ = self.graph  # raises where the store is closed
            return None
        stored = stored and self._partition.manifest.as_stored.decoded_by(kind, index, name) is None
        return shards.raw if stored else shards

    def summary(self) -> str:
        """Describes the memory of the graph and the attributes in one log line."""
        on_device, on_host = self.nbytes["device"], self.nbytes["uva"]
        nodes = sum(
            self._partition.manifest.rows(p, t) for p in self._partition.parts for t in range(self.graph.num_types)
        )
        graph = _where(self.graph_memory, int(self.lists.rows.sum()), nodes, self._graph_bytes)
        features = _where(self.feature_memory, int(self.attributes.nodes.sum()), nodes, on_device - self._graph_bytes)
        host = f"; it reads {on_host / 1e6:,.1f} MB of the host's memory" if on_host else ""
        return f"{self.kernels.device} samples: the graph {graph}, attributes {features}{host}."

    def close(self) -> None:
        """Frees the memory, which no kernel may be reading. Safe to call twice."""
        self._graph, self._shards = None, {}
        self._memory.close()

    def _lay_graph(self) -> DeviceGraph:
        memory, kind = self._memory, self.graph_memory
        view = self._batch.view() if kind == "device" else self._batch.view(memory.array)
        if kind == "hybrid":
            copy, lists = memory.address_of_copy, self.lists
            addresses = GraphAddresses.split(
                view,
                lists.rows,
                copy,
                memory.address_of,
                ids=copy if lists.all_ids else None,
                pointers=copy if lists.all_pointers else None,
            )
        else:
            placed = memory.address_of_copy if kind == "device" else memory.address_of
            addresses = GraphAddresses.whole(view, placed)
        return DeviceGraph(self.kernels, view, addresses)

    def _lay_attributes(self) -> dict[str, CudaShards]:
        """Lays out all attributes for the device, by `attr_key`."""
        partition, kind, made = self._partition, self.feature_memory, {}
        manifest, view = partition.manifest, partition.view
        mapped = [p if p in partition.parts else None for p in range(manifest.num_parts)]
        for t, rows in enumerate(self.attributes.nodes.tolist()):
            bounds = view.bounds[t * manifest.num_parts : (t + 1) * manifest.num_parts + 1]
            for name in manifest.node_attrs(t):
                paths = [None if p is None else node_path(p, t, name) for p in mapped]
                encoding = manifest.decoded_by("nodes", t, name)
                made[attr_key("nodes", t, name)] = self._memory.shards(kind, paths, bounds, encoding, rows)
        for r, rows in enumerate(self.attributes.edges.tolist()):
            for name in self._batch.edge_names(r):
                paths = [None if p is None else edge_path(p, r, name) for p in mapped]
                encoding = manifest.decoded_by("edges", r, name)
                made[attr_key("edges", r, name)] = self._memory.shards(kind, paths, view.edge_bounds[r], encoding, rows)
        return made


def _lists_on_device(batch: BatchArrays, placement: Placement) -> DeviceLists:
    partition = batch.partition
    if placement.topology == "hybrid":
        return choose_lists(batch, placement.topology_bytes)
    return DeviceLists(np.zeros((len(partition.schema.node_types), partition.manifest.num_parts), dtype=np.int64))


def _attributes_on_device(batch: BatchArrays, placement: Placement) -> DeviceAttributes:
    if placement.features == "hybrid":
        return choose_attributes(batch, placement.features_bytes)
    partition = batch.partition
    types, edge_types = len(partition.schema.node_types), len(partition.schema.edge_types)
    parts = partition.manifest.num_parts
    return DeviceAttributes(np.zeros((types, parts), dtype=np.int64), np.zeros((edge_types, parts), dtype=np.int64))


def _where(kind: str, rows: int, of: int, nbytes: int) -> str:
    return {
        "device": f"on it ({nbytes / 1e6:,.1f} MB)",
        "uva": "on the host",
        "hybrid": f"of {rows:,} of {of:,} nodes on it ({nbytes / 1e6:,.1f} MB), the other rows on the host",
        "cpu": "read by the CPU",
    }[kind]


# What a device reads: copies in its own memory, and arrays of the host where they lie.


# torch has few operations on these; they travel as the signed integers with the same bytes
_CARRIED_AS = {"uint16": np.int16, "uint32": np.int32, "uint64": np.int64}


class DeviceMemory:
    """The memory of one partition for one device. Close it.

    shared: arrays of the host, by their paths in the folder; closed with this object, and also if its constructor raises.
    read_in_place: the device reads them in the host's memory.

    Attributes:
        nbytes: ``device``: bytes of copies; ``uva``: bytes in memory of the host that the device reads.
    """

    def __init__(
        self, partition: LocalPartition, kernels: Kernels, shared: SharedArrays | None, read_in_place: bool
    ) -> None:
        self._partition, self._kernels, self._shared = partition, kernels, shared
        self._copies: list[Tensor] = []
        self.nbytes, self._registered = {"device": 0, "uva": 0}, None
        try:
            if shared is not None and read_in_place:
                self._registered = Registered(kernels, shared.memory)
                self.nbytes["uva"] = shared.nbytes
        except BaseException:
            self._release()
            raise

    def array(self, path: str) -> np.ndarray:
        """Returns the shared array of a path, or maps the file."""
        if self._shared is not None and path in self._shared.arrays:
            return self._shared.arrays[path]
        return open_array(self._partition.directory, path, self._partition.manifest.arrays[path])

    def copy(self, array: np.ndarray) -> Tensor:
        """Copies an array to the device, as a dtype that torch has."""
        self._copies.append(self._kernels.copy(_carried(array)))
        self.nbytes["device"] += array.nbytes
        return self._copies[-1]

    def address_of_copy(self, array: np.ndarray) -> int:
        return self.copy(array).data_ptr()

    def address_of(self, array: np.ndarray) -> int:
        """Returns the device address of an array of `array`, or of a piece of it, in the host's memory."""
        return self._on_host().address_of(array)

    def shards(
        self,
        kind: str,
        paths: Sequence[str | None],
        bounds: np.ndarray,
        encoding: Encoding | None,
        hot: Sequence[int],
    ) -> CudaShards:
        """Makes an attribute whose parts are the arrays at ``paths``, None for a part that is not mapped.

        kind: ``device``, ``uva`` or ``hybrid``.  bounds: int64 [P + 1].  hot: for ``hybrid``, the number of first rows of each
        of the P parts that are on the device.
        """
        shards: list[Tensor | RowsAt | None] = []
        starts: list[int] = []
        for path, begin, k in zip(paths, bounds[:-1].tolist(), hot, strict=True):
            array = None if path is None else self.array(path)
            if array is None or kind == "device":
                pieces: list[Tensor | RowsAt | None] = [None if array is None else self.copy(array)]
            elif kind == "hybrid" and k:
                pieces = [self.copy(array[:k]), self._rows_at(array[k:])]
            else:
                pieces = [self._rows_at(array)]
            starts += [begin, begin + k][: len(pieces)]
            shards += pieces
        whole = np.array([*starts, bounds[-1]], dtype=np.int64)
        return CudaShards(shards, self._kernels, bounds=whole, encoding=encoding)

    def _rows_at(self, array: np.ndarray) -> RowsAt:
        dtype = torch.from_numpy(_carried(array[:0])).dtype
        return RowsAt(
            address=self._on_host().address_of_rows(array),
            rows=len(array),
            dtype=dtype,
            row_shape=array.shape[1:],
            stride=array.strides[0] if len(array) > 1 and array.nbytes else None,  # else numpy promises nothing of it
            keep=array,
        )

    def _on_host(self) -> Registered:
        assert self._registered is not None, "no memory of the host is registered"
        return self._registered

    def close(self) -> None:
        """Frees the memory, which no kernel may be reading. Safe to call twice."""
        try:
            if self._registered is not None:
                self._registered.close()
        finally:  # also where the device has failed
            self._copies.clear()
            self._release()

    def _release(self) -> None:
        if self._shared is not None:
            self._shared.close()
            self._shared = None


def _carried(array: np.ndarray) -> np.ndarray:
    return array.view(_CARRIED_AS.get(array.dtype.name, array.dtype))
