"""Less memory means more buckets and temporary files, never other content."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.base import EDGE, NODE, PartitionOptions
from glt_lightning.graph import Manifest
from glt_lightning.partition import partition_graph
from glt_lightning.partition.build.edges import bucket_capacity, bucket_starts
from glt_lightning.partition.sources.folder import FolderSource
from tests.helpers.partition_truth import HETERO, random_source, single

SMALL, LARGE = 1 << 20, 1 << 30


def big_graph(edges: int = 250_000, nodes: int = 5000) -> np.ndarray:
    rng = np.random.default_rng(1)
    return (rng.random((edges, 2)) ** 3 * nodes).astype(np.int64)


@pytest.mark.diagonal
@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_same_content_with_little_memory(tmp_path: Path, undirected: bool, wide: bool) -> None:
    rng = np.random.default_rng(2)
    x = rng.random((5000, 100), np.float32)
    source = single(big_graph().tolist(), 5000, x=x)
    manifests = []
    for memory in (SMALL, LARGE):
        options = PartitionOptions(num_parts=3, memory_bytes=memory)
        folder = tmp_path / str(memory)
        partition_graph(source, folder, options, undirected=undirected, wide_ids=wide, normalize="standardize")
        manifests.append(Manifest.load(folder))
    assert manifests[0] == manifests[1]


def test_same_content_from_files(tmp_path: Path) -> None:
    """Rows of features that do not fit in memory are dealt through a file."""
    rng = np.random.default_rng(3)
    folder, nodes = tmp_path / "graph", 5000
    folder.mkdir()
    x, edges = rng.random((nodes, 100), np.float32), big_graph(nodes=nodes)
    np.save(folder / "x.npy", x)
    np.save(folder / "edge_index.npy", edges.T)
    expected = partition_graph(single(edges.tolist(), nodes, x=x), tmp_path / "a", PartitionOptions(num_parts=3))
    options = PartitionOptions(num_parts=3, memory_bytes=SMALL)
    got = partition_graph(FolderSource(folder), tmp_path / "b", options)
    assert replace(got, made_by={}) == replace(expected, made_by={})


def test_hetero_with_attributes_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random_source(np.random.default_rng(4), HETERO, nodes=60)
    expected = partition_graph(source, tmp_path / "a", PartitionOptions(num_parts=2), undirected=True)
    monkeypatch.setattr("glt_lightning.partition.build.edges._BUCKET_EDGES", 5)
    monkeypatch.setattr("glt_lightning.partition.build.edges._MAX_CHUNK", 7)
    got = partition_graph(source, tmp_path / "b", PartitionOptions(num_parts=2), undirected=True)
    assert got == expected


def test_buckets_respect_parts_and_capacity() -> None:
    degree = np.array([9, 0, 0, 3, 3, 3, 0, 50, 1, 1])
    starts = bucket_starts((0, 4, 4, 10), np.cumsum(degree), 7)
    assert {0, 4, 10} <= set(starts.tolist())
    for begin, end in pairwise(starts.tolist()):
        assert degree[begin:end].sum() <= 7 or end == begin + 1
        assert not begin < 4 < end


def test_bucket_capacity() -> None:
    assert bucket_capacity(10**6, 12, 2 << 30) == 1 << 18
    assert bucket_capacity(10**6, 12, 1 << 20) == (1 << 18) // 36
    assert bucket_capacity(10**11, 24, 64 << 30) == 10**11 // 4096  # few enough buckets to deal into
    assert bucket_capacity(0, 12, 1 << 20) >= 1


def test_nothing_of_the_graph_is_kept(tmp_path: Path) -> None:
    """A source is asked again for what it gave: it may load on demand."""
    source = single([(0, 1)], 2, x=np.ones((2, 1), np.float32))
    assert source.edges(EDGE) is not source.edges(EDGE)
    partition_graph(source, tmp_path / "p", PartitionOptions())
    assert source.num_nodes[NODE] == 2


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "nodes", "most"), [("random", 1 << 21, 50), ("streaming", 1 << 20, 80)])
def test_bytes_per_node(tmp_path: Path, algorithm: str, nodes: int, most: int) -> None:
    """What the partitioner holds beyond its working memory; partition/plan.py says how much."""
    source = single(np.zeros((0, 2), np.int64), nodes)
    ring = np.stack([np.arange(nodes), (np.arange(nodes) + 1) % nodes])
    source = replace(source, edge_index={EDGE: ring}, splits={"train": (NODE, np.arange(0, nodes, 100))})
    options = PartitionOptions(num_parts=4, algorithm=algorithm, memory_bytes=SMALL)
    tracemalloc.start()
    try:
        partition_graph(source, tmp_path / "p", options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most * nodes
