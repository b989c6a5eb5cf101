"""Encoders that read attributes and weights of edges give what PyG's stock layers give over the whole graph."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import seed_everything
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import GAT, GCN, PNA, GATConv, GATv2Conv, GraphConv, HeteroConv, conv as pyg_convs

from glt_lightning import GLTDataModule, GraphSAGE, NodePredictor, SamplingOptions, predict_layerwise, read_embeddings
from glt_lightning.base import DataError, LayerwiseOptions, OptionError
from glt_lightning.cli import main
from glt_lightning.loader import fuse_layers, plain
from glt_lightning.loader.convs import with_self_loops
from glt_lightning.models.edges import WeightedSAGE, edge_values_of
from glt_lightning.models.encoders import EncoderShape, make_encoder
from glt_lightning.models.layers import make_conv
from tests.lightning.tiny import CLASSES, NODES, SHAPE, WIDTH, learnable_graph, learnable_hetero

COLUMNS = 3
ALL = [-1, -1]
FACTS = {"width": COLUMNS, "weight": True, "num_categories": []}


@pytest.fixture(scope="module")
def with_edges(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small graph with attributes and weights of edges, loops, parallel edges, and a node with edges from all."""
    graph, rng = learnable_graph(), np.random.default_rng(1)
    hub, loops = np.stack([np.arange(NODES), np.full(NODES, 7)]), np.tile(np.arange(9), (2, 2))
    edges = np.concatenate([graph["edge_index"], hub, loops], axis=1)
    attr = rng.normal(size=(edges.shape[1], COLUMNS)).astype(np.float32)
    weight = rng.uniform(0.2, 2, edges.shape[1]).astype(np.float32)
    path = tmp_path_factory.mktemp("edges") / "g.npz"
    np.savez(path, **graph | {"edge_index": edges, "edge_attr": attr, "edge_weight": weight})
    return path


def first_batch(data: GLTDataModule) -> Any:
    data.prepare_data()
    data.setup()
    batch = next(iter(data.train_dataloader())).clone()
    data.teardown()
    return batch


def stock_family(name: str, options: dict[str, Any]) -> nn.Module:
    arguments = (WIDTH, 16, 2, 16)
    if name == "GraphSAGE":
        found = fuse_layers(nn.ModuleList([GraphConv(w, 16, aggr=options.get("aggr", "mean")) for w in (WIDTH, 16)]))
        return found
    if name == "PNA":
        own = {"aggregators": ["mean", "min", "max", "std"], "scalers": ["identity", "amplification", "attenuation"]}
        options = own | options | {"deg": torch.tensor(options["deg"])}
    made: dict[str, Any] = {"GAT": GAT, "PNA": PNA, "GCN": GCN}
    return made[name](*arguments, **options | ({} if name == "GCN" else {"edge_dim": COLUMNS}))


def as_graph_conv(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        k.replace("convs.", "").replace("lin_l", "lin_rel").replace("lin_r.", "lin_root."): v for k, v in state.items()
    }


def whole_family(name: str, stock: Any, x: Tensor, edges: Tensor, attr: Tensor, weight: Tensor) -> Tensor:
    """The encoder's forward pass over the whole graph, by layers of PyG alone."""
    if name == "GraphSAGE":
        for conv in stock[:-1]:
            x = conv(x, edges, weight).relu()
        return stock[-1](x, edges, weight).relu()
    given = {"edge_weight": weight} if name == "GCN" else {"edge_attr": attr}
    return stock(x, edges, **given).relu()


FAMILY = [
    ("GAT", {}),
    ("GAT", {"v2": True, "heads": 2}),
    ("GAT", {"add_self_loops": False}),
    ("GAT", {"fill_value": 0.5}),
    ("GCN", {}),
    ("GCN", {"improved": True}),
    ("GCN", {"add_self_loops": False}),
    ("GCN", {"normalize": False}),
    ("PNA", {"deg": [3, 5, 9]}),
    ("GraphSAGE", {}),
    ("GraphSAGE", {"aggr": "sum"}),
    ("GraphSAGE", {"aggr": "max"}),
]


