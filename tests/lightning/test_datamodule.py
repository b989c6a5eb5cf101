"""What a data module knows, refuses, and hands to its loaders."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback

from glt_lightning import GLTDataModule, PartitionOptions, SamplingOptions
from glt_lightning.base import (
    ClusterOptions,
    DataError,
    DeadlineOptions,
    GLTError,
    OptionError,
    PartitionError,
    SecurityOptions,
)
from tests.lightning.tiny import CLASSES, NODES, WIDTH, learnable_graph, learnable_hetero, save_graph


def opened(data: GLTDataModule) -> GLTDataModule:
    data.prepare_data()
    data.setup()
    return data


def seeds_of(loader: Any) -> list[int]:
    return [i for batch in loader for i in batch.n_id[: batch.batch_size].tolist()]


def test_model_arguments_are_known_before_anything_is_written(make_data, tmp_path: Path) -> None:
    data = make_data()
    assert (data.num_features, data.num_classes, data.num_nodes) == (WIDTH, CLASSES, NODES)
    assert data.metadata is None
    assert data.target_type is None
    assert not (tmp_path / "root").exists()


def test_with_row(make_data) -> None:
    data = opened(make_data(batches={"with_row": True}))
    batch = next(iter(data.train_dataloader()))
    assert len(batch.row) == len(batch.n_id)
    data.teardown()


def test_model_arguments_of_a_heterogeneous_graph(make_data) -> None:
    data = make_data(dataset=learnable_hetero(), undirected=True)
    before = (data.num_features, data.num_nodes, data.num_classes, data.metadata, data.target_type)
    assert data.num_features == {"author": 5, "journal": 2, "paper": None}
    assert data.target_type == "author"
    assert ("journal", "rev_reads", "author") in data.metadata[1]
    data.prepare_data()
    after = make_data(dataset=learnable_hetero(), undirected=True)
    assert before == (after.num_features, after.num_nodes, after.num_classes, after.metadata, after.target_type)


def test_constructor_does_no_work(tmp_path: Path) -> None:
    GLTDataModule("nowhere.npz", root=str(tmp_path / "root"))
    assert list(tmp_path.iterdir()) == []


def test_partition_is_made_once_and_other_options_make_another(make_data, tmp_path: Path) -> None:
    opened(make_data())
    first = {path: path.stat().st_mtime_ns for path in (tmp_path / "root").rglob("*.npy")}
    opened(make_data())
    assert first == {path: path.stat().st_mtime_ns for path in (tmp_path / "root").rglob("*.npy")}
    other = opened(make_data(partition={"num_parts": 3}))
    assert other.partition_dir != make_data().partition_dir
    assert len(list((tmp_path / "root" / "partitions").iterdir())) == 2


def test_finished_partition_needs_no_dataset(make_data, tmp_path: Path) -> None:
    folder = opened(make_data()).partition_dir
    alone = opened(GLTDataModule(partition=PartitionOptions(dir=str(folder)), num_neighbors=[5, 5]))
    assert alone.num_features == WIDTH
    assert len(seeds_of(alone.test_dataloader())) == 90
    alone.teardown()
    missing = GLTDataModule(partition=PartitionOptions(dir=str(tmp_path / "none")))
    with pytest.raises(PartitionError, match="no finished partition is there"):
        _ = missing.num_features


@pytest.mark.parametrize("workers", [0, 1])
def test_works_without_a_trainer(make_data, workers: int) -> None:
    data = opened(make_data(sampling=SamplingOptions(num_workers=workers, seed=3)))
    train = seeds_of(data.train_dataloader())
    assert sorted(train) == sorted(learnable_graph()["train_idx"].tolist())
    assert seeds_of(data.val_dataloader()) == learnable_graph()["valid_idx"].tolist()
    data.teardown()
    data.teardown()


def test_predicts_every_node_or_a_split(make_data) -> None:
    data = opened(make_data())
    assert seeds_of(data.predict_dataloader()) == list(range(NODES))
    data.teardown()
    data = opened(make_data(evaluation={"predict_split": "test"}))
    assert seeds_of(data.predict_dataloader()) == learnable_graph()["test_idx"].tolist()
    data.teardown()


def test_evaluation_has_options_of_its_own(make_data) -> None:
    data = opened(make_data(evaluation={"num_neighbors": [-1], "batch_size": 7}))
    train, val = next(iter(data.train_dataloader())), next(iter(data.val_dataloader()))
    assert (train.batch_size, len(train.num_sampled_edges)) == (20, 2)
    assert (val.batch_size, len(val.num_sampled_edges)) == (7, 1)
    data.teardown()


@pytest.mark.parametrize(
    ("given", "most", "expected"),
    [
        ([5, 3], 10**6, [-1, -1]),
        ([5, -1], 10, [10, -1]),
        ([40_000, 3], 10, [65_536, 6]),
        ({"paper__by__author": [5, 3], "author__wrote__paper": [2, 2]}, 10**6, [-1, -1]),
        ({"paper__by__author": [5, 3], "author__wrote__paper": [2, 2]}, 10, [10, 6]),
    ],
)
def test_evaluation_looks_at_more_neighbours_unless_told(make_data, monkeypatch, caplog, given, most, expected) -> None:
    monkeypatch.setattr("glt_lightning.lightning.facts.MOST_EDGES", most)
    typed = isinstance(given, dict)
    if typed:
        given["author__reads__journal"] = [1, 1]
    data = opened(make_data(num_neighbors=given, **({"dataset": learnable_hetero()} if typed else {})))
    with caplog.at_level(logging.INFO):
        data.val_dataloader(), data.test_dataloader()
    found = data._eval_num_neighbors
    assert (found["paper__by__author"] if typed else found) == expected
    (line,) = [r.getMessage() for r in caplog.records if "evaluation.num_neighbors" in r.getMessage()]
    assert ("all neighbours" if most > 10 else "twice those of training") in line
    data.teardown()


def test_evaluation_of_disjoint_trees_looks_at_twice_as_many_neighbours(make_data) -> None:
    data = opened(make_data(num_neighbors=[5, -1], batches={"disjoint": True}))
    assert data._eval_num_neighbors == [10, -1]
    data.teardown()


def test_a_line_about_fan_outs_of_evaluation_is_only_for_others_than_those_of_training(make_data, caplog) -> None:
    data = opened(make_data(num_neighbors=[-1, -1]))
    with caplog.at_level(logging.INFO):
        data.val_dataloader()
    assert "evaluation.num_neighbors" not in caplog.text
    data.teardown()


def test_a_loader_that_was_made_again_says_why_the_first_is_closed(make_data) -> None:
    data = opened(make_data())
    first, second = data.val_dataloader(), data.val_dataloader()
    with pytest.raises(
        OptionError, match=r"'val' is closed: val_dataloader\(\) was called again.* Iterate the new one"
    ):
        next(iter(first))
    assert next(iter(second)).batch_size
    data.teardown()
    with pytest.raises(OptionError, match=r"'val' is closed: so is its Session. Open a new"):
        next(iter(second))


def test_nested_options_may_be_mappings() -> None:
    options = ClusterOptions(deadlines={"call_s": 3.0}, security={"insecure": True})
    assert options == ClusterOptions(deadlines=DeadlineOptions(call_s=3.0), security=SecurityOptions(insecure=True))


def test_own_splits(make_data, tmp_path: Path) -> None:
    np.save(tmp_path / "val.npy", np.array([5, 3]))
    (tmp_path / "test.txt").write_text("7\n1\n")
    mask = torch.zeros(NODES, dtype=torch.bool)
    mask[[2, 9]] = True
    data = opened(
        make_data(seeds={"splits": {"train": mask, "val": str(tmp_path / "val.npy"), "test": tmp_path / "test.txt"}})
    )
    assert sorted(seeds_of(data.train_dataloader())) == [2, 9]
    assert seeds_of(data.val_dataloader()) == [5, 3]
    assert seeds_of(data.test_dataloader()) == [7, 1]
    data.teardown()


def test_own_splits_name_their_node_type(make_data) -> None:
    data = opened(make_data(dataset=learnable_hetero(), seeds={"splits": {"test": [4, 2]}, "input_type": "paper"}))
    batch = next(iter(data.test_dataloader()))
    assert batch["paper"].n_id[:2].tolist() == [4, 2]
    data.teardown()


def test_missing_split_names_those_that_exist(make_data, tmp_path: Path) -> None:
    data = opened(make_data(dataset=str(save_graph(tmp_path / "g.npz", drop=("test_idx",)))))
    with pytest.raises(DataError, match=r"split 'test': not in the data set, which has train, val\."):
        data.test_dataloader()
    data.teardown()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dataset": None}, "dataset: not given"),
        ({"batch_size": 0}, "batch_size: expected an integer >= 1, got 0"),
        ({"evaluation": {"batch_size": -1}}, "evaluation.batch_size: expected"),
        ({"num_neighbors": [5, 0]}, "Drop the hop instead of asking for 0"),
        ({"num_neighbors": []}, "num_neighbors: expected one integer per hop"),
        ({"num_neighbors": {"a__to__b": [0]}}, r"num_neighbors\[a__to__b\]"),
        ({"evaluation": {"num_neighbors": [-2]}}, "evaluation.num_neighbors: expected"),
        ({"normalize": "columns"}, "normalize: expected none, rows or standardize"),
        ({"seeds": {"splits": {"dev": [1]}}}, "splits: expected any of train, val, test; got dev"),
        ({"evaluation": {"predict_split": "dev"}}, "predict_split: expected"),
        ({"partition": {"num_parts": 0}}, "partition.num_parts"),
        ({"partition": {"parts": 2}}, "partition: expected any of num_parts, .*; got 'parts'. Did you mean"),
        ({"partition": {"algorithm": "metiss"}}, "partition.algorithm: .* got 'metiss'. Did you mean metis"),
        ({"cache": {"memory": "1 elephant"}}, "cache.memory: expected bytes such as .* got '1 elephant'"),
        ({"sampling": {"num_workers": -1}}, "sampling.num_workers"),
        ({"sampling": {"feature_dtype": "float16"}}, "sampling.feature_dtype: expected float32, stored; got 'float16'"),
        ({"sampling": 3}, "sampling: expected SamplingOptions or a mapping of its fields, got 3"),
        (
            {"cluster": {"deadlines": {"conect_s": 1}}},
            r"cluster.deadlines: .* got 'conect_s'. Did you mean connect_s\?",
        ),
        ({"cluster": {"limits": 0.5}}, "cluster.limits: expected LimitOptions"),
        ({"cluster": {"security": None}}, "cluster.security: expected SecurityOptions"),
    ],
)
def test_bad_options_are_refused_at_once(make_data, options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        make_data(**options)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["a"], "expected node ids or a mask"),
        ([[1, 2]], "expected node ids or a mask in one dimension"),
        ([NODES], rf"splits\.train: {NODES} at position 0 is not a node"),
        ("none.npy", "there is no file .none.npy."),
        ("ids.mat", "expected an .npy file"),
        ([], "each rank needs a seed; there are 0 for world size 1"),
    ],
)
def test_bad_own_splits(make_data, given: Any, said: str) -> None:
    data = opened(make_data(seeds={"splits": {"train": given}}))
    with pytest.raises(GLTError, match=said):
        data.train_dataloader()
    data.teardown()


def test_loader_before_setup_is_refused(make_data) -> None:
    with pytest.raises(OptionError, match="call prepare_data"):
        make_data().train_dataloader()


def test_a_cache_whose_ranking_knows_no_weights_is_said(recwarn: pytest.WarningsRecorder) -> None:
    GLTDataModule("demo", sampling={"weight_attr": "w"}, cache={"memory": "1GB"})
    assert not [each for each in recwarn if "weighed the same" in str(each.message)]
    with pytest.warns(UserWarning, match=r"cache: remote rows are ranked .* neighbours are drawn by w, so that rows"):
        GLTDataModule("demo", sampling={"weight_attr": "w"}, cache={"ratio": 0.1})


@pytest.mark.parametrize("again", [lambda data: pickle.loads(pickle.dumps(data)), copy.deepcopy, copy.copy])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_copy_has_nothing_open(make_data, workers: int, again: Callable[[Any], Any]) -> None:
    data = opened(make_data(sampling={"num_workers": workers, "seed": 3}))
    batches = iter(data.train_dataloader())
    first = next(batches)
    copied = again(data)
    with pytest.raises(
        OptionError, match=r"the graph is not open: call prepare_data\(\) and setup\(\) before asking for"
    ):
        copied.train_dataloader()
    copied.setup()
    assert torch.equal(next(iter(copied.train_dataloader())).n_id, first.n_id)
    copied.teardown()
    assert len(next(batches).n_id)  # it goes on
    data.teardown()


def test_a_copy_of_a_running_data_module_has_no_trainer(make_data, make_model, make_trainer) -> None:
    copies = []

    class Copying(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            copies.append(pickle.loads(pickle.dumps(trainer.datamodule)))

    data = make_data()
    make_trainer(callbacks=[Copying()], max_epochs=1).fit(make_model(), data)
    copies.append(copy.deepcopy(data))
    assert [each.trainer for each in copies] == [None, None]
    make_trainer(max_epochs=1).fit(make_model(), copies[0])
