"""With `eval: layerwise`, validation and test have the metrics of a forward pass over the whole graph."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GraphSAGE as PyGSAGE
from torchmetrics import Accuracy, MeanMetric

from glt_lightning import (
    GLTDataModule,
    GraphSAGE,
    LinkPredictor,
    NodePredictor,
    predict_layerwise,
    rank_links,
    read_embeddings,
)
from glt_lightning.base import OptionError
from glt_lightning.models import link_scores as link_decoders
from tests.lightning.tiny import CLASSES, NODES, WIDTH, learnable_graph, learnable_hetero

MakeData = Callable[..., GLTDataModule]
EXACT: dict[str, Any] = {"evaluation": {"mode": "layerwise", "layerwise": {"batch_size": 70}, "batch_size": 7}}
ALL: dict[str, Any] = {"evaluation": {"num_neighbors": [-1, -1], "batch_size": 7}}


def whole_graph(gnn: Any, split: str) -> tuple[float, float]:
    """(loss, accuracy) of a model's forward pass over the whole graph."""
    graph = learnable_graph()
    at = torch.from_numpy(graph[split])
    with torch.no_grad():
        out = gnn.eval()(torch.from_numpy(graph["x"]), torch.from_numpy(graph["edge_index"]))[at]
    y = torch.from_numpy(graph["y"])[at]
    return float(functional.cross_entropy(out, y)), float((out.argmax(1) == y).float().mean())


class Own(LightningModule):
    """A user's module, which knows nothing of layer-wise inference."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.gnn, self.scale = PyGSAGE(WIDTH, 8, 2, CLASSES), scale
        self.loss, self.acc = MeanMetric(), Accuracy(task="multiclass", num_classes=CLASSES)

    def _out(self, batch: Any) -> tuple[Tensor, Tensor]:
        out = self.gnn(self.scale * batch.x, batch.edge_index)[: batch.batch_size]
        return out, batch.y[: batch.batch_size]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return functional.cross_entropy(*self._out(batch))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        out, y = self._out(batch)
        self.loss(functional.cross_entropy(out, y), len(y))
        self.acc(out, y)
        self.log("loss", self.loss)
        self.log("acc", self.acc)

    test_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 0.01)


def test_metrics_are_those_of_the_whole_graph(
    make_data: MakeData, make_trainer: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What takes longer tells how far it is."""
    monkeypatch.setattr("glt_lightning.base.progress.EVERY_S", 0.0)
    caplog.set_level(logging.INFO, "glt_lightning")
    seed_everything(3, verbose=False)
    module, trainer = Own(), make_trainer()
    for run, split in ((trainer.validate, "valid_idx"), (trainer.test, "test_idx")):
        (found,) = run(module, make_data(partition={"num_parts": 2}, **EXACT), verbose=False)
        loss, acc = whole_graph(module.gnn, split)
        assert found == {"loss": pytest.approx(loss, rel=1e-5), "acc": pytest.approx(acc)}
    assert "forward" not in vars(module.gnn)
    told = [each.getMessage() for each in caplog.records if "layer by layer" in each.getMessage()]
    for title in ("validation", "test"):
        mine = [text for text in told if text.startswith(f"{title}, layer by layer: ")]
        assert len(mine) > 6  # batches of 70 nodes
        assert f"{title}, layer by layer: 100 % of {3 * NODES:,} rows" in mine[-1]  # the inputs and two layers


def test_each_epoch_is_validated_and_the_best_is_kept(make_data: MakeData, make_trainer: Any, tmp_path: Any) -> None:
    seed_everything(3, verbose=False)
    seen: list[tuple[float, float]] = []

    class Noting(Own):
        def on_validation_end(self) -> None:
            seen.append((float(self.trainer.callback_metrics["loss"]), whole_graph(self.gnn, "valid_idx")[0]))
            self.gnn.train()

    best = ModelCheckpoint(str(tmp_path / "best"), monitor="acc", mode="max", save_top_k=1)
    stop = EarlyStopping("loss", patience=50)
    trainer: Trainer = make_trainer(callbacks=[best, stop], enable_checkpointing=True, max_epochs=3)
    module, data = Noting(), make_data(**EXACT)
    trainer.fit(module, data)
    assert len(seen) == 4  # the first is the sanity check, of a few batches
    assert [a for a, _ in seen[1:]] == pytest.approx([b for _, b in seen[1:]], rel=1e-4)
    assert len({round(a, 4) for a, _ in seen[1:]}) == 3
    (found,) = trainer.validate(module, data, ckpt_path="best", verbose=False)
    assert found["acc"] == pytest.approx(float(best.best_model_score))


SHOP: dict[str, Any] = {
    "task": "link",
    "seeds": {"input_type": "author__wrote__paper"},
    "links": {"edge_splits": {"num_val": 0.1, "num_test": 0.1}},
}


def hiding(split: str) -> dict[str, Any]:
    """`SHOP` with edges that batches of a split leave out."""
    return {**SHOP, "links": {**SHOP["links"], "exclude_target_edges": {split: "reverse"}}}


