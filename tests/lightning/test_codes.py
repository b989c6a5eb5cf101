"""Integer codes of categories, ``x_codes``: from a source through the manifest into learned vectors of the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import seed_everything

from glt_lightning import GraphSAGE
from glt_lightning.base import EDGE, NODE, DataError, GraphSchema, OptionError
from glt_lightning.models.code_embedding import CodeEmbedding
from glt_lightning.partition import ArraySource
from tests.lightning.test_gnn import one_batch
from tests.lightning.tiny import CLASSES, NODES, SHAPE, WIDTH, learnable_graph

COUNTS = [CLASSES + 2, 3]


def coded_graph(**changes: Any) -> ArraySource:
    """The first column of codes tells the class; features are noise."""
    graph = learnable_graph()
    rng = np.random.default_rng(1)
    codes = np.stack([graph["y"] + 1, rng.integers(0, COUNTS[1], NODES)], axis=1).astype(np.int32)
    splits = {"train": "train_idx", "val": "valid_idx", "test": "test_idx"}
    given: dict[str, Any] = {
        "name": "coded",
        "fingerprint": "1",
        "schema": GraphSchema.single(),
        "num_nodes": {NODE: NODES},
        "edge_index": {EDGE: graph["edge_index"]},
        "node": {NODE: {"x": rng.normal(size=(NODES, WIDTH)).astype(np.float32), "y": graph["y"], "x_codes": codes}},
        "splits": {name: (NODE, graph[key]) for name, key in splits.items()},
        "target_type": NODE,
        "num_classes": CLASSES,
        "num_categories": {NODE: COUNTS},
    }
    return ArraySource(**given | changes)


def test_codes_are_learned_from(make_data, make_trainer) -> None:
    seed_everything(0, verbose=False)
    data = make_data(dataset=coded_graph())
    assert data.num_categories == COUNTS  # before there is a partition
    trainer = make_trainer(max_epochs=5)
    model = GraphSAGE(**SHAPE, num_categories=data.num_categories)
    trainer.fit(model, data)
    assert data.num_categories == COUNTS  # of the manifest
    (found,) = trainer.validate(model, data, verbose=False)
    assert found["val_acc"] > 0.9
    without = GraphSAGE(**SHAPE)
    with pytest.raises(DataError, match=r"built for num_categories None, but the graph has \[5, 3\]"):
        trainer.validate(without, data)


def test_nodes_with_codes_alone_need_no_embedding_of_their_own(make_data) -> None:
    batch = one_batch(make_data(dataset=coded_graph()))
    del batch.x
    model = GraphSAGE(**SHAPE | {"in_channels": None}, num_categories=COUNTS, num_nodes=NODES)
    model(batch).sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    assert {tuple(table.weight.shape) for table in model.gnn.encoder.codes.columns} == {(5, 16), (3, 16)}
    assert model.gnn.encoder.layer is None


def test_classes_have_names_without_labels(make_data) -> None:
    source = coded_graph()
    del source.node[NODE]["y"]  # type: ignore[attr-defined]
    source.class_names = ["a", "b", "c"]  # type: ignore[attr-defined]
    data = make_data(dataset=source)
    data.prepare_data()
    data.setup()
    assert data.class_names == ["a", "b", "c"]
    data.teardown()


def test_a_column_of_codes_adds_its_vector() -> None:
    embedding = CodeEmbedding([3, 2], 4)
    first, second = (table.weight for table in embedding.columns)
    found = embedding(NODE, {"x_codes": torch.tensor([[2, 1], [0, 1]], dtype=torch.int32)})
    torch.testing.assert_close(found, torch.stack([first[2] + second[1], second[1]]))  # code 0 adds nothing


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ({}, "built for codes .N, 2., but there are none. Set num_categories"),
        ({"x_codes": torch.zeros(5, 1)}, r"but got \[5, 1\]"),
    ],
)
def test_other_codes_are_refused(store: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        CodeEmbedding([3, 2], 4)("paper", store)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_categories": [3, 0]}, "num_categories: expected integers >= 1"),
        ({"num_categories": {"a": [3]}}, "metadata: needed when"),
        (
            {
                "metadata": (["a"], [("a", "to", "a")]),
                "in_channels": {"a": 1},
                "num_nodes": {"a": 1},
                "target_type": "a",
                "num_categories": [3],
            },
            "num_categories: expected an entry per node type",
        ),
    ],
)
def test_bad_arguments(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        GraphSAGE(**SHAPE | options)
