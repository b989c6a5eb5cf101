"""Batches as one bipartite graph per layer, as DGL's models read them."""

import copy
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

from glt_lightning import as_blocks, layers
from glt_lightning.base import DataError, OptionError, SamplingOptions
from glt_lightning.loader import LoaderSpec, Session
from tests.helpers.partitions import partitioned, small_graph, small_hetero


@pytest.fixture
def loader(tmp_path):
    made = []

    def make(data, with_edge=False, **options):
        context = Session(partitioned(data, tmp_path), SamplingOptions(with_edge=with_edge))
        made.append(context)
        return context.make_loader(
            LoaderSpec(**{"name": "train", "split": "train", "num_neighbors": [-1, -1], "batch_size": 10} | options)
        )

    yield make
    for context in made:
        context.close()


def test_layers_of_a_cycle_by_hand(loader) -> None:
    """Six nodes in a circle, edges from v - 1 and v + 1 into v."""
    around = torch.arange(6)
    edges = torch.stack([torch.cat([(around - 1) % 6, (around + 1) % 6]), around.repeat(2)])
    data = Data(
        x=around[:, None].float(), y=around, edge_index=edges, train_mask=around == 2, edge_attr=torch.arange(12.0)
    )
    inputs, outputs, (first, last) = next(as_blocks(loader(data)))

    assert outputs.tolist() == [2]
    assert set(inputs.tolist()) == {0, 1, 2, 3, 4}
    assert (first.size, last.size) == ((5, 3), (3, 1))
    assert (first.num_src_nodes(), first.num_dst_nodes(), first.number_of_dst_nodes()) == (5, 3, 3)
    assert {*last.srcdata["_ID"].tolist()} == {1, 2, 3}
    for layer in (first, last):
        src, dst = layer.edges()
        pairs = {*zip(layer.srcdata["_ID"][src].tolist(), layer.dstdata["_ID"][dst].tolist(), strict=True)}
        into = layer.dstdata["_ID"].tolist()
        assert pairs == {((v + step) % 6, v) for v in into for step in (-1, 1)}
        assert torch.equal(
            edges[:, layer.edata["_ID"]], torch.stack([layer.srcdata["_ID"][src], layer.dstdata["_ID"][dst]])
        )
        assert torch.equal(layer.edata["edge_attr"], layer.edata["_ID"].float())
        assert torch.equal(layer.dstdata["_ID"], layer.srcdata["_ID"][: layer.size[1]])
        assert torch.equal(layer.srcdata["x"][:, 0], layer.srcdata["_ID"].float())
        assert torch.equal(layer.dstdata["y"], layer.dstdata["_ID"])


@pytest.mark.parametrize("edge_format", ["tensor", "edge_index"])
def test_a_model_on_layers_equals_the_whole_graph(loader, edge_format: str) -> None:
    data = small_graph()
    convs = [SAGEConv(3, 8).double(), SAGEConv(8, 4).double()]
    whole = x = data.x.double() / 900
    for conv in convs:
        whole = conv(whole, data.edge_index)
    for inputs, outputs, blocks in as_blocks(loader(data, edge_format=edge_format)):
        h = x[inputs]
        for conv, block in zip(convs, blocks, strict=True):
            h = conv((h, h[: block.num_dst_nodes()]), block.edge_index)
        torch.testing.assert_close(h, whole[outputs])


def test_several_node_types(loader) -> None:
    data = small_hetero()
    types = [("author", "writes", "paper"), ("paper", "cites", "paper")]
    convs = [{t: SAGEConv(2, 2).double() for t in types} for _ in range(2)]
    author, paper = (torch.rand(n, 2, dtype=torch.double) for n in (80, 200))
    whole = paper
    for conv in convs:
        of = {"author": author, "paper": whole}
        whole = sum(conv[t]((of[t[0]], whole), data.edge_index_dict[t]) for t in types)
    for inputs, outputs, blocks in as_blocks(loader(data)):
        assert {*outputs} == {"author", "paper"}
        assert outputs["author"].numel() == 0
        assert blocks[0].num_src_nodes() == sum(len(ids) for ids in inputs.values())
        h = paper[inputs["paper"]]
        for conv, block in zip(convs, blocks, strict=True):
            of = {"author": author[block.srcdata["author"]["_ID"]], "paper": h}
            to = {t: values[: block.num_dst_nodes(t)] for t, values in of.items()}
            assert block.size[types[0]] == (len(of["author"]), len(to["paper"]))
            assert block.edges(types[1])[0].equal(block.edge_index[types[1]][0])
            h = sum(conv[t]((of[t[0]], to["paper"]), block.edge_index[t]) for t in types)
        torch.testing.assert_close(h, whole[outputs["paper"]])
    with pytest.raises(OptionError, match=r"expected an edge type, one of .*'writes'.* got None"):
        blocks[0].edges()
    with pytest.raises(OptionError, match=r"expected one of \['author', 'paper'\]; got 'venue'"):
        blocks[0].num_src_nodes("venue")


