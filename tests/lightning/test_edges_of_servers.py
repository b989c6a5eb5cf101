"""Edge encoders, labels of edges, relations and recommendations with graph servers: as in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from lightning.pytorch import seed_everything

from glt_lightning import EdgePredictor, GLTDataModule, LinkPredictor, recommend
from tests.lightning.serving import serving
from tests.lightning.test_knowledge_graphs import COLUMN, in_a_column

LINKED: dict[str, Any] = {"task": "link", "links": COLUMN, "num_neighbors": [4], "batch_size": 32}
LABELLED: dict[str, Any] = {
    "task": "edge",
    "links": {"label": "kind", "edge_splits": {"num_val": 0.1, "num_test": 0.2}, "with_target_attrs": True},
    "num_neighbors": [4],
    "batch_size": 32,
}
FACTS = ("num_features", "num_nodes", "edge_facts", "num_relations", "label_facts", "target_facts", "link_type")


def graph() -> Any:
    found = in_a_column()
    found.edge_attr = torch.randn(found.edge_index.size(1), 3, generator=torch.Generator().manual_seed(0))
    return found


def facts(data: GLTDataModule) -> dict[str, Any]:
    return {name: getattr(data, name) for name in FACTS}


def linked(data: GLTDataModule, trainer: Any, layerwise: bool) -> list[Any]:
    """Metrics of a training over relations with an encoder that reads edge_attr; with the best destinations of each node."""
    seed_everything(0, verbose=False)
    shape = {"num_nodes": data.num_nodes, "num_relations": data.num_relations, "edge_facts": data.edge_facts}
    given: dict[str, Any] = {
        "decoder": "rotate",
        "loss": "softmax",
        "hidden_channels": 8,
        "num_layers": 1,
        "metrics": ["mrr"],
    }
    ranking = ["filtered_mrr"] if layerwise else None
    model = LinkPredictor(None, "TransformerConv", ranking=ranking, corrupt="both", **given, **shape)
    trainer.fit(model, data)
    found = [trainer.test(model, data, verbose=False), trainer.predict(model, data)]
    if layerwise:
        folder = Path(trainer.default_root_dir) / f"best{id(data)}"
        recommend(trainer, model, data, folder, options={"k": 4, "relation": 1})
        found.append(pq.read_table(folder).to_pydict())
    return found


def labelled(data: GLTDataModule, trainer: Any) -> list[Any]:
    seed_everything(0, verbose=False)
    given = {name: getattr(data, name) for name in ("label_facts", "num_nodes", "edge_facts", "target_facts")}
    model = EdgePredictor(None, encoder="GAT", hidden_channels=8, num_layers=1, **given)
    trainer.fit(model, data)
    return [trainer.test(model, data, verbose=False), trainer.predict(model, data)]


def plain(values: Any) -> Any:
    """Tensors as lists, which compare by all their numbers."""
    if isinstance(values, torch.Tensor):
        return values.tolist()
    if isinstance(values, dict):
        return {name: plain(each) for name, each in values.items()}
    return [plain(each) for each in values] if isinstance(values, list) else values


@pytest.mark.slow
def test_servers_with_a_part_each_and_a_server_of_the_run(make_data: Any, make_trainer: Any) -> None:
    options = {"partition": {"num_parts": 2}, "sampling": {"seed": 5}}
    for given, run in ((LINKED, lambda d, t: linked(d, t, layerwise=False)), (LABELLED, labelled)):
        here = make_data(dataset=graph(), **given | options)
        expected, known = plain(run(here, make_trainer(strategy="ddp"))), facts(here)
        with serving(here.partition_dir, servers=2) as (where, _):
            theirs = GLTDataModule(cluster=where, sampling={"seed": 5}, **given)
            assert facts(theirs) == known
            assert plain(run(theirs, make_trainer(strategy="glt_server_client"))) == expected
        own = make_data(dataset=graph(), **given | options)
        assert plain(run(own, make_trainer(strategy="glt_server_client"))) == expected

    exact = LINKED | options | {"evaluation": {"mode": "layerwise"}}
    found = [
        plain(linked(make_data(dataset=graph(), **exact), make_trainer(strategy=strategy), layerwise=True))
        for strategy in ("ddp", "glt_server_client")
    ]
    assert found[0] == found[1]
