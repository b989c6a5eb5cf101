"""Every algorithm keeps every node, edge and attribute, and changes no batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from glt_lightning.base import EDGE, NODE, DataError, GraphSchema, OptionError, PartitionOptions, SamplingOptions
from glt_lightning.graph import LocalPartition, Manifest
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.partition import ArraySource, assign_graph, open_source, partition_graph
from tests.helpers.contents import contents
from tests.helpers.examples import examples
from tests.helpers.partition_truth import HETERO, edges_of, random_source, read_folder, single, stored_edges
from tests.helpers.partitions import small_graph, small_hetero

ALGORITHMS = ("random", "frequency", "metis", "streaming", "array", "class")
BATCHES = {"batch_size": 4, "num_neighbors": [3, 2]}


def options_for(algorithm: str, source: Any, num_parts: int, folder: Path, **options: Any) -> PartitionOptions:
    given: Any = algorithm
    if algorithm == "array":
        rng = np.random.default_rng(num_parts)
        given = str(folder / "own.npz")
        np.savez(given, **{t: rng.integers(0, num_parts, n) for t, n in source.num_nodes.items()})
    if algorithm == "class":
        given = {"class_path": "tests.helpers.own_partitioners.Stripes", "init_args": {"width": 3}}
    return PartitionOptions(num_parts=num_parts, algorithm=given, **(BATCHES | options))


def check_round_trip(folder: Path, source: ArraySource, undirected: bool) -> None:
    """Every node and edge is there once; rows, weights and seeds are those of their ids."""
    manifest, arrays = Manifest.load(folder), read_folder(folder)
    assert edges_of(folder) == {e: sorted(edges) for e, edges in stored_edges(source, undirected).items()}
    user = {}
    for index, node_type in enumerate(manifest.schema.node_types):
        bases = [f"part{p}/nodes/{index}" for p in range(manifest.num_parts)]
        user[node_type] = np.concatenate([arrays[f"{base}/n_id.npy"] for base in bases])
        assert sorted(user[node_type].tolist()) == list(range(source.num_nodes[node_type]))
        for name, rows in source.node[node_type].items():
            stored = np.concatenate([arrays[f"{base}/{name}.npy"] for base in bases])
            np.testing.assert_array_equal(stored, np.asarray(rows)[user[node_type]])
    for index, (src, rel, dst) in enumerate(manifest.schema.edge_types):
        own = (src, rel, dst) if (src, rel, dst) in source.edge_index else (dst, rel.removeprefix("rev_"), src)
        for base in (f"part{p}/edges/{index}" for p in range(manifest.num_parts)):
            ids = arrays[f"{base}/edge_ids.npy"] % max(1, source.edge_index[own].shape[1])
            for name, rows in source.edge[own].items():
                np.testing.assert_array_equal(arrays[f"{base}/{name}.npy"], np.asarray(rows)[ids])
    for name, (node_type, ids) in source.splits.items():
        offset = manifest.offsets[manifest.schema.node_types.index(node_type)]
        assert user[node_type][arrays[f"splits/{name}.npy"] - offset].tolist() == np.asarray(ids).tolist()


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    algorithm=st.sampled_from(ALGORITHMS),
    edge_types=st.sampled_from([(EDGE,), HETERO]),
    nodes=st.sampled_from([2, 4, 40]),
    num_parts=st.sampled_from([1, 2, 3, 6]),
    undirected=st.booleans(),
    hotness=st.sampled_from(["auto", "presample", "degree"]),
)
def test_round_trip(seed, algorithm, edge_types, nodes, num_parts, undirected, hotness):
    source = random_source(np.random.default_rng(seed), edge_types, nodes)
    with TemporaryDirectory() as name:
        folder = Path(name)
        options = options_for(algorithm, source, num_parts, folder, hotness=hotness)
        partition_graph(source, folder / "p", options, undirected=undirected)
        check_round_trip(folder / "p", source, undirected)


def two_types(people: int, items: int, buys: list[tuple[int, int]], knows: list[tuple[int, int]]) -> ArraySource:
    edges = {("person", "buys", "item"): buys, ("person", "knows", "person"): knows}
    return ArraySource(
        name="two",
        fingerprint=str((people, items, buys, knows)),
        schema=GraphSchema(("person", "item"), tuple(edges)),
        num_nodes={"person": people, "item": items},
        edge_index={e: np.array(pairs, np.int64).reshape(-1, 2).T for e, pairs in edges.items()},
        node={"person": {"x": np.arange(people * 2.0).reshape(-1, 2)}, "item": {"y": np.arange(items)}},
        edge={e: {} for e in edges},
        target_type="person",
    )


RING = [(i, (i + 1) % 20) for i in range(20)]
SPECIAL: dict[str, Callable[[], ArraySource]] = {
    "no edges": lambda: single([], 9, x=np.eye(9)),
    "one node": lambda: single([(0, 0)], 1, x=np.ones((1, 1))),
    "loops alone": lambda: single([(i, i) for i in range(9)], 9),
    "one edge, many times": lambda: single([(3, 4)] * 50, 9),
    "a star": lambda: single([(0, i) for i in range(1, 30)] + [(i, 0) for i in range(1, 30)], 30),
    "isolated nodes": lambda: single([(7, 40), (40, 7)], 60),
    "no nodes of a type": lambda: two_types(20, 0, [], RING),
    "one node of a type": lambda: two_types(20, 1, [(i, 0) for i in range(20)], RING),
    "no edges of a type": lambda: two_types(20, 5, [], RING),
    "no edges of any type": lambda: two_types(7, 5, [], []),
}


@pytest.mark.diagonal
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("case", SPECIAL)
def test_special_graphs(tmp_path: Path, algorithm: str, case: str, capfd: pytest.CaptureFixture[str]) -> None:
    source = SPECIAL[case]()
    node_type = max(source.num_nodes, key=lambda t: source.num_nodes[t])
    source = replace(source, splits={"train": (node_type, np.arange(0, source.num_nodes[node_type], 2))})
    for undirected in (False, True):
        options = options_for(algorithm, source, 4, tmp_path)
        partition_graph(source, tmp_path / str(undirected), options, undirected=undirected, progress=False)
        check_round_trip(tmp_path / str(undirected), source, undirected)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("splits", [{}, {"train": (NODE, np.empty(0, np.int64))}])
def test_nothing_to_train_on(tmp_path: Path, algorithm: str, splits: dict) -> None:
    source = replace(single(RING, 20), splits=splits)
    options = options_for(algorithm, source, 3, tmp_path)
    if algorithm == "frequency":
        with pytest.raises(DataError, match="frequency counts accesses by training seeds, but the data has none"):
            partition_graph(source, tmp_path / "p", options)
        assert [p.name for p in tmp_path.iterdir()] == []
        return
    partition_graph(source, tmp_path / "p", options)
    check_round_trip(tmp_path / "p", source, undirected=False)
    assert set(Manifest.load(tmp_path / "p").hotness) == {"degree"}


@pytest.mark.diagonal
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("make", [small_graph, small_hetero])
def test_same_for_a_seed(tmp_path: Path, algorithm: str, make: Callable[[], Any]) -> None:
    source = open_source(make(), str(tmp_path))
    content = []
    for run in range(2):
        options = options_for(algorithm, source, 3, tmp_path, seed=5)
        partition_graph(source, tmp_path / str(run), options, undirected=True)
        content.append(Manifest.load(tmp_path / str(run)))
    assert content[0] == content[1]
    if algorithm in ("random", "metis"):  # streaming has few choices left on so small a graph
        partition_graph(source, tmp_path / "other", replace(options, seed=6), undirected=True)
        assert Manifest.load(tmp_path / "other").arrays != content[0].arrays


@pytest.mark.diagonal
@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize("undirected", [False, True])
def test_same_batches_for_any_partitioning(tmp_path: Path, make: Callable[[], Any], undirected: bool) -> None:
    source = open_source(make(), str(tmp_path))

    def batches(name: str, options: PartitionOptions) -> list[str]:
        partition_graph(source, tmp_path / name, options, undirected=undirected)
        spec = LoaderSpec(name="train", split="train", num_neighbors=[4, 3], batch_size=16, shuffle=True)
        sampling = SamplingOptions(num_workers=0, with_edge=True)
        with Session(LocalPartition.open(tmp_path / name), sampling, seed=7) as context:
            return [contents(batch) for batch in context.make_loader(spec)]

    expected = batches("whole", PartitionOptions())
    assert len(set(expected)) == len(expected) > 3
    for algorithm in ALGORITHMS:
        for num_parts in (2, 4):
            options = options_for(algorithm, source, num_parts, tmp_path)
            assert batches(f"{algorithm}{num_parts}", options) == expected, (algorithm, num_parts)


@pytest.mark.parametrize("undirected", [False, True])
def test_more_nodes_than_streaming_can_number(tmp_path: Path, undirected: bool) -> None:
    """Said before anything as long as the nodes is made; other algorithms go on to the edges."""
    source = single([], 2**31)
    said = "streaming supports at most 2,147,483,647 nodes, but the graph has 2,147,483,648"
    options = PartitionOptions(num_parts=2, algorithm="streaming")
    with pytest.raises(OptionError, match=said):
        partition_graph(source, tmp_path / "p", options, undirected=undirected)
    with pytest.raises(OptionError, match=said):
        assign_graph(source, tmp_path / "parts.npz", options, undirected=undirected)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("algorithm", ["random", "frequency", "metis"])
def test_algorithms_without_a_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str) -> None:
    def counting(*args: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr("glt_lightning.partition.build.builder.count_edges", counting)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=1 << 60))
    with pytest.raises(NotImplementedError):
        partition_graph(single([], 2**31), tmp_path / "p", PartitionOptions(num_parts=2, algorithm=algorithm))
