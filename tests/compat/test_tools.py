"""GLT's further names of one machine: what samplers and loaders of a script are made of, channels, negatives."""

from __future__ import annotations

import pytest
import torch

import glt_lightning.compat.glt as glt
from glt_lightning.base import OptionError
from glt_lightning.compat.glt.typing import InputEdges
from glt_lightning.compat.glt.utils import id2idx, index_select, share_memory, squeeze
from glt_lightning.partition import reverse_edge_type
from tests.compat.test_single import IDS, ring_data, typed_data
from tests.helpers.rings import I2I, NODES, U2I, ring_edges

REV = ("item", "rev_u2i", "user")


def test_modules_of_glt_can_be_imported() -> None:
    assert glt.utils.id2idx is glt.utils.common.id2idx is id2idx
    assert (glt.reverse_edge_type, glt.InputEdges) == (reverse_edge_type, InputEdges)
    assert index_select({"a": [torch.arange(3)]}, torch.tensor([2]))["a"][0].tolist() == [2]
    assert share_memory((torch.ones(1), None))[0].is_shared()
    assert squeeze({"a": [[1]], "b": None}) == {"a": torch.tensor(1), "b": None}
    glt.utils.ensure_device(glt.utils.get_available_device("cpu"))
    assert glt.utils.assign_device().type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_one_hop_of_each_seed() -> None:
    sampler = glt.sampler.NeighborSampler(ring_data().graph, with_edge=True)
    found = sampler.sample_one_hop(torch.tensor([7, 3, 7]), -1)
    assert (found.nbr_num.tolist(), found.nbr.tolist()) == ([2, 2, 2], [8, 9, 4, 5, 8, 9])
    assert found.edge.tolist() == [14, 15, 6, 7, 14, 15]
    typed = glt.sampler.NeighborSampler(typed_data().graph)
    found = typed.sample_one_hop([39], 2, U2I)
    assert (sorted(found.nbr.tolist()), found.nbr_num.tolist(), found.edge) == ([0, 39], [2], None)
    with pytest.raises(OptionError, match="give the edge type of a heterogeneous graph"):
        typed.sample_one_hop([39], 2)


def test_loaders_of_a_sampler_are_loaders_with_its_options() -> None:
    data = ring_data()
    sampler = glt.sampler.NeighborSampler(data.graph, [2, 2], with_edge=True, seed=3)
    one = glt.loader.NodeLoader(data, sampler, IDS[:8], batch_size=4)
    same = glt.loader.NeighborLoader(data, [2, 2], IDS[:8], with_edge=True, seed=3, batch_size=4)
    assert [each.edge.tolist() for each in one] == [each.edge.tolist() for each in same]
    size, nodes, adjs = sampler.sample_pyg_v1(torch.tensor([3]))
    assert (size, nodes.tolist(), adjs[0].size, adjs[1].size) == (1, [3, 4, 5, 6, 7], (5, 3), (3, 1))
    assert adjs[1].e_id.tolist() == [6, 7]
    links = glt.loader.LinkLoader(data, sampler, neg_sampling="binary", batch_size=NODES)
    batches = list(links)  # of all edges
    given = torch.cat([each.node[each.edge_label_index[:, :NODES]].flip(0) for each in batches], dim=1)
    assert sorted(given.T.tolist()) == sorted(ring_edges().T.tolist())
    with pytest.raises(OptionError, match=r"NeighborSampler\(dataset\.graph"):
        glt.loader.NodeLoader(ring_data(), sampler, IDS)


def test_all_edges_of_a_type() -> None:
    data = typed_data()
    batches = list(glt.loader.LinkNeighborLoader(data, [1], edge_label_index=U2I, batch_size=NODES))
    pairs = [
        torch.stack([b["user"].node[b[REV].edge_label_index[1]], b["item"].node[b[REV].edge_label_index[0]]])
        for b in batches
    ]
    assert sorted(torch.cat(pairs, dim=1).T.tolist()) == sorted(ring_edges(first=0).T.tolist())
    with pytest.raises(OptionError, match="give an edge type of a heterogeneous graph"):
        glt.loader.get_edge_label_index(data)


