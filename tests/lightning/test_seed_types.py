"""Seeds of several types by a data module: edges of two types to predict, and nodes of two types."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint

from glt_lightning import GLTDataModule, GraphSAGE, LinkPredictor, NodePredictor, PredictionWriter
from glt_lightning.base import GLTError
from glt_lightning.lightning import read_predictions
from glt_lightning.models.link_scores import LinkScores, bce, mean_loss
from tests.helpers import run_cli
from tests.lightning.test_link_task import BUYS, shop
from tests.lightning.tiny import learnable_hetero

FOLLOWS = "user__follows__user"
RANDOM = {"num_val": 0.2, "num_test": 0.2}


def links(folder: Path, **options: Any) -> GLTDataModule:
    given = {
        "dataset": str(shop(folder)),
        "root": str(folder),
        "task": "link",
        "seeds": {"input_type": [FOLLOWS, BUYS]},
        "links": {"edge_splits": {FOLLOWS: RANDOM}},
        "undirected": True,
        "num_neighbors": [4, 2],
        "batch_size": 64,
        "partition": {"num_parts": 2},
    }
    merged = {name: given[name] | options.pop(name, {}) for name in ("seeds", "links")}
    return GLTDataModule(**given | options | merged)


def model_of(data: GLTDataModule, **options: Any) -> LinkPredictor:
    seed_everything(1, verbose=False)
    described = {"metadata": data.metadata, "num_nodes": data.num_nodes, "edge_type": data.link_type}
    return LinkPredictor(
        data.num_features, **{"hidden_channels": 16, "lr": 0.02, "decoder": "bilinear"} | described | options
    )


def test_edges_of_two_types_are_learned_and_predicted(make_trainer: Any, tmp_path: Path) -> None:
    data = links(tmp_path, evaluation={"predict_split": "test"})
    assert data.link_type == [BUYS, FOLLOWS]
    model = model_of(data, metrics=["auc", "hits@5"])
    trainer = make_trainer(max_epochs=12, callbacks=[PredictionWriter(str(tmp_path / "out"))])
    trainer.fit(model, data)
    logged = {f"val_{name}{of}" for name in ("auc", "hits@5") for of in ("", f"/{BUYS}", f"/{FOLLOWS}")}
    assert logged | {"train_loss", "val_loss"} <= set(trainer.callback_metrics)
    assert trainer.callback_metrics[f"val_auc/{BUYS}"] > 0.75  # who follows whom is noise
    trainer.predict(model, data, return_predictions=False)
    written = read_predictions(tmp_path / "out")
    data.setup()
    graph = data._opened()
    for edge_type in (BUYS, FOLLOWS):
        rows = written["edge_type"] == edge_type
        wanted = graph.edge_split(graph.schema.edge_index(tuple(edge_type.split("__"))), "test").edge
        assert set(zip(written["n_id"][rows], written["destination"][rows], strict=True)) == set(
            zip(*wanted.tolist(), strict=True)
        )
    assert len(written["score"]) == len(written["n_id"]) > 0
    data.teardown()


def test_negatives_of_each_type(make_trainer: Any, tmp_path: Path) -> None:
    triplet = {"mode": "triplet", "amount": 3, "sharing": "shared"}
    data = links(
        tmp_path,
        links={"neg_sampling": {BUYS: triplet, FOLLOWS: ("triplet", 2)}},
        evaluation={"neg_sampling": {BUYS: ("triplet", 4)}},
    )
    made = [each.neg_sampling.amount for each in data.links.by_type]
    assert made == [3, 2]
    trainer = make_trainer(max_epochs=1, limit_val_batches=0)
    trainer.fit(model_of(data, loss="softmax", decoder="mlp"), data)
    assert trainer.callback_metrics["train_loss"].isfinite()


def test_a_fit_of_two_types_resumes_in_mid_epoch(make_trainer: Any, tmp_path: Path) -> None:
    def fit(workers: int, ckpt: str | None = None) -> dict[str, torch.Tensor]:
        data = links(tmp_path, sampling={"num_workers": workers})
        model = model_of(data)
        keep = ModelCheckpoint(dirpath=tmp_path / "ckpt", filename="{step}", every_n_train_steps=7, save_top_k=-1)
        more = {"enable_checkpointing": True, "callbacks": [keep]} if ckpt is None else {}
        trainer = make_trainer(**more)
        trainer.fit(model, data, ckpt_path=ckpt)
        assert trainer.num_training_batches % 7
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}

    whole = fit(1)
    resumed = fit(0, str(tmp_path / "ckpt" / "step=7.ckpt"))
    assert all(torch.equal(tensor, whole[name]) for name, tensor in resumed.items())


@pytest.mark.slow
def test_two_ranks_by_yaml_alone(tmp_path: Path) -> None:
    shop(tmp_path)
    (tmp_path / "run.yaml").write_text(
        f"""\
seed_everything: 0
trainer: {{strategy: glt_worker, accelerator: cpu, devices: 2, max_epochs: 15, enable_progress_bar: false}}
model: {{class_path: glt_lightning.LinkPredictor, init_args: {{hidden_channels: 16, lr: 0.02, decoder: bilinear}}}}
data:
  class_path: glt_lightning.GLTDataModule
  init_args:
    dataset: shop.npz
    task: link
    seeds: {{input_type: [{BUYS}, {FOLLOWS}]}}
    links:
      edge_splits: {{{FOLLOWS}: {{num_val: 0.2, num_test: 0.2}}}}
      neg_sampling: {{{BUYS}: {{amount: 2}}, {FOLLOWS}: binary}}
    undirected: true
    num_neighbors: [4, 2]
    batch_size: 32
    partition: {{num_parts: 2}}
    sampling: {{num_workers: 1}}
