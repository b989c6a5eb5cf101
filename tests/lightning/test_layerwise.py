"""Outputs of all nodes, layer by layer, are those of a forward pass over the whole graph."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]
import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import GAT, GCN, GIN, GraphNorm, GraphSAGE as PyGSAGE, SAGEConv
from torch_geometric.nn.models.basic_gnn import BasicGNN

from glt_lightning import GLTDataModule, GraphSAGE, LinkPredictor, NodePredictor, predict_layerwise, read_embeddings
from glt_lightning.base import DataError, LayerwiseOptions, OptionError
from glt_lightning.inference.pieces import HubTypes
from glt_lightning.lightning import PredictionWriter
from glt_lightning.lightning.callbacks.prediction_places import StorePlace
from tests.lightning.tiny import CLASSES, NODES, WIDTH, learnable_graph, learnable_hetero

MakeData = Callable[..., GLTDataModule]


class Holding(LightningModule):
    """Any module of a user's that has a model of PyG."""

    def __init__(self, gnn: nn.Module) -> None:
        super().__init__()
        self.gnn = gnn


@pytest.fixture
def embed(make_trainer: Callable[..., Trainer], tmp_path: Path) -> Callable[..., dict[str, np.ndarray]]:
    """Predicts layer by layer and reads what was written."""

    def run(module: LightningModule, data: GLTDataModule, **options: Any) -> dict[str, np.ndarray]:
        trainer = make_trainer(callbacks=[PredictionWriter(str(tmp_path / "sampled"))])
        predict_layerwise(trainer, module, data, tmp_path / "emb", options=options)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["emb", "root"]  # no scratch files, no sampled predictions
        return read_embeddings(tmp_path / "emb")

    return run


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of edges that were added to a node with more of them than are computed together."""
    found: list[int] = []
    add = HubTypes.add

    def noting(self: HubTypes, number: int, rows: Tensor, piece: slice) -> None:
        found.append(len(rows))
        add(self, number, rows, piece)

    monkeypatch.setattr(HubTypes, "add", noting)
    return found


def whole_numbers(gnn: BasicGNN) -> BasicGNN:
    """With which sums are exact in every order."""
    for parameter in gnn.parameters():
        parameter.data = torch.randint(-1, 2, parameter.shape).float()
    return gnn


def whole(gnn: BasicGNN, x: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The forward pass over the whole graph."""
    with torch.no_grad():
        found: Tensor = gnn.eval()(torch.from_numpy(x), torch.from_numpy(edges))
    return found.numpy()


@pytest.fixture(scope="module")
def isolated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small graph with features that are integers, nodes without edges, loops, and a node with edges from all."""
    graph, hub = learnable_graph(), np.stack([np.arange(NODES), np.full(NODES, 7)])
    edges = np.concatenate([graph["edge_index"], hub, np.tile(np.arange(9), (2, 1))], axis=1)
    edges = edges[:, (edges != 11).all(axis=0)]
    x = np.random.default_rng(2).integers(-2, 3, (NODES, WIDTH)).astype(np.float32)
    path = tmp_path_factory.mktemp("isolated") / "g.npz"
    np.savez(path, **graph | {"x": x, "edge_index": edges})
    return path


@pytest.fixture
def at_most(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the number of edges that are computed together; returns further options."""

    def set_(most_edges: int | None = None, **options: Any) -> dict[str, Any]:
        if most_edges is not None:
            monkeypatch.setattr(LayerwiseOptions, "most_edges", most_edges)
        return options

    return set_


CHUNKS = [{"batch_size": 17, "self_check": 0}, {"batch_size": 1000, "most_edges": 100, "memory": 9000}]