@pytest.mark.parametrize("kind", ["GraphSAGE", "NodePredictor", "typed", "links"])
def test_ready_modules(make_data: MakeData, make_trainer: Any, make_model: Any, kind: str) -> None:
    given: dict[str, Any] = {"dataset": learnable_hetero()} if kind in ("typed", "links") else {}
    given |= SHOP if kind == "links" else {}
    data = make_data(**given, **ALL)
    data.prepare_data()
    data.setup("validate")
    seed_everything(1, verbose=False)
    if kind == "NodePredictor":
        module: Any = NodePredictor(WIDTH, data.label_facts, encoder="GAT", hidden_channels=8, num_layers=2)
    elif kind == "GraphSAGE":
        module = make_model(model_kwargs={"jk": "cat"})
    else:
        described = {"metadata": data.metadata, "num_nodes": data.num_nodes}
        if kind == "links":
            module = LinkPredictor(data.num_features, hidden_channels=8, edge_type=data.link_type, **described)
        else:
            module = GraphSAGE(data.num_features, CLASSES, 8, 2, target_type=data.target_type, **described)
    (expected,) = make_trainer().validate(module, data, verbose=False)
    (found,) = make_trainer().validate(module, make_data(**given, **EXACT), verbose=False)
    assert found == {name: pytest.approx(value, rel=1e-5) for name, value in expected.items()}


@pytest.mark.parametrize("decoder", ["dot", "mlp"])
def test_links_are_ranked_among_all_destinations(
    make_data: MakeData, make_trainer: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, decoder: str
) -> None:
    monkeypatch.setattr(link_decoders, "_VALUES", 1000)
    data = make_data(dataset=learnable_hetero(), partition={"num_parts": 2}, **SHOP, **EXACT)
    data.prepare_data()
    data.setup("test")
    seed_everything(1, verbose=False)
    described = {"metadata": data.metadata, "num_nodes": data.num_nodes, "edge_type": data.link_type}
    shape: dict[str, Any] = {"hidden_channels": 8, "num_layers": 2, "decoder": decoder}
    module = LinkPredictor(data.num_features, ranking=["hits@5", "mrr@10"], **shape, **described)
    (found,) = make_trainer().test(module, data, verbose=False)
    predict_layerwise(make_trainer(), module, data, tmp_path / "emb")
    ends = [read_embeddings(tmp_path / "emb", t)["embedding"] for t in ("author", "paper")]
    data.setup("test")
    test, train = (data.edges_of(split, ("author", "wrote", "paper")) for split in ("test", "train"))
    assert test is not None
    score = module.decoder.all_pairs
    expected = rank_links(*ends, test, known=train, metrics=["hits@5", "mrr@10"], score=score)
    assert {name: found[f"test_rank_{name}"] for name in expected} == pytest.approx(expected)
    assert 0 < found["test_rank_mrr@10"] < 1
    for command in ("fit", "validate", "test"):  # not after the training
        with pytest.raises(OptionError, match=r"model.ranking: ranks among the embeddings of all nodes"):
            getattr(make_trainer(), command)(module, datamodule=make_data(dataset=learnable_hetero(), **SHOP))


def test_a_step_that_calls_something_else_is_refused(make_data: MakeData, make_trainer: Any) -> None:
    class Elsewhere(Own):
        def _out(self, batch: Any) -> tuple[Tensor, Tensor]:
            return nn.functional.linear(batch.x, torch.ones(CLASSES, WIDTH)), batch.y

    with pytest.raises(OptionError, match=r"Elsewhere.test_step did not call GraphSAGE.forward"):
        make_trainer().test(Elsewhere(), make_data(**EXACT))
    with pytest.raises(OptionError, match=r"calls GraphSAGE with something else than batch.x"):
        make_trainer().test(Own(scale=2.0), make_data(**EXACT))
    with pytest.raises(OptionError, match=r"data.batches.transform changes sampled batches"):
        make_trainer().test(Own(), make_data(batches={"transform": "torch_geometric.transforms.ToUndirected"}, **EXACT))
    with pytest.raises(OptionError, match=r"evaluation.mode: expected sampled, layerwise; got 'exact'"):
        make_data(evaluation={"mode": "exact"})
    links = make_data(dataset=learnable_hetero(), **hiding("val"), **EXACT)
    links.prepare_data()
    links.setup("validate")
    module = LinkPredictor(
        links.num_features,
        hidden_channels=8,
        num_layers=1,
        edge_type=links.link_type,
        metadata=links.metadata,
        num_nodes=links.num_nodes,
    )
    with pytest.raises(
        OptionError, match=r"data.links.exclude_target_edges: val: reverse: each batch would pass other messages"
    ):
        make_trainer().validate(module, links)
    hidden = make_data(dataset=learnable_hetero(), **hiding("test"), **EXACT)
    with pytest.raises(OptionError, match=r"data.links.exclude_target_edges: test: reverse"):  # not after the training
        make_trainer().fit(module, hidden)