def test_the_loop_of_the_docs(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parts").symlink_to(partitioned(small_graph(), tmp_path / "made").directory)
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "sampling.md").read_text().split("## One layer at a time")[1]
    names = {"convs": [SAGEConv(3, 8), SAGEConv(8, 4)]}
    exec(page.split("```python")[1].split("```")[0], names)
    assert names["h"].shape == (len(names["output_nodes"]), 4)


def test_layers_move_and_share_memory(loader) -> None:
    batch = next(iter(loader(small_graph(), num_neighbors=[3, 2])))
    first, last = layers(batch)
    assert first.edge_index.data_ptr() == last.edge_index.data_ptr() == batch.edge_index.data_ptr()
    moved = first.to("meta")
    assert {moved.edge_index.device.type, moved.srcdata["x"].device.type, moved.edata["edge_attr"].device.type} == {
        "meta"
    }
    assert moved.size == first.size


def test_batches_without_hops_are_refused(loader) -> None:
    batch = copy.copy(next(iter(loader(small_graph()))))
    del batch.num_sampled_edges
    with pytest.raises(DataError, match=r"no num_sampled_nodes and num_sampled_edges.*subgraph_type: directional"):
        layers(batch)
    shuffled = next(iter(loader(small_graph())))
    shuffled.edge_index = shuffled.edge_index.flip(1)
    with pytest.raises(DataError, match="a transform has added, removed or moved some"):
        layers(shuffled)
    batch.x_neighbors = batch.x
    with pytest.raises(DataError, match=r"as sums \(sampling.aggregate_first\)"):
        layers(batch)


class DGLBlock:
    """What `create_block` of DGL gets, and where ids are put."""

    def __init__(self, *given) -> None:
        self.given = given
        self.srcdata, self.dstdata, self.edata = {}, {}, {}
        self.srcnodes, self.dstnodes, self.edges = (defaultdict(lambda: SimpleNamespace(data={})) for _ in range(3))


def test_blocks_of_dgl(loader, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given to DGL, whose own package is not needed for this."""
    dgl = ModuleType("dgl")
    dgl.create_block = DGLBlock
    monkeypatch.setitem(sys.modules, "dgl", dgl)
    _, last = layers(next(iter(loader(small_graph()))))
    block = last.to_dgl()
    (src, dst), *size = block.given
    assert torch.equal(torch.stack([src, dst]), last.edge_index)
    assert size == [*last.size]
    assert block.srcdata["_ID"] is last.srcdata["_ID"]
    assert block.edata["_ID"] is last.edata["_ID"]


def test_blocks_of_dgl_with_several_node_types(loader, monkeypatch: pytest.MonkeyPatch) -> None:
    dgl = ModuleType("dgl")
    dgl.create_block = DGLBlock
    monkeypatch.setitem(sys.modules, "dgl", dgl)
    last = layers(next(iter(loader(small_hetero(), with_edge=True))))[-1]
    block = last.to_dgl()
    ends, sources, destinations = block.given
    assert sources == {t: last.num_src_nodes(t) for t in ("author", "paper")}
    assert destinations["author"] == 0
    for edge_type, (src, dst) in ends.items():
        assert torch.equal(torch.stack([src, dst]), last.edge_index[edge_type])
        assert block.edges[edge_type].data["_ID"] is last.edata[edge_type]["_ID"]
    assert block.srcnodes["author"].data["_ID"] is last.srcdata["author"]["_ID"]
    assert block.dstnodes["paper"].data["_ID"] is last.dstdata["paper"]["_ID"]
