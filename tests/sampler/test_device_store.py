"""What a GPU finds in its store: the graph and the attributes that the CPU finds in the partition, wherever they lie."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from glt_lightning.data.device_layout import need_of
from glt_lightning.ops.cuda_khop import CudaKHopOp
from glt_lightning.ops.khop import KHopOp
from glt_lightning.options import CacheOptions
from glt_lightning.sampler.device_store import open_store
from tests.helpers.device_cases import assert_same_batch
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.wide import wide_graph, wide_hetero


def attributes(partition):
    """(kind, index, name) of all that batches may have."""
    manifest, schema = partition.manifest, partition.schema
    yield from (("nodes", t, n) for t in range(len(schema.node_types)) for n in manifest.node_attrs(t))
    yield from (("edges", r, n) for r in range(len(schema.edge_types)) for n in ("edge_ids", *manifest.edge_attrs(r)))


def mapped_ids(partition, kind, index):
    """Ids of all rows of the mapped parts, in a random order, some of them twice."""
    manifest, view = partition.manifest, partition.view
    first = view.bounds[index * manifest.num_parts :] if kind == "nodes" else view.edge_bounds[index]
    ids = np.concatenate([np.arange(first[p], first[p + 1]) for p in partition.parts])
    return np.random.default_rng(0).permutation(np.concatenate([ids, ids[:7]]))


def check_attributes(store, partition):
    for kind, index, name in attributes(partition):
        of = (
            (store.node_shards, partition.node_shards)
            if kind == "nodes"
            else (store.edge_shards, partition.edge_shards)
        )
        mine, theirs = (shards(index, name) for shards in of)
        ids = mapped_ids(partition, kind, index)
        got, want = mine.gather(torch.from_numpy(ids)), theirs.gather(ids)
        mine.check()
        assert tuple(got.shape) == want.shape
        assert got.numpy().tobytes() == want.tobytes()


def check_batches(store, partition, replace=False):
    relations, rng = len(partition.schema.edge_types), np.random.default_rng(1)
    for fanouts in ([[3] * relations, [2] * relations], [[-1] * relations]):
        mine = CudaKHopOp(store.graph, fanouts, replace=replace, with_edge=True)
        theirs = KHopOp(partition.view, fanouts, replace=replace, with_edge=True)
        for t in range(len(partition.schema.node_types)):
            seeds = rng.choice(mapped_ids(partition, "nodes", t), 40)
            assert_same_batch(mine(torch.from_numpy(seeds), t, 7 + t), theirs(seeds, t, 7 + t))


def open_with(partition, kernels, topology, features, lists=None, rows=None, **more):
    cache = CacheOptions(device_topology=lists, device=rows)
    return open_store(partition, kernels, topology=topology, features=features, cache=cache, **more)


@pytest.mark.parametrize("make", [small_graph, small_hetero, wide_graph, wide_hetero])
@pytest.mark.parametrize(("parts", "share"), [(1, 0.5), (3, 0.0), (3, 0.001), (3, 0.1), (3, 0.5), (3, 0.9)])
def test_the_same_whatever_lies_on_the_device(kernels, tmp_path, make, parts, share):
    partition = partitioned(make(), tmp_path, parts)
    need = need_of(partition, with_edge=True)
    lists, rows = (max(1, int(share * nbytes)) for nbytes in (need.topology, need.features))
    store = open_with(partition, kernels, "hybrid", "hybrid", lists, rows)
    check_batches(store, partition)
    check_attributes(store, partition)
    assert (store.graph_memory, store.feature_memory) == ("hybrid", "hybrid")
    assert store.nbytes["device"] <= lists + rows
    assert store.nbytes["uva"] >= need.topology + need.features
    store.close()
    store.close()
