"""The ready modules give what PyG's layers give for edges in any order, and for edges that a transform has added or removed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import add_self_loops

from glt_lightning import GraphSAGE, SamplingOptions
from glt_lightning.base import DataError
from glt_lightning.loader import plain
from glt_lightning.loader.transforms import PyGBidirectional
from glt_lightning.models.encoders import EncoderShape, make_encoder
from glt_lightning.models.gnn import gnn_class
from tests.lightning.test_gnn import PNA, one_batch, with_loops
from tests.lightning.tiny import CLASSES, SHAPE, WIDTH, learnable_hetero


def shuffled(store: Any) -> None:
    made = torch.Generator().manual_seed(0)
    store.edge_index = plain(store.edge_index)[:, torch.randperm(store.edge_index.size(1), generator=made)]


def lengthened(store: Any) -> None:
    """More edges into the seeds, and into the last node, where layers that take a prefix would not look."""
    edges = plain(store.edge_index)
    store.edge_index = torch.cat([edges, edges[:, :3], edges.max(1).values[:, None]], dim=1)


def rewired(store: Any) -> None:
    """As many edges as before, of which one leads from the last source into a seed and the others that led there do not."""
    edges = plain(store.edge_index).clone()
    into_last = edges[1] == edges[1].max()
    edges[:, into_last] = torch.stack([edges[0].max(), edges.new_zeros(())])[:, None]
    store.edge_index = edges


def shortened(store: Any) -> None:
    store.edge_index = plain(store.edge_index)[:, 1::2]


CHANGES: list[Callable[[Any], None]] = [shuffled, lengthened, rewired, shortened]


def changed(batch: Any, change: Callable[[Any], None]) -> Any:
    batch = batch.clone()
    for store in batch.edge_stores:
        change(store)
    return batch


@pytest.fixture(scope="module")
def sampled(tmp_path_factory) -> Data:
    from glt_lightning import GLTDataModule
    from tests.lightning.tiny import save_graph

    path = tmp_path_factory.mktemp("graph")
    graph = str(save_graph(path / "graph.npz"))
    return with_loops(one_batch(GLTDataModule(graph, root=str(path), num_neighbors=[3, 3], batch_size=20)).clone())


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("EdgeCNN", {}),
        ("GAT", {}),
        ("GAT", {"v2": True}),
        ("GAT", {"norm": "batch_norm"}),
        ("GAT", {"add_self_loops": False}),
        ("GCN", {}),
        ("GCN", {"jk": "cat"}),
        ("GCN", {"add_self_loops": False}),
        ("GIN", {}),
        ("GraphSAGE", {}),
        ("PNA", PNA),
    ],
)
def test_models_of_the_family(sampled, name: str, options: dict[str, Any], change: Callable[[Any], None]) -> None:
    model = GraphSAGE(**SHAPE, model=name, model_kwargs=options).eval()
    stock = gnn_class(name)(WIDTH, SHAPE["hidden_channels"], SHAPE["num_layers"], CLASSES, dropout=0.0, **options)
    stock.eval().load_state_dict(model.gnn.gnn.state_dict())
    batch = changed(sampled, change)
    expected = stock(batch.x, batch.edge_index)[:20]
    torch.testing.assert_close(model(batch), expected, rtol=1e-5, atol=1e-5)
    by_hand = Data(x=batch.x, edge_index=batch.edge_index, batch_size=20)
    torch.testing.assert_close(model(by_hand), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("GATv2Conv", {}),
        ("GATv2Conv", {"share_weights": True, "heads": 2}),
        ("GATConv", {}),
        ("GCNConv", {}),
        ("GCNConv", {"flow": "target_to_source"}),
        ("TransformerConv", {}),
        ("ChebConv", {"K": 3}),
        ("RGCN", {"num_relations": 2}),
    ],
)
def test_convolutions_by_name(sampled, name: str, options: dict[str, Any], change: Callable[[Any], None]) -> None:
    shape = EncoderShape(in_channels=WIDTH, hidden_channels=16, num_layers=2, dropout=0.0)
    stack = make_encoder(name, options, shape).eval()
    stock = make_stock(name, options, shape)
    stock.load_state_dict(stack.convs.state_dict())
    batch = changed(sampled, change)
    batch.edge_type = batch.edge_index.sum(0) % 2
    x = stack.encoder("node", batch)
    for conv in stock:
        x = conv(x, batch.edge_index, *([batch.edge_type] if name == "RGCN" else [])).relu()
    torch.testing.assert_close(stack(batch), x[:20], rtol=1e-5, atol=1e-5)


def make_stock(name: str, options: dict[str, Any], shape: EncoderShape) -> torch.nn.ModuleList:
    import torch_geometric.nn

    kind = getattr(torch_geometric.nn, "RGCNConv" if name == "RGCN" else name)
    options = options | {"concat": False} if "heads" in options else options
    made = [kind(shape.hidden_channels, shape.hidden_channels, **options) for _ in range(shape.num_layers)]
    return torch.nn.ModuleList(made).eval()


@pytest.mark.diagonal
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["EdgeCNN", "GAT", "GIN", "GraphSAGE", "HGT", "RGCN", "GATv2Conv"])
def test_several_node_types(make_data, name: str, change: Callable[[Any], None]) -> None:
    """Equal to the same edges sorted, in a batch without numbers of hops, of which all layers compute all."""
    data = make_data(dataset=learnable_hetero(), undirected=True, sampling=SamplingOptions(seed=0))
    batch = changed(one_batch(data), change)
    described = {"metadata": data.metadata, "num_nodes": data.num_nodes, "target_type": data.target_type}
    shape = EncoderShape(in_channels=data.num_features, hidden_channels=16, num_layers=2, dropout=0.0, **described)
    encoder = make_encoder(name, {}, shape).eval()
    out = encoder(batch)
    for store in batch.stores:
        store.pop("num_sampled_nodes", None)
        store.pop("num_sampled_edges", None)
    for store in batch.edge_stores:
        store.edge_index = store.edge_index[:, store.edge_index[1].argsort(stable=True)]
    torch.testing.assert_close(out, encoder(batch), rtol=1e-5, atol=1e-5)


def test_pyg_s_own_transform_of_a_loader(make_data) -> None:
    """`AddSelfLoops` appends: what follows is neither sorted nor in hops."""
    model = GraphSAGE(**SHAPE, model="GCN", model_kwargs={"add_self_loops": False}).eval()
    given = one_batch(make_data(num_neighbors=[3, 3]))
    with_self = given.clone()
    with_self.edge_index = add_self_loops(plain(given.edge_index), num_nodes=given.num_nodes)[0]
    stock = gnn_class("GCN")(
        WIDTH, SHAPE["hidden_channels"], SHAPE["num_layers"], CLASSES, dropout=0.0, add_self_loops=False
    )
    stock.eval().load_state_dict(model.gnn.gnn.state_dict())
    expected = stock(with_self.x, with_self.edge_index)[: given.batch_size]
    torch.testing.assert_close(model(with_self), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional", "induced"])
@pytest.mark.parametrize("disjoint", [False, True])
def test_a_loader_s_own_edges_are_taken_as_they_are(make_data, subgraph_type: str, disjoint: bool, monkeypatch) -> None:
    if disjoint and subgraph_type != "directional":
        pytest.skip("one of them at a time")
    batch = one_batch(make_data(num_neighbors=[3, 3], batches={"subgraph_type": subgraph_type, "disjoint": disjoint}))
    flipped = "is_flipped" in batch
    sorts: list[Any] = []
    real = torch.argsort
    monkeypatch.setattr(torch, "argsort", lambda *args, **kwargs: (sorts.append(1), real(*args, **kwargs))[1])
    model, rows = GraphSAGE(**SHAPE, model="GAT").eval(), []
    for conv in model.gnn.gnn.convs:
        conv.register_forward_hook(lambda conv, args, out: rows.append(len(out)))
    sorts.clear()
    model(batch)
    assert len(sorts) == flipped
    assert (rows[-1] < batch.num_nodes) == (subgraph_type == "directional")


def test_a_batch_without_a_number_of_seeds_is_refused(sampled) -> None:
    with pytest.raises(DataError, match="batch has no batch_size"):
        GraphSAGE(**SHAPE).gnn(Data(x=sampled.x, edge_index=sampled.edge_index))


def test_aggregates_are_of_the_edges_that_were_sampled(make_data) -> None:
    batch = one_batch(make_data(num_neighbors=[3, 3], sampling=SamplingOptions(aggregate_first="mean")))
    model = GraphSAGE(**SHAPE).eval()
    expected = model(batch)
    torch.testing.assert_close(model(changed(batch, shuffled)), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(DataError, match=r"aggregate_first: a transform has added or removed edges"):
        model(changed(batch, lengthened))


def test_a_compiled_module_refuses_edges_that_it_cannot_sort(sampled) -> None:
    torch._dynamo.reset()
    model = torch.compile(GraphSAGE(**SHAPE, model="GCN").eval().gnn, backend="eager")
    model(sampled)
    with pytest.raises(RuntimeError, match="not ascending in their destinations, and a compiled module"):
        model(changed(sampled, shuffled))


def test_flipped_copies_of_pyg(make_data) -> None:
    batch = PyGBidirectional()(one_batch(make_data(num_neighbors=[3, 3])).clone())
    model = GraphSAGE(**SHAPE, model="GCN").eval()
    torch.testing.assert_close(model(changed(batch, shuffled)), model(batch), rtol=1e-5, atol=1e-5)
