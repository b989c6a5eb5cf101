"""Sparse matrices in memory, in files and beside tables of nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from glt_lightning.base import EDGE, NODE, DataError, PartitionOptions
from glt_lightning.partition import open_source, partition_graph
from tests.helpers.partition_truth import edges_of

DENSE = np.array([[0, 2, 0, 0], [0, 0, 0, 0.5], [0, 0, 3, 0], [4, 0, 0, 0]])
WEIGHTS = {(0, 1): 2, (1, 3): 0.5, (2, 2): 3, (3, 0): 4}


def weights_of(source: Any, edge_type: tuple[str, str, str] = EDGE) -> dict[tuple[int, int], float]:
    src, dst = next(source.edges(edge_type).chunks(100))
    stored = source.edge_attrs(edge_type).get("edge_weight")
    values = [1.0] * len(src) if stored is None else stored[:].tolist()
    return dict(zip(zip(src.tolist(), dst.tolist(), strict=True), values, strict=True))


@pytest.mark.parametrize("kind", ["csr", "csc", "coo"])
@pytest.mark.parametrize("make", ["matrix", "array"])
@pytest.mark.parametrize("saved", [False, True])
def test_square_matrix(tmp_path: Path, kind: str, make: str, saved: bool) -> None:
    matrix: Any = getattr(sp, f"{kind}_{make}")(DENSE)
    if saved:
        sp.save_npz(tmp_path / "my graph.npz", matrix)
    source = open_source(str(tmp_path / "my graph.npz") if saved else matrix, tmp_path)
    assert source.name == ("my_graph" if saved else "matrix")
    assert source.num_nodes == {NODE: 4}
    assert source.num_features == {NODE: None}
    assert weights_of(source) == WEIGHTS
    assert source.edge_attrs(EDGE)["edge_weight"].dtype == np.float32
    partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=2))
    assert [(u, v) for u, v, _ in edges_of(tmp_path / "p")[EDGE]] == sorted(WEIGHTS)


@pytest.mark.parametrize("dtype", [bool, np.int8, np.float64])
def test_ones_are_no_weights(tmp_path: Path, dtype: type) -> None:
    source = open_source(sp.csr_array((DENSE != 0).astype(dtype)), tmp_path)
    assert source.edge_attrs(EDGE) == {}
    assert weights_of(source) == dict.fromkeys(WEIGHTS, 1.0)


@pytest.mark.parametrize("kind", ["dia", "bsr", "lil", "dok"])
def test_other_kinds_in_memory(tmp_path: Path, kind: str) -> None:
    assert weights_of(open_source(sp.coo_array(DENSE).asformat(kind), tmp_path)) == WEIGHTS


def test_content_makes_the_fingerprint(tmp_path: Path) -> None:
    matrix = sp.csr_array(DENSE)
    same, first = open_source(matrix.copy(), tmp_path), open_source(matrix, tmp_path)
    assert first.fingerprint == same.fingerprint
    assert first.fingerprint != open_source(matrix * 2, tmp_path).fingerprint
    assert first.fingerprint != open_source(matrix.T.tocsr(), tmp_path).fingerprint
    matrix.data[:] = 9
    assert weights_of(first) == WEIGHTS  # a copy, once looked at


def test_beside_tables_of_nodes(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("name,y\nann,u\nbob,v\ncem,u\ndan,v\n")
    sp.save_npz(tmp_path / "m.npz", sp.csc_array(DENSE))
    nodes = {"path": str(tmp_path / "n.csv"), "id": "name", "label": "y"}
    for edges in (str(tmp_path / "m.npz"), {"path": str(tmp_path / "m.npz")}):
        source = open_source({"edges": edges, "nodes": nodes}, tmp_path)
        assert weights_of(source) == WEIGHTS
        assert source.num_classes == 2


def test_two_node_types(tmp_path: Path) -> None:
    for name, count in (("a", 2), ("b", 3)):
        (tmp_path / f"{name}.csv").write_text("v\n" + "1\n" * count)
    sp.save_npz(tmp_path / "m.npz", sp.csr_array([[0, 1, 0], [1, 0, 1]]))
    nodes = {name: {"path": str(tmp_path / f"{name}.csv")} for name in "ab"}
    source = open_source({"nodes": nodes, "edges": {"a__to__b": str(tmp_path / "m.npz")}}, tmp_path)
    assert sorted(weights_of(source, ("a", "to", "b"))) == [(0, 1), (1, 0), (1, 2)]
    with pytest.raises(DataError, match=r"m.npz: the matrix is \[2, 3\] .*are \[3, 2\]"):
        _ = open_source({"nodes": nodes, "edges": {"b__to__a": str(tmp_path / "m.npz")}}, tmp_path).num_nodes


@pytest.mark.parametrize(
    ("matrix", "said"),
    [
        (
            sp.csr_array(DENSE[:2]),
            r"a matrix \[2, 4\] joins two node types; expected a square one, or a mapping: nodes",
        ),
        (sp.csr_array(DENSE * 1j), "values are complex128; expected numbers"),
        (sp.csr_array(np.where(DENSE == 0.5, np.nan, DENSE)), r"entry \(1, 3\) is nan; a weight is a finite"),
        (sp.csr_array(DENSE * 1e300), r"entry \(0, 1\) is 2e\+300; a weight is a finite float32"),
    ],
)
def test_bad_matrix(tmp_path: Path, matrix: Any, said: str) -> None:
    sp.save_npz(tmp_path / "m.npz", matrix)
    for dataset in (matrix, tmp_path / "m.npz"):
        with pytest.raises(DataError, match=said):
            _ = open_source(dataset, tmp_path).num_nodes


def test_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    good: dict[str, Any] = {"format": b"csr", "shape": [2, 2], "data": [1.0], "indices": [1], "indptr": [0, 1, 1]}
    for change, said in (
        ({"format": b"dia"}, "stored as 'dia'; expected csr, csc, coo. Save matrix.tocsr"),
        ({"indptr": [0, 2, 1]}, "indptr: expected 3 row pointers that rise from 0 to 1"),
        ({"indptr": [0, 1]}, "indptr: expected 3 row pointers"),
        ({"indices": [2]}, r"a column is not in 0..1"),
        ({"indices": [-1]}, r"a column is not in 0..1"),
        ({"data": [1.0, 2.0]}, "expected as many row indices as column indices and values, got 1, 1 and 2"),
        ({"shape": [2, 2, 2]}, "expected a matrix of two dimensions"),
        (
            {"data": np.array([{}], object)},
            "expected a readable file of scipy.sparse.save_npz .*[Oo]bject",
        ),  # never unpickled
    ):
        np.savez(path, **(good | change))
        with pytest.raises(DataError, match=said):
            _ = open_source(path, tmp_path).num_nodes
    whole = {key: value for key, value in good.items() if key != "indices"}
    np.savez(path, **whole)
    with pytest.raises(DataError, match=r"expected a file of scipy.sparse.save_npz, found \['data'"):
        _ = open_source(path, tmp_path).num_nodes
    (tmp_path / "n.csv").write_text("v\n1\n")
    with pytest.raises(DataError, match=r"absent.npz: cannot be read"):
        nodes = {"path": str(tmp_path / "n.csv")}
        _ = open_source({"nodes": nodes, "edges": str(tmp_path / "absent.npz")}, tmp_path).num_nodes


@pytest.mark.parametrize("how", ["files", "arrays", "sparse x"])
def test_features_labels_and_splits_beside_a_matrix(tmp_path: Path, how: str) -> None:
    x = np.array([[1, 0], [0, 2], [0, 0], [3, 4]], np.float32)
    given: dict[str, Any] = {"matrix": sp.csr_array(DENSE), "x": x, "y": np.array([0, 1, 1, 0])}
    given |= {
        "splits": {"train": [3, 0], "valid": np.array([False, True, False, False])},
        "name": "m",
        "attrs": {"age": [1, 2, 3, 4]},
    }
    if how == "sparse x":
        given["x"] = sp.coo_array(x)
    if how == "files":
        sp.save_npz(tmp_path / "m.npz", given["matrix"])
        sp.save_npz(tmp_path / "x.npz", sp.csr_array(x))
        np.save(tmp_path / "y.npy", given["y"][:, None])
        np.save(tmp_path / "train.npy", [3, 0])
        given |= {"matrix": str(tmp_path / "m.npz"), "x": str(tmp_path / "x.npz"), "y": str(tmp_path / "y.npy")}
        given["splits"] |= {"train": str(tmp_path / "train.npy")}
    source = open_source(given, tmp_path)
    assert (source.name, source.num_features, source.num_classes) == ("m", {NODE: 2}, 2)
    assert weights_of(source) == WEIGHTS
    partition_graph(source, tmp_path / "p", PartitionOptions())
    ids = np.load(tmp_path / "p/part0/nodes/0/n_id.npy")
    assert np.load(tmp_path / "p/part0/nodes/0/x.npy").tolist() == x[ids].tolist()
    assert np.load(tmp_path / "p/part0/nodes/0/y.npy").tolist() == np.array([0, 1, 1, 0])[ids].tolist()
    assert ids[np.load(tmp_path / "p/splits/train.npy")].tolist() == [3, 0]
    assert ids[np.load(tmp_path / "p/splits/val.npy")].tolist() == [1]
    first = source.fingerprint
    assert first == open_source(given, tmp_path).fingerprint
    assert first != open_source(given | {"y": np.array([1, 1, 1, 0])}, tmp_path).fingerprint
    assert first != open_source(given | {"splits": {}}, tmp_path).fingerprint


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"labels": 1}, "unknown key 'labels' beside matrix; known: matrix, x, y"),
        ({"y": "nowhere.npy"}, "dataset: y: there is no file 'nowhere.npy'"),
        ({"splits": {"dev": [1]}}, "splits: 'dev': expected any of train, val"),
        ({"splits": [1]}, "splits: expected {name: file}"),
        ({"splits": {"val": [1], "valid": [2]}}, "splits: val and valid are the same split. Leave one"),
        ({"matrix": np.eye(4)}, "matrix: expected a file of scipy.sparse.save_npz or a matrix"),
        ({"x": np.ones((3, 2))}, "x of node type 'node': expected one row per node, which makes 4, got 3 rows"),
    ],
)
def test_mistakes_beside_a_matrix(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        partition_graph(
            open_source({"matrix": sp.csr_array(DENSE)} | change, tmp_path), tmp_path / "p", PartitionOptions()
        )