@pytest.mark.parametrize(("name", "options"), FAMILY)
@pytest.mark.parametrize("form", ["tensor", "edge_index"])
def test_family_over_a_batch_is_the_stock_model_over_the_graph(
    make_data: Callable[..., GLTDataModule], with_edges: Path, name: str, options: dict[str, Any], form: str
) -> None:
    seed_everything(0, verbose=False)
    data = make_data(
        dataset=str(with_edges), num_neighbors=ALL, partition={"num_parts": 2}, batches={"edge_format": form}
    )
    shape = EncoderShape(in_channels=WIDTH, hidden_channels=16, num_layers=2, dropout=0.0, edge_facts=data.edge_facts)
    ours = make_encoder(name, options, shape).double().eval()
    stock = stock_family(name, options).double().eval()
    state = ours.gnn.state_dict()
    stock.load_state_dict(as_graph_conv(state) if name == "GraphSAGE" else state)
    batch, graph = first_batch(data), np.load(with_edges)
    inputs = (torch.from_numpy(graph[key]) for key in ("x", "edge_index", "edge_attr", "edge_weight"))
    expected = whole_family(name, stock, *(each.double() if each.is_floating_point() else each for each in inputs))
    if name != "GCN":  # whose degrees of the outer nodes are in no batch
        torch.testing.assert_close(ours(batch), expected[batch.n_id[:20]], rtol=1e-6, atol=1e-7)
    everything = as_batch(graph)
    found = ours(everything)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    pairs = [
        torch.autograd.grad(out.square().sum(), list(module.parameters()))
        for out, module in ((found, ours.gnn), (expected, stock))
    ]
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def as_batch(graph: Any) -> Any:
    """The whole graph as a batch whose seeds are all nodes, with edges in the user's order."""
    from torch_geometric.data import Data

    given = {key: torch.from_numpy(graph[key]) for key in ("x", "edge_index", "edge_attr", "edge_weight")}
    batch = Data(**given)
    batch.batch_size = NODES
    return batch


CONVS = [
    ("GATConv", {"heads": 2}),
    ("GATv2", {}),
    ("GINE", {}),
    ("TransformerConv", {"heads": 2}),
    ("NNConv", {}),
    ("CGConv", {}),
    ("GENConv", {"norm": None, "num_layers": 1}),
    ("ResGatedGraphConv", {}),
    ("GeneralConv", {}),
    ("GMMConv", {"kernel_size": 2}),
    ("PDNConv", {"hidden_channels": 4}),
    ("GraphConv", {}),
    ("LEConv", {}),
    ("TAGConv", {}),
]


def edge_name(name: str) -> str:
    return name if name.endswith("Conv") else f"{name}Conv"


@pytest.mark.parametrize(("name", "options"), CONVS)
def test_stock_convolutions(
    make_data: Callable[..., GLTDataModule], with_edges: Path, name: str, options: dict[str, Any]
) -> None:
    """A stack of ours is a loop over PyG's layers, which get what they read by its name."""
    seed_everything(0, verbose=False)
    data = make_data(dataset=str(with_edges), num_neighbors=ALL)
    shape = EncoderShape(in_channels=WIDTH, hidden_channels=8, num_layers=2, dropout=0.0, edge_facts=data.edge_facts)
    ours, graph = make_encoder(name, options, shape).double().eval(), np.load(with_edges)
    everything, batch = as_batch(graph), first_batch(data)
    reads = edge_values_of(edge_name(name))
    assert reads in ("edge_attr", "edge_weight")
    x = ours.encoder("node", everything)
    values = {reads: everything[reads].double()}
    for fused in ours.convs:
        conv = make_conv(edge_name(name), 8, options, two_types=False, edges=ours.edges.input).double().eval()
        conv.load_state_dict(fused.state_dict())
        x = conv(x, everything.edge_index, **values).relu()
    torch.testing.assert_close(ours(everything), x, rtol=1e-6, atol=1e-7)
    if ours.trimmed.forms is not None:
        torch.testing.assert_close(ours(batch), x[batch.n_id[:20]], rtol=1e-6, atol=1e-7)
    everything[reads] = everything[reads].flip(0)
    assert not torch.allclose(ours(everything), x)


