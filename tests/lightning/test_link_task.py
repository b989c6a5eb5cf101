"""``task: link``: a data module whose seeds are edges; messages pass over training edges alone, wherever the graph is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lightning.pytorch import LightningDataModule, seed_everything

from glt_lightning import GLTDataModule, LinkPredictor
from glt_lightning.base import DataError, GLTError, OptionError, PartitionOptions
from glt_lightning.cli import GLTCLI, main
from glt_lightning.graph import LocalPartition
from glt_lightning.lightning.link_seeds import LinkSeeds
from glt_lightning.loader import LinkSpec
from glt_lightning.partition import open_source, partition_graph
from tests.helpers.servers import open_farm
from tests.lightning.tiny import learnable_graph

USERS, ITEMS, BLOCKS = 90, 60, 3
BUYS = "user__buys__item"


def shop(folder: Path) -> Path:
    """Users buy items of their own block, and follow each other; nothing has features."""
    rng = np.random.default_rng(0)
    edges = np.array(
        [(u, i) for u in range(USERS) for i in range(ITEMS) if u % BLOCKS == i % BLOCKS and rng.random() < 0.4]
    )
    order = np.random.default_rng(1).permutation(len(edges))
    parts = np.split(order, [len(order) // 5, 2 * len(order) // 5])
    follows = np.stack([rng.integers(0, USERS, 200), rng.integers(0, USERS, 200)])
    np.savez(
        folder / "shop.npz",
        **{f"{BUYS}/edge_index": edges.T, "user__follows__user/edge_index": follows},
        **{"user/num_nodes": np.array(USERS), "item/num_nodes": np.array(ITEMS)},
        **{f"{BUYS}/{name}_idx": ids for name, ids in zip(("test", "valid", "train"), parts, strict=True)},
    )
    return folder / "shop.npz"


@pytest.fixture
def make_links(tmp_path: Path) -> Callable[..., GLTDataModule]:
    path = shop(tmp_path)

    def make(**options: Any) -> GLTDataModule:
        defaults: dict[str, Any] = {
            "dataset": str(path),
            "root": str(tmp_path / "root"),
            "task": "link",
            "seeds": {"input_type": BUYS},
        }
        sampling = {
            "undirected": True,
            "num_neighbors": [10, 5],
            "batch_size": 64,
            "partition": {"num_parts": 2},
        }
        return GLTDataModule(**defaults | sampling | options)

    return make


def model_of(data: GLTDataModule, **options: Any) -> LinkPredictor:
    described = {"metadata": data.metadata, "num_nodes": data.num_nodes, "edge_type": data.link_type}
    return LinkPredictor(data.num_features, **{"hidden_channels": 16, "lr": 0.02} | described | options)


def opened(data: GLTDataModule) -> LocalPartition:
    data.prepare_data()
    return LocalPartition.open(data.partition_dir)


def spec_of(graph: LocalPartition, split: str, name: str | None = None, **options: Any) -> LinkSpec:
    links = LinkSeeds(**{"input_type": BUYS} | options)
    return links.spec(graph, split, name or split, num_neighbors=[2], batch_size=8)


def test_it_learns_and_predicts(make_links: Any, make_trainer: Any, tmp_path: Path) -> None:
    seed_everything(3, verbose=False)  # of the data module, too
    data = make_links()
    trainer = make_trainer(max_epochs=20)
    model = model_of(data, metrics=["auc", "hits@10"])
    trainer.fit(model, data)
    assert trainer.callback_metrics["val_auc"] > 0.75
    (tested,) = trainer.test(model, data, verbose=False)
    assert tested["test_auc"] > 0.75
    with pytest.raises(OptionError, match="predict_split: all: there are too many pairs of nodes"):
        trainer.predict(model, make_links(evaluation={"predict_split": "all"}))
    found = trainer.predict(model, data)
    assert found is not None
    ends = {
        (u, v) for batch in found for u, v in zip(batch["n_id"].tolist(), batch["destination"].tolist(), strict=True)
    }
    with LocalPartitionOf(data) as graph:
        split = graph.edge_split(graph.schema.edge_index(("user", "buys", "item")), "test")
    assert ends == set(zip(*split.edge.tolist(), strict=True))


class LocalPartitionOf:
    """The partition of a data module, closed at the end."""

    def __init__(self, data: GLTDataModule) -> None:
        self._data = data

    def __enter__(self) -> LocalPartition:
        self._graph = opened(self._data)
        return self._graph

    def __exit__(self, *_: object) -> None:
        self._graph.close()


def test_triplets_in_training_and_evaluation(make_links: Any, make_trainer: Any) -> None:
    data = make_links(
        links={"neg_sampling": {"mode": "triplet", "amount": 4, "sharing": "shared"}},
        evaluation={"neg_sampling": {"mode": "triplet"}},
    )
    trainer = make_trainer(max_epochs=2)
    trainer.fit(model_of(data, loss="softmax", metrics=["mrr"]), data)
    assert {"val_loss", "val_mrr"} <= set(trainer.callback_metrics)


def test_what_loaders_are_asked_for(make_links: Any) -> None:
    with LocalPartitionOf(make_links()) as graph:
        train, val = spec_of(graph, "train"), spec_of(graph, "val")
        assert train.neg_sampling.mode == val.neg_sampling.mode == "binary"
        assert train.edge_label is None
        given = {"mode": "triplet", "amount": 3, "sharing": "shared"}
        assert spec_of(graph, "train", neg_sampling=given).neg_sampling.sharing == "shared"
        assert spec_of(graph, "val", neg_sampling=given).neg_sampling.sharing == "none"
        assert spec_of(graph, "val", neg_sampling=given, eval_neg_sampling="binary").neg_sampling.mode == "binary"
        assert spec_of(graph, "train", reverse_edge_types={"item__rev_buys__user": BUYS}).reverse_edge_types == {
            "item__rev_buys__user": BUYS,
            BUYS: "item__rev_buys__user",
        }
        assert spec_of(graph, "test", "predict").neg_sampling is None


def test_given_negatives(make_links: Any) -> None:
    pairs, edges = np.array([[0, 1, 2], [1, 2, 3]]), np.array([[0, 1, 2, 3], [0, 1, 2, 3]])
    splits = {
        "train": {"edge": edges[:, :1]},
        "val": {"edge": edges[:, 1:2], "negative_edges": pairs},
        "test": {"edge": edges[:, 2:], "negatives": np.array([[4], [-1]])},
    }
    with LocalPartitionOf(make_links(links={"edge_splits": splits})) as graph:
        val, test = (
            spec_of(graph, "val", neg_sampling=("triplet", 2)),
            spec_of(graph, "test", neg_sampling=("triplet", 2)),
        )
        np.testing.assert_array_equal(val.edge_label_index, np.concatenate([edges[:, 1:2], pairs], axis=1))
        assert (val.edge_label.tolist(), val.neg_sampling) == ([1, 0, 0, 0], None)
        assert (test.neg_sampling.mode, test.neg_sampling.amount, test.negatives.tolist()) == (
            "triplet",
            1,
            [[4], [-1]],
        )


def test_training_edges_in_evaluation_are_said(make_links: Any, recwarn: pytest.WarningsRecorder) -> None:
    data = make_links(
        links={"edge_splits": {"train": [[0, 1], [0, 1]], "val": [[1, 2], [1, 2]]}},
        partition={"allow": ["overlapping_splits"]},
    )
    with LocalPartitionOf(data) as graph:
        spec_of(graph, "train")
        assert not [w for w in recwarn if "carry messages" in str(w.message)]
        spec_of(graph, "val")
    said = [str(w.message) for w in recwarn if "carry messages" in str(w.message)]
    assert said
    assert said[0].startswith("split 'val': 1 of its first 2 edges are training edges, too, and carry messages")


def test_a_server_gives_the_edges_of_a_split(make_links: Any) -> None:
    with LocalPartitionOf(make_links()) as graph, open_farm("in process") as farm:
        served = farm.context(farm.serve(graph).address).graph
        index = graph.schema.edge_index(("user", "buys", "item"))
        for name in ("train", "test"):
            assert served.edge_split(index, name).digest == graph.edge_split(index, name).digest
        with pytest.raises(DataError, match="no split 'other'"):
            served.edge_split(index, "other")
        with pytest.raises(DataError, match="edge_type: expected 0 to 2, got 9"):
            served.edge_split(9, "train")


def test_partitions_of_several_processes_have_the_edges(make_links: Any, tmp_path: Path) -> None:
    partition_graph(make_links().source, tmp_path / "p", PartitionOptions(num_parts=2, processes=2), undirected=True)
    graph = LocalPartition.open(tmp_path / "p")
    assert len(graph.edge_split(graph.schema.edge_index(("user", "buys", "item")), "train"))
    graph.close()


def test_a_homogeneous_graph_needs_no_input_type(graph_npz: Path, tmp_path: Path, make_trainer: Any) -> None:
    seed_everything(0, verbose=False)
    data = GLTDataModule(
        str(graph_npz),
        str(tmp_path),
        task="link",
        links={"edge_splits": {"num_val": 0.1, "num_test": 0.1}},
        num_neighbors=[5],
        batch_size=64,
    )
    assert data.link_type == "node__to__node"
    trainer = make_trainer(max_epochs=4)
    trainer.fit(LinkPredictor(data.num_features, hidden_channels=16, num_layers=1, lr=0.01), data)
    assert trainer.callback_metrics["val_auc"] > 0.6
    edges = learnable_graph()["edge_index"]
    assert open_source(graph_npz, tmp_path).edges(("node", "to", "node")).num_edges == edges.shape[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"task": "edges"}, "task: expected node, link, edge; got 'edges'"),
        (
            {"task": "node", "seeds": {"input_type": None}, "links": {"neg_sampling": "binary"}},
            "neg_sampling: has no effect with task: node",
        ),
        ({"seeds": {"splits": {"train": [0]}}}, "splits: is about nodes, and task: link predicts edges"),
        ({"seeds": {"weights": "balanced"}}, "seeds.weights: is about nodes, and task: link predicts edges"),
        (
            {"links": {"edge_splits": "train.npy"}},
            "edge_splits: expected a mapping such as {train: train.npy}, got 'train.npy'",
        ),
        (
            {"links": {"edge_splits": {"val": {"edge": "v.npy", "time": "t.npy"}}}},
            "edge_splits.val.time: nothing reads these times. Set sampling.time_attr",
        ),
        (
            {"links": {"edge_splits": {"train": {"edge": "v.npy", "label": "l.npy"}}, "neg_sampling": "triplet"}},
            "edge_splits.train.label: triplets (neg_sampling.mode triplet, or given negatives) have no labels",
        ),
        (
            {"links": {"edge_splits": {"test": {"edge": "v", "label": "l", "negatives": "n"}}}},
            "edge_splits.test.label: triplets",
        ),
        ({"links": {"exclude_target_edges": "both"}}, "exclude_target_edges: expected none, self, reverse; got 'both'"),
        (
            {"links": {"exclude_target_edges": {"fit": "self"}}},
            "exclude_target_edges: expected train, val, test; got 'fit'",
        ),
        ({"links": {"neg_sampling": {"sharing": "in_batch"}}}, "neg_sampling.sharing: 'in_batch' needs mode triplet"),
        (
            {"evaluation": {"neg_sampling": {"mode": "triplets"}}},
            "neg_sampling.mode: expected binary, triplet; got 'triplets'",
        ),
    ],
)
def test_options_that_cannot_work_are_refused_at_construction(
    make_links: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(said)):
        make_links(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"seeds": {"input_type": "user__buys__shop"}},
            "input_type: expected the edge type to predict, one of user__buys__item, ",
        ),
        (
            {"seeds": {"input_type": "user__follows__user"}},
            "edge_splits: the data set has none for edge type user__follows__user",
        ),
        (
            {"links": {"edge_splits": {"val": [[0], [0]]}}},
            "split 'test': there are no edges of it; there are splits train, val",
        ),
        ({"links": {"edge_splits": {"test": "none.npy"}}}, "edge_splits: there is no file 'none.npy'"),
    ],
)
def test_what_does_not_fit_the_data_is_found_before_partitioning(
    make_links: Any, make_trainer: Any, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    data = make_links(**options)
    with pytest.raises(GLTError, match=re.escape(said)):
        make_trainer().test(LinkPredictor(None, num_nodes=3), data)
    assert not list((tmp_path / "root" / "partitions").glob("*/manifest.json"))


def test_times_of_the_data_set_are_said_to_be_unread(make_links: Any) -> None:
    graph = opened(make_links())
    split = graph.edge_split(graph.schema.edge_index(("user", "buys", "item")), "train")
    timed = SimpleNamespace(
        schema=graph.schema,
        manifest=graph.manifest,
        edge_split=lambda *_: replace(split, time=np.zeros(len(split), np.int64)),
    )
    with pytest.warns(UserWarning, match="edge_splits: train has times, which nothing reads"):
        LinkSeeds(input_type=BUYS).spec(timed, "train", "train", num_neighbors=[2], batch_size=8)
    graph.close()


def test_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(
        f"""\
