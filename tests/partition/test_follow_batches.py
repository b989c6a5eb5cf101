"""Fan-outs and batch size of a partition are those of training, unless they are given or the partition exists."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from glt_lightning import GLTDataModule
from glt_lightning.base import PartitionError, PartitionOptions
from glt_lightning.graph import Manifest, options_hash
from glt_lightning.partition import open_source, partition_dir, partition_graph

NODES = 12


@pytest.fixture
def graph(tmp_path: Path) -> str:
    ids = np.arange(NODES)
    path = tmp_path / "graph.npz"
    edges = np.stack([np.tile(ids, 2), np.concatenate([(ids + 1) % NODES, (ids * 5 + 2) % NODES])])
    np.savez(path, edge_index=edges, x=np.ones((NODES, 2), np.float32), y=ids % 2, train_idx=ids[:6])
    return str(path)


def module(graph: str, **options) -> GLTDataModule:
    own = {"num_neighbors": [3, 2], "batch_size": 4} | options
    return GLTDataModule(graph, root=str(Path(graph).parent), **own)


def batches_of(folder: Path) -> tuple[list[int], int]:
    made = Manifest.load(folder).made_by
    return made["num_neighbors"], made["batch_size"]


def prepared(data: GLTDataModule) -> Path:
    data.prepare_data()
    return data.partition_dir


def test_they_are_those_of_training(graph: str) -> None:
    folder = prepared(module(graph, partition={"hotness": "vip"}))
    assert batches_of(folder) == ([3, 2], 4)
    assert Manifest.load(folder).hotness["vip"] == {"num_neighbors": [3, 2], "batch_size": 4}


def test_given_ones_count(graph: str) -> None:
    folder = prepared(module(graph, partition={"hotness": "vip", "num_neighbors": [5], "batch_size": 2}))
    assert batches_of(folder) == ([5], 2)
    half = prepared(module(graph, partition={"hotness": "vip", "batch_size": 2}))
    assert half != folder
    assert batches_of(half) == ([3, 2], 2)


def test_other_batches_do_not_partition_again(graph: str, caplog: pytest.LogCaptureFixture) -> None:
    folder = prepared(module(graph, partition={"hotness": "vip"}))
    with caplog.at_level(logging.INFO, "glt_lightning"):
        assert prepared(module(graph, num_neighbors=[7], partition={"hotness": "vip"})) == folder
    assert batches_of(folder) == ([3, 2], 4)
    assert "ranked for num_neighbors [3, 2], batch_size 4; this run has num_neighbors [7], batch_size 4" in caplog.text
    assert len(list(folder.parent.iterdir())) == 1


def test_a_folder_of_an_earlier_release_is_found(graph: str) -> None:
    """Those ranked for [15, 10, 5] and 1024 whatever the data module had, and named the folder by it."""
    before = module(graph, partition={"hotness": "vip", "num_neighbors": [15, 10, 5], "batch_size": 1024})
    folder = prepared(before)
    source = open_source(graph, folder.parents[1])
    assert partition_dir(folder, source, PartitionOptions(hotness="vip"), None, "none").name != folder.name
    assert prepared(module(graph, partition={"hotness": "vip"})) == folder
    assert batches_of(folder) == ([15, 10, 5], 1024)


@pytest.mark.parametrize("named", [False, True])
def test_a_folder_with_the_edge_ids_of_an_earlier_release_is_used(graph: str, tmp_path: Path, named: bool) -> None:
    """There an added reverse edge has the id E + k, and the options say nothing of ids."""
    own = {"dir": str(tmp_path / "named")} if named else {}
    folder = prepared(module(graph, undirected=True, partition=own))
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["edge_columns"], manifest["made_by"]["reverse_ids"]
    manifest["options_hash"] = options_hash(manifest["made_by"])
    (folder / "manifest.json").write_text(json.dumps(manifest))
    if not named:
        folder = folder.rename(folder.with_name(f"{folder.name[:-8]}{manifest['options_hash'][:8]}"))
    assert prepared(module(graph, undirected=True, partition=own)) == folder
    with pytest.raises(PartitionError, match="undirected: True on disk, False given"):
        prepared(module(graph, partition={"dir": str(folder)}))


def test_a_folder_that_is_named_is_taken_unless_others_are_given(graph: str, tmp_path: Path) -> None:
    options = PartitionOptions(hotness="vip", num_neighbors=[9], batch_size=3, dir=str(tmp_path / "p"))
    partition_graph(open_source(graph, tmp_path), tmp_path / "p", options, progress=False)
    named = {"hotness": "vip", "dir": options.dir}
    assert batches_of(prepared(module(graph, partition=named))) == ([9], 3)
    with pytest.raises(PartitionError, match=r"num_neighbors: \[9\] on disk, \[8\] given"):
        prepared(module(graph, partition=named | {"num_neighbors": [8]}))


def test_a_ranking_by_degree_does_not_know_them(graph: str, tmp_path: Path) -> None:
    """The folder is the one of earlier releases."""
    source = open_source(graph, tmp_path)
    default = PartitionOptions(num_neighbors=[15, 10, 5], batch_size=1024)
    assert partition_dir(tmp_path, source, PartitionOptions(), None, "none") == partition_dir(
        tmp_path, source, default, None, "none"
    )
    assert batches_of(prepared(module(graph))) == ([15, 10, 5], 1024)
