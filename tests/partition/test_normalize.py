"""Normalisation as PyG does it, or as numpy says it, whatever the chunks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.transforms import NormalizeFeatures

from glt_lightning.base import Normalize, PartitionOptions
from glt_lightning.partition import partition_graph
from glt_lightning.partition.build import normalize
from glt_lightning.partition.build.normalize import normalization
from tests.helpers.partition_truth import HETERO, random_source, single


@pytest.fixture(params=[3, 1 << 20])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    default = normalize.numbered_chunks.__defaults__
    assert default is not None
    monkeypatch.setattr(normalize.numbered_chunks, "__defaults__", (*default[:-1], request.param * 20))


def features(dtype: type = np.float32) -> np.ndarray:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 5)).astype(dtype) * [1, 10, 0.1, 0, 1] + [0, 3, 1e3, 7, -2]
    return x.astype(dtype)


def stored(x: np.ndarray, mode: Normalize, folder: Path) -> np.ndarray:
    """``x`` in the user's order after a partition was written and read."""
    partition_graph(single([(0, 1)], len(x), x=x), folder, PartitionOptions(num_parts=3), normalize=mode)
    out = np.empty_like(x)
    for p in range(3):
        out[np.load(folder / f"part{p}/nodes/0/n_id.npy")] = np.load(folder / f"part{p}/nodes/0/x.npy")
    return out


@pytest.mark.usefixtures("chunks")
def test_rows_as_pyg(tmp_path: Path) -> None:
    x = features()
    expected = NormalizeFeatures()(Data(x=torch.from_numpy(x.copy()))).x.numpy()
    np.testing.assert_allclose(stored(x, "rows", tmp_path / "p"), expected, rtol=1e-6, atol=1e-7)


def test_rows_of_words_sum_to_one(tmp_path: Path) -> None:
    x = (np.random.default_rng(0).random((20, 30)) < 0.2).astype(np.float32)
    x[3] = 0
    sums = stored(x, "rows", tmp_path / "p").sum(axis=1)
    np.testing.assert_allclose(np.delete(sums, 3), 1, rtol=1e-6)
    assert sums[3] == 0


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_standardize(tmp_path: Path, dtype: type) -> None:
    x = features(dtype)
    got = stored(x, "standardize", tmp_path / "p")
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(axis=0)) / np.where(wide.std(axis=0) == 0, 1, wide.std(axis=0))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    assert (got[:, 3] == 0).all()  # a constant column
    assert got.dtype == dtype


def test_constant_that_rounds() -> None:
    x = np.full((1000, 1), 0.1, np.float32)
    found = normalization("standardize", x)
    assert found is not None
    np.testing.assert_array_equal(found.apply(x), 0)


def test_each_type_by_itself_and_other_attributes_left_alone(tmp_path: Path) -> None:
    source = random_source(np.random.default_rng(0), HETERO)
    partition_graph(source, tmp_path / "p", PartitionOptions(), normalize="standardize")
    for t, node_type in enumerate(source.schema.node_types):
        x = np.load(tmp_path / f"p/part0/nodes/{t}/x.npy")
        np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-5)
        order = np.load(tmp_path / f"p/part0/nodes/{t}/n_id.npy")
        age = np.load(tmp_path / f"p/part0/nodes/{t}/age.npy")
        assert age.tolist() == source.node[node_type]["age"][order].tolist()


@pytest.mark.parametrize("mode", ["none", "rows", "standardize"])
def test_no_rows(mode: Normalize) -> None:
    assert normalization(mode, np.empty((0, 3), np.float32)) is None
