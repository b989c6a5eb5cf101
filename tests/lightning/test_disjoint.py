"""``disjoint: true``: models train on trees, and say of a seed what they say without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from glt_lightning import GLTDataModule, SamplingOptions
from glt_lightning.base import OptionError


@pytest.mark.parametrize("aggregate", [None, "mean"])
def test_a_fit_and_predictions(make_data, make_model, make_trainer, aggregate: str | None) -> None:
    model, trainer = make_model(), make_trainer(max_epochs=1)
    sampling = SamplingOptions(seed=3, aggregate_first=aggregate)
    data = make_data(batches={"disjoint": True}, sampling=sampling, evaluation={"num_neighbors": [-1, -1]})
    trainer.fit(model, data)
    shared = make_data(sampling=sampling, evaluation={"num_neighbors": [-1, -1]})
    found, expected = (torch.cat([logits_of(each) for each in trainer.predict(model, d)]) for d in (data, shared))
    assert torch.allclose(found, expected, atol=1e-5)


def logits_of(prediction: Any) -> torch.Tensor:
    logits: torch.Tensor = prediction["logits"]
    return logits


def test_batches_of_every_loader(make_data) -> None:
    data: GLTDataModule = make_data(batches={"disjoint": True})
    data.prepare_data()
    data.setup()
    for loader in (data.train_dataloader(), data.val_dataloader(), data.predict_dataloader()):
        batch = next(iter(loader))
        assert batch.batch[: batch.batch_size].tolist() == list(range(batch.batch_size))
        assert torch.equal(batch.batch[batch.edge_index[0]], batch.batch[batch.edge_index[1]])
    data.teardown()
    with pytest.raises(OptionError, match="disjoint: expected"):
        make_data(batches={"disjoint": "all"})