def hetero_with_edges() -> HeteroData:
    graph, drawn = learnable_hetero(), torch.Generator().manual_seed(2)
    for edge_type, width in ((("paper", "by", "author"), 2), (("author", "wrote", "paper"), 4)):
        number = graph[edge_type].edge_index.size(1)
        graph[edge_type].edge_attr = torch.randn(number, width, generator=drawn)
        graph[edge_type].edge_weight = torch.rand(number, generator=drawn) + 0.5
    return graph


TYPED: list[tuple[str, Callable[[int], Any]]] = [
    ("GATConv", lambda w: GATConv((8, 8), 8, edge_dim=w or None, add_self_loops=False, concat=False)),
    ("GATv2Conv", lambda w: GATv2Conv((8, 8), 8, edge_dim=w or None, add_self_loops=False, concat=False)),
    ("TransformerConv", lambda w: pyg_convs.TransformerConv((8, 8), 8, edge_dim=w or None, concat=False)),
    ("GraphConv", lambda w: GraphConv((8, 8), 8)),
]


@pytest.mark.parametrize(("name", "make"), TYPED)
def test_typed_graph_is_pygs_hetero_conv(make_data: Callable[..., GLTDataModule], name: str, make: Any) -> None:
    seed_everything(0, verbose=False)
    graph = hetero_with_edges()
    data = make_data(dataset=graph, num_neighbors=ALL, partition={"num_parts": 2})
    model = NodePredictor(
        data.num_features, data.label_facts, encoder=name, hidden_channels=8, num_layers=2, **described(data)
    ).double()
    ours = model.eval().encoder
    x = {t: encoder(t, whole_store(graph, t)) for t, encoder in ours.encoders.items()}
    reads = edge_values_of(name)
    for layer in ours.layers:
        convs = {}
        for edge_type, conv in zip(layer.edge_types, layer.convs, strict=True):
            convs[edge_type] = stock = make(
                graph[edge_type].edge_attr.size(1) if "edge_attr" in graph[edge_type] else 0
            )
            stock.double().load_state_dict(conv.state_dict())
        edges = {e: graph[e].edge_index for e in layer.edge_types}
        given = {e: graph[e][reads].double() for e in layer.edge_types if reads in graph[e]}
        out = HeteroConv(convs, aggr="sum")(x, edges, **{f"{reads}_dict": given})
        x |= {t: rows.relu() for t, rows in out.items()}
    batch = first_batch(data)
    seeds = batch["author"].n_id[: batch["author"].batch_size]
    torch.testing.assert_close(ours(batch), x["author"][seeds], rtol=1e-6, atol=1e-7)
    assert any("edge" in key for key in ours.state_dict()) == (name != "GraphConv")


def described(data: GLTDataModule) -> dict[str, Any]:
    names = ("metadata", "num_nodes", "target_type", "edge_facts")
    return {name: getattr(data, name) for name in names}


def whole_store(graph: HeteroData, node_type: str) -> Any:
    store = graph[node_type].clone()
    store.n_id = torch.arange(store.num_nodes)
    return store


def test_facts_are_the_same_before_and_after_partitioning(make_data: Callable[..., GLTDataModule]) -> None:
    data = make_data(dataset=hetero_with_edges(), undirected=True, partition={"storage": {"edge_attr": "int8"}})
    facts = {"width": 2, "weight": True, "num_categories": []}
    expected = {"paper__by__author": facts, "author__rev_by__paper": facts}
    before = data.edge_facts
    assert before is not None
    assert {name: before[name] for name in expected} == expected
    assert before["author__wrote__paper"]["width"] == 4
    assert "author__reads__journal" not in before
    data.prepare_data()
    data.setup()
    assert data.edge_facts == before
    data.teardown()


