"""What a GPU finds in its store: the graph and the attributes that the CPU finds in the partition, wherever they lie."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from glt_lightning.base import DataError, GpuBudgets, NativeError, OptionError, PartitionError, SamplerError
from glt_lightning.base.partition import STORAGE
from glt_lightning.graph import BatchArrays, DeviceStore, HostTier, LocalPartition, host_memory as free_memory
from glt_lightning.graph.device_choice import bus_stride
from glt_lightning.graph.device_store import DeviceMemory
from glt_lightning.kernels import CudaKHopOp, row_bytes
from tests.helpers.device_cases import to
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.stores import check_attributes, check_batches, check_decoded, open_with
from tests.helpers.wide import padded_graph, wide_graph, wide_hetero
from tests.loader.test_stored_attributes import every_dtype

MAKERS = (small_graph, small_hetero, wide_graph, wide_hetero, padded_graph, every_dtype)
GRAPHS = {make.__name__: make for make in MAKERS}


@pytest.fixture(scope="module")
def partition_of(tmp_path_factory):
    """Made once: (name of a graph, parts) -> partition."""
    made = {}

    def get(name, parts):
        if (name, parts) not in made:
            made[name, parts] = partitioned(GRAPHS[name](), tmp_path_factory.mktemp(name), parts)
        return made[name, parts]

    return get


def padding(partition: LocalPartition) -> int:
    """Bytes between rows of attributes where they are read over the bus."""
    entries = [partition.manifest.arrays[path] for path in BatchArrays(partition).feature_paths()]
    sizes = [(e.shape[0], row_bytes(e.dtype, e.shape[1:])) for e in entries]
    return sum(rows * (bus_stride(size) - size) for rows, size in sizes)


@pytest.mark.diagonal
@pytest.mark.parametrize("features", ["device", "uva", "cpu"])
@pytest.mark.parametrize("topology", ["device", "uva"])
@pytest.mark.parametrize("name", GRAPHS)
def test_all_in_one_memory(kernels, partition_of, name, topology, features):
    partition = partition_of(name, 3)
    store = open_with(partition, kernels, topology, features)
    assert (store.graph_memory, store.feature_memory) == (topology, features)
    check_batches(store, partition)
    if features == "cpu":
        assert store.node_shards(0, "x") is None
        assert store.edge_shards(0, "edge_ids") is None
    else:
        check_attributes(store, partition)
    need = BatchArrays(partition).need
    lies = {topology: need.topology}
    lies[features] = lies.get(features, 0) + need.features
    assert store.nbytes["device"] == lies.get("device", 0)
    assert (
        lies.get("uva", 0)
        <= store.nbytes["uva"]
        <= (lies.get("uva", -8192) + 4096 * len(partition.manifest.arrays) + padding(partition) * (features == "uva"))
    )
    store.close()


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("share", [0, 0.001, 0.1, 0.5, 0.9])
def test_a_share_on_the_device(kernels, partition_of, name, share):
    partition = partition_of(name, 3)
    need = BatchArrays(partition).need
    lists, rows = (max(1, int(share * nbytes)) for nbytes in (need.topology, need.features))
    store = open_with(partition, kernels, "hybrid", "hybrid", lists, rows)
    assert (store.graph_memory, store.feature_memory) == ("hybrid", "hybrid")
    check_batches(store, partition, replace=share == 0.1)
    check_attributes(store, partition)
    widest = 3 * 4096
    assert lists + rows - 2 * widest < store.nbytes["device"] <= lists + rows
    assert store.nbytes["uva"] >= need.topology + need.features
    store.close()


def test_what_is_on_the_device_is_what_batches_want(kernels, partition_of):
    partition = partition_of("small_graph", 3)
    need = BatchArrays(partition, False).need
    store = open_with(partition, kernels, "hybrid", "hybrid", need.topology // 2, need.features // 2, edges=False)
    starts = partition.view.bounds[:-1]
    lists = np.append(np.stack([starts, starts + store.lists.rows[0]], axis=1).reshape(-1), 300)
    for hot in (store.node_shards(0, "x").bounds, lists):
        first, end = hot[:-1].reshape(-1, 2).T  # of each part's rows on the device
        visits = on_device = 0
        for key in range(20):
            seeds = to(kernels, partition.split("train").gids[key * 5 : key * 5 + 5])
            visited = CudaKHopOp(store.graph, [[3], [3]])({0: seeds}, key).gid[0].numpy()
            visits += len(visited)
            on_device += int(((visited[:, None] >= first) & (visited[:, None] < end)).sum())
        assert on_device / visits > 1.2 * (end - first).sum() / 300
    store.close()


@pytest.mark.parametrize("kind", STORAGE)
@pytest.mark.parametrize("memory", ["device", "uva", "hybrid"])
@pytest.mark.parametrize("make", [wide_graph, padded_graph])
def test_rows_in_fewer_bytes_are_decoded(kernels, tmp_path, make, kind, memory):
    check_decoded(make(), kind, memory, kernels, tmp_path)


@pytest.mark.parametrize("storage", [{}, {"x": "int8", "image": "float16"}])
@pytest.mark.parametrize("less", [False, True])
def test_a_wrong_stride_is_found(kernels, tmp_path, monkeypatch, storage, less):
    """Without the padding, or with a value less of it than there is, other bytes are gathered than those of the rows."""
    partition, place = partitioned(padded_graph(), tmp_path, 2, storage=storage), DeviceMemory._rows_at

    def misplaced(self, array):
        rows = place(self, array)
        if array.flags.c_contiguous:
            return rows
        return replace(rows, stride=rows.stride - array.itemsize if less else None)

    monkeypatch.setattr(DeviceMemory, "_rows_at", misplaced)
    store = open_with(partition, kernels, "device", "uva", edges=False)
    with pytest.raises(AssertionError, match=r"^(image|x|place)"):
        check_attributes(store, partition)
    store.close()


@pytest.mark.parametrize("memory", ["device", "uva", "hybrid"])
@pytest.mark.parametrize("name", ["small_hetero", "wide_graph", "padded_graph"])
def test_parts_that_are_not_here(kernels, partition_of, name, memory):
    partition = LocalPartition.open(partition_of(name, 3).directory, parts=[0, 2])
    store = open_with(partition, kernels, memory, memory, 2000, 2000)
    check_attributes(store, partition)
    view = partition.view
    elsewhere = torch.tensor([int(view.bounds[1])])  # the first node of part 1
    with pytest.raises(DataError, match="not in the graph, or its part is not mapped by this process"):
        CudaKHopOp(store.graph, [[2] * view.num_edge_types])({0: elsewhere}, 0)
    check_batches(store, partition, fanouts=[])
    store.close()


def test_more_parts_than_are_counted(kernels, tmp_path):
    """From nine shards on, they are searched for."""
    partition = partitioned(small_graph(), tmp_path, 7)
    need = BatchArrays(partition).need
    store = open_with(partition, kernels, "hybrid", "hybrid", need.topology // 2, need.features // 2)
    check_batches(store, partition)
    check_attributes(store, partition)
    store.close()


def test_edges_only_where_they_are_wanted(kernels, partition_of):
    partition = partition_of("wide_graph", 3)
    for memory in ("device", "uva", "hybrid"):
        store = open_with(partition, kernels, memory, memory, 3000, 3000, edges=False)
        assert store.nbytes["uva"] < BatchArrays(partition).need.features
        check_batches(store, partition)
        assert store.edge_shards(0, "edge_ids") is None
        store.close()


# --- what is chosen


def test_auto_goes_by_what_is_free(kernels, partition_of):
    partition = partition_of("small_graph", 3)
    need = BatchArrays(partition).need
    for free, expected in (
        (None, ("device", "device")),
        (100 * need.features, ("device", "device")),
        (2 * need.topology, ("device", "hybrid")),
        (need.topology, ("hybrid", "hybrid")),
    ):
        store = open_with(partition, kernels, "auto", "auto", free_bytes=lambda free=free: free)
        assert (store.graph_memory, store.feature_memory) == expected
        assert store.nbytes["device"] <= (free or 1 << 40)
        check_batches(store, partition)
        check_attributes(store, partition)
        store.close()
    with pytest.raises(OptionError, match=r"takes .* bytes of the GPU's memory, and 5 are free"):
        open_with(partition, kernels, "device", "uva", free_bytes=lambda: 5)


def test_rows_on_disk_are_the_cpus(kernels, tmp_path):
    whole = partitioned(wide_graph(), tmp_path, 2)
    tier = HostTier.create(whole, 50_000)
    partition = whole.with_memory(tier)
    store = DeviceStore.open(BatchArrays(partition), kernels, budgets=GpuBudgets())
    assert (store.graph_memory, store.feature_memory, store.node_shards(0, "x")) == ("device", "cpu", None)
    store.close()
    with pytest.raises(OptionError, match=r"'uva' with cache.memory"):
        open_with(partition, kernels, "uva", "uva")
    tier.close()


def test_the_log_says_where_things_lie(kernels, partition_of):
    partition = partition_of("small_graph", 3)
    store = open_with(partition, kernels, "hybrid", "hybrid", 6000, 1200, edges=False)
    assert store.summary() == (
        "cpu samples: the graph of "
        f"{int(store.lists.rows.sum())} of 300 nodes on it (0.0 MB), the other rows on the host, attributes of 60 of 300 nodes "
        f"on it (0.0 MB), the other rows on the host; it reads {store.nbytes['uva'] / 1e6:.1f} MB of the host's memory."
    )
    store.close()
    store = open_with(partition, kernels, "device", "cpu")
    assert store.summary() == "cpu samples: the graph on it (0.0 MB), attributes read by the CPU."
    store.close()


# --- closing, and what goes wrong


def test_a_device_that_failed_keeps_no_memory(kernels, partition_of, monkeypatch):
    store = open_with(partition_of("small_graph", 2), kernels, "uva", "uva")
    memory = store._memory
    ask = kernels.ask

    def fail(name, *arguments):
        ask(name, *arguments)
        raise NativeError("CUDA error 719")

    monkeypatch.setattr(kernels, "ask", fail)
    with pytest.raises(NativeError, match="719"):
        store.close()
    assert (memory._copies, memory._shared) == ([], None)


def test_closed_means_closed(kernels, partition_of):
    store = open_with(partition_of("small_graph", 3), kernels, "hybrid", "hybrid", 2000, 2000)
    store.close()
    store.close()
    with pytest.raises(SamplerError, match="its store is closed"):
        _ = store.graph
    with pytest.raises(SamplerError, match="its store is closed"):
        store.node_shards(0, "x")


def test_padding_is_locked_too(kernels, partition_of):
    partition = partition_of("padded_graph", 3)
    store = open_with(partition, kernels, "device", "uva")
    locked = store.nbytes["uva"]
    store.close()
    assert locked >= BatchArrays(partition).need.features + padding(partition) > padding(partition) > 0
    kernels.lockable(locked - 1)
    with pytest.raises(NativeError, match=f"{locked:,} bytes of host memory could not be page-locked"):
        open_with(partition, kernels, "device", "uva")
    kernels.lockable(locked)
    open_with(partition, kernels, "device", "uva").close()


def test_memory_that_cannot_be_locked_is_given_back(kernels, partition_of):
    """The leak police looks for the memfd."""
    kernels.lockable(4096)
    with pytest.raises(NativeError, match="bytes of host memory could not be page-locked"):
        open_with(partition_of("small_graph", 3), kernels, "uva", "device")


def test_a_host_without_memory(kernels, partition_of, monkeypatch):
    monkeypatch.setattr(free_memory, "available_memory", lambda: 1 << 20)
    with pytest.raises(OptionError, match="not enough host memory for the arrays that the GPU reads there"):
        open_with(partition_of("small_graph", 3), kernels, "uva", "device")
    open_with(partition_of("small_graph", 3), kernels, "device", "device").close()


def test_a_device_that_is_full_after_all(kernels, partition_of, monkeypatch):
    def full(self, array):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore lines")

    monkeypatch.setattr(type(kernels), "copy", full)
    with pytest.raises(OptionError, match=r"cpu has no memory for them \(CUDA out of memory.*GiB.\). Choose hybrid"):
        open_with(partition_of("small_graph", 3), kernels, "uva", "device")


@pytest.mark.parametrize("memory", ["device", "uva", "hybrid"])
@pytest.mark.parametrize("row", [0, 298])
def test_a_damaged_row_is_an_error(kernels, tmp_path, row, memory):
    """As on the CPU, on either side of the cut."""
    whole = partitioned(small_graph(), tmp_path, 1)
    path = "part0/edges/0/indptr.npy"
    file = np.load(whole.directory / path, mmap_mode="r+")
    file[row + 1] = 1 << 40
    entry = replace(whole.manifest.arrays[path], crc32=zlib.crc32(file))
    replace(whole.manifest, arrays={**whole.manifest.arrays, path: entry}).save(whole.directory)
    store = open_with(LocalPartition.open(whole.directory), kernels, memory, "cpu", 4000)
    with pytest.raises(PartitionError, match=f"node {row} points to"):
        CudaKHopOp(store.graph, [[3]])({0: torch.tensor([row])}, 0)
    store.close()
