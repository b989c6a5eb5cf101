"""Every field of batches of the rings of tests/helpers/rings.py, by hand, as GraphLearn-for-PyTorch's loaders give them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import glt_lightning.compat.glt as glt
from tests.helpers.rings import I2I, NODES, U2I, ring_edges

REV = ("item", "rev_u2i", "user")
FIRST = {U2I: 0, I2I: 2}  # edge 2v leads to v + this, edge 2v + 1 to the next
EDGES = ring_edges()[:, [0, 9, 30]]


def pairs(ends: Tensor) -> set[tuple[int, int]]:
    return set(map(tuple, ends.T.tolist()))


def typed_batch(batch: Any, seed_type: str, seeds: list[int], edge_dir: str) -> None:
    assert batch[seed_type].batch.tolist() == batch[seed_type].node[: len(seeds)].tolist() == seeds
    assert batch[seed_type].batch_size == len(seeds)
    for node_type, more in (("user", 0), ("item", 100)):
        store = batch[node_type]
        assert torch.equal(store.node, store.n_id)
        assert len(store.node) == len(store.node.unique()) == int(batch.num_sampled_nodes[node_type].sum())
        assert torch.equal(store.x[:, 0].long(), store.node + more)
    assert torch.equal(batch["user"].y, batch["user"].node * 10)
    typed_edges(batch, edge_dir)


def typed_edges(batch: Any, edge_dir: str) -> None:
    names = {U2I: REV, I2I: I2I} if edge_dir == "out" else {U2I: U2I, I2I: I2I}
    assert set(batch.edge_types) == set(names.values())
    for given, name in names.items():
        store, (src, _, dst) = batch[name], name
        ends = torch.stack([batch[src].node[store.edge_index[0]], batch[dst].node[store.edge_index[1]]])
        ends = ends.flip(0) if edge_dir == "out" else ends
        assert torch.equal(ring_edges(first=FIRST[given])[:, store.edge], ends)
        assert torch.equal(store.edge, store.e_id)
        assert torch.equal(store.edge_attr[:, 0].long(), store.edge + (1000 if given == I2I else 0))
        assert len(store.edge) == int(batch.num_sampled_edges[name].sum())


def typed_loaders(data: Any, edge_dir: str, options: Any) -> None:
    """Nodes, and edges with negatives of both kinds."""
    dist = glt.distributed
    given = {"with_edge": True, "edge_dir": edge_dir, "collect_features": True, "worker_options": options}
    seed_type = "user" if edge_dir == "out" else "item"
    loader = dist.DistNeighborLoader(data, [2, 2], (seed_type, torch.tensor([5, 39, 7])), batch_size=2, **given)
    first, second = loader
    typed_batch(first, seed_type, [5, 39], edge_dir)
    typed_batch(second, seed_type, [7], edge_dir)
    loader.shutdown()
    edges = ring_edges(first=0)[:, [8, 11]]
    given |= {"batch_size": 2, "edge_label_index": (U2I, edges)}
    loader = dist.DistLinkNeighborLoader(data, [2], neg_sampling="binary", **given)
    (batch,) = loader
    store = batch[REV if edge_dir == "out" else U2I]
    index = store.edge_label_index.flip(0) if edge_dir == "out" else store.edge_label_index
    ends = torch.stack([batch["user"].node[index[0]], batch["item"].node[index[1]]])
    assert torch.equal(ends[:, :2], edges)
    assert not pairs(ends[:, 2:]) & pairs(ring_edges(first=0))
    assert store.edge_label.tolist() == [1, 1, 0, 0]
    typed_edges(batch, edge_dir)
    loader.shutdown()
    loader = dist.DistLinkNeighborLoader(data, [2], neg_sampling=("triplet", 3), **given)
    (batch,) = loader
    user, item = batch["user"], batch["item"]
    assert torch.equal(torch.stack([user.node[user.src_index], item.node[item.dst_pos_index]]), edges)
    assert item.dst_neg_index.shape == (2, 3)
    sources = user.node[user.src_index][:, None].expand(2, 3)
    negatives = torch.stack([sources, item.node[item.dst_neg_index]]).flatten(1)
    assert not pairs(negatives) & pairs(ring_edges(first=0))
    typed_edges(batch, edge_dir)
    loader.shutdown()


def loaders_of_links(data: Any, edge_dir: str, options: Any) -> None:
    """Of the ring with one type: edges with negatives of both kinds, and with labels."""
    dist = glt.distributed
    given = {"batch_size": 3, "edge_label_index": EDGES, "edge_dir": edge_dir, "collect_features": True}
    given |= {"worker_options": options, "with_edge": True}
    loader = dist.DistLinkNeighborLoader(data, [1], neg_sampling="binary", **given)
    (batch,) = loader
    ring_fields(batch, edge_dir)
    ends = batch.node[batch.edge_label_index].flip(0)
    assert torch.equal(ends[:, :3], EDGES)
    assert not pairs(ends[:, 3:]) & pairs(ring_edges())
    assert batch.edge_label.tolist() == [1.0] * 3 + [0.0] * 3
    loader.shutdown()
    loader = dist.DistLinkNeighborLoader(data, [1], neg_sampling=("triplet", 2), **given)
    (batch,) = loader
    ring_fields(batch, edge_dir)
    sources = batch.node[batch.src_index]
    assert torch.equal(torch.stack([sources, batch.node[batch.dst_pos_index]]), EDGES)
    assert batch.dst_neg_index.shape == (3, 2)
    negatives = torch.stack([sources[:, None].expand(3, 2), batch.node[batch.dst_neg_index]]).flatten(1)
    assert not pairs(negatives) & pairs(ring_edges())
    loader.shutdown()
    loader = dist.DistLinkNeighborLoader(data, [1], edge_label=torch.tensor([0, 1, 2]), **given)
    (batch,) = loader
    assert batch.edge_label.tolist() == [0, 1, 2]
    assert torch.equal(batch.node[batch.edge_label_index].flip(0), EDGES)
    loader.shutdown()


def loader_of_subgraphs(data: Any, edge_dir: str, options: Any) -> None:
    """Of the ring with one type."""
    given = {"batch_size": 3, "with_edge": True, "edge_dir": edge_dir, "collect_features": True}
    seeds = torch.tensor([9, 7, 8])
    loader = glt.distributed.DistSubGraphLoader(data, seeds, worker_options=options, **given)
    (batch,) = loader
    assert (batch.node.tolist(), batch.mapping.tolist()) == ([7, 8, 9], [2, 0, 1])
    assert sorted(batch.edge.tolist()) == [14, 15, 16]  # 7 -> 8, 7 -> 9, 8 -> 9
    ring_fields(batch, edge_dir)
    loader.shutdown()


def ring_fields(batch: Any, edge_dir: str) -> None:
    assert torch.equal(batch.node, batch.n_id)
    assert torch.equal(batch.x[:, 0].long(), batch.node)
    assert torch.equal(batch.y, batch.node * 10)
    assert torch.equal(batch.edge_attr[:, 0].long(), batch.edge)
    ends = batch.node[batch.edge_index]
    assert torch.equal(ring_edges()[:, batch.edge], ends.flip(0) if edge_dir == "out" else ends)
    assert batch.num_nodes == len(batch.node) == len(batch.node.unique()) <= NODES
