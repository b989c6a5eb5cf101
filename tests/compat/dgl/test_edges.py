"""Loaders of edges by DGL's names, on the ring of conftest.py: the user's edge e leads to node e % NODES."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import glt_lightning.compat.dgl as dgl
from glt_lightning.base import DataError, OptionError
from tests.helpers.partitions import partitioned, small_hetero

NODES = 40
Negatives = dgl.dataloading.negative_sampler


def ends_of(g, graph, etype=None) -> list[tuple[int, int]]:
    """The user's ids of the ends of a pair graph's edges."""
    edge_type = graph.canonical_etypes[0] if etype is None else etype
    at, rows = graph.edges(etype), graph.node_rows
    ids = [g.user_ids(rows[t], t)[each].tolist() for t, each in zip((edge_type[0], edge_type[2]), at, strict=True)]
    return list(zip(*ids, strict=True))


def test_edges_and_their_blocks(g) -> None:
    eids = torch.arange(2 * NODES)
    src, dst = (g.user_ids(rows) for rows in g.find_edges(eids))
    columns = g.user_ids(eids, ("node", "to", "node"))
    assert torch.equal(dst, columns % NODES)
    assert torch.equal(src, (dst + 1 + columns // NODES) % NODES)
    sampler = dgl.dataloading.MultiLayerFullNeighborSampler(2, return_eids=True)
    loader = dgl.dataloading.EdgeDataLoader(
        g, eids, sampler, batch_size=16, shuffle=True, negative_sampler=Negatives.Uniform(3)
    )
    epochs = [torch.cat([batch[1].edata[dgl.EID] for batch in loader]).tolist() for _ in range(2)]
    assert len(loader) == 5
    assert sorted(epochs[0]) == sorted(epochs[1]) == eids.tolist()
    assert epochs[0] != epochs[1]
    for inputs, pairs, negatives, (first, last) in loader:
        assert torch.equal(pairs.ndata[dgl.NID], last.dstdata[dgl.NID])
        assert torch.equal(negatives.ndata[dgl.NID], pairs.ndata[dgl.NID])
        assert torch.equal(inputs, first.srcdata[dgl.NID])
        assert torch.equal(
            torch.stack(g.find_edges(pairs.edata[dgl.EID])), pairs.ndata[dgl.NID][torch.stack(pairs.edges())]
        )
        assert (pairs.num_edges(), negatives.num_edges(), pairs.num_nodes()) == (16, 48, last.num_dst_nodes())
        assert torch.equal(negatives.edges()[0], pairs.edges()[0].repeat_interleave(3))
        assert len(last.edges()[0]) == 2 * last.num_dst_nodes()  # nothing is excluded
        assert dgl.EID not in negatives.edata


@pytest.mark.parametrize("own", [False, True], ids=["ours", "one of one's own"])
def test_excluded_edges_are_in_no_block(g, own: bool) -> None:
    class Own(dgl.dataloading.BlockSampler):
        def sample_frontier(self, block_id, g, seed_nodes):
            return dgl.distributed.sample_neighbors(g, seed_nodes, -1)

    sampler = Own(2, True) if own else dgl.dataloading.MultiLayerFullNeighborSampler(2, return_eids=True)
    eids = torch.arange(2 * NODES)
    columns = g.user_ids(eids, ("node", "to", "node"))
    to_row = torch.empty_like(eids)
    to_row[columns] = eids
    turned = to_row[(columns + NODES) % (2 * NODES)]  # as if the other edge into a node were its reverse
    modes = {
        "self": ({"exclude": "self"}, lambda given: given),
        "ids": ({"exclude": "reverse_id", "reverse_eids": turned}, lambda given: torch.cat([given, turned[given]])),
        "pairs": ({"exclude": "reverse_id"}, lambda given: given),  # no edge has a reverse one on the ring
        "function": ({"exclude": lambda given: turned[given]}, lambda given: turned[given]),
        "edges": ({"exclude": eids[:20]}, lambda given: eids[:20]),
    }
    for options, expected in modes.values():
        loader = dgl.dataloading.EdgeDataLoader(g, eids[:30], sampler, batch_size=8, **options)
        for _, pairs, blocks in loader:
            gone = set(expected(pairs.edata[dgl.EID]).tolist())
            for block in blocks:
                into = torch.isin(g.find_edges(eids)[1], block.dstdata[dgl.NID])
                assert {*block.edata[dgl.EID].tolist()} == {*eids[into].tolist()} - gone


def test_fanouts_are_filled_without_the_excluded(g) -> None:
    """DGL drops what it has drawn; here the other edge into each node is drawn always."""
    sampler = dgl.dataloading.NeighborSampler([1], return_eids=True)
    seeds = torch.arange(2 * NODES)[g.user_ids(torch.arange(2 * NODES), ("node", "to", "node")) < NODES]
    for _, pairs, (block,) in dgl.dataloading.EdgeDataLoader(g, seeds, sampler, batch_size=40, exclude="self"):
        assert pairs.num_nodes() == len(block.edges()[0]) == NODES


def test_several_types(tmp_path: Path) -> None:
    partitioned(small_hetero(), tmp_path, 2).close()
    stored = {e: [*zip(*small_hetero()[e].edge_index.tolist(), strict=True)] for e in small_hetero().edge_types}
    with dgl.distributed.DistGraph("parts2", tmp_path / "parts2.json") as g:
        cites, writes, turned = (
            ("paper", "cites", "paper"),
            ("author", "writes", "paper"),
            ("paper", "rev_writes", "author"),
        )
        for edge_type, edges in stored.items():
            rows = torch.arange(g.num_edges(edge_type))
            ends = [
                g.user_ids(each, t).tolist()
                for each, t in zip(g.find_edges(rows, edge_type), edge_type[::2], strict=True)
            ]
            assert [edges[i] for i in g.user_ids(rows, edge_type).tolist()] == [*zip(*ends, strict=True)]
        sampler = dgl.dataloading.MultiLayerFullNeighborSampler(1)
        given = {"cites": torch.arange(30), writes: torch.arange(50)}
        loader = dgl.dataloading.DistEdgeDataLoader(
            g, given, sampler, batch_size=40, exclude="self", negative_sampler=Negatives.Uniform(2)
        )
        seen = {cites: 0, writes: 0}
        for inputs, pairs, negatives, (block,) in loader:
            assert {*inputs} == {*pairs.ntypes} == {"author", "paper"}
            for edge_type in seen:
                seen[edge_type] += pairs.num_edges(edge_type)
                assert negatives.num_edges(edge_type) == 2 * pairs.num_edges(edge_type)
                mine = {*ends_of(g, pairs, edge_type)}
                assert mine <= {*stored[edge_type]}
                src, dst = block.edges(edge_type)
                ids = [
                    g.user_ids(side[t][dgl.NID], t)[at].tolist()
                    for side, t, at in ((block.srcdata, edge_type[0], src), (block.dstdata, edge_type[2], dst))
                ]
                assert not mine & {*zip(*ids, strict=True)}
        assert seen == {cites: 30, writes: 50}
        assert turned not in stored


def test_reverse_types_are_excluded_by_their_ends(tmp_path: Path) -> None:
    """Rows of an edge and of its reverse are in different orders here, so DGL's rule of equal ids would take out others."""
    data = small_hetero()
    writes, turned = ("author", "writes", "paper"), ("paper", "rev_writes", "author")
    data[turned].edge_index = data[writes].edge_index.flip(0)
    partitioned(data, tmp_path, 2).close()
    with dgl.distributed.DistGraph("parts2", tmp_path / "parts2.json") as g:
        sampler, seeds = dgl.dataloading.MultiLayerFullNeighborSampler(1), {"writes": torch.arange(40)}

        def loader(**options):
            return dgl.dataloading.EdgeDataLoader(g, seeds, sampler, batch_size=20, **options)

        turned_round = {"writes": "rev_writes", "rev_writes": "writes"}
        for _, pairs, (block,) in loader(exclude="reverse_types", reverse_etypes=turned_round):
            mine = {*ends_of(g, pairs, writes)}
            src, dst = block.edges(turned)
            papers = g.user_ids(block.srcdata["paper"][dgl.NID], "paper")[src]
            authors = g.user_ids(block.dstdata["author"][dgl.NID], "author")[dst]
            assert len(papers)
            assert not mine & {*zip(authors.tolist(), papers.tolist(), strict=True)}
        with pytest.raises(OptionError, match="reverse_etypes: expected the edge type from 'paper' to 'author'"):
            next(iter(loader(exclude="reverse_types", reverse_etypes={"writes": "cites"})))
        with pytest.raises(OptionError, match="Use reverse_types"):
            next(iter(loader(exclude="reverse_id")))


