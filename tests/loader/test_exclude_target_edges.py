"""No messages are passed over the edges that a batch is to predict."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from glt_lightning.base import SamplingOptions
from glt_lightning.loader import LinkSpec, Session
from tests.helpers.partitions import partitioned, small_graph, small_hetero

PATH = [(0, 1), (1, 0), (1, 2), (2, 1)]


def context_of(data, folder, parts=1, **given) -> Session:
    return Session(partitioned(data, folder, parts, **given), SamplingOptions(with_edge=True), seed=2)


def graph_of(pairs, nodes=3) -> Data:
    return Data(edge_index=torch.tensor(pairs).T.contiguous(), num_nodes=nodes)


def spec(edges, exclude, fanouts=(-1,), **given) -> LinkSpec:
    plain = {"name": "train", "num_neighbors": list(fanouts), "batch_size": 16, "exclude_target_edges": exclude}
    return LinkSpec(edge_label_index=np.asarray(edges), **plain | given)


def messages(batch) -> set[tuple[int, int]]:
    return set(zip(*batch.n_id[batch.edge_index].tolist(), strict=True))


@pytest.mark.parametrize(
    ("exclude", "left"),
    [("none", {(1, 0), (0, 1), (2, 1)}), ("self", {(1, 0), (2, 1)}), ("reverse", {(2, 1)})],
)
def test_a_path(tmp_path, exclude, left):
    """O5 of the specification: the edge 0 -> 1 of the path 0 - 1 - 2."""
    with context_of(graph_of(PATH), tmp_path) as context:
        (batch,) = context.make_loader(spec([[0], [1]], exclude))
        assert messages(batch) == left


def test_a_fan_out_is_filled_from_the_rest(tmp_path):
    """Whatever the draws: with fan-out 1, node 1 always hears of 2."""
    edges = np.array([[0], [1]])
    with context_of(graph_of([*PATH, (0, 1)]), tmp_path) as context:  # two parallel edges
        for epoch in range(20):
            loader = context.make_loader(spec(edges, "reverse", [1]))
            loader.set_epoch(epoch)
            (batch,) = loader
            assert messages(batch) == {(2, 1)}


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("exclude", ["self", "reverse"])
def test_no_batch_has_its_own_edges(tmp_path, parts, exclude):
    data = small_graph(60)
    edges = data.edge_index[:, :200].numpy()
    stored = set(zip(*data.edge_index.tolist(), strict=True))
    with context_of(data, tmp_path, parts) as context:
        for batch in context.make_loader(spec(edges, exclude, [4, -1], neg_sampling="binary", shuffle=True)):
            own = set(zip(*edges[:, batch.input_id].tolist(), strict=True))
            own |= {(v, u) for u, v in own} if exclude == "reverse" else set()
            assert not own & messages(batch)
            assert own & stored
            around = {(u, v) for u, v in stored - own if v in batch.n_id[: batch.num_sampled_nodes[0]].tolist()}
            assert messages(batch) <= stored
            assert len(around) >= batch.num_sampled_edges[0] > 0


@pytest.mark.parametrize("given", [None, {"author__writes__paper": "paper__rev_writes__author"}])
def test_the_reverse_edge_type(tmp_path, given):
    data = small_hetero()
    edges = data["author", "writes", "paper"].edge_index[:, :100].numpy()
    with context_of(data, tmp_path, 2, undirected=True) as context:
        links = spec(edges, "reverse", [-1, -1], edge_type="author__writes__paper", reverse_edge_types=given)
        for batch in context.make_loader(links):
            own = set(zip(*edges[:, batch["author", "writes", "paper"].input_id].tolist(), strict=True))
            author, paper = batch["author"].n_id, batch["paper"].n_id
            for edge_type, there, back in (("writes", author, paper), ("rev_writes", paper, author)):
                ends = ("author", "paper") if edge_type == "writes" else ("paper", "author")
                src, dst = batch[ends[0], edge_type, ends[1]].edge_index
                found = set(zip(there[src].tolist(), back[dst].tolist(), strict=True))
                assert found
                assert not found & (own if edge_type == "writes" else {(v, u) for u, v in own})


@pytest.mark.parametrize(
    ("exclude", "edges", "warned"), [("none", PATH, 1), ("none", [(0, 2)], 0), ("reverse", PATH, 0)]
)
def test_a_leak_is_logged_once(tmp_path, caplog, exclude, edges, warned):
    with context_of(graph_of(PATH), tmp_path) as context, caplog.at_level(logging.WARNING):
        loader = context.make_loader(spec(np.array(edges).T, exclude, batch_size=2))
        for _ in range(2):
            for batch in loader:
                assert "stored" not in batch
    lines = [record.getMessage() for record in caplog.records if "exclude_target_edges is none" in record.getMessage()]
    assert len(lines) == warned
    assert all("loader 'train'" in line and "2 of the 2 edges of batch 0" in line for line in lines)
