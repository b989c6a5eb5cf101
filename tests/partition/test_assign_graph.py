"""An assignment of nodes to parts is saved by itself, and a folder made with it is the one of a single run."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.base import EDGE, DataError, PartitionError, PartitionOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.partition import ArraySource, assign_graph, partition_graph
from tests.helpers.partition_truth import HETERO, random_source


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def source() -> ArraySource:
    return random_source(np.random.default_rng(0))


@pytest.fixture
def three(tmp_path: Path, source: ArraySource) -> PartitionOptions:
    """Options that name an assignment to three parts."""
    file = tmp_path / "stage1" / "parts.npz"
    assign_graph(source, file, PartitionOptions(num_parts=3, algorithm="metis"))
    return PartitionOptions(num_parts=3, algorithm=str(file))


def test_hotness_beyond_the_memory_lies_in_a_file(tmp_path: Path) -> None:
    rng, nodes = np.random.default_rng(0), 30_000
    source = random_source(rng, nodes=nodes)
    source = replace(source, node={"node": {}}, edge={EDGE: {}})
    options = PartitionOptions(num_parts=16, hotness="vip")
    manifests = [
        partition_graph(source, tmp_path / str(memory), replace(options, memory_bytes=memory))
        for memory in (1 << 20, 1 << 30)
    ]
    assert manifests[0] == manifests[1]


def test_assignment_is_that_of_one_run(tmp_path: Path) -> None:
    source = random_source(np.random.default_rng(1), HETERO)
    options = PartitionOptions(num_parts=3, algorithm="random", hotness="degree")
    counts = assign_graph(source, tmp_path / "parts.npz", options)
    manifest = partition_graph(source, tmp_path / "a", options)
    assert [[manifest.rows(p, t) for p in range(3)] for t in range(len(counts))] == [*counts.values()]
    partition_graph(source, tmp_path / "b", replace(options, algorithm=str(tmp_path / "parts.npz")))
    expected, got = content(tmp_path / "a"), content(tmp_path / "b")
    del expected["manifest.json"], got["manifest.json"]
    assert got == expected


def test_assignment_appears_whole_and_is_kept(tmp_path: Path, source: ArraySource, three: PartitionOptions) -> None:
    file = Path(str(three.algorithm))
    before = file.read_bytes()
    with pytest.raises(PartitionError, match=r"parts\.npz: this assignment exists"):
        assign_graph(source, file, PartitionOptions(num_parts=3))
    with pytest.raises(PartitionError, match=r"ends in \.npz"):
        assign_graph(source, tmp_path / "parts.npy", PartitionOptions(num_parts=3))
    assert file.read_bytes() == before
    assert [p.name for p in file.parent.iterdir()] == ["parts.npz"]


def test_node_type_with_an_awkward_name(tmp_path: Path) -> None:
    source = random_source(np.random.default_rng(0), (("file", "to", "a/b"), ("a/b", "rev", "x.npy")))
    assign_graph(source, tmp_path / "parts.npz", PartitionOptions(num_parts=2))
    partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=2, algorithm=str(tmp_path / "parts.npz")))


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        (
            {"node": np.zeros(3, np.int16)},
            r"parts of node type 'node': expected integers of shape \[\d+\], got int16 \[3\]",
        ),
        ({"node": None}, r"node \d+ is assigned to part 3, but with partition\.num_parts: 3 parts are numbered 0\.\.2"),
        ({"paper": np.zeros(3, np.int16)}, "array 'paper' names no node type; the graph has node"),
        ({}, "no array for node type 'node'"),
    ],
)
def test_wrong_assignment_is_refused_and_leaves_nothing(
    tmp_path: Path, source: ArraySource, arrays: dict, said: str
) -> None:
    given = {t: np.arange(source.num_nodes["node"]) % 4 if a is None else a for t, a in arrays.items()}
    np.savez(tmp_path / "parts.npz", **given)
    options = PartitionOptions(num_parts=3, algorithm=str(tmp_path / "parts.npz"))
    with pytest.raises(DataError, match=said):
        partition_graph(source, tmp_path / "p", options)
    assert [p.name for p in tmp_path.iterdir()] == ["parts.npz"]


def test_moved_folder_opens(tmp_path: Path, source: ArraySource) -> None:
    expected = partition_graph(source, tmp_path / "a" / "p", PartitionOptions(num_parts=2))
    (tmp_path / "b").mkdir()
    os.rename(tmp_path / "a" / "p", tmp_path / "b" / "q")
    assert LocalPartition.open(tmp_path / "b" / "q", verify=True).manifest == expected
    assert partition_graph(source, tmp_path / "b" / "q", PartitionOptions(num_parts=2)) == expected  # used again


def test_host_needs_only_its_parts(tmp_path: Path, source: ArraySource) -> None:
    partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=3))
    for name in ("manifest.json", "splits", "nodes", "part1"):
        whole, copy = tmp_path / "p" / name, tmp_path / "q" / name
        copy.parent.mkdir(exist_ok=True)
        shutil.copytree(whole, copy) if whole.is_dir() else shutil.copy(whole, copy)
    opened = LocalPartition.open(tmp_path / "q", parts=[1])
    for path, entry in opened.manifest.arrays.items():
        assert (tmp_path / "q" / path).exists() == path.startswith(("part1/", "splits/", "nodes/")), entry
    for t in range(len(opened.schema.node_types)):
        assert opened.mapped_user_ids(t)[1] is not None
