"""DGL's names: what a script gets by them, on a ring whose answers are known: v has in-edges from v + 1 and v + 2."""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch_geometric.data import Data

import glt_lightning.compat.dgl as dgl
import glt_lightning.compat.dgl.nn as dglnn
from glt_lightning.base import DataError, OptionError
from glt_lightning.compat.dgl.hosts import STATE
from tests.helpers.partitions import partitioned, small_hetero

NODES = 40


def test_a_graph_and_its_data(g, config: Path) -> None:
    orig_nids, orig_eids = torch.load(config.parent / "mapping.pt", weights_only=True)
    assert (g.number_of_nodes(), g.number_of_edges(), g.ntypes, g.etypes) == (NODES, 2 * NODES, ["node"], ["to"])
    rows = torch.arange(NODES)
    assert torch.equal(g.ndata["features"][rows], orig_nids[:, None].float())  # x, by one of its names in DGL
    assert torch.equal(g.ndata["label"][5:9], orig_nids[5:9] % 4)
    assert torch.equal(g.edata["edge_attr"][:], orig_eids.float())
    book = g.get_partition_book()
    owned = [book.partid2nids(part) for part in range(book.num_partitions())]
    assert torch.equal(torch.cat(owned), rows)
    assert all((book.nid2partid(nids) == part).all() for part, nids in enumerate(owned))
    assert sum(len(book.partid2eids(part)) for part in range(3)) == 2 * NODES
    assert set(book.eid2partid([0, 2 * NODES - 1]).tolist()) == {0, 2}
    train = dgl.distributed.node_split(g.ndata["train_mask"], book)
    assert sorted(orig_nids[train].tolist()) == list(range(30))
    assert g.partition.manifest.made_by["balance"] == ["nodes", "seeds"]
    assert len(dgl.distributed.edge_split(torch.arange(7), book)) == 7
    assert (dgl.distributed.get_num_clients(), g.rank()) == (1, 0)


def test_a_graph_is_found_by_the_environment_and_is_pickled_by_its_folder(config, monkeypatch) -> None:
    monkeypatch.setenv("DGL_CONF_PATH", str(config))
    with dgl.distributed.DistGraph("ring") as first, pickle.loads(pickle.dumps(first)) as second:
        assert second.number_of_nodes() == NODES
        assert dgl.distributed.DistTensor((NODES, 1), torch.float32).graph is second  # that was made last
    with pytest.raises(DataError, match="Make a DistGraph first"):
        dgl.distributed.DistTensor((NODES, 1), torch.float32)
    monkeypatch.delenv("DGL_CONF_PATH")
    with pytest.raises(OptionError, match="no partition is given"):
        dgl.distributed.DistGraph("ring")
    with pytest.raises(OptionError, match="is of the graph 'ring', not of 'other'"):
        dgl.distributed.DistGraph("other", config)
    theirs = config.with_name("theirs.json")
    theirs.write_text('{"part-0": {}}')
    with pytest.raises(OptionError, match="partition --from dgl"):
        dgl.distributed.DistGraph("theirs", theirs)


def test_tensors(g) -> None:
    tensor = dgl.distributed.DistTensor((g.number_of_nodes(), 10), torch.float32, "test")
    data = tensor[0:20]
    assert data.count_nonzero() == 0
    tensor[0:20] = data + 1
    again = dgl.distributed.DistTensor((g.number_of_nodes(), 10), torch.float32, "test", persistent=True)
    assert again[[19, 20]].tolist() == [[1.0] * 10, [0.0] * 10]
    of_edges = g.get_edge_partition_policy("to")
    first = dgl.distributed.DistTensor((2 * NODES,), torch.int64, init_func=ones, part_policy=of_edges)
    assert first.count_nonzero() == len(first)
    g.ndata["h"] = tensor
    assert "h" in g.ndata
    assert {"x", "y", "train_mask", "h"} <= {*g.ndata}
    del g.ndata["h"]
    with pytest.raises(DataError, match="cannot be found again"):
        dgl.distributed.DistTensor((NODES, 2), torch.float32, persistent=True)