model: {{class_path: glt_lightning.LinkPredictor, init_args: {{hidden_channels: 8, loss: bpr, metrics: [mrr]}}}}
data:
  class_path: glt_lightning.GLTDataModule
  init_args:
    dataset: shop.npz
    task: link
    seeds: {{input_type: {BUYS}}}
    links: {{neg_sampling: {{mode: triplet, amount: 2}}, exclude_target_edges: {{train: none}}}}
    undirected: true
    num_neighbors: [4, 2]
trainer: {{max_epochs: 1, accelerator: cpu, logger: false, enable_progress_bar: false, enable_model_summary: false}}
"""
    )
    made: list[Any] = []
    prepare = GLTDataModule.prepare_data
    monkeypatch.setattr(GLTDataModule, "prepare_data", lambda self: made.append(self) or prepare(self))
    main(["fit", "--config", "run.yaml"])
    data = made[0]
    assert isinstance(data, LightningDataModule)
    assert data.links.neg_sampling.amount == 2
    assert data.links.exclude_target_edges == {"train": "none", "val": "none", "test": "none"}
    excluded = LinkSeeds(exclude_target_edges={"val": "self"}).exclude_target_edges
    assert excluded == {"train": "reverse", "val": "self", "test": "none"}


def test_attributes_of_target_edges_by_yaml(tmp_path: Path) -> None:
    shop(tmp_path)
    (tmp_path / "run.yaml").write_text(
        f"""\
model: {{class_path: glt_lightning.LinkPredictor}}
data:
  class_path: glt_lightning.GLTDataModule
  init_args:
    dataset: {tmp_path}/shop.npz
    root: {tmp_path}
    task: link
    seeds: {{input_type: {BUYS}}}
    links: {{with_target_attrs: true, neg_sampling: binary}}
    num_neighbors: [2]
    batch_size: 16
"""
    )
    data = GLTCLI(run=False, args=["--config", str(tmp_path / "run.yaml")], save_config_callback=None).datamodule
    data.prepare_data()
    data.setup()
    batch = next(iter(data.train_dataloader()))
    store, edges = batch[tuple(BUYS.split("__"))], np.load(tmp_path / "shop.npz")[f"{BUYS}/edge_index"]
    src, dst = store.edge_label_index[:, :16]
    named = np.stack([batch["user"].n_id[src], batch["item"].n_id[dst]])
    assert named.tolist() == edges[:, store.edge_label_id[:16]].tolist()
    data.teardown()
