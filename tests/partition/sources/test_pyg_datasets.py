"""PyG data sets with arguments, files of graphs that torch saved, and downloads that fail."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData, InMemoryDataset, download_url

from glt_lightning.base import NODE, DataError, PartitionOptions
from glt_lightning.partition import open_source, partition_graph
from tests.partition.sources.test_pyg import data, hetero

HERE = "tests.partition.sources.test_pyg_datasets"


class Ring(InMemoryDataset):
    """A ring with a split that is drawn anew each time."""

    def __init__(self, root: str, name: str, nodes: int = 6) -> None:
        super().__init__()
        self.given = root
        if name != "ring":
            raise KeyError(name)
        ids = torch.arange(nodes)
        order = torch.randperm(nodes)
        graph = Data(x=torch.ones(nodes, 2), edge_index=torch.stack([ids, ids.roll(1)]), train_idx=order[: nodes // 2])
        self.data, self.slices = self.collate([graph])


class Remote(InMemoryDataset):
    """Its files are where nobody listens."""

    raw_file_names = ("nodes.csv", "edges.csv")
    processed_file_names = ("data.pt",)

    def __init__(self, root: str) -> None:
        super().__init__(root)

    def download(self) -> None:
        download_url("http://127.0.0.1:9/nodes.csv", self.raw_dir)

    def process(self) -> None:
        Path(self.processed_dir, "data.pt").touch()


def spec(kind: str, /, **arguments: Any) -> dict[str, Any]:
    return {"class_path": f"{HERE}.{kind}", "init_args": arguments}


def test_arguments(tmp_path: Path) -> None:
    for given in (spec("Ring", name="ring", nodes=10), Namespace(class_path=f"{HERE}.Ring", name="ring", nodes=10)):
        source = open_source(given, tmp_path)
        assert source.num_nodes == {NODE: 10}
        assert source.name == "ring-ring"
    assert source.fingerprint == open_source(given, tmp_path).fingerprint  # what it draws is the same each time
    state = torch.get_rng_state()
    _ = open_source(given, tmp_path).num_nodes
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (spec("Ring"), r"Ring needs name. Give \{class_path: .*Ring, init_args: \{name: ...\}\}"),
        (spec("Ring", nam="ring"), "has no argument 'nam'; it takes root, name, nodes. Did you mean name?"),
        (spec("Ring", name="rong"), r"Ring\(name='rong'\) cannot be made \(KeyError 'rong'\)"),
        ({"class_path": 3}, "expected a class path, or class_path and init_args"),
        ({"class_path": "torch_geometric.datasets.Nothing"}, "cannot import"),
        ({"class_path": "torch_geometric.datasets.KarateClub", "init_args": [1]}, "expected arguments by name"),
        ({"class_path": "torch.nn.Linear"}, "is not a PyG data set class"),
        (
            "torch_geometric.datasets.Planetoid",
            r"needs name. Give \{class_path: torch_geometric.datasets.Planetoid, init_",
        ),
    ],
)
def test_wrong_arguments(tmp_path: Path, given: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        _ = open_source(given, tmp_path).num_nodes


def test_a_download_that_fails_says_what_to_fetch_and_where_to_put_it(tmp_path: Path) -> None:
    raw = tmp_path / "Remote" / "raw"
    said = (
        rf"Remote cannot download http://127.0.0.1:9/nodes.csv \(URLError .*\). Where there is a network, fetch nodes.csv, "
        rf"edges.csv and put them into {raw};"
    )
    with pytest.raises(DataError, match=said):
        _ = open_source(spec("Remote"), tmp_path).num_nodes
    for name in Remote.raw_file_names:
        (raw / name).touch()
    with pytest.raises(DataError) as caught:  # taken from there; this class then makes nothing of them
        _ = open_source(spec("Remote"), tmp_path).num_nodes
    assert "download" not in str(caught.value)


@pytest.mark.parametrize("graph", [data(), hetero()])
def test_saved_graph(tmp_path: Path, graph: Data | HeteroData) -> None:
    torch.save(graph, tmp_path / "my graph.pt")
    source, same = open_source(str(tmp_path / "my graph.pt"), tmp_path), open_source(graph, tmp_path)
    assert source.name == "my_graph"
    assert (source.schema, source.num_nodes, source.num_classes) == (same.schema, same.num_nodes, same.num_classes)
    first = partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=2))
    second = partition_graph(same, tmp_path / "q", PartitionOptions(num_parts=2))
    assert first.arrays == second.arrays


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return (Path.touch, (self.path,))


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "g.pt"
    for content, said in (
        (torch.ones(3), "found Tensor. Save the graph itself"),
        ({"x": torch.ones(3)}, "found dict"),
        (
            Data(trap=Trap(tmp_path / "sprung")),
            r"it holds \S+, which is not read",
        ),
    ):
        torch.save(content, path)
        with pytest.raises(DataError, match=rf"g.pt: .*{said}"):
            _ = open_source(path, tmp_path).num_nodes
    assert not (tmp_path / "sprung").exists()
    path.write_bytes(b"PK")
    with pytest.raises(DataError, match=r"g.pt: expected a Data or HeteroData"):
        _ = open_source(path, tmp_path).num_nodes
    path.unlink()
    with pytest.raises(DataError, match=r"there is no file .*g.pt"):
        open_source(path, tmp_path)
    os.mkfifo(path)
    with pytest.raises(DataError, match=r"there is no file or folder|of another kind"):
        open_source(path, tmp_path)