@pytest.mark.diagonal
@pytest.mark.parametrize(
    ("model", "options"),
    [("GAT", {}), ("GAT", {"v2": True}), ("GCN", {"improved": True}), ("GraphSAGE", {}), ("PNA", {"deg": [3, 5, 9]})],
)
@pytest.mark.parametrize("most_edges", [50, 100000])
def test_layer_by_layer(
    make_data: Callable[..., GLTDataModule],
    make_trainer: Any,
    with_edges: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    options: dict[str, Any],
    most_edges: int,
) -> None:
    """The outputs of all nodes, and of the node with more edges than are computed together, are those over the whole graph."""
    monkeypatch.setattr(LayerwiseOptions, "most_edges", most_edges)
    seed_everything(0, verbose=False)
    data = make_data(dataset=str(with_edges), partition={"num_parts": 2})
    module = GraphSAGE(**SHAPE, model=model, model_kwargs=options, edge_facts=data.edge_facts).eval()
    assert module.gnn.edges is not None
    predict_layerwise(make_trainer(), module, data, tmp_path / "emb", options={"batch_size": 33})
    found = read_embeddings(tmp_path / "emb")
    with torch.no_grad():
        expected = module(as_batch(np.load(with_edges)))
    np.testing.assert_allclose(found["embedding"], expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("encoder", ["GATConv", "SAGEConv", "GraphSAGE"])
def test_typed_layer_by_layer(
    make_data: Callable[..., GLTDataModule], make_trainer: Any, tmp_path: Path, monkeypatch: Any, encoder: str
) -> None:
    monkeypatch.setattr(LayerwiseOptions, "most_edges", 6)
    seed_everything(0, verbose=False)
    data = make_data(
        dataset=hetero_with_edges(),
        num_neighbors=ALL,
        batch_size=60,
        seeds={"splits": {"train": list(range(60))}},
        partition={"allow": ["overlapping_splits"]},
    )
    module = NodePredictor(
        data.num_features, data.label_facts, encoder=encoder, hidden_channels=8, num_layers=2, **described(data)
    ).eval()
    assert set(module.encoder.edges) == {"paper__by__author", "author__wrote__paper"}
    batch = first_batch(data)
    predict_layerwise(make_trainer(), module, data, tmp_path / "emb", options={"batch_size": 33})
    found = read_embeddings(tmp_path / "emb")
    with torch.no_grad():
        expected = module.embed(batch)[batch["author"].n_id[:60].argsort()]
    np.testing.assert_allclose(found["embedding"], expected.numpy(), rtol=1e-4, atol=1e-5)


def test_gradients_by_finite_differences() -> None:
    drawn = torch.Generator().manual_seed(0)
    edges = torch.randint(6, (2, 20), generator=drawn)
    edges = edges[:, edges[1].argsort(stable=True)]
    x, weight, attr = (torch.randn(*s, generator=drawn).double().requires_grad_() for s in ((6, 4), (20,), (20, 2)))
    torch.manual_seed(0)
    for aggr in ("mean", "sum", "max"):
        sage = fuse_layers(WeightedSAGE(4, 3, aggr=aggr).double())
        torch.autograd.gradcheck(lambda x, w, conv=sage: conv(x, edges, w), (x, weight))
    gat = fuse_layers(GATConv(4, 3, edge_dim=2, add_self_loops=False).double())

    def attend(x: Tensor, attr: Tensor) -> Tensor:
        looped, values = with_self_loops(edges, 6, attr)
        return gat(torch.cat([x, x[-1:]]), looped, values)[:-1]

    torch.autograd.gradcheck(attend, (x, attr))


@pytest.mark.parametrize("model", ["GAT", "GraphSAGE"])
def test_same_bits_over_parts_and_processes(
    make_data: Callable[..., GLTDataModule], with_edges: Path, tmp_path: Path, model: str
) -> None:
    outputs = []
    for parts, workers in ((1, 0), (3, 0), (2, 1)):
        sampling = SamplingOptions(num_workers=workers, seed=5)
        data = make_data(dataset=str(with_edges), partition={"num_parts": parts}, sampling=sampling)
        seed_everything(0, verbose=False)
        outputs.append(GraphSAGE(**SHAPE, model=model, edge_facts=data.edge_facts).eval()(first_batch(data)))
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def test_labels_that_edges_alone_tell(
    make_data: Callable[..., GLTDataModule], make_trainer: Any, tmp_path: Path
) -> None:
    """A node's class is the column that its in-edges have most of; x is the same everywhere. Without edges: a guess."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, NODES)
    edges = np.stack([rng.integers(0, NODES, 6 * NODES), np.tile(np.arange(NODES), 6)])
    attr = rng.normal(size=(edges.shape[1], CLASSES)).astype(np.float32)
    attr[np.arange(edges.shape[1]), y[edges[1]]] += 2
    order = rng.permutation(NODES)
    splits = {"train_idx": order[:120], "valid_idx": order[120:160], "test_idx": order[160:]}
    np.savez(tmp_path / "g.npz", x=np.ones((NODES, 2), np.float32), y=y, edge_index=edges, edge_attr=attr, **splits)
    found = {}
    for features in (None, []):
        data = make_data(dataset=str(tmp_path / "g.npz"), num_neighbors=[-1])
        seed_everything(0, verbose=False)
        model = NodePredictor(
            data.num_features,
            data.label_facts,
            encoder="GINE" if features is None else "GAT",
            hidden_channels=16,
            num_layers=1,
            dropout=0.0,
            lr=0.02,
            edge_facts=data.edge_facts,
            edge_features=features,
        )
        trainer = make_trainer(max_epochs=30)
        trainer.fit(model, data)
        found[str(features)] = trainer.test(model, data, verbose=False)[0]["test_acc"]
    reachable = (np.stack([attr[edges[1] == n].sum(0) for n in range(NODES)]).argmax(1) == y)[order[160:]].mean()
    assert reachable > 0.95
    assert found["None"] > reachable - 0.1
    assert found["[]"] < 0.55


TABLES = """
model:
  class_path: glt_lightning.NodePredictor
  init_args: {encoder: TransformerConv, hidden_channels: 8, num_layers: 1, lr: 0.02}
trainer: {max_epochs: 2, enable_progress_bar: false, enable_model_summary: false, logger: false, accelerator: cpu}
data:
  class_path: glt_lightning.GLTDataModule
  init_args:
    num_neighbors: [-1]
    batch_size: 16
    dataset:
      nodes: {path: nodes.csv, id: id, label: label, split: fold, features: [size]}
      edges:
        path: edges.csv
        source: a
        destination: b
        features: [amount, place]
        encode: {amount: number, place: {as: code}}
"""


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    nodes = [f"n{i},{'ab'[i % 2]},{('train', 'val', 'test')[i % 3]},{i}" for i in range(60)]
    edges = [f"n{s},n{d},{s * d % 7}.5,{'xyzw'[(s + d) % 4]}" for s, d in rng.integers(0, 60, (300, 2))]
    (tmp_path / "nodes.csv").write_text("\n".join(["id,label,fold,size", *nodes]) + "\n")
    (tmp_path / "edges.csv").write_text("\n".join(["a,b,amount,place", *edges]) + "\n")
    (tmp_path / "c.yaml").write_text(TABLES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_tables_with_categories_of_edges_in_yaml_alone(tables: Path) -> None:
    main(["fit", "--config", "c.yaml"])
    (checkpoint,) = tables.glob("**/best.ckpt")
    saved = torch.load(checkpoint, weights_only=True)
    assert saved["hyper_parameters"]["edge_facts"] == {"width": 1, "weight": False, "num_categories": [6]}
    codes = saved["state_dict"]["encoder.edges.codes.columns.0.weight"]
    assert codes.shape == (6, 8)
    assert codes[0].eq(0).all()
    main(["test", "--config", "c.yaml", "--ckpt_path", str(checkpoint)])
    main(["embed", "--config", "c.yaml", "--ckpt_path", str(checkpoint)])


@pytest.mark.slow
def test_a_checkpoint_of_before_reads_nothing_of_edges(tables: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Checkpoints of earlier releases have no edge_facts among their hyperparameters."""
    off = ["--model.init_args.edge_features=[]"]
    main(["fit", "--config", "c.yaml", *off])
    (path,) = tables.glob("**/best.ckpt")
    saved = torch.load(path, weights_only=True)
    assert not [key for key in saved["state_dict"] if "edge" in key]
    for name in ("edge_facts", "edge_features"):
        del saved["hyper_parameters"][name]
    torch.save(saved, tables / "old.ckpt")
    main(["test", "--config", "c.yaml", "--ckpt_path", "old.ckpt"])
    main(["fit", "--config", "c.yaml", "--ckpt_path", "old.ckpt", "--trainer.max_epochs", "3"])
    again = max(tables.glob("**/last*.ckpt"), key=lambda each: each.stat().st_mtime)
    assert torch.load(again, weights_only=True)["hyper_parameters"]["edge_facts"] is None
    main(["test", "--config", "c.yaml", "--ckpt_path", str(again)])


def test_no_attribute_of_a_target_is_in_its_batch(make_data: Callable[..., GLTDataModule], tmp_path: Path) -> None:
    """Edges to predict and their reverses carry no message, and so no attribute, in training; held out ones are not stored."""
    graph = learnable_graph()
    edges = np.unique(np.sort(graph["edge_index"], axis=0), axis=1)
    edges = edges[:, edges[0] < edges[1]]
    number = np.arange(edges.shape[1], dtype=np.float32)[:, None]
    np.savez(tmp_path / "g.npz", x=graph["x"], edge_index=edges, edge_attr=number)
    data = make_data(
        dataset=str(tmp_path / "g.npz"),
        task="link",
        undirected=True,
        num_neighbors=ALL,
        links={"edge_splits": {"num_val": 0.2, "num_test": 0.2}},
    )
    of_pair = {(a, b): n for n, (a, b) in enumerate(edges.T.tolist())}
    data.prepare_data()
    data.setup()
    kept = set()
    for loader in (data.train_dataloader(), data.test_dataloader()):
        for batch in loader:
            ends = batch.n_id[batch.edge_label_index[:, batch.edge_label > 0]].sort(dim=0).values.T.tolist()
            targets = {of_pair[a, b] for a, b in ends}
            seen = set(batch.edge_attr.flatten().long().tolist())
            assert not targets & seen
            kept |= seen
            shown = batch.n_id[plain(batch.edge_index)].sort(dim=0).values.T.tolist()
            assert [of_pair[a, b] for a, b in shown] == batch.edge_attr.flatten().long().tolist()
    assert len(kept) > 100
    data.teardown()


SHAPE_OF = {"in_channels": WIDTH, "hidden_channels": 8, "num_layers": 2, "dropout": 0.0}


@pytest.mark.parametrize(
    ("encoder", "facts", "options", "said"),
    [
        (
            "GINE",
            {"width": None, "weight": True, "num_categories": []},
            {},
            "GINEConv needs edge_attr, and the edges have none",
        ),
        ("NNConv", None, {}, "NNConv needs edge_attr"),
        ("GCN", FACTS, {"edge_features": ["edge_attr"]}, "edge_features: GCN does not read edge_attr; GAT, "),
        ("GAT", FACTS, {"edge_features": ["edge_weight"]}, "edge_features: GAT does not read edge_weight; GraphSAGE, "),
        ("HGT", FACTS, {"edge_features": "edge_attr"}, "HGT is for graphs with several"),
        (
            "GAT",
            FACTS,
            {"edge_features": ["rating"]},
            r"edge_features: expected a list with any of edge_attr and edge_weight; got",
        ),
        ("GAT", None, {"edge_features": ["edge_attr"]}, "the edges of this graph have no edge_attr"),
        ("GAT", {"a__to__b": FACTS}, {}, "given by edge type, and metadata is None"),
    ],
)
def test_what_does_not_fit_is_one_line(encoder: str, facts: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said) as error:
        make_encoder(encoder, {}, EncoderShape(**SHAPE_OF, edge_facts=facts, **options))
    assert "\n" not in str(error.value)


def test_another_edge_dim_is_refused() -> None:
    with pytest.raises(OptionError, match=r"edge_dim: edges of type node__to__node have 3 columns; got 5. Remove it"):
        make_encoder("GATv2Conv", {"edge_dim": 5}, EncoderShape(**SHAPE_OF, edge_facts=FACTS))


@pytest.mark.parametrize(
    ("encoder", "said"),
    [
        ("GraphSAGE", "encoder: GraphSAGE does not read edge_attr, which edges of this graph have; GAT, GATv2Conv"),
        ("GIN", "encoder: GIN does not read edge_attr and edge_weight"),
        ("GAT", "encoder: GAT does not read edge_weight, which edges of this graph have; GraphSAGE"),
    ],
)
def test_what_is_not_read_is_said_once(caplog: pytest.LogCaptureFixture, encoder: str, said: str) -> None:
    with caplog.at_level(logging.INFO):
        make_encoder(encoder, {}, EncoderShape(**SHAPE_OF, edge_facts=FACTS))
    (line,) = [each.getMessage() for each in caplog.records if "does not read" in each.getMessage()]
    assert line.startswith(said)


def test_batches_without_what_the_model_reads(with_edges: Path) -> None:
    batch = as_batch(np.load(with_edges))
    encoder = make_encoder("GAT", {}, EncoderShape(**SHAPE_OF, edge_facts=FACTS))
    batch.edge_attr = batch.edge_attr[:, :2]
    with pytest.raises(
        DataError, match="edge_attr of edge type 'node__to__node' has 2 columns, but the model was built for 3"
    ):
        encoder(batch)
    del batch.edge_attr
    with pytest.raises(DataError, match="the model reads it, and the batch has none"):
        encoder(batch)


def test_a_model_of_other_edges_is_refused(
    make_data: Callable[..., GLTDataModule], make_model: Any, make_trainer: Any, with_edges: Path
) -> None:
    model = make_model(model="GAT", edge_facts=FACTS | {"width": 2})
    with pytest.raises(DataError, match=r"built for edge_facts .*'width': 2.*, but the graph has .*'width': 3"):
        make_trainer().fit(model, make_data(dataset=str(with_edges)))


def test_an_aggregated_first_layer_is_refused_with_weights(
    make_data: Callable[..., GLTDataModule], make_model: Any, make_trainer: Any, with_edges: Path
) -> None:
    data = make_data(dataset=str(with_edges), sampling=SamplingOptions(aggregate_first="mean"))
    with pytest.raises(OptionError, match=r"GraphSAGE takes no aggregates.*edge_weight"):
        make_trainer().fit(make_model(edge_facts=data.edge_facts), data)
    make_trainer(max_epochs=1).fit(make_model(edge_facts=data.edge_facts, edge_features=[]), data)


def test_weights_by_which_neighbours_are_drawn_are_read_once(
    make_data: Callable[..., GLTDataModule], with_edges: Path
) -> None:
    for sampling, weight in (({"weight_attr": "edge_weight"}, False), ({}, True)):
        data = make_data(dataset=str(with_edges), sampling=sampling)
        assert data.edge_facts == FACTS | {"weight": weight}
        assert data.partition.weights == [*sampling.values()]
    walks = {"importance_neighbors": {"walks": 5, "length": 2}}
    assert make_data(dataset=str(with_edges), sampling=walks).edge_facts is None
