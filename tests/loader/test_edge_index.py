"""`BatchEdges` under what PyG, torch and Lightning do to batches: it stays sorted and keeps what the sampler made."""

import copy
import io
import pickle
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import torch_geometric.edge_index
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, HeteroData
from torch_geometric.nn import GATConv, GCNConv, GINConv, GraphConv, HGTConv, PNAConv, RGCNConv, SAGEConv, to_hetero
from torch_geometric.nn.models import GraphSAGE
from torch_geometric.nn.models.basic_gnn import BasicGNN
from torch_geometric.transforms import AddSelfLoops, ToUndirected
from torch_geometric.utils import trim_to_layer

from glt_lightning.loader import LoaderSpec, Session, plain
from glt_lightning.loader.edge_index import BatchEdges, first_edges, make_edge_index
from tests.helpers.contents import contents
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.reference import ops as reference


def first_batch(folder, data):
    with Session(partitioned(data, folder, undirected=True)) as context:
        spec = LoaderSpec(
            name="train", split="train", num_neighbors=[4, 3, 2], batch_size=10, edge_format="edge_index_csr"
        )
        return next(iter(context.make_loader(spec))).clone()


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    return first_batch(tmp_path_factory.mktemp("one"), small_graph())


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    return first_batch(tmp_path_factory.mktemp("two"), small_hetero())


@pytest.fixture
def no_sorting(monkeypatch):
    """Whoever sorts edges, or finds their pointers, fails."""

    def refuse(*_, **__):
        raise AssertionError("made anew")

    monkeypatch.setattr("torch_geometric.utils.index_sort", refuse)
    monkeypatch.setattr("torch_geometric.edge_index.index2ptr", refuse)


def as_tensors(batch):
    batch = copy.copy(batch)
    for store in batch.edge_stores:
        store.edge_index = plain(store.edge_index)
    return batch


def check(edges, sources, destinations):
    """Sorted by destination, with both orders."""
    assert type(edges) is BatchEdges
    assert edges.is_sorted_by_col
    assert edges.sparse_size() == (sources, destinations)
    src, dst = edges.as_tensor()
    (rowptr, col), perm = edges.get_csr()
    for mine, want in zip((rowptr, col, perm), reference.by_source(src, dst, sources), strict=True):
        assert torch.equal(mine, want)
    assert torch.equal(edges.get_csc()[0][0], reference.column_pointers(dst, destinations))


def saved(batch):
    with io.BytesIO() as file:
        torch.save(batch, file)
        file.seek(0)
        return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "change",
    [
        lambda batch: batch.clone(),
        lambda batch: copy.deepcopy(batch),
        lambda batch: copy.copy(batch),
        lambda batch: copy.copy(batch).to("cpu", non_blocking=True),
        lambda batch: copy.copy(batch).contiguous(),
        lambda batch: batch.clone().share_memory_(),
        lambda batch: pickle.loads(pickle.dumps(batch)),
        saved,
    ],
    ids=["clone", "deepcopy", "copy", "to", "contiguous", "share_memory", "pickle", "save"],
)
@pytest.mark.parametrize("which", ["batch", "typed"])
def test_copies(request, which, change):
    batch = request.getfixturevalue(which)
    assert contents(change(batch)) == contents(batch)


def test_another_device(batch):
    edges = copy.copy(batch).to("meta").edge_index
    assert type(edges) is BatchEdges
    made = [edges._indptr, edges._T_indptr, edges._T_index[1], edges._T_perm, edges.as_tensor()]
    assert {str(each.device) for each in made} == {"meta"}


def test_pinned(batch, monkeypatch):
    """Without a GPU torch locks no pages, so a copy stands in for that: all that the sampler made is pinned, and kept."""
    copies = []
    pin = SimpleNamespace(default=lambda each: copies.append(each.clone()) or copies[-1])
    monkeypatch.setattr(torch_geometric.edge_index, "aten", SimpleNamespace(_pin_memory=pin))
    edges = batch.edge_index
    pinned = BatchEdges.__torch_dispatch__(torch.ops.aten._pin_memory.default, (BatchEdges,), (edges,))
    check(pinned, batch.num_nodes, batch.num_nodes)
    made = [pinned._data, pinned._indptr, pinned._T_indptr, pinned._T_index[1], pinned._T_perm]
    assert {each.data_ptr() for each in made} <= {each.data_ptr() for each in copies}


