"""Mistakes that are said before a run has cost anything, or in the terminal where it goes on."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.nn import GraphSAGE as PygSAGE

from glt_lightning import GLTDataModule, PartitionOptions
from glt_lightning.base import DataError, GLTError
from glt_lightning.lightning.facts import layers_of, read_split, warn_of_hops
from tests.lightning.tiny import NODES, learnable_graph, save_graph

SPLIT_KEYS = ("train_idx", "valid_idx", "test_idx")


@pytest.mark.parametrize(
    ("stage", "split"), [("fit", "train"), ("validate", "val"), ("test", "test"), ("predict", "val")]
)
def test_no_split_is_said_before_the_graph_is_partitioned(
    make_data, make_model, make_trainer, tmp_path: Path, stage: str, split: str
) -> None:
    data = make_data(dataset=str(save_graph(tmp_path / "g.npz", drop=SPLIT_KEYS)), evaluation={"predict_split": "val"})
    with pytest.raises(DataError, match=f"split '{split}': not in the data set, which has none. Give its node ids as"):
        getattr(make_trainer(), stage)(make_model(), data)
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("transforms", [[], ["torch_geometric.transforms.ToUndirected"]])
def test_an_array_without_use_is_said_once(make_data, tmp_path: Path, transforms: list[str], caplog) -> None:
    np.savez(tmp_path / "g.npz", **learnable_graph(), wieghts=np.ones(7))
    for _ in range(2):
        make_data(dataset=str(tmp_path / "g.npz"), transforms=transforms).prepare_data()
    assert caplog.text.count("g.npz: wieghts, float64 [7]: ignored, as") == 1


@pytest.mark.parametrize("given", [{"train_idx": np.arange(0)}, {"train_mask": np.zeros(NODES, bool)}, "folder", "own"])
def test_an_empty_split_is_said_before_the_graph_is_partitioned(
    make_data, make_model, make_trainer, tmp_path: Path, given: Any
) -> None:
    graph, options = learnable_graph(), {}
    if given == "own":
        options = {"seeds": {"splits": {"train": []}}}
    else:
        del graph["train_idx"]
        graph |= {"train": np.arange(0)} if given == "folder" else given
    if given == "folder":
        for name, array in graph.items():
            np.save(tmp_path / f"{name}.npy", array)
    else:
        np.savez(tmp_path / "g.npz", **graph)
    data = make_data(dataset=str(tmp_path if given == "folder" else tmp_path / "g.npz"), **options)
    with pytest.raises(
        DataError, match=r"split 'train': it has no node\. Give its node ids as data\.seeds\.splits\.train"
    ):
        make_trainer().fit(make_model(), data)
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"num_neighbors": {"a__to__b": [2]}},
            r"^num_neighbors: expected a list of fan-outs for each edge type; missing",
        ),
        (
            {"evaluation": {"num_neighbors": {"a__to__b": [2]}}},
            r"^evaluation.num_neighbors: expected a list of fan-outs",
        ),
        ({"seeds": {"splits": {"train": "nothere.npy"}}}, r"^seeds\.splits\.train: there is no file 'nothere\.npy'"),
        ({"seeds": {"splits": {"test": "nothere.npy"}}}, r"^seeds\.splits\.test: there is no file 'nothere\.npy'"),
        (
            {"seeds": {"splits": {"val": [3, 9999]}}},
            r"^seeds\.splits\.val: 9999 at position 1 is not a node of type 'node', whose ids are 0 to",
        ),
        (
            {"seeds": {"splits": {"val": [True, False]}}},
            r"^seeds\.splits\.val: expected a mask \[\d+\] over the nodes of type 'node', got \[2\]",
        ),
    ],
)
def test_own_options_are_checked_before_the_graph_is_partitioned(
    make_data, make_model, make_trainer, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(GLTError, match=said):
        make_trainer().fit(make_model(), make_data(**options))
    assert not (tmp_path / "root").exists()


def test_other_stages_read_their_own_split_alone(make_data, make_model, make_trainer) -> None:
    data = make_data(seeds={"splits": {"train": "nothere.npy"}})
    assert make_trainer().test(make_model(), data, verbose=False)


def test_seeds_of_an_open_partition_name_their_split(make_data, make_model, make_trainer) -> None:
    data = make_data()
    data.prepare_data()
    opened = make_data(dataset=None, partition={"dir": data.partition_dir}, seeds={"splits": {"train": [9999]}})
    with pytest.raises(DataError, match=r"^seeds\.splits\.train: 9999 at position 0"):
        make_trainer().fit(make_model(), opened)


def test_labels_that_are_no_classes_are_said_before_a_model_is_made(make_data, tmp_path: Path) -> None:
    arrays = learnable_graph()
    for y, said in (
        (np.where(np.arange(len(arrays["y"])) == 3, 1_000_000, arrays["y"]), "the largest label is 1,000,000"),
        (arrays["y"].astype(str), "the labels are text"),
    ):
        np.savez(tmp_path / "g.npz", **(arrays | {"y": y}))
        with pytest.raises(DataError, match=f"g.npz: y of node type 'node': {said}"):
            _ = make_data(dataset=str(tmp_path / "g.npz")).num_classes
    np.savez(tmp_path / "g.npz", **(arrays | {"y": np.where(np.arange(len(arrays["y"])) == 3, 5000, arrays["y"])}))
    allowed = make_data(dataset=str(tmp_path / "g.npz"), partition=PartitionOptions(allow=["sparse_labels"]))
    assert allowed.num_classes == 5001


@pytest.mark.parametrize("own", [("train",), ("val",), ("train", "test")])
def test_own_splits_that_overlap(make_data, make_model, make_trainer, own: tuple[str, ...]) -> None:
    ids = learnable_graph()["train_idx" if own == ("val",) else "test_idx"][:4]
    given: dict[str, Any] = {name: ids.tolist() for name in own}
    other = "val" if own == ("val",) else "test"
    with pytest.raises(DataError, match=f"splits: train and {other} share 4 nodes. The model would be evaluated on"):
        make_trainer().fit(make_model(), make_data(seeds={"splits": given}))
    allowed = PartitionOptions(allow=["overlapping_splits"])
    make_trainer(fast_dev_run=True).fit(make_model(), make_data(seeds={"splits": given}, partition=allowed))


def test_own_splits_share_nodes_at_other_times(make_data, make_model, make_trainer, tmp_path) -> None:
    graph = learnable_graph() | {"edge_time": np.arange(learnable_graph()["edge_index"].shape[1])}
    np.savez(tmp_path / "timed.npz", **graph)
    ids = graph["train_idx"][:4].tolist()
    timed = {"dataset": str(tmp_path / "timed.npz"), "partition": {"time_attr": "edge_time"}}
    timed["sampling"] = {"time_attr": "edge_time"}
    for later, shared in (([20, 20, 20, 20], False), ([20, 10, 20, 20], True)):
        times = {"train": [10, 10, 10, 10], "val": later}
        data = make_data(**timed, seeds={"splits": {"train": ids, "val": ids}, "input_time": times})
        with pytest.raises(DataError, match=r"train and val share 1 node\.") if shared else nullcontext():
            make_trainer(limit_train_batches=1, max_epochs=1).fit(make_model(), data)


@pytest.mark.parametrize(("fanouts", "layers"), [([5], 2), ([5, 5, 5], 2), ({"a__to__b": [5]}, 2)])
def test_hops_and_layers_that_differ_are_said(fanouts: Any, layers: int) -> None:
    class OwnAttribute(torch.nn.Module):
        num_layers = layers

    class Inside(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gnn = PygSAGE(3, 4, layers, 2)

    hops = len(fanouts) if isinstance(fanouts, list) else 1
    harm = "costs accuracy" if hops < layers else "costs time"
    for model in (OwnAttribute(), Inside()):
        with pytest.warns(UserWarning, match=rf"data.num_neighbors has {hops} hops? and the model 2 layers: .*{harm}"):
            warn_of_hops("num_neighbors", fanouts, model)


def test_hops_and_layers_of_a_run(make_data, make_model, make_trainer) -> None:
    with pytest.warns(UserWarning, match="data.num_neighbors has 1 hop and the model 2 layers"):
        make_trainer(fast_dev_run=True).fit(make_model(), make_data(num_neighbors=[5]))
    assert layers_of(make_model()) == 2
    assert layers_of(torch.nn.Linear(1, 1)) is None


def test_missing_files_are_named_once_with_the_folder_they_were_looked_for(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_graph(tmp_path / "graph.npz")
    with pytest.raises(
        DataError, match=rf"dataset: there is no file 'grap.npz' \(in {tmp_path}\). Did you mean graph.npz\?"
    ):
        _ = GLTDataModule("grap.npz").num_features
    with pytest.raises(DataError, match=rf"^seeds.splits.train: there is no file 'ids.npy' \(in {tmp_path}\)\.$"):
        read_split("train", "ids.npy")


def test_seeds_without_a_label_count_in_no_metric(make_data, make_model, make_trainer, tmp_path: Path) -> None:
    arrays = learnable_graph()
    labelled = np.arange(len(arrays["y"])) % 3 > 0
    np.savez(tmp_path / "g.npz", **(arrays | {"y": np.where(labelled, arrays["y"], -1)}))
    data = make_data(
        dataset=str(tmp_path / "g.npz"), partition={"allow": ["unlabelled_seeds"]}, evaluation={"predict_split": "test"}
    )
    model, trainer = make_model(), make_trainer(max_epochs=1)
    trainer.fit(model, data)
    (tested,) = trainer.test(model, data)
    rows = trainer.predict(model, data)
    nodes, pred = (torch.cat([batch[name] for batch in rows]).numpy() for name in ("n_id", "pred"))
    known = labelled[nodes]
    assert tested["test_acc"] == pytest.approx(np.mean(pred[known] == arrays["y"][nodes[known]]))
