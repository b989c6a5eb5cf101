"""Whole fits on ``data.batches.subgraph_type``, and the built-in networks on such batches."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import seed_everything

from glt_lightning import LinkPredictor, SamplingOptions
from glt_lightning.base import DataError, OptionError
from glt_lightning.models.encoders import EncoderShape, make_encoder
from tests.lightning.test_gnn import one_batch
from tests.lightning.tiny import WIDTH, Noting, learnable_hetero

KINDS = ("bidirectional", "induced")


@pytest.mark.diagonal(most=1)
@pytest.mark.parametrize("kind", KINDS)
def test_every_strategy_gives_the_same_fit(make_data, make_model, make_trainer, kind: str) -> None:
    losses = []
    for strategy in ("auto", "glt_worker", "glt_server_client"):
        model = make_model(Noting, dropout=0.0)
        options = {"sampling": SamplingOptions(seed=3), "partition": {"num_parts": 2}}
        make_trainer(strategy=strategy).fit(model, make_data(**options, batches={"subgraph_type": kind}))
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
    data = make_data(**graph, sampling=SamplingOptions(seed=0), batches={"subgraph_type": kind})
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
    data = make_data(
        task="link", links={"edge_splits": {"num_val": 0.1, "num_test": 0.1}}, batches={"subgraph_type": kind}
    )
    trainer = make_trainer(max_epochs=1)
    trainer.fit(LinkPredictor(WIDTH, hidden_channels=8, num_layers=2), data)
    assert trainer.callback_metrics["train_loss"] > 0


def test_a_module_of_ones_own_reads_one_subgraph_after_the_other(make_data, make_model, make_trainer) -> None:
    options = {"batches": {"disjoint": True, "subgraph_type": "induced", "ptr": True}}
    batch = one_batch(make_data(**options))
    assert len(batch.ptr) == len(batch.root_n_id) + 1 == batch.batch_size + 1
    assert torch.equal(batch.batch[batch.root_n_id], torch.arange(batch.batch_size))
    with pytest.raises(
        DataError, match="ptr: the seeds of these batches are at root_n_id, and the built-in modules take"
    ):
        make_trainer(max_epochs=1).fit(make_model(), make_data(**options))


def test_options_are_checked_first(make_data) -> None:
    with pytest.raises(OptionError, match=r"^batches.ptr: tells where the subgraph of each seed begins"):
        make_data(batches={"ptr": True, "disjoint": True})
    with pytest.raises(
        OptionError, match=r"^batches.subgraph_type: expected directional, bidirectional, induced; got 'both'"
    ):
        make_data(batches={"subgraph_type": "both"})
    with pytest.raises(
        OptionError, match=r"^batches.edge_format: edge_index needs edges that are sorted by destination"
    ):
        make_data(batches={"subgraph_type": "bidirectional", "edge_format": "edge_index"})
    with pytest.raises(OptionError, match=r"^batches.induced_limit: has no effect with subgraph_type directional"):
        make_data(batches={"induced_limit": 3})
    with pytest.raises(OptionError, match=r"^batches.reverse_edge_types: has no effect with task: node"):
        make_data(batches={"reverse_edge_types": {"a__to__b": "b__to__a"}})
    with pytest.raises(OptionError, match=r"^links.tree: has no effect with task: node. Remove it, or set task: link"):
        make_data(links={"tree": "example"}, batches={"disjoint": True})
    with pytest.raises(OptionError, match=r"^links.tree: example needs disjoint: true"):
        make_data(links={"tree": "example"}, task="link")


SEAL = {
    "task": "link",
    "links": {"edge_splits": {"num_val": 0.1, "num_test": 0.1}, "tree": "example"},
    "batches": {
        "disjoint": True,
        "subgraph_type": "induced",
        "transform": {
            "class_path": "glt_lightning.loader.transforms.DRNL",
            "init_args": {"to": "x", "max_z": 5},
        },
    },
}


@pytest.mark.slow
def test_seal_trains_with_every_strategy(make_data, make_trainer) -> None:
    """The model is as wide as the labels make the features."""
    losses = []
    for strategy in ("auto", "glt_worker", "glt_server_client"):
        data = make_data(**SEAL, sampling=SamplingOptions(seed=3), partition={"num_parts": 2})
        data.prepare_data()
        data.setup("fit")
        assert data.num_features == WIDTH + 6
        data.teardown()
        seed_everything(1, verbose=False)
        trainer, model = (
            make_trainer(max_epochs=1, strategy=strategy),
            LinkPredictor(WIDTH + 6, hidden_channels=8, dropout=0.0),
        )
        trainer.fit(model, data)
        losses.append(trainer.callback_metrics["train_loss"].item())
    assert losses[0] == losses[1] == losses[2] > 0


@pytest.mark.filterwarnings("error:.*hops and the model")
def test_shadow_trains_a_model_deeper_than_its_subgraphs(make_data, make_model, make_trainer) -> None:
    model = make_model(Noting, num_layers=3)
    data = make_data(
        batches={"disjoint": True, "subgraph_type": "induced"},
        num_neighbors=[5, 3],
        evaluation={"num_neighbors": [5, 3]},
    )
    make_trainer().fit(model, data)
    assert model.losses[-1] < model.losses[0]