def test_embeddings_learn_by_the_mean_of_a_rows_gradients(g) -> None:
    emb = dgl.distributed.DistEmbedding(g.number_of_nodes(), 4, "test")
    optimizer = dgl.distributed.SparseAdagrad([emb], lr=0.001)
    feats = emb([0, 1, 2, 2])
    (feats + 1).sum().backward()
    optimizer.step()
    after = emb(np.arange(5)).detach()
    expected = torch.zeros(5, 4)
    expected[:3] = -0.001  # Adagrad's first step, whatever the gradient
    assert torch.allclose(after, expected)
    assert emb.rows.states["sum"].read(np.array([2]))[0].tolist() == [1.0] * 4  # mean over both lookups, squared
    shared = dgl.distributed.DistEmbedding(g.number_of_nodes(), 4, "test")
    assert torch.equal(shared(torch.arange(5)).detach(), after)
    with pytest.raises(DataError, match=r"is there already, as \[40, 4\]"):
        dgl.distributed.DistEmbedding(g.number_of_nodes(), 5, "test")
    other = dgl.distributed.DistEmbedding(NODES, 4, init_func=ones)
    assert other([7]).detach().tolist() == [[1.0] * 4]
    adam = dgl.distributed.SparseAdam([other], lr=0.1)
    other([7]).sum().backward()
    adam.step()
    assert torch.allclose(other([7, 8]).detach(), torch.tensor([[0.9] * 4, [1.0] * 4]))


def ones(shape, dtype):
    return torch.ones(shape, dtype=dtype)


def test_embeddings_and_states_are_saved(config: Path, tmp_path: Path) -> None:
    def begun(graph):
        emb = dgl.distributed.DistEmbedding(graph.number_of_nodes(), 4, "test")
        return emb, dgl.distributed.optim.SparseAdagrad([emb], lr=0.1)

    def step(emb, optimizer):
        (emb([1, 2]) ** 2 + emb([1, 2])).sum().backward()
        optimizer.step()
        return emb(torch.arange(NODES)).detach()

    with dgl.distributed.DistGraph("ring", config) as graph:
        emb, optimizer = begun(graph)
        saved = step(emb, optimizer)
        optimizer.save(tmp_path / "rows")
        after = step(emb, optimizer)
    with dgl.distributed.DistGraph("ring", config) as graph:
        emb, optimizer = begun(graph)
        optimizer.load(tmp_path / "rows")
        assert torch.equal(emb(torch.arange(NODES)).detach(), saved)
        assert torch.equal(step(emb, optimizer), after)  # by the states, too


class TwoHops(dgl.dataloading.BlockSampler):
    """A sampler of one's own."""

    def __init__(self, fanouts, **options) -> None:
        super().__init__(len(fanouts), **options)
        self.fanouts = fanouts

    def sample_frontier(self, block_id, g, seed_nodes):
        return dgl.sampling.sample_neighbors(g, seed_nodes, self.fanouts[block_id])


SAMPLERS = {
    "loader": lambda: dgl.dataloading.MultiLayerNeighborSampler([2, -1]),
    "all": lambda: dgl.dataloading.MultiLayerFullNeighborSampler(2),
    "with edge ids": lambda: dgl.dataloading.MultiLayerNeighborSampler([2, -1], return_eids=True),
    "own": lambda: TwoHops([2, 2], return_eids=True),
}


@pytest.mark.parametrize("kind", SAMPLERS)
def test_blocks_of_every_sampler_are_those_of_the_ring(g, config, kind: str) -> None:
    orig_nids, orig_eids = torch.load(config.parent / "mapping.pt", weights_only=True)
    train = dgl.distributed.node_split(g.ndata["train_mask"])
    loader = dgl.dataloading.NodeDataLoader(g, train, SAMPLERS[kind](), batch_size=8, shuffle=True, drop_last=False)
    epochs = [list(loader) for _ in range(2)]
    assert [len(outputs) for _, outputs, _ in epochs[0]] == [8, 8, 8, 6]
    assert len(loader) == 4
    seeds = [torch.cat([outputs for _, outputs, _ in epoch]) for epoch in epochs]
    assert sorted(seeds[0].tolist()) == sorted(seeds[1].tolist()) == train.tolist()
    assert seeds[0].tolist() != seeds[1].tolist()
    for inputs, outputs, (first, last) in epochs[0]:
        assert torch.equal(first.srcdata[dgl.NID], inputs)
        assert torch.equal(last.dstdata[dgl.NID], outputs)
        assert torch.equal(first.dstdata[dgl.NID], last.srcdata[dgl.NID])
        for block in (first, last):
            src, dst = block.edges()
            assert block.num_src_nodes() >= block.number_of_dst_nodes()
            from_, to = orig_nids[block.srcdata[dgl.NID]][src], orig_nids[block.dstdata[dgl.NID]][dst]
            assert {*((from_ - to) % NODES).tolist()} == {1, 2}
            assert len(src) == 2 * block.num_dst_nodes()
            if dgl.EID in block.edata:
                assert torch.equal(orig_eids[block.edata[dgl.EID]], to + NODES * ((from_ - to) % NODES == 2))
        if kind in ("loader", "all"):  # attributes come with the blocks of our loaders
            assert torch.equal(first.srcdata["x"], g.ndata["x"][inputs])
        else:
            assert dgl.EID in last.edata
    dropped = dgl.dataloading.NodeDataLoader(g, train, SAMPLERS[kind](), batch_size=8, drop_last=True)
    assert len(list(dropped)) == len(dropped) == 3
    assert list(dgl.dataloading.NodeDataLoader(g, train[:0], SAMPLERS[kind](), batch_size=8)) == []


