"""Times in a data module: what reads them, for nodes and for edges, and what is refused before anything is partitioned."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glt_lightning import GLTDataModule, LinkPredictor
from glt_lightning.base import DataError, OptionError

EDGES, NODES = 400, 60


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """Edges with times that are their numbers; every node has the time 0."""
    rng = np.random.default_rng(0)
    path = tmp_path / "graph.npz"
    np.savez(
        path,
        edge_index=rng.permutation(np.stack(np.triu_indices(NODES, 1), 1))[:EDGES].T,
        edge_time=np.arange(EDGES),
        x=rng.random((NODES, 4), np.float32),
        y=rng.integers(0, 2, NODES),
        train_idx=np.array([43, 55, 43, 49]),
        val_idx=np.array([7]),
        test_idx=np.array([8]),
    )
    for name, part in (("train", slice(0, 300)), ("val", slice(300, 350)), ("test", slice(350, 400))):
        np.save(tmp_path / f"{name}.npy", np.load(path)["edge_index"][:, part])
        np.save(tmp_path / f"{name}_time.npy", np.arange(EDGES)[part])
    return path


def temporal(graph: Path, **options: Any) -> GLTDataModule:
    plain: dict[str, Any] = {"num_neighbors": [4, 2], "batch_size": 16, "partition": {"time_attr": "edge_time"}}
    return GLTDataModule(str(graph), str(graph.parent), **plain | {"sampling": {"time_attr": "edge_time"}} | options)


def splits(graph: Path, **more: Any) -> dict[str, Any]:
    folder = graph.parent
    names = ("train", "val", "test")
    return {n: {"edge": folder / f"{n}.npy", "time": folder / f"{n}_time.npy"} | more for n in names}


def test_times_of_nodes_by_split(graph: Path) -> None:
    data = temporal(
        graph, seeds={"input_time": {"train": [40, 390, 0, 200], "val": np.array([100]), "all": np.full(NODES, 7)}}
    )
    data.prepare_data()
    data.setup()
    try:
        batch = next(iter(data.train_dataloader()))
        assert dict(zip(batch.input_id.tolist(), batch.seed_time.tolist(), strict=True)) == {
            0: 40,
            1: 390,
            2: 0,
            3: 200,
        }
        assert (batch.edge_time <= batch.seed_time[batch.batch[batch.edge_index[1]]]).all()
        assert batch.edge_time.numel()
        assert next(iter(data.val_dataloader())).seed_time.tolist() == [100]
        assert set(next(iter(data.predict_dataloader())).seed_time.tolist()) == {7}
        with pytest.raises(
            OptionError, match=r"loader 'test': input_time: missing, and sampling.time_attr is edge_time"
        ):
            data.test_dataloader()
    finally:
        data.teardown()


def test_times_of_edges_by_split(graph: Path, make_trainer: Any) -> None:
    data = temporal(graph, task="link", links={"edge_splits": splits(graph)}, evaluation={"num_neighbors": [4, 2]})
    model = LinkPredictor(data.num_features, hidden_channels=8, num_layers=2)
    trainer = make_trainer(max_epochs=1)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    data.setup()
    try:
        for loader, begin in ((data.train_dataloader(), 0), (data.test_dataloader(), 350)):
            batch = next(iter(loader))
            positives = len(batch.input_id)
            times = begin + batch.input_id
            assert batch.edge_label_time.tolist() == times.repeat(2).tolist()
            assert batch.edge_label_index.shape[1] == 2 * positives
            later = batch.edge_time > times[batch.batch[batch.edge_index[1]]]
            assert not later.any()
            assert batch.edge_time.numel()
    finally:
        data.teardown()


@pytest.mark.parametrize("timed", [True, False])
def test_the_latest_edges_are_validation_and_test(
    graph: Path,
    make_trainer: Any,
    recwarn: pytest.WarningsRecorder,
    caplog: pytest.LogCaptureFixture,
    timed: bool,
) -> None:
    """Half of the edges are repeated later, which is no leak; without sampling.time_attr training edges of any time are seen."""
    arrays = dict(np.load(graph))
    index = arrays["edge_index"]
    index[:, EDGES // 2 :] = index[:, : EDGES // 2]
    np.savez(graph, **arrays)
    options = {} if timed else {"sampling": {}, "partition": {}}
    links = {"edge_splits": {"num_val": 50, "num_test": 0.125, "time": "edge_time"}}
    given = {"evaluation": {"num_neighbors": [4, 2]}, "undirected": True}
    data = temporal(graph, task="link", links=links, **given, **options)
    model = LinkPredictor(data.num_features, hidden_channels=8, num_layers=2)
    trainer = make_trainer(max_epochs=1)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    data.setup()
    try:
        for loader, begin, end in (
            (data.train_dataloader(), 0, 300),
            (data.val_dataloader(), 300, 350),
            (data.test_dataloader(), 350, 400),
        ):
            edges = 0
            for batch in loader:
                times, seen = begin + batch.input_id, batch.edge_time
                assert (times < end).all()
                ends = batch.n_id[batch.edge_label_index[:, : len(times)]]
                assert ends.tolist() == index[:, times].tolist()
                assert (seen < 300).all()
                if timed:
                    assert batch.edge_label_time.tolist() == times.repeat(2).tolist()
                    assert (seen <= times[batch.batch[batch.edge_index[1]]]).all()
                edges += len(seen)
            assert edges
    finally:
        data.teardown()
    assert not [
        str(each.message) for each in recwarn if "edge_splits" in str(each.message) or "carry" in str(each.message)
    ]
    assert "exclude_target_edges" not in caplog.text


@pytest.mark.parametrize("boundary", ["<", "<="])
def test_a_target_that_is_seen_at_its_own_time_is_said(
    graph: Path, caplog: pytest.LogCaptureFixture, boundary: str
) -> None:
    links = {"edge_splits": {"num_test": 0.1, "time": "edge_time"}, "exclude_target_edges": "none"}
    data = temporal(graph, task="link", links=links, sampling={"time_attr": "edge_time", "time_boundary": boundary})
    data.prepare_data()
    data.setup()
    try:
        for _ in data.train_dataloader():
            pass
        assert ("'train': exclude_target_edges is none, and 16 of" in caplog.text) == (boundary == "<=")
    finally:
        data.teardown()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"partition": {"time_attr": "day"}},
            "sampling.time_attr: edge_time: partition.time_attr is day. Set one to the attribute",
        ),
        ({"seeds": {"input_time": {"fit": [1]}}}, "input_time: expected any of train, val, test, all; got fit"),
        (
            {"seeds": {"input_time": {"train": [1]}}, "sampling": {}},
            "input_time: nothing reads these times of seed nodes; set sampling.time_attr",
        ),
        (
            {"seeds": {"input_time": {"train": [1]}}, "task": "link"},
            "input_time: nothing reads these times of seed nodes; those of edges are time of links.edge_splits",
        ),
        (
            {"task": "link", "links": {"edge_splits": {"train": "train.npy"}}},
            "edge_splits.train.time: missing, and sampling.time_attr is edge_time. Give a time for each edge",
        ),
        (
            {"task": "link", "links": {"edge_splits": {"val": {"edge": "v.npy", "time": "t.npy"}}}, "sampling": {}},
            "edge_splits.val.time: nothing reads these times. Set sampling.time_attr",
        ),
        (
            {"task": "link", "links": {"neg_sampling": {"mode": "triplet", "sharing": "shared"}}},
            "task: link: neg_sampling.sharing: 'shared' shares negatives between edges of different times",
        ),
        (
            {"task": "link", "links": {"edge_splits": {"num_val": 0.1, "num_test": 0.1}}},
            "edge_splits: num_val, num_test: a split at random knows no times, and sampling.time_attr is edge_time. Take "
            "the latest edges for validation and test: {num_val: 0.1, num_test: 0.1, time: edge_time}, or give edges and times",
        ),
        (
            {"sampling": {"time_attr": "edge_time", "temporal_strategy": "last", "weight_attr": "w"}},
            "sampling.temporal_strategy: 'last' takes the latest edges, whatever their weights",
        ),
    ],
)
def test_options_that_cannot_work_are_refused_at_construction(graph: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=re.escape(said)):
        temporal(graph, **options)


def test_pairs_without_times_are_refused(graph: Path) -> None:
    given = splits(graph)
    given["test"]["negative_edges"] = np.array([[0, 1], [2, 3]])
    data = temporal(graph, task="link", links={"edge_splits": given})
    data.prepare_data()
    data.setup()
    try:
        with pytest.raises(DataError, match=r"edge_splits.test: its pairs of label 0 \(negative_edges\) have no times"):
            data.test_dataloader()
    finally:
        data.teardown()
