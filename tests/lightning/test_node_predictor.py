"""`NodePredictor`: tasks that labels suggest, encoders by name, class weights, metrics, and what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from glt_lightning import GLTDataModule, NodePredictor, PredictionWriter
from glt_lightning.base import DataError, OptionError
from glt_lightning.lightning import BestCheckpoint, read_predictions
from glt_lightning.models.gnn import EdgeTypeLayer
from glt_lightning.models.layers import make_conv
from glt_lightning.models.tasks import make_task, update_metric
from tests.lightning.tiny import CLASSES, NODES, learnable_graph, learnable_hetero

FACTS: dict[str, Any] = {"kind": "int", "width": None, "num_classes": CLASSES, "class_names": None}


def graph_with(y: np.ndarray, **further: Any) -> Data:
    """The small graph with other labels."""
    arrays = learnable_graph()
    data = Data(
        x=torch.from_numpy(arrays["x"]), edge_index=torch.from_numpy(arrays["edge_index"]), y=torch.from_numpy(y)
    )
    for name, key in (("train_mask", "train_idx"), ("val_mask", "valid_idx"), ("test_mask", "test_idx")):
        mask = torch.zeros(NODES, dtype=torch.bool)
        mask[arrays[key]] = True
        data[name] = mask
    return data.update(further)


def predictor(data: GLTDataModule, **options: Any) -> NodePredictor:
    described = {"metadata": data.metadata, "num_nodes": data.num_nodes, "target_type": data.target_type}
    shape = {"hidden_channels": 16, "num_layers": 2, "lr": 0.02, "dropout": 0.0}
    return NodePredictor(data.num_features, data.label_facts, **shape | described | options)


def one_batch(data: GLTDataModule) -> Data | HeteroData:
    data.prepare_data()
    data.setup()
    batch = next(iter(data.train_dataloader()))
    data.teardown()
    return batch


COMMUNITY = learnable_graph()["y"]
ONE_HOT = np.eye(CLASSES, dtype=np.int64)[COMMUNITY]
TASKS = {
    "multiclass": (COMMUNITY, "acc", 0.6),
    "binary": ((COMMUNITY == 0).astype(np.int64), "auc", 0.7),
    "multilabel": (ONE_HOT.astype(bool), "micro_f1", 0.6),
    "regression": (COMMUNITY.astype(np.float32) * 1000 + 7e5, "r2", 0.3),
}


@pytest.mark.parametrize("task", TASKS)
def test_labels_suggest_the_task_and_it_is_learned(make_data, make_trainer, tmp_path, task: str) -> None:
    y, metric, least = TASKS[task]
    data = make_data(dataset=graph_with(y))
    model = predictor(data, embeddings=True)
    assert model.task.name == task
    trainer = make_trainer(max_epochs=10, callbacks=[PredictionWriter(str(tmp_path / "out"))])
    trainer.fit(model, data)
    assert trainer.callback_metrics["val_loss"].isfinite()
    (tested,) = trainer.test(model, data, verbose=False)
    assert tested[f"test_{metric}"] > least
    trainer.predict(model, data)
    written = read_predictions(tmp_path / "out")
    assert written["n_id"].tolist() == list(range(NODES))
    assert written["embedding"].shape == (NODES, 16)
    if task == "regression":
        assert abs(written["pred"].mean() - y.mean()) < 300  # in the units of the labels
    else:
        assert (written["pred"] == y).mean() > 0.6


@pytest.mark.parametrize(
    ("facts", "task", "said"),
    [
        ({}, "regresion", "expected one of multiclass, binary, multilabel, regression, ordinal; got 'regresion'"),
        (
            {"kind": "float", "num_classes": None},
            "multiclass",
            r"multiclass: does not fit the labels, which are float \[N\]",
        ),
        ({}, "multilabel", r"does not fit the labels, which are int \[N\] with 3 classes. They suit multiclass"),
        ({}, "binary", "They suit multiclass"),
        ({"width": 4, "num_classes": 4}, "multiclass", r"int \[N, 4\]. They suit multilabel"),
    ],
)
def test_task_that_does_not_fit_the_labels(facts: dict[str, Any], task: str, said: str) -> None:
    with pytest.raises((DataError, OptionError), match=said):
        make_task(task, FACTS | facts, None)


def test_no_labels() -> None:
    with pytest.raises(DataError, match="the data set has no labels y"):
        NodePredictor(4, None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"class_weights": [1.0, 2.0]},
            "class_weights: expected balanced, or 3 numbers >= 0, one for each class; got 2 of",
        ),
        ({"class_weights": "balance"}, "got 'balance'"),
        ({"class_weights": [0, 0, 0]}, "class_weights: all are 0"),
        ({"class_weights": {"x": 2.0}}, r"expected names of classes \(0, 1, 2\); got 'x'"),
        ({"metrics": ["accuracy"]}, "metrics: expected any of acc, .*auc.*; got 'accuracy'"),
        ({"val_metric": "val_auc"}, "val_metric: expected one of val_acc, val_loss; got 'val_auc'"),
        ({"encoder": "SAG"}, "encoder: expected one of .*HGT, RGCN, none, or a convolution of PyG.* got 'SAG'"),
        ({"encoder": "GATv3Conv"}, "Did you mean GATv2Conv"),
        ({"encoder": "HGT"}, "HGT is for graphs with several"),
        ({"encoder": "RGCN"}, "reads the edge attribute edge_type; give the number of kinds"),
        ({"encoder": "PNA"}, r"PNA: deg: expected the numbers of nodes with 0, 1, 2, ... incoming edges.*got None"),
        ({"encoder": "GMMConv"}, "GMMConv needs edge_attr, and the edges have none"),
        ({"encoder": "FAConv"}, "FAConv cannot be used here"),
        ({"encoder_kwargs": {"headz": 2}}, "GraphSAGE with encoder_kwargs {'headz': 2}"),
        ({"encoder": "GAT", "encoder_kwargs": {"heads": 3}}, "GAT with encoder_kwargs {'heads': 3}: .*divisible"),
        ({"num_layers": 0}, "num_layers: expected an integer >= 1"),
        ({"dropout": 1.5}, "dropout: expected"),
    ],
)
def test_bad_arguments(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        NodePredictor(4, FACTS, **options)


@pytest.mark.parametrize(
    ("encoder", "options"),
    [
        ("GCN", {}),
        ("PNA", {"deg": [0, 3, 9]}),
        ("GATv2Conv", {"heads": 2}),
        ("ChebConv", {"K": 2}),
        ("RGCN", {"num_relations": 2}),
    ],
)
def test_encoders_of_a_homogeneous_graph(make_data, encoder: str, options: dict[str, Any]) -> None:
    count = learnable_graph()["edge_index"].shape[1]
    kinds = torch.arange(count) % 2
    data = make_data(dataset=graph_with(COMMUNITY, edge_type=kinds))
    model = predictor(data, encoder=encoder, encoder_kwargs=options)
    out = model(one_batch(data))
    assert out.shape == (20, CLASSES)
    out.sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize(
    ("encoder", "options"),
    [
        ("GraphSAGE", {}),
        ("HGT", {"heads": 2}),
        ("RGCN", {"num_bases": 2}),
        ("GATv2Conv", {}),
        ("TransformerConv", {"heads": 2}),
    ],
)
def test_every_parameter_of_a_heterogeneous_encoder_gets_a_gradient(
    make_data, encoder: str, options: dict[str, Any]
) -> None:
    data = make_data(dataset=learnable_hetero(), undirected=True, batch_size=10)
    batch = one_batch(data)
    model = predictor(data, encoder=encoder, encoder_kwargs=options)
    out = model(batch)
    assert out.shape == (10, CLASSES)
    out.sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []
    model.eval()
    trimmed = model(batch)
    for store in batch.edge_stores:
        store.num_sampled_edges = [*store.num_sampled_edges, 0]  # as if there were a hop more than layers
    torch.testing.assert_close(trimmed, model(batch), rtol=1e-4, atol=1e-5)


def test_edge_types_are_summed_as_to_hetero_sums_them() -> None:
    from torch_geometric.nn import GraphConv, to_hetero

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = GraphConv((16, 16), 16)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            return self.conv(x, edge_index)

    edge_types = [("a", "to", "b"), ("b", "to", "a"), ("b", "to", "b")]
    layer = EdgeTypeLayer(lambda _: make_conv("GraphConv", 16, {}, two_types=True), edge_types)
    theirs = to_hetero(Net(), (["a", "b"], edge_types), aggr="sum")
    for edge_type, conv in zip(edge_types, layer.convs, strict=True):
        theirs.conv["__".join(edge_type)].load_state_dict(conv.state_dict())
    x = {"a": torch.randn(7, 16), "b": torch.randn(5, 16)}
    edges = {e: torch.randint(0, 5, (2, 12)) for e in edge_types}
    expected = theirs(x, edges)
    destinations = {"a": 5, "b": 4}
    edges = {e: index[:, index[1] < destinations[e[2]]] for e, index in edges.items()}
    for node_type, rows in layer(x, edges, destinations).items():
        torch.testing.assert_close(rows, expected[node_type][: destinations[node_type]])


def test_balanced_weights_make_classes_equal(make_data, make_trainer) -> None:
    y = np.where(np.arange(NODES) % 5 == 0, -1, COMMUNITY)  # nodes without a label count nowhere
    data = make_data(dataset=graph_with(y), partition={"allow": ["unlabelled_seeds"]})
    model = predictor(data, class_weights="balanced")
    make_trainer(max_epochs=1).fit(model, data)
    train = y[np.sort(learnable_graph()["train_idx"])]
    counts = np.bincount(train[train >= 0], minlength=CLASSES)
    np.testing.assert_allclose(model.task.weight.numpy() * counts, counts.sum() / CLASSES, rtol=1e-5)


@pytest.mark.parametrize(("task", "classes"), [("multiclass", CLASSES), ("binary", 2)])
def test_batch_of_classes_that_weigh_nothing(task: str, classes: int) -> None:
    made = make_task(task, FACTS | {"num_classes": classes}, [0.0] + [1.0] * (classes - 1))
    out = torch.zeros(4, made.out_channels, requires_grad=True)
    loss, weight = made.loss(out, torch.zeros(4, dtype=torch.int64))
    loss.backward()
    assert (loss.item(), weight.item(), out.grad.abs().sum().item()) == (
        0,
        0,
        0,
    )  # the division by 0 made all parameters NaN


def test_balanced_label_that_all_nodes_have_still_counts() -> None:
    task = make_task("multilabel", FACTS | {"width": 3, "num_classes": 3}, "balanced")
    task.learn(torch.tensor([[1, 0, 1], [1, 0, 0], [1, 0, 0], [1, -1, 0]]))
    assert task.weight.tolist() == [1, 1, 3]


@pytest.mark.parametrize(
    ("y", "task"), [(ONE_HOT * 3, "multilabel"), (np.where(COMMUNITY == 0, 0.5, 1).astype(np.float32), "binary")]
)
def test_labels_that_are_not_yes_or_no(make_data, make_trainer, y: np.ndarray, task: str) -> None:
    data = make_data(dataset=graph_with(y))
    with pytest.raises(DataError, match=f"task: {task}: expected labels 0 and 1, or booleans"):
        make_trainer(max_epochs=1).fit(predictor(data, task=task), data)


def test_years_as_labels() -> None:
    """A negative integer is no label; in bfloat16 the years would be multiples of 8."""
    task = make_task("regression", FACTS | {"num_classes": None}, None)
    y = torch.tensor([-1, *range(2009, 2024)])
    assert task.labelled(y).tolist() == [False] + [True] * 15
    task.learn(y)
    assert task.mean.tolist() == [2016]
    assert float(task.to(torch.bfloat16).loss(torch.zeros(15, 1), y[1:])[0]) == pytest.approx(1, rel=0.02)
    with pytest.raises(DataError, match="no training seed has a label"):
        task.learn(y[:1])


def test_model_of_other_columns(make_data, make_trainer) -> None:
    wide = np.stack([COMMUNITY, COMMUNITY, COMMUNITY], 1).astype(np.float32)
    model = predictor(make_data(dataset=graph_with(wide)))
    data = make_data(dataset=graph_with(wide[:, 0]))
    with pytest.raises(DataError, match="the model was built for 3 outputs, but the labels of the graph need 1"):
        make_trainer().validate(model, data)  # each number was compared with the only label


def test_a_sanity_check_of_one_class_warns_of_nothing(make_data, make_trainer, recwarn) -> None:
    """The first batches of validation are all positive, and all of them are not."""
    y = (COMMUNITY == 0).astype(np.int64)
    valid = learnable_graph()["valid_idx"]
    ordered = np.concatenate([valid[y[valid] == each][:12] for each in (1, 0)])
    data = make_data(dataset=graph_with(y), seeds={"splits": {"val": ordered}}, evaluation={"batch_size": 4})
    trainer = make_trainer(num_sanity_val_steps=2, max_epochs=1)
    trainer.fit(predictor(data, metrics=["auc"]), data)
    assert 0 <= trainer.callback_metrics["val_auc"] <= 1
    assert not [w for w in recwarn if "No negative samples" in str(w.message)]


@pytest.mark.parametrize("classes", [1, 2])
def test_one_class_alone_is_said(make_data, make_trainer, recwarn, classes: int) -> None:
    data = make_data(dataset=graph_with(np.arange(NODES) % classes))
    make_trainer(max_steps=1, limit_val_batches=0).fit(predictor(data), data)
    said = [str(each.message) for each in recwarn if "one class alone (0)" in str(each.message)]
    assert len(said) == (classes == 1)


def test_metrics_that_store_rows_keep_no_batch(make_data, make_trainer, recwarn) -> None:
    data = make_data(dataset=graph_with((COMMUNITY == 0).astype(np.int64)), evaluation={"batch_size": 8})
    trainer = make_trainer()
    trainer.validate(predictor(data, metrics=["auc", "ap"]), data, verbose=False)
    assert sum(trainer.num_val_batches) > 5  # more than there are slots
    assert not [w for w in recwarn if "batch slots" in str(w.message)]


def test_r2_of_too_few_rows() -> None:
    model = NodePredictor(4, FACTS | {"kind": "float", "num_classes": None})
    metric = model.val_metrics["r2"]
    update_metric(metric, torch.ones(1), torch.ones(1))
    assert metric.compute().isnan()
    update_metric(metric, torch.zeros(1), torch.zeros(1))
    assert metric.compute() == 1


@pytest.mark.parametrize("kind", ["NodePredictor", "GraphSAGE"])
def test_evaluation_leaves_out_nodes_without_a_label(make_data, make_model, make_trainer, kind: str) -> None:
    y = COMMUNITY.copy()
    y[learnable_graph()["valid_idx"][:40]] = -1
    data = make_data(dataset=graph_with(y))
    model = predictor(data) if kind == "NodePredictor" else make_model()
    trainer = make_trainer()
    (found,) = trainer.validate(model, data, verbose=False)
    returned = trainer.predict(model, make_data(dataset=graph_with(y), evaluation={"predict_split": "val"}))
    pred, n_id = (torch.cat([part[name] for part in returned]) for name in ("pred", "n_id"))
    known = y[n_id] >= 0
    assert known.sum() == 10
    assert found["val_acc"] == pytest.approx((pred.numpy() == y[n_id])[known].mean())


@pytest.mark.parametrize("task", TASKS)
def test_rows_without_seeds_change_no_metric(task: str) -> None:
    y = torch.from_numpy(TASKS[task][0])
    facts = {
        "kind": "float" if y.is_floating_point() else "int",
        "width": y.shape[1] if y.dim() > 1 else None,
        "num_classes": None if y.is_floating_point() else 2 if task == "binary" else CLASSES,
        "class_names": None,
    }
    names = ["mae", "rmse", "r2"] if task == "regression" else ["acc", "f1", "auc", "ap", "mcc"]
    model = NodePredictor(4, facts, metrics=names)
    out = torch.randn(NODES, model.task.out_channels)
    found = []
    for batches in ([slice(0, NODES)], [slice(0, 0), slice(0, NODES), slice(0, 0)]):
        for rows in batches:
            for metric in model.val_metrics.values():
                update_metric(metric, *model.task.scores(out[rows], y[rows]))
        found.append([float(metric.compute()) for metric in model.val_metrics.values()])
        for metric in model.val_metrics.values():
            metric.reset()
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_val_metric_chooses_the_best_checkpoint(make_data, make_trainer) -> None:
    data = make_data()
    model = predictor(data, metrics=["acc", "auc"], val_metric="val_loss")
    best = BestCheckpoint()
    trainer = make_trainer(max_epochs=3, callbacks=[best], enable_checkpointing=True)
    trainer.fit(model, data)
    assert (best.monitor, best.mode) == ("val_loss", "min")
    assert best.best_model_score <= trainer.callback_metrics["val_loss"] + 1e-6
    again = NodePredictor.load_from_checkpoint(best.best_model_path)
    assert again.label_facts == data.label_facts
    assert BestCheckpoint(monitor="val_acc").monitor == "val_acc"


def test_names_of_classes_and_ids_of_tables(make_data, make_trainer, tmp_path, caplog) -> None:
    """Of several labels of a node a list; ids are said to be missing where the tables are not."""
    names = np.array(["left", "middle", "right"])
    np.savez(tmp_path / "g.npz", **learnable_graph() | {"y": ONE_HOT.astype(bool), "class_names": names})
    data = make_data(dataset=str(tmp_path / "g.npz"), evaluation={"predict_split": "test"})
    model = predictor(data)
    assert model.class_names == names.tolist()
    make_trainer(callbacks=[PredictionWriter(str(tmp_path / "out"))]).predict(model, data)
    written = read_predictions(tmp_path / "out")
    assert "id" not in written
    for row, found in zip(written["pred"], written["classes"], strict=True):
        assert found == names[row].tolist()
    data.prepare_data()
    data.setup()
    data.dataset = {
        "nodes": {"path": "n.csv", "id": "key"},
        "edges": {"path": "e.csv", "source": "a", "destination": "b"},
    }
    with caplog.at_level("INFO"):
        assert data.user_ids(np.arange(3)) is None
    assert "predictions name nodes by n_id" in caplog.text
    data.teardown()