def test_a_frontier_and_its_block_by_dgls_names(g) -> None:
    assert importlib.import_module("glt_lightning.compat.dgl.nn.pytorch").SAGEConv is dglnn.SAGEConv
    seeds = torch.tensor([7, 0, 12])
    frontier = dgl.distributed.sample_neighbors(g, seeds, -1)
    src, dst, rows = frontier.edges(form="all")
    assert frontier.num_edges() == len(rows) == 6
    assert torch.equal(torch.stack(frontier.edges()), torch.stack(g.find_edges(frontier.edata[dgl.EID])))
    block = dgl.to_block(frontier, seeds)
    assert torch.equal(block.edata[dgl.EID], rows)
    assert (block.num_edges(), block.dstnodes().tolist()) == (6, [0, 1, 2])
    assert torch.equal(block.srcnodes(), torch.arange(block.num_src_nodes()))
    assert torch.equal(block.srcdata[dgl.NID][block.edges()[0]], src)
    assert torch.equal(seeds[block.edges()[1]], dst)
    assert torch.equal(block.dstnodes["_N"].data[dgl.NID], seeds)


def test_the_early_loader_yields_blocks_alone(g) -> None:
    sampler = dgl.data.MultiLayerNeighborSampler([1, 2])
    ((first, last),) = dgl.data.NodeDataLoader(g, [3, 5], sampler, batch_size=2, device="cpu")
    assert last.size[1] == 2
    assert len(last.edges()[0]) == 4  # the last fan-out is that of the seeds
    assert len(first.edges()[0]) == 4 + (first.size[1] - 2)  # the seeds' draws are used again, others have one
    assert dgl.distributed.DistNodeDataLoader is dgl.dataloading.NodeDataLoader


def test_draws_follow_the_seed(config) -> None:
    def drawn(value: int) -> list[list[int]]:
        dgl.seed(value)
        with dgl.distributed.DistGraph("ring", config) as g:
            loader = dgl.dataloading.NodeDataLoader(g, range(20), TwoHops([1, 1]), batch_size=5)
            return [inputs.tolist() for inputs, _, _ in loader]

    try:
        assert drawn(1) == drawn(1) != drawn(2)
    finally:
        dgl.seed(0)


@pytest.mark.parametrize("kind", ["mean", "gcn", "pool"])
@pytest.mark.parametrize("width", [2, 5])
def test_sage_is_hamiltons(g, kind: str, width: int) -> None:
    """On a block whose edges are not sorted, in float32 by our kernels and in float16 by torch."""
    layer = dglnn.SAGEConv(3, width, kind)
    frontier = dgl.sampling.sample_neighbors(g, [7, 0, 12], -1)
    (edge_type, edges), turned = next(iter(frontier.by_type.items())), torch.tensor([5, 0, 3, 1, 4, 2])
    shuffled = dgl.sampling.LayerEdges({edge_type: type(edges)(*(each[turned] for each in edges))}, True)
    block = dgl.sampling.to_block(shuffled, torch.tensor([7, 0, 12]))
    x = torch.randn(block.num_src_nodes(), 3, generator=torch.Generator().manual_seed(1))
    src, dst = block.edges()
    weights = layer.fc_neigh.weight
    rows = []
    for v in range(3):
        near = x[src[dst == v]]
        if kind == "mean":
            rows.append(layer.fc_self(x[v]) + weights @ near.mean(0))
        elif kind == "gcn":
            rows.append(weights @ ((near.sum(0) + x[v]) / (len(near) + 1)) + layer.bias)
        else:
            rows.append(layer.fc_self(x[v]) + weights @ F.relu(layer.fc_pool(near)).max(0).values)
    expected = torch.stack(rows)
    assert torch.allclose(layer(block, x), expected, atol=1e-6)
    assert torch.allclose(layer(block, (x, x[:3])), expected, atol=1e-6)
    assert torch.allclose(layer.half()(block, x.half()).float(), expected, atol=1e-2)


