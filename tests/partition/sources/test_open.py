"""What a user may write as ``dataset``, and what is said of anything else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from glt_lightning.base import DataError
from glt_lightning.partition import data_name, open_source
from tests.helpers.partition_truth import single


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ("dmo", "there is no file or folder 'dmo'; expected 'demo', a path of an .npz .* Did you mean demo?"),
        ("ogbn-product", "OGB has no node data set 'ogbn-product'. Did you mean ogbn-products"),
        ("ogbn-nothing-like-it", "It has: ogbn-arxiv, ogbn-mag"),
        ("no/such/graph.npz", r"there is no file 'no/such/graph.npz' \(in /"),
        ("no/such/folder", "there is no file or folder"),
        (3, "got an object of type int; expected 'demo'"),
        (None, "got an object of type NoneType"),
        (np.zeros(3), "got an object of type ndarray"),
    ],
)
def test_unknown(tmp_path: Path, dataset: object, said: str) -> None:
    with pytest.raises(DataError, match=said):
        open_source(dataset, tmp_path)


def test_other_kinds_of_files(tmp_path: Path) -> None:
    (tmp_path / "graph.mat").touch()
    with pytest.raises(DataError, match=r"graph.mat' is of another kind"):
        open_source(str(tmp_path / "graph.mat"), tmp_path)
    with pytest.raises(DataError, match=r"expected indptr.npy and indices.npy"):
        open_source(tmp_path, tmp_path)


def test_a_source_of_ones_own(tmp_path: Path) -> None:
    source = single([(0, 1)], 2)
    assert open_source(source, tmp_path) is source


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        ("demo", "demo"),
        ("ogbn-products", "ogbn-products"),
        ("/no/such/graph.npz", "graph"),
        ("/no/such/folder-v1.2/", "folder-v1.2"),
        ("torch_geometric.datasets.KarateClub", "KarateClub"),
        ({"class_path": "torch_geometric.datasets.Planetoid", "init_args": {"name": "Cora"}}, "planetoid-cora"),
        ({"nodes": {"user": {"path": "/no/such/users-*.csv"}}, "edges": {}}, "users"),
        (object(), None),
    ],
)
def test_the_name_without_the_files(tmp_path: Path, dataset: object, name: str | None) -> None:
    assert data_name(dataset, tmp_path) == name
    assert not any(tmp_path.iterdir())
