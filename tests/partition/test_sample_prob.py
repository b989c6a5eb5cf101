"""`sample_prob`: the probability of a node to be in a batch, along the right direction of edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import glt_lightning.compat.glt as glt
from glt_lightning.base import GLTError, PartitionOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.kernels import KHopOp
from glt_lightning.partition import partition_graph
from tests.helpers.partition_truth import single

BUYS, LIKES = ("user", "buys", "item"), ("user", "likes", "user")


def sampler(edges: Any, num_neighbors: Any, edge_dir: str = "out", **options: Any) -> Any:
    """Of a homogeneous graph: pairs (source, destination)."""
    index = torch.tensor(edges).reshape(-1, 2).T
    topology = glt.data.Topology(edge_index=index, layout="CSR" if edge_dir == "out" else "CSC")
    return glt.sampler.NeighborSampler(glt.data.Graph(topology, "CPU"), num_neighbors, edge_dir=edge_dir, **options)


CHAIN = [(0, 1), (1, 2), (2, 3)]
STAR = [(0, v) for v in range(1, 5)]
SQUARE = [(0, 1), (0, 2), (1, 3), (2, 3)]


@pytest.mark.parametrize(
    ("edges", "fanouts", "edge_dir", "seeds", "expected"),
    [
        (CHAIN, [1, 1], "out", [0], [1, 1, 1, 0, 0]),
        (CHAIN, [1, 1], "in", [0], [1, 0, 0, 0, 0]),
        (CHAIN, [1, 1], "in", [2], [1, 1, 1, 0, 0]),
        (STAR, [2], "out", [0], [1, 0.5, 0.5, 0.5, 0.5]),
        (STAR, [-1], "out", [0], [1, 1, 1, 1, 1]),
        (STAR, [2], "in", [1, 2], [1, 1, 1, 0, 0]),
        (SQUARE, [1, 1], "out", [0], [1, 0.5, 0.5, 0.75, 0]),  # the two ways to 3 count as independent
        ([], [3, 3], "out", [4], [0, 0, 0, 0, 1]),
        (CHAIN, [1], "out", [], [0, 0, 0, 0, 0]),
    ],
)
def test_by_hand(edges: Any, fanouts: list[int], edge_dir: str, seeds: list[int], expected: list[float]) -> None:
    found = sampler(edges, fanouts, edge_dir).sample_prob(torch.tensor(seeds, dtype=torch.long), 5)
    assert found.dtype == torch.float32
    assert found.device.type == "cpu"
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float32), atol=1e-6, rtol=1e-5)


def test_seeds_of_a_batch() -> None:
    chain = sampler(CHAIN, [1])
    seeds = torch.tensor([0, 1])
    assert chain.sample_prob(seeds, 4, batch_size=1).tolist() == pytest.approx([0.5, 0.75, 0.5, 0])
    for batch in (chain.sample_prob(seeds, 4, batch_size=None), chain.sample_prob(seeds, 4)):
        assert batch.tolist() == pytest.approx([1, 1, 1, 0])


@pytest.mark.parametrize(
    "fanouts", [[2, 3], {BUYS: [2, 3], LIKES: [2, 3]}, {"user__buys__item": [2, 3], LIKES: [2, 3]}]
)
def test_heterogeneous(fanouts: Any) -> None:
    """user 0 likes users 1 and 2, who buy items 0..3 and 4."""
    edges = {LIKES: [[0, 0], [1, 2]], BUYS: [[1, 1, 1, 1, 2], [0, 1, 2, 3, 4]]}
    graph = {e: glt.data.Graph(glt.data.Topology(edge_index=torch.tensor(index)), "CPU") for e, index in edges.items()}
    found = glt.sampler.NeighborSampler(graph, fanouts).sample_prob(("user", torch.tensor([0])), {"user": 4, "item": 6})
    assert found["user"].tolist() == pytest.approx([1, 1, 1, 0])
    assert found["item"].tolist() == pytest.approx([0.75] * 4 + [1, 0])


def test_agrees_with_sampled_batches(tmp_path: Any) -> None:
    """A sparse random graph, where draws of different rows are nearly independent."""
    rng = np.random.default_rng(0)
    edges, seeds = rng.integers(0, 400, (1200, 2)), np.arange(40)
    expected = sampler(edges, [2, 2], "in").sample_prob(torch.from_numpy(seeds), 400, batch_size=20).numpy()
    partition_graph(single(edges, 400), tmp_path / "p", PartitionOptions())
    graph = LocalPartition.open(tmp_path / "p")
    gids, draw = graph.seeds(0, seeds).gids, KHopOp(graph.view, ((2,), (2,)))
    counted = np.zeros(400)
    for batch in range(2000):
        counted[draw({0: rng.permutation(gids)[:20]}, batch).uid[0]] += 1 / 2000
    assert abs(counted - expected).max() < 0.12
    assert abs(counted - expected).mean() < 0.015
    along = sampler(edges, [2, 2], "out").sample_prob(torch.from_numpy(seeds), 400, batch_size=20).numpy()
    assert abs(counted - along).mean() > 0.1


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: sampler(CHAIN, [1]).sample_prob(torch.tensor([9]), 4), "seed 9 is not one of the 4 nodes"),
        (lambda: sampler(CHAIN, [1]).sample_prob(torch.tensor([-1]), 4), "seed -1 is not one of the 4 nodes"),
        (lambda: sampler(CHAIN, [1]).sample_prob(torch.tensor([0.5]), 4), "expected seeds as integers"),
        (
            lambda: sampler(CHAIN, [1]).sample_prob(torch.tensor([0]), 3),
            "name node 3 of type 'node', but node_cnt is 3",
        ),
        (
            lambda: sampler(CHAIN, [1]).sample_prob(torch.tensor([0]), {"node": 4}),
            "node_cnt: expected a number for one",
        ),
        (
            lambda: sampler(CHAIN, [1]).sample_prob(torch.tensor([0]), 4, batch_size=0),
            "batch_size: expected an integer",
        ),
        (lambda: sampler(CHAIN, [0]).sample_prob(torch.tensor([0]), 4), "Drop the hop instead of asking for 0"),
        (lambda: sampler(CHAIN, [1], with_weight=True).sample_prob([0], 4), "neighbours are drawn uniformly here"),
        (lambda: sampler(CHAIN, [1], strategy="full"), "strategy: expected 'random', got 'full'"),
        (lambda: glt.data.Topology([[0], [-1]]), "has a negative id, -1"),
        (lambda: glt.data.Topology([[0], [1]], layout="COO"), "layout: expected 'CSR' or 'CSC', got 'COO'"),
        (
            lambda: glt.data.Topology([[0], [1]], input_layout="DIA"),
            "input_layout: expected 'COO' or 'CSR' or 'CSC', got 'DIA'",
        ),
        (lambda: glt.data.Graph(glt.data.Topology([[0], [1]]), "GPU"), "mode: expected 'CPU', 'ZERO_COPY' or 'CUDA'"),
        (
            lambda: glt.sampler.NeighborSampler(glt.data.Graph(glt.data.Topology([[0], [1]])), [1], edge_dir="in"),
            "edge_dir='in' draws from rows of layout CSC, but the topology has CSR",
        ),
    ],
)
def test_what_is_refused(call: Any, said: str) -> None:
    with pytest.raises(GLTError, match=said):
        call()


def test_topology_is_compressed_rows() -> None:
    edge_index = torch.tensor([[2, 0, 2, 2], [1, 1, 0, 1]])
    rows = glt.data.Topology(edge_index=edge_index, layout="CSR")
    assert rows.indptr.tolist() == [0, 1, 1, 4]
    assert rows.indices.tolist() == [1, 0, 1, 1]
    assert rows.edge_ids.tolist() == [1, 2, 0, 3]
    assert (rows.row_count, rows.edge_count, rows.degrees.tolist()) == (3, 4, [1, 0, 3])
    columns = glt.data.Topology(edge_index=(edge_index[0], edge_index[1]), layout="csc")
    assert columns.indptr.tolist() == [0, 1, 4]
    assert columns.indices.tolist() == [2, 0, 2, 2]
