"""PyG objects and class paths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data, HeteroData, InMemoryDataset

from glt_lightning.base import EDGE, NODE, DataError, PartitionOptions
from glt_lightning.partition import open_source, partition_graph
from tests.helpers.partition_truth import edges_of


def data() -> Data:
    torch.manual_seed(0)
    return Data(
        x=torch.rand(6, 3),
        y=torch.tensor([0, 1, 2, 0, 1, 2]).view(-1, 1),
        edge_index=torch.tensor([[0, 1, 2, 5, 5], [1, 2, 0, 4, 4]]),
        edge_attr=torch.rand(5, 2),
        edge_weight=torch.rand(5),
        age=torch.arange(6),
        train_mask=torch.tensor([1, 0, 0, 0, 0, 1]).bool(),
        val_mask=torch.tensor([0, 1, 0, 0, 0, 0]).bool(),
        test_mask=torch.tensor([0, 0, 1, 1, 0, 0]).bool(),
        title="a graph",
    )


def hetero() -> HeteroData:
    graph = HeteroData()
    graph["paper"].x = torch.rand(4, 3).half()
    graph["paper"].y = torch.tensor([0, 1, 1, 0])
    graph["paper"].train_mask = torch.tensor([True, False, True, False])
    graph["author"].num_nodes = 3
    graph["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 2, 2], [0, 0, 1, 3]])
    graph["author", "writes", "paper"].order = torch.arange(4)
    return graph


class Two(InMemoryDataset):
    def __init__(self) -> None:
        super().__init__()
        self.data, self.slices = self.collate([data(), data()])


class One(InMemoryDataset):
    def __init__(self, root: str | None = None) -> None:
        super().__init__()
        self.given = root
        self.data, self.slices = self.collate([data()])


def test_data(tmp_path: Path) -> None:
    source = open_source(data(), tmp_path)
    assert source.schema.homogeneous
    assert source.num_features == {NODE: 3}
    assert source.num_classes == 3
    assert sorted(source.node_attrs(NODE)) == ["age", "x", "y"]
    assert source.node_attrs(NODE)["y"].shape == (6,)
    assert sorted(source.edge_attrs(EDGE)) == ["edge_attr", "edge_weight"]
    assert {name: ids.tolist() for name, (_, ids) in source.splits.items()} == {
        "train": [0, 5],
        "val": [1],
        "test": [2, 3],
    }
    partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=2))
    assert edges_of(tmp_path / "p")[EDGE] == [(0, 1, 0), (1, 2, 1), (2, 0, 2), (5, 4, 3), (5, 4, 4)]


def test_heterodata(tmp_path: Path) -> None:
    source = open_source(hetero(), tmp_path)
    assert not source.schema.homogeneous
    assert source.num_features == {"author": None, "paper": 3}
    assert source.target_type == "paper"
    assert source.num_classes == 2
    assert source.node_attrs("paper")["x"].dtype == np.float16
    assert sorted(source.edge_attrs(("author", "writes", "paper"))) == ["order"]
    manifest = partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=2))
    assert manifest.splits["train"].count == 2
    assert edges_of(tmp_path / "p")["author", "writes", "paper"] == [(0, 0, 0), (1, 0, 1), (2, 1, 2), (2, 3, 3)]


def test_heterodata_of_one_type_stays_heterogeneous(tmp_path: Path) -> None:
    graph = HeteroData()
    graph["n"].x = torch.rand(2, 1)
    graph["n", "to", "n"].edge_index = torch.tensor([[0], [1]])
    manifest = partition_graph(open_source(graph, tmp_path), tmp_path / "p", PartitionOptions())
    assert not manifest.schema.homogeneous


def test_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    assert open_source(data(), tmp_path).fingerprint == open_source(data(), tmp_path).fingerprint
    changed = data()
    changed.edge_index[0, 0] = 3
    assert open_source(data(), tmp_path).fingerprint != open_source(changed, tmp_path).fingerprint
    more = data()
    more.num_nodes = 6
    more.train_mask[3] = True
    assert open_source(data(), tmp_path).fingerprint != open_source(more, tmp_path).fingerprint


def test_class_path(tmp_path: Path) -> None:
    source = open_source("torch_geometric.datasets.KarateClub", tmp_path)
    assert source.num_nodes == {NODE: 34}
    assert source.num_classes == 4
    assert source.name == "karateclub"
    assert list(tmp_path.iterdir()) == []


def test_dataset_object_and_class_with_root(tmp_path: Path) -> None:
    assert open_source(One(), tmp_path).num_nodes == {NODE: 6}
    with pytest.raises(DataError, match="holds 2 graphs; expected one"):
        _ = open_source(Two(), tmp_path).num_nodes


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("torch_geometric.datasets.Planetoid", "needs name"),
        ("torch_geometric.datasets.NoSuch", "cannot import"),
        ("no_such_package.Data", "cannot import"),
        ("torch.nn.Linear", "is not a PyG data set class"),
    ],
)
def test_bad_class_path(tmp_path: Path, path: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        open_source(path, tmp_path)


def test_masks_of_several_splits_give_the_first(tmp_path: Path) -> None:
    graph = data()
    graph.train_mask = torch.tensor([[0, 1], [1, 0], [0, 1], [0, 0], [0, 0], [1, 1]]).bool()
    assert open_source(graph, tmp_path).splits["train"][1].tolist() == [1, 5]


def test_id_tensors_are_splits(tmp_path: Path) -> None:
    graph = Data(
        edge_index=torch.tensor([[0], [1]]), num_nodes=3, train_idx=torch.tensor([2, 0]), valid_idx=torch.tensor([1])
    )
    splits = open_source(graph, tmp_path).splits
    assert {name: ids.tolist() for name, (_, ids) in splits.items()} == {"train": [2, 0], "val": [1]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": torch.eye(6).to_sparse()}, "x is a sparse tensor"),
        (
            {"x": scipy.sparse.eye(6).tocsr()},
            r"x is a scipy\.sparse\S+; expected a dense tensor or an array of numbers. Convert",
        ),
        ({"x": ["a"] * 6}, "x is a list of str; expected a dense tensor"),
        ({"x": [[1.0], [1.0, 2.0]] * 3}, "x is a list of list; expected a dense tensor"),
        ({"y": np.array(["cat"] * 6)}, "y is an array of <U3; expected"),
        ({"edge_weight": "one"}, "edge_weight is a str; expected"),
        ({"train_mask": np.array([None] * 6)}, "train_mask is an array of object; expected"),
        ({"x": np.zeros((6, 2), np.complex64)}, "x is an array of complex64; expected"),
        ({"edge_index": None}, "has no edge_index"),
        ({"edge_index": torch.zeros(2, 2)}, "expected integers"),
        (
            {"x": torch.rand(5, 3)},
            "x of node type 'node': expected one row per node, which makes 6, the number of rows of y",
        ),
    ],
)
def test_bad_data(tmp_path: Path, change: dict, said: str) -> None:
    graph = data()
    graph.num_nodes = 6
    graph.update(change)
    with pytest.raises(DataError, match=said):
        partition_graph(open_source(graph, tmp_path), tmp_path / "p", PartitionOptions())


def test_splits_of_two_types_are_not_guessed(tmp_path: Path) -> None:
    graph = hetero()
    graph["author"].train_mask = torch.tensor([True, False, False])
    with pytest.raises(DataError, match=r"node types \['author', 'paper'\] all have splits"):
        _ = open_source(graph, tmp_path).num_classes


def in_numpy(given: Data | HeteroData, folder: Path) -> Data | HeteroData:
    """The same with arrays, mapped files and lists in place of tensors."""
    graph = given.clone()
    for at, store in enumerate(graph.stores):
        for key, value in list(store.items()):
            if not isinstance(value, torch.Tensor):
                continue
            np.save(folder / f"{at}{key}.npy", value.numpy())
            store[key] = (
                np.load(folder / f"{at}{key}.npy", mmap_mode="r") if key in ("x", "edge_attr") else value.numpy()
            )
            if key in ("age", "order"):
                store[key] = value.tolist()
            if key == "edge_weight":
                store[key] = value.numpy().astype(">f4")
    return graph


@pytest.mark.parametrize("graph", [data(), hetero()], ids=["Data", "HeteroData"])
def test_arrays_mapped_files_and_lists_are_taken_as_tensors_are(tmp_path: Path, graph: Data | HeteroData) -> None:
    if isinstance(graph, Data):
        graph.num_nodes = 6
    whole = open_source(graph, tmp_path)
    partition_graph(whole, tmp_path / "tensors", PartitionOptions(num_parts=2), progress=False)
    same = open_source(in_numpy(graph, tmp_path), tmp_path)
    partition_graph(same, tmp_path / "arrays", PartitionOptions(num_parts=2), progress=False)
    found = [
        {p.relative_to(tmp_path / f): p.read_bytes() for p in (tmp_path / f).rglob("*.npy")}
        for f in ("tensors", "arrays")
    ]
    assert found[0] == found[1]
    assert whole.splits.keys() == same.splits.keys()


def test_an_attribute_that_is_left_out_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    graph = data()
    graph.raw_text = ["a text"] * 6
    source = open_source(graph, tmp_path)
    assert "raw_text" not in source.node_attrs(NODE)
    assert (
        "dataset: raw_text is a list of str; expected a dense tensor or an array of numbers, so it is left out."
        in caplog.text
    )
    assert "title" not in caplog.text  # of the graph