@pytest.mark.usefixtures("no_sorting")
def test_trim_to_layer(batch):
    x, edges = batch.x, batch.edge_index
    for layer in (1, 2):
        x, edges, _ = trim_to_layer(layer, batch.num_sampled_nodes, batch.num_sampled_edges, x, edges)
        assert edges.size(1) == sum(batch.num_sampled_edges[:-layer])
        assert torch.equal(edges.as_tensor(), plain(batch.edge_index)[:, : edges.size(1)])
        if layer == 2:
            check(edges, len(x), len(x))


@pytest.mark.usefixtures("no_sorting")
def test_trim_to_layer_of_types(typed):
    nodes = {t: typed[t].num_sampled_nodes for t in typed.node_types}
    edges = {e: typed[e].num_sampled_edges for e in typed.edge_types}
    x = {t: torch.zeros(typed[t].num_nodes, 1) for t in typed.node_types}
    x, found, _ = trim_to_layer(1, nodes, edges, x, typed.edge_index_dict)
    for (src, _, dst), piece in found.items():
        check(piece, len(x[src]), len(x[dst]))


@pytest.mark.usefixtures("no_sorting")
def test_first_edges_between_fewer_nodes(batch):
    sources, into = sum(batch.num_sampled_nodes[:2]), batch.num_sampled_nodes[0]
    check(first_edges(batch.edge_index, batch.num_sampled_edges[0], sources, into), sources, into)
    check(first_edges(batch.edge_index, batch.num_edges, batch.num_nodes, batch.num_nodes), *[batch.num_nodes] * 2)
    check(batch.edge_index, batch.num_nodes, batch.num_nodes)
    tensor = first_edges(plain(batch.edge_index), 3, sources, into)
    assert type(tensor) is torch.Tensor
    assert tensor.shape == (2, 3)


def test_other_pieces_have_no_pointers_of_the_whole(batch):
    for piece in (batch.edge_index[:, 5:20], batch.edge_index[:, ::2], batch.edge_index[:, :-3:2]):
        n = batch.num_nodes
        again = EdgeIndex(piece.as_tensor(), sparse_size=(n, n), sort_order="col").fill_cache_()
        assert torch.equal(piece.get_csc()[0][0], again._indptr)
        assert torch.equal(piece.get_csr()[0][0], again._T_indptr)


def test_sorted_by_row(batch):
    by_row, perm = batch.edge_index.sort_by("row")
    by_row.validate()
    assert torch.equal(by_row.as_tensor(), plain(batch.edge_index)[:, perm])
    flipped = batch.edge_index.flip(0)
    flipped.validate()
    assert flipped.is_sorted_by_row


def test_to_homogeneous(typed):
    typed = typed.clone()
    typed["author"].x = torch.ones(typed["author"].num_nodes, 3)
    found, expected = typed.to_homogeneous(), as_tensors(typed).to_homogeneous()
    assert torch.equal(plain(found.edge_index), expected.edge_index)
    assert torch.equal(found.edge_type, expected.edge_type)
    assert not isinstance(found.edge_index, EdgeIndex)  # not sorted, and so no promise


def test_a_batch_of_batches(batch):
    found = Batch.from_data_list([batch, batch])
    assert torch.equal(plain(found.edge_index), Batch.from_data_list([as_tensors(batch)] * 2).edge_index)


@pytest.mark.parametrize("transform", [AddSelfLoops(attr=None), ToUndirected()])
def test_transforms(batch, transform):
    batch = batch.clone()
    del batch.edge_attr, batch.e_id
    found, expected = transform(batch.clone()), transform(as_tensors(batch))
    assert torch.equal(plain(found.edge_index), expected.edge_index)


CONVS = {
    "SAGE": lambda: SAGEConv(3, 4),
    "SAGE max": lambda: SAGEConv(3, 4, aggr="max"),
    "GCN": lambda: GCNConv(3, 4),
    "GIN": lambda: GINConv(torch.nn.Linear(3, 4)),
    "GAT": lambda: GATConv(3, 4),
    "GraphConv": lambda: GraphConv(3, 4),
    "GraphConv mean": lambda: GraphConv(3, 4, aggr="mean"),
    "PNA": lambda: PNAConv(3, 4, ["mean", "max"], ["identity", "amplification"], torch.tensor([0, 5, 3])),
}


def same_outputs(module, run, *inputs):
    """Of an `EdgeIndex` and of the tensor: outputs and gradients. run: (edge_index or batch) -> outputs."""
    results = []
    for each in inputs:
        module.zero_grad()
        out = run(each)
        out.square().sum().backward()
        results.append([out.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)])
    for mine, want in zip(*results, strict=True):
        torch.testing.assert_close(mine, want, rtol=1e-4, atol=1e-4 * float(want.abs().max() + 1))


