"""What a `DeviceStore` must give: the bytes that the CPU gives, for every id of the mapped parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data

from glt_lightning.base import DrawOptions, GpuBudgets
from glt_lightning.graph import BatchArrays, DeviceStore, LocalPartition
from glt_lightning.kernels import CudaKHopOp, Kernels, KHopOp
from tests.helpers.device_cases import assert_same_batch, to
from tests.helpers.partitions import partitioned


def open_with(
    partition: LocalPartition,
    kernels: Kernels,
    topology: str,
    features: str,
    lists: int | None = None,
    rows: int | None = None,
    edges: bool = True,
    **more,
) -> DeviceStore:
    budgets = GpuBudgets(topology=lists, features=rows)
    return DeviceStore.open(
        BatchArrays(partition, edges), kernels, topology=topology, features=features, budgets=budgets, **more
    )


def attributes(partition: LocalPartition) -> Iterator[tuple[str, int, str]]:
    """(kind, index, name) of all that batches may have."""
    manifest, schema = partition.manifest, partition.schema
    for t in range(len(schema.node_types)):
        yield from (("nodes", t, name) for name in manifest.node_attrs(t))
    for r in range(len(schema.edge_types)):
        yield from (("edges", r, name) for name in ("edge_ids", *manifest.edge_attrs(r)))


def mapped_ids(partition: LocalPartition, kind: str, index: int) -> np.ndarray:
    """Ids of all rows of the mapped parts, in a random order, some of them twice."""
    view = partition.view
    first = view.bounds[index * view.num_parts :] if kind == "nodes" else view.edge_bounds[index]
    ids = np.concatenate([np.arange(first[p], first[p + 1]) for p in partition.parts])
    return np.random.default_rng(0).permutation(np.concatenate([ids, ids[:7]]))


def check_attributes(store: DeviceStore, partition: LocalPartition) -> None:
    for kind, index, name in attributes(partition):
        nodes = kind == "nodes"
        mine = (store.node_shards if nodes else store.edge_shards)(index, name)
        theirs = (partition.node_shards if nodes else partition.edge_shards)(index, name)
        ids = mapped_ids(partition, kind, index)
        assert mine is not None
        got, want = mine.gather(to(store.kernels, ids)).cpu(), theirs.gather(ids)
        mine.check()
        assert tuple(got.shape) == want.shape, name
        assert got.contiguous().view(-1).view(torch.uint8).numpy().tobytes() == want.tobytes(), name


def check_batches(
    store: DeviceStore,
    partition: LocalPartition,
    *,
    replace: bool = False,
    fanouts: Sequence[Sequence[int]] | None = None,
) -> None:
    """With seeds of every type; of the mapped parts, but their neighbours are anywhere."""
    edge_types, rng = len(partition.schema.edge_types), np.random.default_rng(1)
    for hops in [[[3] * edge_types, [2] * edge_types], [[-1] * edge_types]] if fanouts is None else [fanouts]:
        mine = CudaKHopOp(store.graph, hops, DrawOptions(replace=replace, with_edge=True))
        theirs = KHopOp(partition.view, hops, DrawOptions(replace=replace, with_edge=True))
        for t in range(len(partition.schema.node_types)):
            seeds = rng.choice(mapped_ids(partition, "nodes", t), 40)
            assert_same_batch(mine({t: to(store.kernels, seeds)}, 7 + t), theirs({t: seeds}, 7 + t))


def check_decoded(data: Data, kind: str, memory: str, kernels: Kernels, folder: Path) -> None:
    """Attributes that are stored as ``kind`` come out of every memory as float32."""
    data.x, data.edge_attr = data.x % 1000 / 7, data.edge_attr % 1000 / 7
    partition = partitioned(data, folder, 2, storage={"x": kind, "edge_attr": kind})
    store = open_with(partition, kernels, "device", memory, rows=BatchArrays(partition).need.features // 2)
    assert store.node_shards(0, "x").dtype == store.edge_shards(0, "edge_attr").dtype == torch.float32
    check_attributes(store, partition)
    store.close()
