"""Training on a version of a graph, wherever it is read, gives the weights of the graph partitioned anew."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from glt_lightning import ClusterOptions, GLTDataModule, GLTServerClientStrategy
from glt_lightning.base import EDGE, OptionError
from glt_lightning.cli.serve import open_server
from glt_lightning.partition import Additions, NewEdges, NewNodes, append_rows, delete_rows
from tests.lightning.serving import serving
from tests.lightning.tiny import NODES, Noting, learnable_graph

_NEW = 40


@pytest.fixture
def graph() -> tuple[dict[str, np.ndarray], Additions]:
    """The whole graph, and the rows of it that came later."""
    rng, arrays = np.random.default_rng(2), learnable_graph()
    ends = np.concatenate(
        [
            rng.integers(0, NODES + _NEW, (2, 300)),
            np.stack([np.arange(NODES, NODES + _NEW), rng.integers(0, NODES, _NEW)]),
        ],
        axis=1,
    )
    x, y = rng.normal(size=(_NEW, arrays["x"].shape[1])).astype(np.float32), rng.integers(0, 3, _NEW)
    whole = {
        "x": np.concatenate([arrays["x"], x]),
        "y": np.concatenate([arrays["y"], y]),
        "edge_index": np.concatenate([arrays["edge_index"], ends], axis=1),
    }
    return arrays | whole, Additions(nodes={"node": NewNodes(_NEW, {"x": x, "y": y})}, edges={EDGE: NewEdges(ends)})


@pytest.fixture
def folder(make_data: Any, graph: tuple[dict[str, np.ndarray], Additions]) -> Path:
    """A partition with a version."""
    data = make_data(partition={"num_parts": 2})
    data.prepare_data()
    append_rows(data.partition_dir, graph[1])
    return data.partition_dir


@pytest.fixture
def trained(make_trainer: Any, make_model: Any) -> Any:
    """Trains and returns what was trained: seeds, losses, weights."""

    def train(data: GLTDataModule, strategy: Any = "auto") -> list[Any]:
        model = make_model(Noting, dropout=0.0)
        trainer = make_trainer(strategy=strategy)
        trainer.fit(model, data)
        predicted = trainer.predict(model, data)
        logits = torch.cat([batch["logits"] for batch in predicted]).tolist()
        return [model.seen, model.losses, [p.flatten().tolist() for p in model.parameters()], logits]

    return train


def test_a_run_without_a_version_says_what_it_reads(
    make_data: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = f"{folder}: 1 version after it, and this run reads the partition itself. partition.version: latest reads"
    for version, found in ((0, False), ("latest", False), (None, True)):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            make_data(partition={"num_parts": 2, "dir": str(folder), "version": version}).setup("fit")
        assert (said in caplog.text) == found


def test_servers_train_as_the_graph_partitioned_anew(
    make_data: Any, folder: Path, graph: tuple[dict[str, np.ndarray], Additions], tmp_path: Path, trained: Any
) -> None:
    np.savez(tmp_path / "whole.npz", **graph[0])
    expected = trained(make_data(dataset=str(tmp_path / "whole.npz")))
    partition = {"num_parts": 2, "version": "latest"}
    assert trained(make_data(partition=partition)) == expected
    assert trained(make_data(partition=partition), "glt_worker") == expected
    assert trained(make_data(partition=partition), "glt_server_client") == expected  # starts a server of its own
    with serving(folder, 2, version=1) as (where, hosted):
        assert [host.server.status()["parts"] for host in hosted] == [[0], [1]]
        of_client: dict[str, Any] = {"num_neighbors": [5, 5], "batch_size": 20, "cluster": where}
        assert trained(GLTDataModule(**of_client), GLTServerClientStrategy(cluster=where)) == expected


def test_serve_reads_the_version_of_its_configuration(
    folder: Path, graph_npz: Path, tmp_path: Path, make_trainer: Any, make_model: Any
) -> None:
    delete_rows(folder, nodes={"node": np.array([NODES])})
    init = {"dataset": str(graph_npz), "root": str(tmp_path / "root"), "num_neighbors": [5, 5], "batch_size": 20}
    init["partition"] = {"num_parts": 2, "version": "latest"}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({"data": {"class_path": "GLTDataModule", "init_args": init}}))
    with closing(open_server(["--config", str(tmp_path / "run.yaml")], "serve")) as server:
        assert server.server.status()["version"] == 2
        where = ClusterOptions(servers=[server.address])
        data = GLTDataModule(num_neighbors=[5, 5], batch_size=20, cluster=where, partition={"version": 2})
        trainer = make_trainer(strategy=GLTServerClientStrategy(cluster=where), max_epochs=1)
        trainer.fit(make_model(), data)
        data = GLTDataModule(num_neighbors=[5, 5], batch_size=20, cluster=where, partition={"version": 1})
        with pytest.raises(OptionError, match=r"partition.version: 1, and the graph servers read version 2. Write 2"):
            make_trainer(strategy=GLTServerClientStrategy(cluster=where)).fit(make_model(), data)