@pytest.mark.usefixtures("no_sorting")
@pytest.mark.parametrize("name", CONVS)
def test_convolutions_of_pyg(batch, name):
    conv, x = CONVS[name](), batch.x / 100
    edges = batch.edge_index
    same_outputs(conv, lambda edges: conv(x, edges), edges, plain(edges))
    number, (src, dst) = batch.num_sampled_edges[0], (sum(batch.num_sampled_nodes[:2]), batch.num_sampled_nodes[0])
    if name not in ("GCN", "PNA"):
        piece = first_edges(edges, number, src, dst)
        same_outputs(conv, lambda edges: conv((x[:src], x[:dst]), edges), piece, plain(piece))


def test_rgcn(batch):
    conv, kinds = RGCNConv(3, 4, 2), torch.arange(batch.num_edges) % 2
    same_outputs(conv, lambda edges: conv(batch.x / 100, edges, kinds), batch.edge_index, plain(batch.edge_index))


class Graph(BasicGNN):
    """Of the one convolution that PyG fuses for an `EdgeIndex`."""

    supports_edge_weight, supports_edge_attr = True, False

    def init_conv(self, in_channels, out_channels, **kwargs):
        return GraphConv(in_channels, out_channels, **kwargs)


@pytest.mark.usefixtures("no_sorting")
@pytest.mark.parametrize("kind", [GraphSAGE, Graph])
def test_models_that_trim(batch, kind):
    model, hops = kind(3, 8, 3, 4), [batch.num_sampled_nodes, batch.num_sampled_edges]
    run = lambda edges: model(batch.x / 100, edges, None, None, None, None, *hops)[:10]  # noqa: E731
    same_outputs(model, run, batch.edge_index, plain(batch.edge_index))


def with_features(typed: HeteroData):
    typed = typed.clone()
    typed["author"].x = torch.linspace(0, 1, 3 * typed["author"].num_nodes).view(-1, 3)
    typed["paper"].x = typed["paper"].x / 100
    return typed


def test_hgt_and_to_hetero(typed):
    typed = with_features(typed)
    hgt = HGTConv(3, 4, typed.metadata())
    sage = to_hetero(GraphSAGE((-1, -1), 4, 2), typed.metadata())
    for model in (hgt, sage):
        model(typed.x_dict, as_tensors(typed).edge_index_dict)  # lazy weights
        run = lambda data, model=model: model(data.x_dict, data.edge_index_dict)["paper"]  # noqa: E731
        same_outputs(model, run, typed, as_tensors(typed))


def test_ends_and_first_edges_are_those_of_pyg() -> None:
    edges, colptr = torch.tensor([[1, 2, 0, 3], [0, 0, 1, 2]]), torch.tensor([0, 2, 3, 4])
    ours = make_edge_index(edges, 4, 3, colptr, None)
    theirs = EdgeIndex(edges, sparse_size=(4, 3), sort_order="col")
    keys = [0, 1, -1, -2, (0, slice(2)), (slice(None), slice(0)), (slice(None), slice(2)), (slice(None), slice(9))]
    keys += [
        (slice(None), slice(-1)),
        (slice(None), slice(1, 3)),
        (slice(None), slice(None)),
        slice(1),
        torch.tensor([1]),
    ]
    for key in keys:
        mine, other = ours[key], theirs[key]
        assert torch.equal(torch.as_tensor(mine), torch.as_tensor(other)), key
        assert type(mine).__mro__[-4:] == type(other).__mro__[-4:]
        if isinstance(mine, EdgeIndex):
            assert (mine.sparse_size(), mine.sort_order) == (other.sparse_size(), other.sort_order)
        elif hasattr(mine, "dim_size"):
            assert (mine.dim_size, mine.is_sorted) == (other.dim_size, other.is_sorted)
    with pytest.raises(IndexError):
        ours[2]


def test_layers_need_no_distributed_tensors() -> None:
    """Their import takes half a second."""
    code = """
import sys, torch
from glt_lightning.cli import command_process
with command_process():
    from torch_geometric.nn import SAGEConv
    from glt_lightning.loader import fuse_layers
    layer, edges = fuse_layers(SAGEConv(4, 8)), torch.tensor([[1, 2, 0], [0, 0, 1]])
    layer(torch.randn(3, 4), edges).sum().backward()
    print("torch.distributed.tensor" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["False"], done.stderr