def test_mistakes_are_named(g) -> None:
    sampler = dgl.dataloading.MultiLayerFullNeighborSampler(1)
    with pytest.raises(OptionError, match="exclude: expected one of self, reverse_id"):
        next(iter(dgl.dataloading.EdgeDataLoader(g, [1], sampler, exclude="all")))
    with pytest.raises(OptionError, match="one of edges runs in the training process; got 2"):
        dgl.dataloading.EdgeDataLoader(g, [1], sampler, num_workers=2)
    with pytest.raises(DataError, match="99"):
        dgl.dataloading.EdgeDataLoader(g, [99], sampler)
    _, pairs, _ = next(iter(dgl.dataloading.EdgeDataLoader(g, [1], sampler)))
    with pytest.raises(OptionError, match=r"pair_graph.apply_edges: needs a graph of DGL. Use src, dst"):
        pairs.apply_edges(None, "score")
    with pytest.raises(OptionError, match="num_layers: without it"):
        dgl.dataloading.BlockSampler().sample_blocks(g, torch.tensor([1]))


def test_a_sampler_may_give_its_blocks_whole(g) -> None:
    class Whole(dgl.dataloading.BlockSampler):
        def sample_blocks(self, g, seed_nodes, exclude_eids=None):
            frontier = dgl.distributed.sample_neighbors(g, seed_nodes, 1, exclude_edges=exclude_eids)
            block = dgl.to_block(frontier, seed_nodes)
            return block.srcdata[dgl.NID], seed_nodes, [block]

    for inputs, outputs, (block,) in dgl.dataloading.NodeDataLoader(g, np.arange(9), Whole(), batch_size=3):
        assert len(outputs) == len(block.edges()[0]) == 3
        assert torch.equal(inputs[:3], outputs)
