"""The models: names, shapes, what trimming leaves unchanged, and what does not fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData

from glt_lightning import GLTDataModule, GraphSAGE, SamplingOptions
from glt_lightning.base import DataError, OptionError
from glt_lightning.loader import plain
from glt_lightning.models.encoders import EncoderShape, make_encoder
from glt_lightning.models.gnn import gnn_class
from tests.lightning.tiny import CLASSES, NODES, SHAPE, WIDTH, learnable_hetero, save_graph


def one_batch(data: Any) -> Data | HeteroData:
    data.prepare_data()
    data.setup()
    batch = next(iter(data.train_dataloader()))
    data.teardown()
    return batch


def with_loops(batch: Data) -> Data:
    """Some edges of a batch made loops of their destinations; several at one node."""
    row, col = plain(batch.edge_index)
    batch.edge_index = torch.stack([torch.where(col < 5, col, row), col])
    return batch


def hetero_model(data: Any, **options: Any) -> GraphSAGE:
    described = {"metadata": data.metadata, "num_nodes": data.num_nodes, "target_type": data.target_type}
    return GraphSAGE(**SHAPE | described | {"in_channels": data.num_features, "out_channels": CLASSES} | options)


@pytest.mark.parametrize("name", ["EdgeCNN", "GAT", "GCN", "GIN", "GraphSAGE"])
def test_models_of_pyg_by_name(make_data, name: str) -> None:
    batch = one_batch(make_data())
    model = GraphSAGE(**SHAPE, model=name).eval()
    assert type(model.gnn.gnn).__name__ == name
    assert model(batch).shape == (20, CLASSES)


PNA = {"aggregators": ["mean", "max"], "scalers": ["identity", "attenuation"], "deg": torch.tensor([0, 5, 3])}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("EdgeCNN", {}),
        ("GAT", {}),
        ("GAT", {"v2": True, "add_self_loops": False}),
        ("GCN", {}),
        ("GCN", {"improved": True}),
        ("GCN", {"add_self_loops": False}),
        ("GCN", {"normalize": False}),
        ("GIN", {}),
        ("GraphSAGE", {}),
        ("GraphSAGE", {"aggr": "max", "normalize": True}),
        ("PNA", PNA),
    ],
)
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_trimming_leaves_the_seeds_as_they_are(two_hops, name: str, options: dict[str, Any], layers: int) -> None:
    model = GraphSAGE(**SHAPE | {"num_layers": layers}, model=name, model_kwargs=options).eval()
    stock = gnn_class(name)(WIDTH, SHAPE["hidden_channels"], layers, CLASSES, dropout=0.0, **options).eval()
    stock.load_state_dict(model.gnn.gnn.state_dict())
    assert model.gnn.trimmed.forms is not None
    out, expected = model(two_hops), stock(two_hops.x, plain(two_hops.edge_index))[:20]
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
    grads = [
        torch.autograd.grad(each.square().sum(), list(m.parameters())) for each, m in ((out, model), (expected, stock))
    ]
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module", params=["tensor", "edge_index_csr"])
def two_hops(request, tmp_path_factory) -> Data:
    """A batch of 20 seeds, with edges in either form; of the plain ones some are loops."""
    path = tmp_path_factory.mktemp("graph")
    graph = str(save_graph(path / "graph.npz"))
    options = {"num_neighbors": [3, 3], "batch_size": 20, "batches": {"edge_format": request.param}}
    batch = one_batch(GLTDataModule(graph, root=str(path), **options)).clone()
    return with_loops(batch) if request.param == "tensor" else batch


def test_the_form_of_edges(two_hops, request) -> None:
    assert isinstance(two_hops.edge_index, EdgeIndex) == ("edge_index" in request.node.callspec.id)


def test_first_layer_computes_the_nodes_that_matter_alone(two_hops) -> None:
    model, rows = GraphSAGE(**SHAPE), []
    for conv in model.gnn.gnn.convs:
        conv.register_forward_hook(lambda conv, args, out: rows.append(len(out)))
    model(two_hops)
    assert rows == [sum(two_hops.num_sampled_nodes[:2]), 20]
    assert rows[0] < two_hops.num_nodes


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("GCN", {"norm": "batch_norm"}, "norm: batch_norm"),
        ("GCN", {"flow": "target_to_source"}, "more than the edges into it"),
        ("GraphSAGE", {"norm": "batch_norm"}, "norm: batch_norm"),
        ("GAT", {"jk": "cat"}, "jk: cat"),
        ("GAT", {"norm": "batch_norm", "v2": True}, "norm: batch_norm"),
        ("GAT", {"flow": "target_to_source"}, "more than the edges into it"),
    ],
)
def test_no_trimming_where_it_would_change_the_answer(
    two_hops, caplog, name: str, options: dict[str, Any], reason: str
) -> None:
    with caplog.at_level("INFO"):
        model = GraphSAGE(**SHAPE, dropout=0.0, model=name, model_kwargs=options)
    assert f"{name}: every layer is computed for all nodes" in caplog.text
    assert reason in caplog.text
    assert model.gnn.trimmed.forms is None
    stock = gnn_class(name)(WIDTH, SHAPE["hidden_channels"], 2, CLASSES, dropout=0.0, **options)
    stock.load_state_dict(model.gnn.gnn.state_dict())
    expected = stock(two_hops.x, plain(two_hops.edge_index))[:20]
    torch.testing.assert_close(model(two_hops), expected, rtol=1e-5, atol=1e-6)


def test_any_number_of_layers_for_any_number_of_hops(make_data) -> None:
    batch = one_batch(make_data(num_neighbors=[3, 3, 3]))
    for layers in (1, 2, 4):
        assert GraphSAGE(**SHAPE | {"num_layers": layers})(batch).shape == (20, CLASSES)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.float64])
def test_features_of_any_dtype(make_data, dtype: torch.dtype) -> None:
    batch = one_batch(make_data())
    batch.x = batch.x.to(dtype)
    assert GraphSAGE(**SHAPE)(batch).dtype == torch.float32
    assert GraphSAGE(**SHAPE).double()(batch).dtype == torch.float64


def test_nodes_without_features_learn_an_embedding(make_data) -> None:
    batch = one_batch(make_data())
    del batch.x
    model = GraphSAGE(**SHAPE | {"in_channels": None}, num_nodes=NODES)
    assert model.gnn.encoder.layer.weight.shape == (NODES, 16)
    assert model(batch).shape == (20, CLASSES)


@pytest.mark.parametrize("name", ["EdgeCNN", "GAT", "GIN", "GraphSAGE"])
def test_every_parameter_of_a_heterogeneous_model_gets_a_gradient(make_data, name: str) -> None:
    data = make_data(dataset=learnable_hetero(), batch_size=10)
    batch = one_batch(data)
    model = hetero_model(data, model=name)
    logits = model(batch)
    assert logits.shape == (10, CLASSES)
    logits.sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


def test_heterogeneous_model_leaves_out_what_cannot_reach_the_seeds(make_data) -> None:
    model = hetero_model(make_data(dataset=learnable_hetero()))
    assert set(model.gnn.encoders) == {"author", "paper"}
    by, wrote = ("paper", "by", "author"), ("author", "wrote", "paper")
    assert [layer.edge_types for layer in model.gnn.layers] == [[wrote, by], [by]] or [
        set(layer.edge_types) for layer in model.gnn.layers
    ] == [{by, wrote}, {by}]


@pytest.mark.diagonal
@pytest.mark.parametrize("name", ["EdgeCNN", "GAT", "GIN", "GraphSAGE", "HGT", "RGCN", "TransformerConv"])
@pytest.mark.parametrize("edge_format", ["tensor", "edge_index"])
def test_trimming_a_heterogeneous_batch_leaves_the_seeds_as_they_are(make_data, name: str, edge_format: str) -> None:
    data = make_data(
        dataset=learnable_hetero(),
        undirected=True,
        sampling=SamplingOptions(seed=0),
        batches={"edge_format": edge_format},
    )
    batch = one_batch(data)
    described = {"metadata": data.metadata, "num_nodes": data.num_nodes, "target_type": data.target_type}
    shape = EncoderShape(in_channels=data.num_features, hidden_channels=16, num_layers=2, dropout=0.0, **described)
    encoder = make_encoder(name, {}, shape).eval()
    trimmed = encoder(batch)
    for store in batch.node_stores:  # as if all had been found at once, so that every layer needs all of it
        store.num_sampled_nodes = [store.num_nodes, 0, 0]
    for store in batch.edge_stores:
        store.num_sampled_edges = [store.edge_index.size(1), 0]
        store.edge_index = plain(store.edge_index)
    torch.testing.assert_close(trimmed, encoder(batch), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "trims"),
    [
        ("GATv2Conv", {}, True),
        ("TransformerConv", {}, True),
        ("GraphConv", {}, True),
        ("LEConv", {}, True),
        ("ResGatedGraphConv", {}, True),
        ("GCNConv", {}, True),  # with the degrees in the whole batch
        ("GCNConv", {"flow": "target_to_source"}, False),  # degrees of the neighbours
        ("ChebConv", {"K": 3}, False),  # neighbours of neighbours
        ("TAGConv", {}, False),
        ("RGCN", {"num_relations": 2}, True),
    ],
)
def test_convolutions_by_name_are_trimmed_where_that_is_right(
    two_hops, name: str, options: dict[str, Any], trims: bool
) -> None:
    two_hops = two_hops.clone()
    two_hops.edge_type = torch.arange(two_hops.num_edges) % 2
    shape = EncoderShape(in_channels=WIDTH, hidden_channels=16, num_layers=2, dropout=0.0)
    stack = make_encoder(name, options, shape).eval()
    assert (stack.trimmed.forms is not None) == trims
    out = stack(two_hops)
    two_hops.num_sampled_nodes, two_hops.num_sampled_edges = [two_hops.num_nodes, 0, 0], [two_hops.num_edges, 0]
    torch.testing.assert_close(out, stack(two_hops), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"model": "SAGE"}, OptionError, "expected one of EdgeCNN, GAT, GCN, GIN, GraphSAGE, PNA; got 'SAGE'"),
        ({"out_channels": None}, DataError, r"no class labels.*dataset: \{matrix: a.npz, x: x.npy, y: y.npy\}"),
        ({"num_layers": 0}, OptionError, "num_layers: expected an integer >= 1"),
        (
            {"model": "GAT", "model_kwargs": {"heads": 3}},
            OptionError,
            "GAT with model_kwargs {'heads': 3}: .*divisible",
        ),
        ({"model": "GCN", "model_kwargs": {"cached": True}}, OptionError, "GCN: cached: expected false, got True"),
        ({"in_channels": {"a": 1}}, OptionError, "metadata: needed"),
        ({"in_channels": None}, OptionError, "num_nodes: needed to learn embeddings"),
        ({"metadata": (["a"], [("a", "to", "a")])}, OptionError, "one entry per node type"),
        (
            {"metadata": (["a"], [("a", "to", "a")]), "in_channels": {"a": 1}, "num_nodes": {"a": 1}},
            OptionError,
            "target_type: expected one of a",
        ),
    ],
)
def test_bad_arguments(options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        GraphSAGE(**SHAPE | options)


def test_edges_of_the_first_batch_are_not_kept() -> None:
    shape = EncoderShape(in_channels=WIDTH, hidden_channels=16, num_layers=2, dropout=0.0)
    for name in ("GCNConv", "SGConv"):
        with pytest.raises(
            OptionError, match=f"{name}: cached: expected false, got True: PyG would use the edges of the"
        ):
            make_encoder(name, {"cached": True}, shape)


def test_models_without_a_form_for_two_node_types_say_so(make_data) -> None:
    with pytest.raises(OptionError, match="GCN does not support edges between two node types"):
        hetero_model(make_data(dataset=learnable_hetero()), model="GCN")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"in_channels": WIDTH + 1}, "built for in_channels 9, but the graph has 8 features"),
        ({"out_channels": CLASSES - 1}, "out_channels 2, but the graph has 3 classes"),
    ],
)
def test_model_of_another_graph_is_refused(
    make_data, make_model, make_trainer, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(DataError, match=said):
        make_trainer().fit(make_model(**options), make_data())


def test_batch_of_another_graph_is_refused(make_data) -> None:
    with pytest.raises(DataError, match="has 8 features, but the model was built for 4"):
        GraphSAGE(**SHAPE | {"in_channels": 4})(one_batch(make_data()))
