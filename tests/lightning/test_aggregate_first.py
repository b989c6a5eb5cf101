"""Models over batches whose first layer samplers have aggregated: the same outputs and gradients, or one line that refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from torch_geometric.data import Data

from glt_lightning import GraphSAGE, SamplingOptions
from glt_lightning.base import DataError, OptionError
from glt_lightning.models.encoders import EncoderShape, make_encoder
from tests.lightning.tiny import SHAPE, WIDTH


def train_batch(data: Any) -> Data:
    data.prepare_data()
    data.setup()
    batch = next(iter(data.train_dataloader())).clone()
    data.teardown()
    return batch


def two_batches(make_data: Any, kind: str, **options: Any) -> list[Data]:
    """The same batch with all rows, and with the aggregate."""
    return [
        train_batch(make_data(sampling=SamplingOptions(seed=1, aggregate_first=each), **options))
        for each in (None, kind)
    ]


@pytest.mark.parametrize(
    ("model", "options", "kind"),
    [
        ("GraphSAGE", {}, "mean"),
        ("GraphSAGE", {"aggr": "sum", "normalize": True}, "sum"),
        ("GraphSAGE", {"aggr": "add", "root_weight": False}, "sum"),
        ("GIN", {"train_eps": True}, "sum"),
    ],
)
@pytest.mark.parametrize("layers", [1, 2])
def test_same_outputs_and_gradients(make_data, model: str, options: dict[str, Any], kind: str, layers: int) -> None:
    whole, aggregated = two_batches(make_data, kind)
    assert aggregated.num_nodes < whole.num_nodes
    module = GraphSAGE(**SHAPE | {"num_layers": layers}, model=model, model_kwargs=options).double().eval()
    assert module.takes_aggregates == (kind,)
    outputs, gradients = [], []
    for batch in (whole, aggregated):
        outputs.append(module(batch))
        gradients.append(torch.autograd.grad(outputs[-1].square().sum(), list(module.parameters())))
    torch.testing.assert_close(*outputs, rtol=1e-6, atol=1e-6)
    for expected, found in zip(
        *gradients, strict=True
    ):  # sums of rows are in float32: the error is that of the largest
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6 * max(1.0, float(expected.abs().max())))


@pytest.mark.parametrize("encoder", ["GAT", "GATv2Conv", "GraphSAGE"])
def test_models_refuse_an_aggregate_that_they_cannot_use(make_data, encoder: str) -> None:
    batch = two_batches(make_data, "sum")[1]
    shape = EncoderShape(in_channels=WIDTH, hidden_channels=8, num_layers=2, dropout=0.0)
    with pytest.raises(DataError, match="the batch has the sum of each node's neighbours"):
        make_encoder(encoder, {}, shape)(batch)


def test_more_layers_than_hops(make_data) -> None:
    batch = two_batches(make_data, "mean")[1]
    with pytest.raises(DataError, match="2 fan-outs for 3 layers"):
        GraphSAGE(**SHAPE | {"num_layers": 3})(batch)


def test_a_run(make_data) -> None:
    """fit, test and predict with an aggregate give what they give with all rows."""
    found = []
    for kind in (None, "mean"):
        torch.manual_seed(0)
        model = GraphSAGE(**SHAPE, dropout=0.0)
        data = make_data(sampling=SamplingOptions(seed=1, aggregate_first=kind), evaluation={"num_neighbors": [-1, -1]})
        trainer = Trainer(
            accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False
        )
        trainer.fit(model, data)
        scores = {name: float(value) for name, value in trainer.callback_metrics.items() if "/" not in name}
        predicted = trainer.predict(model, data)
        found.append((scores, torch.cat([part["logits"] for part in predicted])))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-4)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-3, atol=1e-4)


class Own(GraphSAGE):
    """A module that declares nothing."""

    takes_aggregates = ()  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Own(**SHAPE), "'mean': Own takes no aggregates"),
        (lambda: GraphSAGE(**SHAPE, model="GCN"), "'mean': GraphSAGE takes no aggregates"),
        (lambda: GraphSAGE(**SHAPE, model="GIN"), "'mean': GraphSAGE takes sum"),
        (lambda: GraphSAGE(**SHAPE, model_kwargs={"norm": "batch_norm"}), "takes no aggregates"),
        (lambda: GraphSAGE(**SHAPE, num_categories=[3]), "takes no aggregates"),
    ],
)
def test_modules_that_do_not_declare_it_are_refused(make_data, make: Any, why: str) -> None:
    data = make_data(sampling=SamplingOptions(aggregate_first="mean"))
    trainer = Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    with pytest.raises(OptionError, match=why):
        trainer.fit(make(), data)