@pytest.mark.parametrize("parts", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("options", CHUNKS)
def test_exact_with_whole_numbers(
    isolated: Path, make_data: MakeData, embed: Any, at_most: Any, parts: int, options: dict[str, Any]
) -> None:
    options = at_most(**options)
    graph = np.load(isolated)
    seed_everything(3, verbose=False)
    for gnn in (PyGSAGE(WIDTH, 6, 3, 4, aggr="sum"), GIN(WIDTH, 6, 3, 4)):
        whole_numbers(gnn)
        data = make_data(dataset=str(isolated), partition={"num_parts": parts})
        found = embed(Holding(gnn), data, **options)
        assert found["n_id"].tolist() == list(range(NODES))
        assert np.abs(found["embedding"]).max() < 1 << 24
        np.testing.assert_array_equal(found["embedding"], whole(gnn, graph["x"], graph["edge_index"]))


BY_NODE = {"mode": "node"}
FAMILY = {
    "SAGE": lambda: PyGSAGE(WIDTH, 16, 2, 3, norm="batch_norm"),
    "GAT": lambda: GAT(WIDTH, 16, 2, 3, heads=2, concat=True),
    "GATv2, all layers": lambda: GAT(WIDTH, 16, 2, 3, v2=True, jk="cat"),
    "GCN": lambda: GCN(WIDTH, 16, 2, 3),
    "GCN, without loops": lambda: GCN(
        WIDTH, 16, 2, 3, add_self_loops=False, act_first=True, norm="layer_norm", norm_kwargs=BY_NODE
    ),
}


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.slow if k == "GAT" else ()) for k in FAMILY])
def test_family_of_pyg(
    isolated: Path, make_data: MakeData, embed: Any, at_most: Any, pieces: list[int], kind: str
) -> None:
    graph = np.load(isolated)
    seed_everything(3, verbose=False)
    gnn = FAMILY[kind]()
    data = make_data(dataset=str(isolated), partition={"num_parts": 2})
    found = embed(Holding(gnn), data, **at_most(batch_size=60, most_edges=100))
    np.testing.assert_allclose(found["embedding"], whole(gnn, graph["x"], graph["edge_index"]), rtol=1e-5, atol=1e-6)
    if kind == "SAGE":
        assert not pieces  # their sum is read where they lie
    else:
        assert max(pieces) == 100
        assert sum(pieces) > 2 * NODES  # node 7 in both layers


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_precision_is_the_trainers(
    make_data: MakeData, make_trainer: Any, at_most: Any, tmp_path: Path, precision: str
) -> None:
    seed_everything(3, verbose=False)
    module, found = Holding(GAT(WIDTH, 16, 2, 3)), []
    for each in ("32-true", precision):
        predict_layerwise(
            make_trainer(precision=each), module, make_data(), tmp_path / "emb", options=at_most(most_edges=30)
        )
        found.append(read_embeddings(tmp_path / "emb")["embedding"])
    assert 1e-5 < np.abs(found[1] - found[0]).max() < 0.05


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_ready_module_in_bfloat16_passes_the_self_check(
    make_data: MakeData, make_trainer: Any, tmp_path: Path, precision: str
) -> None:
    """Its probabilities are float32, but what they are computed from is not."""
    data = make_data()
    data.prepare_data()
    data.setup("predict")
    seed_everything(1, verbose=False)
    module = NodePredictor(data.num_features, data.label_facts, encoder="GCN", hidden_channels=16, num_layers=2)
    options = LayerwiseOptions(self_check=NODES)
    predict_layerwise(make_trainer(precision=precision), module, data, tmp_path / "emb", options=options)
    assert len(read_embeddings(tmp_path / "emb")["probability"]) == NODES


def test_samplers_that_aggregate_change_nothing(
    make_data: MakeData, make_model: Any, embed: Any, tmp_path: Path
) -> None:
    module, found = make_model(), []
    for sampling in ({"aggregate_first": "mean"}, {}):
        found.append(embed(module, make_data(sampling=sampling))["embedding"])
        shutil.rmtree(tmp_path / "emb")
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("model", ["GCN", pytest.param("GAT", marks=pytest.mark.slow), "GIN"])
def test_ready_module_gives_what_it_does_over_whole_neighbourhoods(
    make_data: MakeData, make_model: Any, make_trainer: Any, embed: Any, model: str
) -> None:
    module = make_model(model=model, **({"model_kwargs": {"jk": "max"}} if model == "GIN" else {}))
    data = make_data(evaluation={"num_neighbors": [-1, -1, -1]})  # a hop more, for the degrees that GCN reads
    found = embed(module, data, batch_size=100)
    rows = make_trainer().predict(module, data)
    expected = torch.cat([row["logits"] for row in rows]).numpy()
    np.testing.assert_allclose(found["embedding"], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found["pred"], found["embedding"].argmax(axis=1))


