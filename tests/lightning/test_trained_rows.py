"""Sparse embeddings after training: rows of a checkpoint answer for old nodes, and the rule for those that came later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from torch_geometric.data import HeteroData

import glt_lightning as glt
from glt_lightning.base import DataError
from glt_lightning.lightning import predict_new, replay
from glt_lightning.partition import Additions, NewEdges, NewNodes, append_rows
from tests.lightning.serving import serving
from tests.lightning.test_deploy import Ask, columns_of, talking
from tests.lightning.test_new_rows import authored, model_for

WRITES = ("author", "writes", "paper")
NEW = {"paper": {"x": np.full((2, 4), 0.5, np.float32)}}
BY_NEW = {"author__writes__paper": np.array([[12, 3, 12], [40, 41, 5]])}
BODY = {
    "nodes": {"paper": [{"x": [0.5] * 4}] * 2, "author": [{}]},
    "edges": {
        "author__writes__paper": [
            {"source": int(s), "destination": int(d)} for s, d in BY_NEW[WRITES[0] + "__writes__paper"].T
        ]
    },
    "node_type": "paper",
}
GIVEN: dict[str, Any] = {"undirected": True, "num_neighbors": [-1, -1], "batch_size": 16, "sampling": {"seed": 1}}
Made = tuple[Callable[..., Any], Any, str]


def graph() -> HeteroData:
    data = authored()
    data["author"].num_nodes = 12
    return data


def trainer_of(folder: Path, **options: Any) -> Trainer:
    given = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False}
    return Trainer(**given | {"enable_checkpointing": False, "default_root_dir": str(folder)} | options)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    """Makes the data, with a module and a checkpoint that were trained on it."""

    def data_of(**options: Any) -> glt.GLTDataModule:
        return glt.GLTDataModule(graph(), root=str(tmp_path), **GIVEN | {"partition": {"num_parts": 2}} | options)

    data = data_of()
    data.prepare_data()
    torch.manual_seed(1)
    model = model_for(data, node_embedding="sparse")
    trainer = trainer_of(tmp_path, max_epochs=2, enable_checkpointing=True)
    trainer.fit(model, data)
    trainer.save_checkpoint(tmp_path / "rows.ckpt")
    yield data_of, model, str(tmp_path / "rows.ckpt")
    (embedding,) = [each for each in model.modules() if isinstance(each, glt.DistEmbedding)]
    embedding.close()


def dense_twin(data: Any, model: Any, **more: torch.Tensor) -> Any:
    """The same model with the rows as a dense embedding."""
    twin = model_for(data)
    (embedding,) = [each for each in model.modules() if isinstance(each, glt.DistEmbedding)]
    weight = torch.from_numpy(embedding.rows.table.read(embedding.rows.order()))
    (name,) = [n for n, each in twin.named_modules() if isinstance(each, torch.nn.Embedding)]
    state = {n: v for n, v in model.state_dict().items() if isinstance(v, torch.Tensor)}
    twin.load_state_dict(state | {f"{name}.weight": weight})
    return twin


@pytest.mark.parametrize("rule", ["mean", "zero"])
def test_new_rows(made: Made, tmp_path: Path, rule: str) -> None:
    """Of the module that was trained, and of one that reads the checkpoint: as of the dense twin."""
    data_of, model, checkpoint = made
    new = {"nodes": NEW | {"author": 1}, "edges": BY_NEW, "embeddings": rule}
    expected = predict_new(dense_twin(data_of(), model), data_of(), **new)
    fresh = model_for(data_of(), node_embedding="sparse")
    for found in (
        predict_new(model, data_of(), **new),
        predict_new(fresh, data_of(), ckpt_path=checkpoint, **new),
    ):
        assert found["n_id"].tolist() == [40, 41]
        if rule == "zero":
            assert found["probability"].tolist() == expected["probability"].tolist()
        np.testing.assert_allclose(found["probability"], expected["probability"], atol=1e-6)  # a mean in another order
    with pytest.raises(DataError, match="1 nodes of the batch came after training"):
        predict_new(fresh, data_of(), **new | {"embeddings": "error"})
    trainer_of(tmp_path, max_epochs=1).fit(model, data_of())  # it trains on
    with pytest.raises(DataError, match="has no trained rows"):
        predict_new(model_for(data_of(), node_embedding="sparse"), data_of(), **new)


def test_an_endpoint(made: Made, tmp_path: Path) -> None:
    data_of, model, checkpoint = made
    (batches,) = [trainer_of(tmp_path).predict(model, data_of(partition={"num_parts": 2}))]
    expected = {name: torch.cat([each[name] for each in batches]).tolist() for name in ("n_id", "probability")}
    later = predict_new(model, data_of(), nodes=NEW | {"author": 1}, edges=BY_NEW)
    record = str(tmp_path / "record.jsonl")
    hashes = []

    def talk(endpoint: Any, ask: Ask) -> None:
        hashes.append(endpoint.model.hash)
        for begin in range(0, 40, 16):  # in the batches of predict
            ids = expected["n_id"][begin : begin + 16]
            found = columns_of(ask("/predict", {"ids": ids, "node_type": "paper"}))
            assert found["probability"] == expected["probability"][begin : begin + 16]
        assert columns_of(ask("/predict", BODY))["probability"] == later["probability"].tolist()
        rows = Additions({"author": NewNodes(3)}, {WRITES: NewEdges(np.array([[12, 14], [0, 1]]))})
        append_rows(data.partition_dir, rows)
        assert endpoint.graph.move()
        after = columns_of(ask("/predict", {"ids": [0, 1, 2], "node_type": "paper"}))["probability"]
        alone = columns_of(ask("/predict", {"ids": [2], "node_type": "paper"}))["probability"]
        np.testing.assert_allclose(after[2], alone[0], atol=1e-6)
        assert after[0] != expected["probability"][expected["n_id"].index(0)]

    data = data_of(partition={"num_parts": 2, "version": "latest"})
    options = {"record": record, "poll_s": 1000.0}
    talking(trainer_of(tmp_path), model_for(data_of(), node_embedding="sparse"), data, talk, checkpoint, **options)
    fresh = model_for(data_of(), node_embedding="sparse")
    found = replay(trainer_of(tmp_path), fresh, data_of(), record, ckpt_path=checkpoint, alone=True)
    assert found.equal, found
    assert replay(trainer_of(tmp_path), model, data_of(), record).equal  # the rows that the checkpoint has
    (embedding,) = [each for each in model.modules() if isinstance(each, glt.DistEmbedding)]
    embedding.rows.table.own[7, 0] += 1e-3
    with pytest.raises(DataError, match="answered by another model"):
        replay(trainer_of(tmp_path), model, data_of(), record)


def test_rows_of_a_version(made: Made, tmp_path: Path) -> None:
    """Trained on version 1, answered from version 2, whose new nodes have other rows, but no other ids."""
    data_of, _, _ = made
    folder = data_of().partition_dir
    append_rows(
        folder, Additions({"author": NewNodes(5)}, {WRITES: NewEdges(np.array([np.arange(12, 17), np.arange(5)]))})
    )
    first = data_of(partition={"num_parts": 2, "version": 1})
    torch.manual_seed(2)
    model = model_for(first, node_embedding="sparse")
    trainer = trainer_of(tmp_path, max_epochs=1, enable_checkpointing=True)
    trainer.fit(model, first)
    trainer.save_checkpoint(tmp_path / "first.ckpt")
    append_rows(
        folder, Additions({"author": NewNodes(5)}, {WRITES: NewEdges(np.array([np.arange(17, 22), np.arange(30, 35)]))})
    )
    found: list[Any] = []

    def talk(endpoint: Any, ask: Ask) -> None:
        found.append(columns_of(ask("/predict", {"ids": [0, 1, 2, 3, 4], "node_type": "paper"}))["probability"])

    for version in (1, 2):
        data = data_of(partition={"num_parts": 2, "version": version}, num_neighbors=[-1])
        talking(trainer_of(tmp_path), model_for(data, node_embedding="sparse"), data, talk, tmp_path / "first.ckpt")
    assert found[0] == found[1]
    other = data_of(num_neighbors=[-1])
    with pytest.raises(DataError, match="17 rows of another graph; this one has 12 nodes"):
        talking(trainer_of(tmp_path), model_for(other, node_embedding="sparse"), other, talk, tmp_path / "first.ckpt")


def test_dense_embeddings_of_an_earlier_version(made: Made, tmp_path: Path) -> None:
    """A module for the grown graph reads a checkpoint from before, as one for the base does."""
    data_of, _, _ = made
    base, found = data_of(), []
    torch.manual_seed(1)
    model = model_for(base)
    trainer = trainer_of(tmp_path, max_epochs=1, enable_checkpointing=True)
    trainer.fit(model, base)
    trainer.save_checkpoint(tmp_path / "dense.ckpt")
    rows = Additions({"author": NewNodes(1)}, {WRITES: NewEdges(np.array([[12, 3], [0, 0]]))})
    append_rows(base.partition_dir, rows)

    def talk(endpoint: Any, ask: Ask) -> None:
        found.append(columns_of(ask("/predict", {"ids": [0, 1], "node_type": "paper"}))["probability"])

    for version in (0, 1):
        sized = data_of(partition={"num_parts": 2, "version": version})
        latest = data_of(partition={"num_parts": 2, "version": "latest"})
        talking(trainer_of(tmp_path), model_for(sized), latest, talk, tmp_path / "dense.ckpt")
    assert found[0] == found[1]
    plain = data_of(partition={"num_parts": 2, "version": 1})
    advice = r"an embedding for each of 12 nodes of type 'author', and the graph has 13\. .*partition\.version"
    with pytest.raises(RuntimeError, match=advice):  # without a rule
        trainer_of(tmp_path).predict(model_for(plain), plain, ckpt_path=str(tmp_path / "dense.ckpt"))


@pytest.mark.slow
def test_through_graph_servers(made: Made, tmp_path: Path) -> None:
    """The endpoint reads the rows of the checkpoint, and the servers sample."""
    data_of, _, checkpoint = made
    found: list[Any] = []

    def talk(endpoint: Any, ask: Ask) -> None:
        reply = ask("/predict", {"ids": [*range(9)], "node_type": "paper"})
        found.append((endpoint.model.hash, reply.json()["sample"], columns_of(reply)["probability"]))

    data = data_of()
    talking(trainer_of(tmp_path), model_for(data, node_embedding="sparse"), data, talk, checkpoint)
    with serving(data.partition_dir, servers=2) as (where, _):
        served = glt.GLTDataModule(cluster=where, **{k: v for k, v in GIVEN.items() if k != "undirected"})
        through = trainer_of(tmp_path, strategy="glt_server_client")
        talking(through, model_for(data, node_embedding="sparse"), served, talk, checkpoint)
    assert found[0] == found[1]


@pytest.mark.parametrize("embedding", ["dense", "sparse"])
def test_the_rule_error_refuses_requests_alone(made: Made, tmp_path: Path, embedding: str) -> None:
    """A new node without an embedding is the fault of its row; a later node of the graph that of the request that reads it."""
    data_of, model, checkpoint = made
    data = data_of(partition={"num_parts": 2, "version": "latest"})
    wanted: list[Any] = []

    def talk(endpoint: Any, ask: Ask) -> None:
        papers = {"node_type": "paper", "ids": [1, 2]}
        wanted.append(columns_of(ask("/predict", papers)))
        refused = ask("/predict", BODY)
        error = refused.json()["error"]
        assert (refused.status, error["field"], error["row"]) == (422, "nodes.author", 0)
        assert "new nodes of type 'author' have no trained embedding" in error["message"]
        known = BODY | {"nodes": {"paper": BODY["nodes"]["paper"]}, "edges": {}}  # type: ignore[index]
        assert len(columns_of(ask("/predict", known))["pred"]) == 2
        rows = Additions({"author": NewNodes(1)}, {WRITES: NewEdges(np.array([[12], [0]]))})
        append_rows(data.partition_dir, rows)
        assert endpoint.graph.move()
        refused = ask("/predict", {"node_type": "paper", "ids": [0]})
        assert refused.status == 422
        assert "1 nodes of the batch came after training" in refused.json()["error"]["message"]
        wanted.append(columns_of(ask("/predict", papers)))

    answering = dense_twin(data_of(), model) if embedding == "dense" else model_for(data_of(), node_embedding="sparse")
    options = {"embeddings": "error", "poll_s": 1000.0}
    talking(trainer_of(tmp_path), answering, data, talk, checkpoint if embedding == "sparse" else None, **options)
    assert wanted[0] == wanted[1]
