"""Whole fits on ``data.subgraph_type``, and the built-in networks on such batches."""

from __future__ import annotations

import pytest
import torch

from glt_lightning import LinkPredictor, SamplingOptions
from glt_lightning.errors import OptionError
from glt_lightning.lightning.models.encoders import EncoderShape, make_encoder
from tests.lightning.test_gnn import one_batch
from tests.lightning.tiny import WIDTH, Noting, learnable_hetero

KINDS = ("bidirectional", "induced")


@pytest.mark.parametrize("kind", KINDS)
def test_every_strategy_gives_the_same_fit(make_data, make_model, make_trainer, kind: str) -> None:
    losses = []
    for strategy in ("auto", "glt_worker", "glt_server_client"):
        model = make_model(Noting, dropout=0.0)
        options = {"sampling": SamplingOptions(seed=3), "partition": {"num_parts": 2}}
        make_trainer(strategy=strategy).fit(model, make_data(**options, subgraph_type=kind))
        losses.append(model.losses)
    assert losses[0] == losses[1] == losses[2]
    plain = make_model(Noting, dropout=0.0)
    make_trainer(max_epochs=1).fit(plain, make_data(sampling=SamplingOptions(seed=3)))
    assert plain.losses != losses[0][: len(plain.losses)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("of", "name"),
    [
        ("one type", "GraphSAGE"),
        ("one type", "GAT"),
        ("one type", "GCN"),
        ("several", "GraphSAGE"),
        ("several", "HGT"),
        ("several", "RGCN"),
    ],
)
def test_layers_are_computed_for_all_nodes(make_data, kind: str, name: str, of: str) -> None:
    """Nothing is cut by hops, which these edges do not have."""
    graph = {"dataset": learnable_hetero(), "undirected": True} if of == "several" else {}
    data = make_data(**graph, sampling=SamplingOptions(seed=0), subgraph_type=kind)
    batch = one_batch(data)
    described = {"metadata": data.metadata, "num_nodes": data.num_nodes, "target_type": data.target_type}
    shape = EncoderShape(in_channels=data.num_features, hidden_channels=16, num_layers=2, dropout=0.0, **described)
    encoder = make_encoder(name, {}, shape).eval()
    found = encoder(batch)
    for store in batch.node_stores:  # as if all had been found at once, so that every layer needs all of it
        store.num_sampled_nodes = [store.num_nodes, 0, 0]
    for store in batch.edge_stores:
        store.num_sampled_edges = [store.edge_index.size(1), 0]
        if store.pop("is_flipped", None) is not None:  # and in the order of destinations, as other batches are
            store.edge_index = store.edge_index[:, torch.argsort(store.edge_index[1], stable=True)]
    torch.testing.assert_close(found, encoder(batch))


@pytest.mark.parametrize("kind", KINDS)
def test_edges_to_predict(make_data, make_trainer, kind: str) -> None:
    data = make_data(task="link", edge_splits={"num_val": 0.1, "num_test": 0.1}, subgraph_type=kind)
    trainer = make_trainer(max_epochs=1)
    trainer.fit(LinkPredictor(WIDTH, hidden_channels=8, num_layers=2), data)
    assert trainer.callback_metrics["train_loss"] > 0


def test_options_are_checked_first(make_data) -> None:
    with pytest.raises(OptionError, match=r"^subgraph_type: expected directional, bidirectional, induced; got 'both'"):
        make_data(subgraph_type="both")
    with pytest.raises(OptionError, match=r"^edge_format: edge_index needs edges that are sorted by destination"):
        make_data(subgraph_type="bidirectional", edge_format="edge_index")
    with pytest.raises(OptionError, match=r"^induced_limit: has no effect with subgraph_type directional"):
        make_data(induced_limit=3)
    with pytest.raises(OptionError, match=r"^reverse_edge_types: has no effect with task: node"):
        make_data(reverse_edge_types={"a__to__b": "b__to__a"})