def test_what_a_sampler_returns_becomes_the_batch_of_a_loader() -> None:
    data = ring_data()
    sampler = glt.sampler.NeighborSampler(data.graph, [-1, -1], with_edge=True)
    (batch,) = glt.loader.NodeLoader(data, sampler, torch.tensor([3, 7]), batch_size=2)
    found = sampler.sample_from_nodes(torch.tensor([3, 7]))
    made = glt.loader.to_data(found, data.node_labels[found.node], data.node_features[found.node], kind="a")
    assert (made.kind, made.batch_size) == ("a", 2)
    for name in ("node", "edge", "edge_index", "batch", "x", "y", "num_sampled_nodes", "num_sampled_edges"):
        assert torch.equal(made[name], batch[name]), name
    among = glt.loader.to_data(sampler.subgraph(torch.tensor([9, 7])))
    assert among.node[among.metadata].tolist() == [9, 7]
    edges = glt.sampler.EdgeSamplerInput(*ring_edges()[:, :3])
    made = glt.loader.to_data(sampler.sample_from_edges(edges))
    assert torch.equal(made.node[made.edge_label_index].flip(0), ring_edges()[:, :3])


def test_what_a_typed_sampler_returns_becomes_the_batch_of_a_loader() -> None:
    data = typed_data()
    sampler = glt.sampler.NeighborSampler(data.graph, [-1, -1], with_edge=True)
    (batch,) = glt.loader.NodeLoader(data, sampler, ("user", torch.tensor([5, 39])), batch_size=2)
    found = sampler.sample_from_nodes(("user", torch.tensor([5, 39])))
    feats = {t: data.node_features[t][ids] for t, ids in found.node.items()}
    made = glt.loader.to_hetero_data(found, {"user": data.node_labels["user"][found.node["user"]]}, feats)
    for t in ("user", "item"):
        assert torch.equal(made[t].node, batch[t].node)
        assert torch.equal(made[t].x, batch[t].x)
    assert torch.equal(made["user"].y, batch["user"].y)
    assert (made["user"].batch.tolist(), made["user"].batch_size) == ([5, 39], 2)
    for e in (REV, I2I):
        assert torch.equal(made[e].edge_index, batch[e].edge_index)
        assert torch.equal(made[e].edge, batch[e].edge)
        assert torch.equal(made.num_sampled_edges[e], batch.num_sampled_edges[e])
    edges = glt.sampler.EdgeSamplerInput(*ring_edges(first=0)[:, :3], input_type=U2I)
    made = glt.loader.to_hetero_data(sampler.sample_from_edges(edges))
    item, user = made[REV].edge_label_index
    assert torch.equal(torch.stack([made["user"].node[user], made["item"].node[item]]), ring_edges(first=0)[:, :3])


@pytest.mark.parametrize(("edge_dir", "layout"), [("out", "CSR"), ("in", "CSC")])
def test_random_negatives_are_no_edges(edge_dir: str, layout: str) -> None:
    graph = glt.data.Graph(glt.data.Topology(ring_edges(5), layout=layout), "CPU")
    sampler = glt.sampler.RandomNegativeSampler(graph, "CPU", edge_dir)
    pairs = sampler.sample(200, trials_num=50)
    assert pairs.shape == (2, 200)
    edges = set(map(tuple, ring_edges(5).T.tolist()))
    assert set(map(tuple, pairs.T.tolist())) == {(a, b) for a in range(5) for b in range(5)} - edges
    full = torch.cartesian_prod(torch.arange(3), torch.arange(3)).T
    graph = glt.data.Graph(glt.data.Topology(full, layout=layout), "CPU")
    sampler = glt.sampler.RandomNegativeSampler(graph, "CPU", edge_dir)
    assert (sampler.sample(4).shape, sampler.sample(4, padding=True).shape) == ((2, 0), (2, 4))


def test_channels_carry_tensors_and_have_deadlines() -> None:
    channel = glt.channel.ShmChannel(capacity=1, shm_size=1 << 12, timeout_s=0.05)
    message = {"a": torch.ones(2, 3), "b": torch.arange(4, dtype=torch.int32)}
    channel.send(message)
    with pytest.raises(glt.channel.QueueTimeoutError, match=r"no message was taken within 0\.05 s"):
        channel.send(message)
    channel.pin_memory()
    found = channel.recv(timeout_ms=10_000)
    assert all(torch.equal(found[name], each) for name, each in message.items())
    assert channel.empty()
    with pytest.raises(glt.channel.QueueTimeoutError, match=r"no message came within 0\.001 s"):
        channel.recv(timeout_ms=1)
    with pytest.raises(OptionError, match="shm_size: a message has 8192 bytes, at most 4096"):
        channel.send({"a": torch.ones(2048)})
    channel.close()
