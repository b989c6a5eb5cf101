"""``undirected`` stores the edges that PyG's ToUndirected makes, with ids that lead back to the user's columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import ToUndirected

from glt_lightning.base import EDGE, EdgeType, GraphSchema, PartitionOptions
from glt_lightning.partition import open_source, partition_graph
from glt_lightning.partition.build.edge_types import stored_edge_types
from tests.helpers.partition_truth import edges_of, single


def pairs(edge_index: torch.Tensor) -> list[tuple[int, int]]:
    return sorted((int(u), int(v)) for u, v in edge_index.T)


def random_edges(seed: int, sources: int, destinations: int, count: int) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(np.stack([rng.integers(0, sources, count), rng.integers(0, destinations, count)]))


def test_homogeneous_as_pyg(tmp_path: Path) -> None:
    data = Data(edge_index=random_edges(0, 20, 20, 150), num_nodes=20)
    partition_graph(open_source(data, tmp_path), tmp_path / "p", PartitionOptions(num_parts=3), undirected=True)
    stored = edges_of(tmp_path / "p")[EDGE]
    assert [(u, v) for u, v, _ in stored] == pairs(ToUndirected()(data).edge_index)
    columns = data.edge_index.T.tolist()
    for u, v, k in stored:
        assert [u, v] in (columns[k], columns[k][::-1])
        assert k == min(i for i, ends in enumerate(columns) if sorted(ends) == sorted((u, v)))


def test_heterogeneous_as_pyg(tmp_path: Path) -> None:
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = 7, 9
    data["a", "likes", "b"].edge_index = random_edges(1, 7, 9, 40)
    data["b", "near", "b"].edge_index = random_edges(2, 9, 9, 40)
    partition_graph(open_source(data, tmp_path), tmp_path / "p", PartitionOptions(num_parts=2), undirected=True)
    stored = edges_of(tmp_path / "p")
    expected = ToUndirected()(data)
    assert sorted(stored) == sorted(expected.edge_types)
    for edge_type, edges in stored.items():
        assert [(u, v) for u, v, _ in edges] == pairs(expected[edge_type].edge_index)
    ids = [k for _, _, k in stored["b", "rev_likes", "a"]]
    assert sorted(ids) == list(range(40))  # between two types nothing is merged


def test_lowest_id_is_kept(tmp_path: Path) -> None:
    source = single([(1, 0), (0, 1), (2, 2), (0, 1)], 3)
    partition_graph(source, tmp_path / "p", PartitionOptions(), undirected=True)
    assert edges_of(tmp_path / "p")[EDGE] == [(0, 1, 0), (1, 0, 0), (2, 2, 2)]


def test_as_it_is_keeps_parallel_edges(tmp_path: Path) -> None:
    source = single([(1, 0), (0, 1), (2, 2), (0, 1)], 3)
    partition_graph(source, tmp_path / "p", PartitionOptions(), undirected=None)
    assert edges_of(tmp_path / "p")[EDGE] == [(0, 1, 1), (0, 1, 3), (1, 0, 0), (2, 2, 2)]


LIKES, REVERSE = ("a", "likes", "b"), ("b", "rev_likes", "a")


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ((LIKES,), (LIKES, REVERSE)),
        ((LIKES, REVERSE), (LIKES, REVERSE)),  # the data has its reverse already
        ((REVERSE,), (("a", "rev_rev_likes", "b"), REVERSE)),
        ((EDGE,), (EDGE,)),
    ],
)
def test_stored_types(given: tuple[EdgeType, ...], stored: tuple[EdgeType, ...]) -> None:
    types = tuple({t for e in given for t in (e[0], e[2])})
    schema, stored_types = stored_edge_types(GraphSchema(types, given), undirected=True)
    assert schema.edge_types == stored == tuple(r.edge_type for r in stored_types)