@pytest.mark.parametrize(
    "encoder", ["GraphSAGE", *(pytest.param(e, marks=pytest.mark.slow) for e in ("HGT", "RGCN", "GAT"))]
)
def test_typed_graph(
    make_data: MakeData, make_trainer: Any, embed: Any, at_most: Any, pieces: list[int], encoder: str
) -> None:
    """A batch has no more than 3 edges: nodes with more are computed in pieces."""
    data = make_data(dataset=learnable_hetero(), partition={"num_parts": 2}, evaluation={"num_neighbors": [-1, -1]})
    data.prepare_data()
    data.setup("predict")
    described = {"metadata": data.metadata, "num_nodes": data.num_nodes, "target_type": data.target_type}
    seed_everything(1, verbose=False)
    module = NodePredictor(
        data.num_features,
        data.label_facts,
        encoder=encoder,
        hidden_channels=8,
        num_layers=2,
        embeddings=True,
        **described,
    )
    found = embed(module, data, **at_most(batch_size=25, most_edges=3))
    assert len(pieces) > 40
    assert max(pieces) == 3
    rows = make_trainer().predict(module, data)
    for name in ("embedding", "probability"):
        expected = torch.cat([row[name] for row in rows]).numpy()
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6)
    assert found["n_id"].tolist() == list(range(60))


def test_graph_that_names_its_only_type(make_data: MakeData, make_trainer: Any, embed: Any) -> None:
    """Such as tables with one table of nodes, ``nodes: {paper: ...}``: batches are `HeteroData`."""
    plain, named = learnable_graph(), HeteroData()
    named["paper"].x, named["paper"].y = torch.as_tensor(plain["x"]), torch.as_tensor(plain["y"])
    named["paper"].train_mask = torch.arange(NODES) < 100
    named["paper", "cites", "paper"].edge_index = torch.as_tensor(plain["edge_index"])
    data = make_data(dataset=named, evaluation={"num_neighbors": [-1, -1]})
    data.prepare_data()
    data.setup("predict")
    described = {"metadata": data.metadata, "num_nodes": data.num_nodes, "target_type": data.target_type}
    module = NodePredictor(
        data.num_features, data.label_facts, hidden_channels=8, num_layers=2, embeddings=True, **described
    )
    found = embed(module, data, batch_size=25)
    expected = torch.cat([row["embedding"] for row in make_trainer().predict(module, data)]).numpy()
    np.testing.assert_allclose(found["embedding"], expected, rtol=1e-5, atol=1e-6)


def test_both_ends_of_edges_to_predict(make_data: MakeData, embed: Any, tmp_path: Path) -> None:
    splits = {"num_val": 0.1, "num_test": 0.1}
    data = make_data(
        dataset=learnable_hetero(),
        task="link",
        seeds={"input_type": "author__wrote__paper"},
        links={"edge_splits": splits},
        evaluation={"predict_split": "test"},
    )
    data.prepare_data()
    data.setup("predict")
    seed_everything(1, verbose=False)
    described = {"metadata": data.metadata, "num_nodes": data.num_nodes, "edge_type": "author__wrote__paper"}
    module = LinkPredictor(data.num_features, hidden_channels=8, **described)
    found = embed(module, data, batch_size=25)
    assert sorted(set(found["node_type"])) == ["author", "paper"]
    for node_type, count in (("author", 60), ("paper", 80)):
        rows = read_embeddings(tmp_path / "emb", node_type)
        assert rows["n_id"].tolist() == list(range(count))
        assert rows["embedding"].shape == (count, 8)
    with pytest.raises(DataError, match="node_type: expected one of author, paper; got 'journal'"):
        read_embeddings(tmp_path / "emb", "journal")


class OwnLayers(LightningModule):
    """A module that says itself what its layers are."""

    num_layers = 2

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([SAGEConv(WIDTH, 5), SAGEConv(5, CLASSES)])

    def layer(self, k: int, h: Tensor, batch: Any) -> Tensor:
        return self.convs[k](h, batch.edge_index)[: batch.batch_size].relu()

    def forward(self, batch: Any) -> Tensor:
        x = batch.x
        for conv in self.convs:
            x = conv(x, batch.edge_index).relu()
        return x[: batch.batch_size]


class AsPyGDoes(Holding):
    """One layer after the other as `BasicGNN.inference` does, which for GCN is wrong: in a batch of one hop neighbours lack their
    edges, and so have other degrees than in the graph."""

    num_layers = 2

    def layer(self, k: int, h: Tensor, batch: Any) -> Tensor:
        return self.gnn.inference_per_layer(k, h, batch.edge_index, batch.batch_size)

    def forward(self, batch: Any) -> Tensor:
        return self.gnn(batch.x, batch.edge_index)[: batch.batch_size]