"""
    )
    run_cli("fit", "--config", "run.yaml", cwd=tmp_path, env={"OMP_NUM_THREADS": "1"})
    said = run_cli("test", "--config", "run.yaml", "--ckpt_path", "best", cwd=tmp_path).stdout
    found = dict(re.findall(r"(test_auc\S*)\s+(\d\.\d+)", said))
    assert float(found[f"test_auc/{BUYS}"]) > 0.7


def test_the_loss_is_the_mean_over_all_pairs() -> None:
    one, two = (LinkScores(torch.randn(p), torch.randn(n)) for p, n in ((3, 9), (5, 2)))
    none = LinkScores(torch.empty(0), torch.empty(0))
    both = LinkScores(torch.cat([one.positive, two.positive]), torch.cat([one.negative, two.negative]))
    loss, count = mean_loss("bce", [one, none, two])
    assert count == 19
    assert loss.item() == pytest.approx(bce(both)[0].item())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seeds": {"input_type": [BUYS, BUYS]}}, f"input_type: expected different edge types, got {BUYS}, {BUYS}"),
        ({"seeds": {"input_type": [BUYS, "a__b__c"]}}, "input_type: expected the edge type to predict, one of "),
        (
            {"links": {"edge_splits": {"train": "t.npy"}}},
            "edge_splits: train are of one edge type, and seeds.input_type names several",
        ),
        (
            {"links": {"edge_splits": {FOLLOWS: RANDOM, "a__b__c": RANDOM}}},
            "edge_splits: with seeds of several types, expected a mapping",
        ),
        (
            {"links": {"neg_sampling": {BUYS: {"mode": "tripel"}}}},
            "neg_sampling.mode: expected binary, triplet; got 'tripel'",
        ),
        ({"links": {"edge_splits": {BUYS: RANDOM}}}, f"edge_splits: the data set has none for edge type {FOLLOWS}"),
    ],
)
def test_links_that_are_refused(make_trainer: Any, tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(GLTError, match=re.escape(said)):
        links(tmp_path, **options).prepare_data()


def test_edge_types_of_a_model() -> None:
    metadata = (["user"], [("user", "follows", "user")])
    with pytest.raises(GLTError, match="edge_type: expected different edge types to predict"):
        LinkPredictor({"user": 3}, metadata=metadata, edge_type=[FOLLOWS, FOLLOWS])
    with pytest.raises(
        GLTError, match="edge_type: expected the edge type to predict, one of user__follows__user; got 'a'"
    ):
        LinkPredictor({"user": 3}, metadata=metadata, edge_type=[FOLLOWS, "a"])


def test_nodes_of_two_types(make_data: Any, tmp_path: Path) -> None:
    data_set = learnable_hetero()
    kinds = sorted(data_set.node_types)[:2]
    ids = {kinds[0]: [3, 1, 2], kinds[1]: np.array([0, 3])}
    np.save(tmp_path / "ids.npy", ids[kinds[1]])
    splits = {"train": {kinds[0]: ids[kinds[0]], kinds[1]: str(tmp_path / "ids.npy")}}
    data = make_data(dataset=data_set, seeds={"splits": splits, "input_type": kinds}, batch_size=2, num_neighbors=[2])
    data.prepare_data()
    data.setup()
    for loader, wanted in (
        (data.train_dataloader(), {t: sorted(np.asarray(each).tolist()) for t, each in ids.items()}),
        (data.predict_dataloader(), {t: list(range(data_set[t].num_nodes)) for t in kinds}),
    ):
        seen = {t: sorted(n for b in loader for n in b[t].n_id[: b[t].batch_size].tolist()) for t in kinds}
        assert seen == wanted
    data.teardown()
    with pytest.raises(GLTError, match=r"splits.train: expected any of .*; got 'shop'"):
        make_data(dataset=data_set, seeds={"splits": {"train": {"shop": [1]}}})._own_seeds("train")
    with pytest.raises(GLTError, match=r"splits.train: seeds.input_type names several node types. Give seeds by type"):
        make_data(dataset=data_set, seeds={"splits": {"train": [1]}, "input_type": kinds})._own_seeds("train")


def test_ready_modules_predict_labels_of_one_type(make_data: Any) -> None:
    """Said when the module is made; a list of one type is that type."""
    data_set = learnable_hetero()
    kinds = sorted(data_set.node_types)[:2]
    data = make_data(dataset=data_set, seeds={"input_type": kinds})
    described = {"metadata": data.metadata, "num_nodes": data.num_nodes, "target_type": data.target_type}
    said = f"target_type: this module predicts the labels of one node type, and data.seeds.input_type names {', '.join(kinds)}."
    for make, labels in ((NodePredictor, data.label_facts), (GraphSAGE, data.num_classes)):
        with pytest.raises(GLTError, match=re.escape(said)):
            make(data.num_features, labels, **described)
    one = NodePredictor(data.num_features, data.label_facts, **described | {"target_type": kinds[1:]})
    assert one.target_type == kinds[1] == one.hparams["target_type"]