def test_mistakes_are_named(g, tmp_path: Path) -> None:
    Sampler = dgl.dataloading.MultiLayerNeighborSampler
    with pytest.raises(OptionError, match="Give 0"):
        dgl.dataloading.NodeDataLoader(g, [1], TwoHops([1]), num_workers=2)
    with pytest.raises(OptionError, match="expected a DistGraph and a BlockSampler"):
        dgl.dataloading.NodeDataLoader(g, [1], [10, 25])
    with pytest.raises(DataError, match="99"):
        dgl.dataloading.NodeDataLoader(g, [99], Sampler([1]))
    with pytest.raises(DataError, match="a node is there twice"):
        TwoHops([1]).sample_blocks(g, torch.tensor([1, 1]))
    with pytest.raises(DataError, match="which is not in dst_nodes"):
        dgl.sampling.to_block(dgl.sampling.sample_neighbors(g, [3], -1), torch.tensor([4]))
    with pytest.raises(OptionError, match="edge_dir"):
        dgl.sampling.sample_neighbors(g, [1], 1, edge_dir="out")
    with pytest.raises(OptionError, match="have no effect with part_method 'random'"):
        dgl.distributed.partition_graph(Data(), "x", 2, tmp_path, part_method="random", balance_edges=True)
    with pytest.raises(OptionError, match="num_hops"):
        dgl.distributed.partition_graph(Data(), "x", 2, tmp_path, num_hops=2)
    with pytest.raises(OptionError, match="aggregator_type"):
        dglnn.SAGEConv(2, 2, "lstm")
    hosts = tmp_path / "ip_config.txt"
    with pytest.raises(OptionError, match="cannot read"):
        dgl.distributed.initialize(hosts)
    hosts.write_text("10.0.0.1 30050\n")
    dgl.distributed.initialize(hosts, num_workers=3)
    assert STATE.num_workers == 3
    dgl.distributed.initialize()


def test_several_types(tmp_path: Path) -> None:
    partitioned(small_hetero(), tmp_path, 2).close()
    with dgl.distributed.DistGraph("parts2", tmp_path / "parts2.json") as g:
        cites, writes = ("paper", "cites", "paper"), ("author", "writes", "paper")
        rows = g.rows_of(np.arange(50), "paper")
        some = [{cites: 2}, {"cites": 3, "writes": -1}]
        everywhere = [{cites: 2, "writes": 1}, 3]  # as loaders can draw
        for fanouts in (some, everywhere):
            sampler = dgl.dataloading.MultiLayerNeighborSampler(fanouts)
            (inputs, outputs, (first, last)), *_ = dgl.dataloading.NodeDataLoader(
                g, {"paper": rows}, sampler, batch_size=20
            )
            assert torch.equal(outputs["paper"], rows[:20])
            assert torch.equal(inputs["paper"], first.srcdata["paper"][dgl.NID])
            src, dst = last.edges(writes)
            ids = g.user_ids(last.srcdata["author"][dgl.NID], "author"), g.user_ids(outputs["paper"], "paper")
            stored = {*zip(*small_hetero()[writes].edge_index.tolist(), strict=True)}
            assert {*zip(ids[0][src].tolist(), ids[1][dst].tolist(), strict=True)} <= stored
            assert first.num_dst_nodes("paper") == last.num_src_nodes("paper")
            assert (writes in first.edge_index) == (fanouts is everywhere)
            assert last.num_edges() == sum(last.num_edges(e) for e in last.edge_index)
            assert torch.equal(last.srcnodes("author"), torch.arange(last.num_src_nodes("author")))
            assert torch.equal(last.dstnodes["paper"].data[dgl.NID], outputs["paper"])
        frontier = dgl.distributed.sample_neighbors(g, {"paper": rows}, {"cites": 1, "writes": -1})
        assert frontier.num_edges() == frontier.num_edges("cites") + frontier.num_edges(writes)
        assert torch.equal(frontier.edges(etype="writes")[0], g.find_edges(frontier.edata[dgl.EID][writes], writes)[0])
        with pytest.raises(OptionError, match="type: expected one of"):
            frontier.edges()
            assert ("x" in first.srcdata["paper"]) == (fanouts is everywhere)