def test_module_with_layers_of_its_own(make_data: MakeData, embed: Any) -> None:
    seed_everything(1, verbose=False)
    module, graph = OwnLayers(), learnable_graph()
    x, edges = torch.from_numpy(graph["x"]), torch.from_numpy(graph["edge_index"])
    with torch.no_grad():
        for conv in module.convs:
            x = conv(x, edges).relu()
    np.testing.assert_allclose(embed(module, make_data())["embedding"], x.numpy(), rtol=1e-5, atol=1e-6)


def test_self_check_finds_what_cannot_be_computed_so(make_data: MakeData, embed: Any, tmp_path: Path) -> None:
    seed_everything(1, verbose=False)
    said = "self-check: 'embedding': seed .* layer by layer, but .* by the module's own forward pass. A layer of the module"
    with pytest.raises(DataError, match=said):
        embed(AsPyGDoes(GCN(WIDTH, 8, 2, 3)), make_data())
    assert not (tmp_path / "emb").exists()
    embed(AsPyGDoes(PyGSAGE(WIDTH, 8, 2, 3)), make_data())


def test_refusals(make_data: MakeData, make_model: Any, make_trainer: Any, at_most: Any, tmp_path: Path) -> None:
    def refused(module: Any, said: str, options: Any = None, **trainer: Any) -> None:
        with pytest.raises(OptionError, match=said):
            predict_layerwise(make_trainer(**trainer), module, make_data(), tmp_path / "emb", options=options)
        assert not (tmp_path / "emb").exists()

    refused(Holding(PyGSAGE(WIDTH, 8, 2, 3, norm=GraphNorm(8))), "GraphNorm averages over all nodes of a batch")
    few = at_most(most_edges=5, memory=200)
    said = r"layerwise: node \d+ of 'node' has \d+ edges, more than the 5 that .* layer 0 cannot be .*memory \(200 B\)"
    refused(OwnLayers(), said, options=few)
    refused(Holding(nn.Linear(2, 2)), "Holding offers no layers. Expected num_layers and layer")
    refused(make_model(), "limit_predict_batches and fast_dev_run would leave out nodes", limit_predict_batches=1)
    with pytest.raises(OptionError, match=r"nowhere://bucket/emb: it cannot be opened \(.*nowhere"):
        predict_layerwise(make_trainer(), make_model(), make_data(), "nowhere://bucket/emb")
    with pytest.raises(OptionError, match=r"layerwise.batch_size: expected an integer >= 1, got 0"):
        predict_layerwise(make_trainer(), make_model(), make_data(), tmp_path / "emb", options={"batch_size": 0})


def test_files_of_the_user_refuse_before_the_graph_is_partitioned(
    make_data: MakeData, make_model: Any, make_trainer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "emb").mkdir()
    (tmp_path / "emb" / "data.csv").write_text("of the user")
    with pytest.raises(OptionError, match=r"emb: has data\.csv, which no manifest of predictions lists"):
        predict_layerwise(make_trainer(), make_model(), make_data(), tmp_path / "emb")
    assert [path.name for path in tmp_path.rglob("*")] == ["emb", "data.csv"]
    predict_layerwise(make_trainer(), make_model(), make_data(), tmp_path / "new")
    assert f"embeddings: {tmp_path / 'new'}" in caplog.messages


