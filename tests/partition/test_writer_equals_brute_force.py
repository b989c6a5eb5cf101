"""The writer's folder holds, array by array, what the definition of the format says."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from glt_lightning.base import EDGE, PartitionOptions
from glt_lightning.graph import Manifest
from glt_lightning.partition import partition_graph
from tests.helpers.examples import examples
from tests.helpers.partition_truth import HETERO, brute_force, random_source, read_folder, same_arrays, single


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_parts=st.sampled_from([1, 2, 5]),
    hetero=st.booleans(),
    undirected=st.booleans(),
    wide=st.booleans(),
)
def test_random_graphs(seed: int, num_parts: int, hetero: bool, undirected: bool, wide: bool) -> None:
    source = random_source(np.random.default_rng(seed), HETERO if hetero else (EDGE,))
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "p")
        options = PartitionOptions(num_parts=num_parts, seed=seed % 7, hotness="degree")
        manifest = partition_graph(source, target, options, undirected=undirected, wide_ids=wide)
        arrays = read_folder(target)
    same_arrays(arrays, brute_force(source, num_parts, seed % 7, undirected))
    kind = np.dtype(np.int64 if wide else np.int32)
    for path, array in arrays.items():
        if path.endswith(("n_id.npy", "indices.npy", "edge_ids.npy")):
            assert array.dtype == kind, path
    assert manifest.num_nodes == tuple(source.num_nodes[t] for t in manifest.schema.node_types)
    assert manifest.id_dtype == manifest.edge_id_dtype == kind.name


@pytest.mark.parametrize("num_parts", [1, 2, 5])
@pytest.mark.parametrize("undirected", [False, True])
def test_self_loops_and_parallel_edges(tmp_path: Path, num_parts: int, undirected: bool) -> None:
    source = single([(0, 0), (1, 2), (2, 1), (1, 2), (0, 0), (3, 3), (2, 1), (0, 2)], 5)
    partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=num_parts), undirected=undirected)
    source.edge = {EDGE: {}}
    same_arrays(read_folder(tmp_path / "p"), brute_force(source, num_parts, 0, undirected))


@pytest.mark.parametrize(("edges", "num_nodes"), [([], 3), ([(0, 0)], 1), ([(0, 1)], 2), ([], 0)])
def test_more_parts_than_nodes(tmp_path: Path, edges: list[tuple[int, int]], num_nodes: int) -> None:
    source = single(edges, num_nodes, x=np.ones((num_nodes, 2), np.float32))
    manifest = partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=5))
    source.edge = {EDGE: {}}
    same_arrays(read_folder(tmp_path / "p"), brute_force(source, 5))
    sizes = [manifest.rows(p, 0) for p in range(5)]
    assert sum(sizes) == num_nodes
    assert max(sizes) - min(sizes) <= 1


def test_manifest_returned_is_the_manifest_on_disk(tmp_path: Path) -> None:
    source = random_source(np.random.default_rng(0), HETERO)
    manifest = partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=3, hotness="degree"), undirected=True)
    assert Manifest.load(tmp_path / "p") == manifest
    assert manifest.num_features("a") == 3
    assert manifest.node_attrs(0) == ("age", "x", "y")
    assert manifest.edge_attrs(0) == ("edge_attr", "edge_time")
    assert [manifest.num_edges[i] for i in range(5)] == [
        sum(manifest.edges(p, i) for p in range(3)) for i in range(len(manifest.schema.edge_types))
    ]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8, np.uint8, np.bool_, np.int64])
@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 2, 3), (6, 0)])
def test_any_node_attribute(tmp_path: Path, dtype: type, shape: tuple[int, ...]) -> None:
    rows = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    partition_graph(single([(0, 1)], 6, state=rows), tmp_path / "p", PartitionOptions(num_parts=2))
    arrays = read_folder(tmp_path / "p")
    for p in range(2):
        stored = arrays[f"part{p}/nodes/0/state.npy"]
        assert stored.dtype == dtype
        np.testing.assert_array_equal(stored, rows[arrays[f"part{p}/nodes/0/n_id.npy"]])
