"""The Trainer's switches and Lightning's tools around it, under each strategy: they work, or are refused in one line."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import BatchSizeFinder
from lightning.pytorch.tuner import Tuner
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from tests.lightning.tiny import Noting

STRATEGIES = pytest.mark.parametrize(
    "strategy",
    [
        "auto",
        pytest.param("ddp", marks=pytest.mark.slow),
        pytest.param("glt_worker", marks=pytest.mark.slow),
        "glt_server_client",
    ],
)


@STRATEGIES
def test_fast_dev_run_and_overfit_batches(make_data, make_model, make_trainer, strategy: str) -> None:
    data = make_data()
    trainer = make_trainer(strategy=strategy, devices="auto", fast_dev_run=2)
    trainer.fit(make_model(), data)
    assert trainer.global_step == 2
    model = make_model(Noting)
    make_trainer(strategy=strategy, overfit_batches=2, max_epochs=3).fit(model, data)
    assert len(model.seen) == 3
    assert model.seen[0] == model.seen[1] == model.seen[2]


@pytest.mark.diagonal(most=1)
@STRATEGIES
def test_compiled_network(make_data, make_model, make_trainer, strategy: str) -> None:
    """``eager`` traces and guards as the compiler does, without its minutes."""
    data, losses = make_data(), []
    for compiled in (False, True):
        model = make_model(Noting, dropout=0.0)
        if compiled:
            model.gnn.compile(backend="eager")
        make_trainer(strategy=strategy, max_epochs=1).fit(model, data)
        losses.append(model.losses)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_what_torch_cannot_compile_is_explained(make_data, make_model, make_trainer) -> None:
    class Untraceable(Noting):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            raise torch._dynamo.exc.InternalTorchDynamoError("'method' object has no attribute '__dict__'")

    with pytest.raises(torch._dynamo.exc.InternalTorchDynamoError) as raised:
        make_trainer().fit(make_model(Untraceable), make_data())
    assert "Compile the network inside the module" in raised.value.__notes__[0]


@STRATEGIES
def test_learning_rate_finder(make_data, make_model, make_trainer, strategy: str) -> None:
    model, data = make_model(), make_data(batch_size=4)
    found = Tuner(make_trainer(strategy=strategy)).lr_find(model, datamodule=data, num_training=20)
    assert len(found.results["lr"]) == 20
    assert model.lr == found.suggestion()


def test_batch_size_finder(make_data, make_model, make_trainer) -> None:
    """The batches of the fit that follows have the size that was found."""
    model, data = make_model(Noting), make_data(batch_size=4)
    finder = BatchSizeFinder(steps_per_trial=1, max_trials=2, init_val=8)
    make_trainer(callbacks=[finder], max_epochs=1).fit(model, data)
    assert data.batch_size == finder.optimal_batch_size >= 16
    assert [len(seeds) for seeds in model.seen[0]][-7:-1] == [16] * 6


@pytest.mark.parametrize("strategy", ["ddp", "glt_worker"])
def test_batch_size_finder_needs_one_rank(make_data, make_model, make_trainer, strategy: str) -> None:
    trainer = make_trainer(strategy=strategy, callbacks=[BatchSizeFinder()])
    with pytest.raises(MisconfigurationException, match="not supported with distributed strategies"):
        trainer.fit(make_model(), make_data())