def test_an_object_store_has_all_or_what_it_had(make_data: MakeData, make_model: Any, make_trainer: Any) -> None:
    url, data, store = "memory://bucket/emb", make_data(), fsspec.filesystem("memory")
    for module in (make_model(hidden_channels=4), make_model()):
        predict_layerwise(make_trainer(), module, data, url)
        found = read_embeddings(url)
        assert found["n_id"].tolist() == list(range(NODES))
        assert sorted(p.rsplit("/")[-1][:4] for p in store.ls("/bucket/emb", detail=False)) == ["_man", "rank"]

    def refuse(*_: Any) -> None:
        raise RuntimeError("the bucket is full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StorePlace, "complete", refuse)
        with pytest.raises(RuntimeError, match="the bucket is full"):
            predict_layerwise(make_trainer(), make_model(hidden_channels=4), data, url)
    assert len(store.ls("/bucket/emb", detail=False)) == 2
    np.testing.assert_array_equal(read_embeddings(url)["embedding"], found["embedding"])
    with pytest.raises(DataError, match=r"memory://bucket/other/_manifest.json: not a valid predictions manifest"):
        read_embeddings("memory://bucket/other")
    store.rm("/bucket", recursive=True)


def test_others_read_the_folder(make_data: MakeData, make_model: Any, embed: Any, tmp_path: Path) -> None:
    """pandas, and DuckDB as SQL."""
    found = embed(make_model(), make_data())
    frame = pd.read_parquet(tmp_path / "emb")
    np.testing.assert_array_equal(np.stack(frame.sort_values("n_id")["embedding"]), found["embedding"])
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed; it is in the extra test")
    query = f"SELECT n_id, embedding[1] FROM '{tmp_path}/emb/*.parquet' WHERE pred = {found['pred'][3]} ORDER BY n_id"
    rows = [row for row in duckdb.sql(query).fetchall() if row[0] == 3]
    assert rows == [(3, pytest.approx(float(found["embedding"][3, 0])))]


def test_weights_come_from_the_checkpoint(
    make_data: MakeData, make_model: Any, make_trainer: Any, tmp_path: Path
) -> None:
    trained, data = make_model(), make_data()
    trainer = make_trainer(max_epochs=1)
    trainer.fit(trained, data)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    fresh: GraphSAGE = make_model()
    predict_layerwise(make_trainer(), fresh, data, tmp_path / "a", ckpt_path=tmp_path / "a.ckpt")
    predict_layerwise(make_trainer(), trained, data, tmp_path / "b")
    np.testing.assert_array_equal(
        read_embeddings(tmp_path / "a")["embedding"], read_embeddings(tmp_path / "b")["embedding"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("name", ["cora", "amazon_computers", "facebook_pages"])
def test_real_graphs(make_data: MakeData, embed: Any, name: str, parts: int) -> None:
    file = Path(os.environ.get("GLT_TEST_DATA", "data"), f"{name}.npz").resolve()
    if not file.exists():
        pytest.skip(f"{file} is not here; set GLT_TEST_DATA to the folder of the reference data sets")
    data = make_data(dataset=str(file), partition={"num_parts": parts}, undirected=False, normalize="none")
    graph = np.load(file)
    x, edges = graph["x"].astype(np.float32), graph["edge_index"].astype(np.int64)
    seed_everything(1, verbose=False)
    for gnn in (PyGSAGE(x.shape[1], 16, 3, 8), GCN(x.shape[1], 16, 3, 8)):
        expected = whole(gnn, x, edges)
        found = embed(Holding(gnn), data, batch_size=2000)["embedding"]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 3])
def test_real_typed_graph(make_data: MakeData, embed: Any, tmp_path: Path, parts: int) -> None:
    file = Path(os.environ.get("GLT_TEST_DATA", "data"), "dblp_hetero.npz").resolve()
    if not file.exists():
        pytest.skip(f"{file} is not here; set GLT_TEST_DATA to the folder of the reference data sets")
    data = make_data(dataset=str(file), partition={"num_parts": parts}, undirected=True)
    data.prepare_data()
    data.setup("predict")
    seed_everything(1, verbose=False)
    described = {"metadata": data.metadata, "num_nodes": data.num_nodes, "target_type": data.target_type}
    shape: dict[str, Any] = {"encoder": "GraphSAGE", "hidden_channels": 16, "num_layers": 3}
    module = NodePredictor(data.num_features, data.label_facts, **shape, **described).eval()
    graph, given = HeteroData(), np.load(file)
    for t, count in data.num_nodes.items():
        graph[t].num_nodes = graph[t].batch_size = count
        graph[t].n_id = torch.arange(count)
        if f"{t}/x" in given:
            graph[t].x = torch.from_numpy(given[f"{t}/x"])
    for src, rel, dst in data.metadata[1]:
        name = f"{src}__{rel}__{dst}/edge_index"
        stored = (
            given[name] if name in given else given[f"{dst}__{rel.removeprefix('rev_')}__{src}/edge_index"][::-1].copy()
        )
        graph[src, rel, dst].edge_index = torch.from_numpy(stored).contiguous()
    with torch.no_grad():
        expected = module.encoder.embed(graph)["author"].numpy()
    found = embed(module, data, batch_size=1000)
    assert found["n_id"].tolist() == list(range(len(expected)))
    np.testing.assert_allclose(found["embedding"], expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
