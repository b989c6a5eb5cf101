"""`GLTWorkerStrategy` with one rank, in this process."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.strategies import StrategyRegistry

import glt_lightning
from glt_lightning import GLTWorkerStrategy, GraphSAGE, LoaderSpec, LocalPartition, SamplingOptions
from glt_lightning.base import OptionError, SamplerError
from tests.lightning.tiny import Noting


@pytest.fixture(params=[0, 2], ids=["inline", "processes"])
def sampling(request: pytest.FixtureRequest) -> SamplingOptions:
    return SamplingOptions(num_workers=request.param, seed=5)


def test_registered_once() -> None:
    assert "glt_worker" in StrategyRegistry.available_strategies()
    GLTWorkerStrategy.register_strategies(StrategyRegistry)
    assert isinstance(StrategyRegistry.get("glt_worker"), GLTWorkerStrategy)
    assert glt_lightning.GLTWorkerStrategy is GLTWorkerStrategy


@pytest.mark.parametrize("name", ["glt_worker", "glt_server_client"])
@pytest.mark.parametrize("wanted", [True, False])
def test_variants_that_look_for_unused_parameters(name: str, wanted: bool) -> None:
    plain = StrategyRegistry.get(name)
    variant = StrategyRegistry.get(f"{name}_find_unused_parameters_{str(wanted).lower()}")
    assert type(variant) is type(plain)
    assert variant._ddp_kwargs == {"find_unused_parameters": wanted}


def test_arguments_of_ddp_are_taken_and_others_refused() -> None:
    given = {"static_graph": True, "gradient_as_bucket_view": True, "timeout": timedelta(seconds=9)}
    strategy = GLTWorkerStrategy(**given)
    assert strategy._ddp_kwargs == {"static_graph": True, "gradient_as_bucket_view": True}
    assert strategy._timeout == timedelta(seconds=9)
    with pytest.raises(
        OptionError, match=r"unknown argument 'find_unused_paramters'.*Did you mean find_unused_parameters"
    ):
        GLTWorkerStrategy(find_unused_paramters=True)


class HalfUsed(Noting):
    """Has a layer that its loss does not depend on."""

    def __init__(self) -> None:
        super().__init__(dropout=0.0)
        self.spare = torch.nn.Linear(2, 3)


def test_unused_parameters_are_named_with_the_strategy_to_choose(make_data, make_trainer) -> None:
    with pytest.raises(RuntimeError, match="finished reduction") as raised:
        make_trainer(strategy="glt_worker", limit_train_batches=2).fit(HalfUsed(), make_data())
    cause = raised.value.__cause__
    assert isinstance(cause, OptionError)
    assert "(spare.weight, spare.bias)" in str(cause)
    assert "glt_worker_find_unused_parameters_true" in str(cause)
    make_trainer(strategy="glt_worker_find_unused_parameters_true", max_epochs=1).fit(HalfUsed(), make_data())


def test_same_training_as_with_any_other_strategy(
    make_data, make_model, make_trainer, sampling: SamplingOptions
) -> None:
    ours, theirs = make_model(Noting, dropout=0.0), make_model(Noting, dropout=0.0)
    make_trainer(strategy="glt_worker").fit(ours, make_data(sampling=sampling))
    make_trainer().fit(theirs, make_data(sampling=sampling))
    assert ours.seen == theirs.seen
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-5)


@pytest.mark.parametrize("buffers", [False, True])
def test_only_buffers_with_numbers_are_synchronized(make_data, make_trainer, buffers: bool) -> None:
    class Watched(GraphSAGE):
        def on_train_start(self) -> None:
            found.append(bool(self.trainer.strategy.model.modules_buffers))

    found: list[bool] = []
    model = Watched(in_channels=8, out_channels=3, hidden_channels=4, num_layers=2)
    if buffers:
        model.register_buffer("mean", torch.zeros(3))
    assert [name for name, _ in model.named_buffers() if name != "mean"]  # which have no numbers
    make_trainer(strategy="glt_worker", max_epochs=1).fit(model, make_data())
    assert found == [buffers]


def test_fit_then_test_then_fit_in_one_process(make_data, make_model, make_trainer, sampling: SamplingOptions) -> None:
    trainer, model, data = make_trainer(strategy="glt_worker"), make_model(), make_data(sampling=sampling)
    trainer.fit(model, data)
    assert trainer.strategy.session is None
    trainer.test(model, data, verbose=False)
    trainer.predict(model, data)
    make_trainer(strategy=GLTWorkerStrategy()).fit(model, data)
    assert trainer.strategy.session is None


@pytest.mark.diagonal
@pytest.mark.parametrize("where", ["training_step", "validation_step", "on_train_epoch_end"])
def test_error_closes_everything(make_data, make_model, make_trainer, sampling: SamplingOptions, where: str) -> None:
    class Broken(Noting):
        pass

    def fail(self, *_: Any) -> None:
        raise ZeroDivisionError("mine")

    setattr(Broken, where, fail)
    trainer = make_trainer(strategy="glt_worker")
    with pytest.raises(ZeroDivisionError, match="mine"):
        trainer.fit(make_model(Broken), make_data(sampling=sampling))
    assert trainer.strategy.session is None


def test_kept_loader_raises_after_the_run(make_data, make_model, make_trainer, sampling: SamplingOptions) -> None:
    kept = []

    class Keeping(Noting):
        def on_train_start(self) -> None:
            kept.append(self.trainer.train_dataloader)

    make_trainer(strategy="glt_worker").fit(make_model(Keeping), make_data(sampling=sampling))
    with pytest.raises((SamplerError, ValueError), match="closed"):
        next(iter(kept[0]))


def test_data_module_of_the_user_makes_loaders_through_the_strategy(make_data, make_model, make_trainer) -> None:
    ready = make_data()
    ready.prepare_data()

    class Own(LightningDataModule):
        def train_dataloader(self) -> Any:
            strategy = self.trainer.strategy
            session = strategy.open_session(LocalPartition.open(ready.partition_dir), SamplingOptions(), seed=3)
            spec = LoaderSpec(name="mine", split="train", num_neighbors=[4, 4], batch_size=25, shuffle=True)
            return session.make_loader(spec)

    model = make_model(Noting)
    make_trainer(strategy="glt_worker", limit_val_batches=0).fit(model, Own())
    assert [len(batch) for batch in model.seen[0]] == [25] * 4
