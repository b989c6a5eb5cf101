"""METIS with several balance constraints, and at the edges of what it takes."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from glt_lightning.base import NativeError
from glt_lightning.kernels import metis_parts
from glt_lightning.kernels.metis import library as metis
from tests.helpers.adjacency import Adjacency, adjacency_of
from tests.helpers.communities import community_graph


def cut(rows: Adjacency, parts: np.ndarray) -> float:
    """Share of the edges that run between parts."""
    row = np.repeat(np.arange(len(parts)), np.diff(rows[0]))
    return float((parts[row] != parts[rows[1]]).mean())


@pytest.fixture(scope="module")
def graph() -> Adjacency:
    return adjacency_of(community_graph(3000), 3000)


@pytest.mark.parametrize("num_parts", [2, 4, 7])
@pytest.mark.parametrize("imbalance", [0.05, 0.1])
def test_every_column_is_balanced(graph: Adjacency, num_parts: int, imbalance: float) -> None:
    rng = np.random.default_rng(num_parts)
    degree = np.diff(graph[0])
    seeds = rng.random(3000) < 0.3
    weights = np.stack([np.ones(3000, np.int64), seeds, degree], axis=1).astype(np.int64)
    parts = metis_parts(*graph, num_parts, weights=weights, imbalance=imbalance)
    assert parts.dtype == np.int32
    for column in weights.T:
        loads = np.bincount(parts, weights=column, minlength=num_parts)
        assert loads.max() <= (1 + imbalance) * column.sum() / num_parts + column.max()
    assert cut(graph, parts) < 0.6 * (1 - 1 / num_parts)  # a random cut has 1 - 1 / P


def test_a_function_of_the_seed(graph: Adjacency) -> None:
    weights = np.ones((3000, 1), np.int64)
    first, again, other = (metis_parts(*graph, 4, weights=weights, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_edge_weights_decide() -> None:
    """A square whose heavy edges are 0-1 and 2-3, then 1-2 and 3-0."""
    rows = adjacency_of(np.array([[0, 1, 2, 3], [1, 2, 3, 0]]), 4)
    for heavy in ({(0, 1), (2, 3)}, {(1, 2), (0, 3)}):
        row = np.repeat(np.arange(4), 2)
        weights = [
            100 if (min(a, b), max(a, b)) in heavy else 1 for a, b in zip(row.tolist(), rows[1].tolist(), strict=True)
        ]
        parts = metis_parts(*rows, 2, weights=np.ones((4, 1), np.int64), edge_weights=np.array(weights))
        assert all(parts[a] == parts[b] for a, b in heavy)
        assert len(set(parts.tolist())) == 2


def test_one_part(graph: Adjacency) -> None:
    assert metis_parts(*graph, 1, weights=np.ones((3000, 1), np.int64)).tolist() == [0] * 3000


@pytest.mark.parametrize("num_nodes", [0, 1, 2, 5, 7])
def test_no_more_nodes_than_parts(num_nodes: int, capfd: pytest.CaptureFixture[str]) -> None:
    """Each node has a part of its own, and METIS's warnings are not heard."""
    rows = adjacency_of(np.array([np.arange(num_nodes), np.roll(np.arange(num_nodes), 1)]), num_nodes)
    parts = metis_parts(*rows, 7, weights=np.ones((num_nodes, 2), np.int64))
    assert len(set(parts.tolist())) == len(parts) == num_nodes
    assert ((parts >= 0) & (parts < 7)).all()
    assert capfd.readouterr() == ("", "")


def test_graph_without_edges() -> None:
    parts = metis_parts(np.zeros(101, np.int64), np.empty(0, np.int64), 4, weights=np.ones((100, 1), np.int64))
    assert np.bincount(parts, minlength=4).max() <= 27


def test_columns_of_zeros_are_left_out(graph: Adjacency) -> None:
    ones, zeros = np.ones((3000, 1), np.int64), np.zeros((3000, 1), np.int64)
    expected = metis_parts(*graph, 3, weights=ones)
    np.testing.assert_array_equal(metis_parts(*graph, 3, weights=np.hstack([zeros, ones, zeros])), expected)
    assert metis_parts(*graph, 3, weights=zeros).tolist() == [0] * 3000


def test_without_pymetis(graph: Adjacency, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    metis._library.cache_clear()
    with pytest.raises(
        NativeError, match=r"METIS is not installed .*pip install pymetis.* or use partition.algorithm: streaming"
    ) as told:
        metis_parts(*graph, 2, weights=np.ones((3000, 1), np.int64))
    assert "\n" not in str(told.value)


def test_pymetis_of_another_width(graph: Adjacency, monkeypatch: pytest.MonkeyPatch) -> None:
    internal = pytest.importorskip("pymetis._internal")
    monkeypatch.setattr(internal, "_idx_type_width", lambda: 32)
    metis._library.cache_clear()
    with pytest.raises(NativeError, match="this METIS was built without 64-bit ids"):
        metis_parts(*graph, 2, weights=np.ones((3000, 1), np.int64))
