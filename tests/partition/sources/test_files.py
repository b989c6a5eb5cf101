"""Graphs in .npz files and in folders of .npy files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.base import EDGE, NODE, DataError, PartitionOptions
from glt_lightning.graph import Manifest
from glt_lightning.partition import open_source, partition_graph
from tests.helpers.partition_truth import edges_of

EDGES = np.array([[0, 1, 2, 4, 4, 3, 0], [1, 2, 0, 3, 3, 3, 1]])
SORTED = sorted((u, v, k) for k, (u, v) in enumerate(EDGES.T.tolist()))


def homogeneous() -> dict[str, np.ndarray]:
    return {
        "x": np.arange(10).reshape(5, 2).astype(np.float16),
        "y": np.array([0, 1, 2, 1, 0]),
        "edge_index": EDGES,
        "edge_type": np.arange(7),
        "edge_type_names": np.array(["a", "b"]),
        "class_names": np.array(["p", "q", "r"]),
        "train_idx": np.array([4, 0]),
        "valid_idx": np.array([1]),
        "test_idx": np.array([2, 3]),
        "year": np.arange(5),
        "unrelated": np.arange(3),
    }


def heterogeneous() -> dict[str, np.ndarray]:
    return {
        "user/num_nodes": np.array(3),
        "item/x": np.ones((4, 2), np.float32),
        "item/y": np.array([0, 1, 0, 1]),
        "item/train_idx": np.array([0, 3]),
        "item/valid_idx": np.array([1]),
        "user__buys__item/edge_index": np.array([[0, 1, 2], [3, 2, 2]]),
        "user__buys__item/weight": np.array([1.0, 2.0, 3.0]),
        "user__buys__item/train_idx": np.array([0, 1]),
    }


def save(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    np.savez_compressed(path, **arrays)
    return path


def test_homogeneous_npz(tmp_path: Path) -> None:
    source = open_source(str(save(tmp_path / "my graph.npz", homogeneous())), tmp_path)
    assert source.name == "my_graph"
    assert source.schema.homogeneous
    assert source.num_nodes == {NODE: 5}
    assert source.num_features == {NODE: 2}
    assert source.num_classes == 3
    attrs = source.node_attrs(NODE)
    assert sorted(attrs) == ["x", "y", "year"]
    assert attrs["x"].dtype == attrs["x"][:].dtype == np.float16
    assert sorted(source.edge_attrs(EDGE)) == ["edge_type"]
    assert {name: ids.tolist() for name, (_, ids) in source.splits.items()} == {
        "train": [4, 0],
        "val": [1],
        "test": [2, 3],
    }
    partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=2))
    assert edges_of(tmp_path / "p")[EDGE] == SORTED


def test_heterogeneous_npz(tmp_path: Path) -> None:
    source = open_source(save(tmp_path / "g.npz", heterogeneous()), tmp_path)
    buys = ("user", "buys", "item")
    assert source.schema.node_types == ("item", "user")
    assert source.schema.edge_types == (buys,)
    assert source.num_nodes == {"item": 4, "user": 3}
    assert source.num_features == {"item": 2, "user": None}
    assert (source.target_type, source.num_classes) == ("item", 2)
    assert sorted(source.edge_attrs(buys)) == ["weight"]
    assert {name: t for name, (t, _) in source.splits.items()} == {"train": "item", "val": "item"}
    partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=2))
    assert edges_of(tmp_path / "p")[buys] == [(0, 3, 0), (1, 2, 1), (2, 2, 2)]


def test_npz_is_known_by_content(tmp_path: Path) -> None:
    first = save(tmp_path / "g.npz", homogeneous())
    (tmp_path / "sub").mkdir()
    copy = Path(shutil.copy(first, tmp_path / "sub"))
    os.utime(copy, (0, 0))
    assert open_source(first, tmp_path).fingerprint == open_source(copy, tmp_path).fingerprint
    save(copy, homogeneous() | {"y": np.zeros(5, int)})
    assert open_source(first, tmp_path).fingerprint != open_source(copy, tmp_path).fingerprint


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"edge_index": EDGES.T}, r"edge_index: expected integers \[2, E\] .* got int64 \[7, 2\]"),
        ({"edge_index": EDGES + 0.5}, "expected integers"),
        ({"edge_index": np.array([[0], [5]])}, "column 0 has destination 5"),
        (
            {"x": np.ones((4, 2))},
            "x of node type 'node': expected one row per node, which makes 5, the number of rows of y",
        ),
        (
            {"edge_attr": np.ones(3)},
            "node__to__node: expected one row per edge, which makes 7, got 3 rows",
        ),
        ({"y": np.array([0, 1, 2, 1, np.nan])}, "the label of node 4 is NaN"),
        ({"train_idx": np.array([5])}, "splits: train: position 0 has node 5"),
        (
            {"x": np.array([object()] * 5)},
            "x of node type 'node': attributes are numbers or booleans, but the dtype is object",
        ),
    ],
)
def test_bad_npz(tmp_path: Path, change: dict[str, np.ndarray], said: str) -> None:
    arrays = homogeneous() | {"num_nodes": np.array(5)} | change
    np.savez(tmp_path / "g.npz", **arrays)
    with pytest.raises(DataError, match=said):
        partition_graph(open_source(tmp_path / "g.npz", tmp_path), tmp_path / "p", PartitionOptions())
    assert not (tmp_path / "p").exists()


def test_unreadable_npz(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"dataset: there is no file .*absent.npz"):
        open_source(tmp_path / "absent.npz", tmp_path)
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(DataError, match=r"text.npz: expected an .npz file"):
        open_source(tmp_path / "text.npz", tmp_path)
    save(tmp_path / "cut.npz", {"edge_index": EDGES})
    (tmp_path / "cut.npz").write_bytes((tmp_path / "cut.npz").read_bytes()[:100])
    with pytest.raises(DataError, match=r"cut.npz: .*may be incomplete: fetch it again"):
        open_source(tmp_path / "cut.npz", tmp_path)
    os.mkfifo(tmp_path / "pipe.npz")
    for dataset in (tmp_path / "pipe.npz", {"matrix": str(tmp_path / "pipe.npz")}):
        with pytest.raises(DataError, match=r"pipe.npz: expected .*it is not a regular file"):
            _ = open_source(dataset, tmp_path).num_nodes
    save(tmp_path / "noedges.npz", {"x": np.ones(3)})
    with pytest.raises(DataError, match=r"noedges.npz: expected 'edge_index'"):
        open_source(tmp_path / "noedges.npz", tmp_path)
    save(tmp_path / "nonodes.npz", {"edge_index": EDGES})
    with pytest.raises(DataError, match="the number of nodes"):
        _ = open_source(tmp_path / "nonodes.npz", tmp_path).num_nodes
    save(tmp_path / "badname.npz", {"a__b/edge_index": EDGES})
    with pytest.raises(DataError, match="SRC__REL__DST"):
        open_source(tmp_path / "badname.npz", tmp_path)


def folder(path: Path, **arrays: np.ndarray) -> Path:
    path.mkdir()
    for name, array in arrays.items():
        np.save(path / f"{name}.npy", array)
    return path


CSC = {"indptr": np.array([0, 0, 2, 2, 5]), "indices": np.array([3, 0, 1, 1, 2])}
CSC_EDGES = sorted(zip(CSC["indices"].tolist(), [1, 1, 3, 3, 3], range(5), strict=True))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_folder_with_csc(tmp_path: Path, dtype: type, chunk: int) -> None:
    path = folder(tmp_path / "g", **{k: v.astype(dtype) for k, v in CSC.items()}, feat=np.ones((4, 3), np.float32))
    source = open_source(path, tmp_path)
    assert source.num_nodes == {NODE: 4}
    assert source.num_features == {NODE: 3}
    src, dst = (np.concatenate([a.copy() for a in ends]) for ends in zip(*_copies(source, chunk), strict=True))
    assert sorted(zip(src.tolist(), dst.tolist(), range(5), strict=True)) == CSC_EDGES
    partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=2))
    assert edges_of(tmp_path / "p")[EDGE] == CSC_EDGES


def _copies(source, chunk: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(src.copy(), dst.copy()) for src, dst in source.edges(EDGE).chunks(chunk)]


@pytest.mark.parametrize("order", ["C", "F"])
def test_folder_with_edge_index(tmp_path: Path, order: str) -> None:
    arrays = homogeneous()
    path = folder(
        tmp_path / "g",
        edge_index=np.array(EDGES, order=order),
        x=arrays["x"].astype(np.float32),
        label=arrays["y"],
        train=arrays["train_idx"],
        valid=arrays["valid_idx"],
        edge_attr=np.arange(7.0),
        age=np.arange(5),
    )
    source = open_source(str(path), tmp_path)
    assert (source.num_classes, source.num_features) == (3, {NODE: 2})
    assert sorted(source.node_attrs(NODE)) == ["age", "x", "y"]
    assert {name: ids.tolist() for name, (_, ids) in source.splits.items()} == {"train": [4, 0], "val": [1]}
    partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=3))
    assert edges_of(tmp_path / "p")[EDGE] == SORTED
    manifest = Manifest.load(tmp_path / "p")
    stored = [np.load(tmp_path / f"p/part{p}/edges/0/edge_attr.npy") for p in range(3)]
    ids = [np.load(tmp_path / f"p/part{p}/edges/0/edge_ids.npy") for p in range(3)]
    assert np.concatenate(stored).tolist() == np.concatenate(ids).tolist()
    assert manifest.num_edges == (7,)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        (CSC | {"indptr": np.array([0, 2, 1, 5])}, "expected row pointers that rise from 0 to 5"),
        (CSC | {"indptr": np.array([0, 2, 4])}, "expected row pointers that rise from 0 to 5"),
        (CSC | {"indices": np.array([3.0])}, "expected integers in one dimension"),
        ({"edge_index": EDGES.T.copy(), "x": np.ones((5, 1))}, r"expected integers \[2, E\]"),
        (CSC | {"x": np.ones((4, 2), order="F")}, "is in Fortran order"),
        (CSC | {"x": np.array(["a"])}, "attributes are numbers or booleans|got 1 row"),
        (CSC | {"x": np.ones((3, 2))}, "x of node type 'node': expected one row per node, which makes 4, got 3 rows"),
        ({"edge_index": EDGES}, "the number of nodes is unknown"),
        ({"x": np.ones(3)}, r"expected indptr.npy and indices.npy, or edge_index.npy; found \['x.npy'\]"),
    ],
)
def test_bad_folder(tmp_path: Path, arrays: dict[str, np.ndarray], said: str) -> None:
    path = folder(tmp_path / "g", **arrays)
    with pytest.raises(DataError, match=said):
        partition_graph(open_source(path, tmp_path), tmp_path / "p", PartitionOptions())
    assert not (tmp_path / "p").exists()


def test_cut_off_file_in_folder(tmp_path: Path) -> None:
    path = folder(tmp_path / "g", **CSC)
    file = path / "indices.npy"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"indices.npy: the file has 39 bytes of data, too few for int64"):
        open_source(path, tmp_path)


@pytest.mark.parametrize(
    "name", ["cora", "amazon_computers", "facebook_pages", "wordnet", "dblp_hetero", "lastfm_link"]
)
def test_real_graphs(tmp_path: Path, name: str) -> None:
    if not (root := os.environ.get("GLT_TEST_DATA")):
        pytest.skip("GLT_TEST_DATA does not name a folder with real graphs")
    source = open_source(Path(root) / f"{name}.npz", tmp_path)
    manifest = partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=3))
    assert Manifest.load(tmp_path / "p") == manifest
    assert sum(manifest.num_edges) == sum(source.edges(e).num_edges for e in source.schema.edge_types)
