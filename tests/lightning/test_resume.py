"""A run that goes on from a checkpoint ends where the undisturbed run ends, bit for bit."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint

from glt_lightning import SamplingOptions
from glt_lightning.base import OptionError
from glt_lightning.cli.past_runs import nothing_left
from tests.lightning.tiny import Noting, learnable_graph


def steps(folder: Path) -> ModelCheckpoint:
    """Keeps a checkpoint of every step that is a multiple of three; an epoch has five."""
    return ModelCheckpoint(dirpath=folder, filename="{step}", every_n_train_steps=3, save_top_k=-1)


def final_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.fixture
def undisturbed(make_data, make_model, make_trainer, tmp_path: Path) -> Noting:
    model = make_model(Noting, dropout=0.0)
    ends = ModelCheckpoint(dirpath=tmp_path / "ckpt", filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
    trainer = make_trainer(max_epochs=3, enable_checkpointing=True, callbacks=[steps(tmp_path / "ckpt"), ends])
    trainer.fit(model, make_data(sampling=SamplingOptions(num_workers=1)))
    return model


@pytest.mark.diagonal(most=3)
@pytest.mark.parametrize("step", [3, 6, 9, 12])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_middle_of_an_epoch(
    undisturbed: Noting, make_data, make_model, make_trainer, tmp_path: Path, step: int, workers: int
) -> None:
    model = make_model(Noting, dropout=0.0)
    data = make_data(sampling=SamplingOptions(num_workers=workers, concurrency=7))
    make_trainer(max_epochs=3).fit(model, data, ckpt_path=str(tmp_path / "ckpt" / f"step={step}.ckpt"))
    whole = [batch for epoch in undisturbed.seen for batch in epoch]
    assert [batch for epoch in model.seen for batch in epoch] == whole[step:]
    for name, tensor in final_weights(undisturbed).items():
        assert torch.equal(tensor, model.state_dict()[name]), name


def test_end_of_an_epoch(make_data, make_model, make_trainer, tmp_path: Path) -> None:
    whole, model = make_model(Noting, dropout=0.0), None
    keep = ModelCheckpoint(dirpath=tmp_path / "ckpt", filename="{epoch}", save_top_k=-1)
    make_trainer(max_epochs=3, enable_checkpointing=True, callbacks=[keep]).fit(whole, make_data())
    model = make_model(Noting, dropout=0.0)
    make_trainer(max_epochs=3).fit(model, make_data(), ckpt_path=str(tmp_path / "ckpt" / "epoch=0.ckpt"))
    assert [epoch for epoch in model.seen if epoch] == whole.seen[1:]
    for name, tensor in final_weights(whole).items():
        assert torch.equal(tensor, model.state_dict()[name]), name


class Saving(Callback):
    """Saves a checkpoint the first time that a hook finds so many steps done. then: what it does next."""

    def __init__(self, hook: str, steps: int, path: Path, then: str = "") -> None:
        self.steps, self.path, self.then = steps, path, then
        setattr(self, hook, self._save)

    def _save(self, trainer, *_: object) -> None:
        if trainer.global_step != self.steps or self.path.exists():
            return
        if self.then == "raise":
            raise RuntimeError("of the test")
        trainer.save_checkpoint(self.path)
        trainer.should_stop = self.then == "stop"

    def on_exception(self, trainer, *_: object) -> None:
        trainer.save_checkpoint(self.path)


class Halving(Noting):
    """Its weights tell whether the schedule went on at the right epoch, its notes whether each epoch began."""

    def __init__(self, **options: Any) -> None:
        super().__init__(dropout=0.0, **options)
        self.began: list[int] = []

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}

    def on_train_epoch_start(self) -> None:
        self.began.append(self.current_epoch)


@pytest.fixture
def goes_on(make_data, make_model, make_trainer, tmp_path: Path):
    """Asserts that a fit from a checkpoint has the batches of the undisturbed one from a step on, and its weights, and that so
    has one from each third step of that one."""

    def fit(limits: dict[str, Any], callbacks: list[Callback], checkpoint: Path | None = None) -> tuple[Halving, Any]:
        model = make_model(Halving)
        trainer = make_trainer(**limits, enable_checkpointing=bool(callbacks), callbacks=callbacks)
        trainer.fit(model, make_data(), ckpt_path=None if checkpoint is None else str(checkpoint))
        return model, trainer

    def check(limits: dict[str, Any], checkpoint: Path, step: int) -> None:
        whole, _ = fit(limits, [])
        batches = [batch for epoch in whole.seen for batch in epoch]
        keep = steps(tmp_path / "again")
        for begin in range(step, len(batches)):
            path = checkpoint if begin == step else tmp_path / "again" / f"step={begin}.ckpt"
            if not path.exists():
                continue
            model, trainer = fit(limits, [keep] if begin == step else [], path)
            assert [batch for epoch in model.seen for batch in epoch] == batches[begin:], begin
            assert trainer.global_step == len(batches)
            assert model.began == [
                epoch for epoch in whole.began if epoch >= begin / 5 or (begin < 5 and epoch == 0 == begin)
            ]
            for name, tensor in final_weights(whole).items():
                assert torch.equal(tensor, model.state_dict()[name]), (begin, name)

    check.fit = fit  # type: ignore[attr-defined]
    return check


EPOCHS: dict[str, Any] = {"max_epochs": 3}
STEPS: dict[str, Any] = {"max_epochs": -1, "max_steps": 14}


@pytest.mark.diagonal(most=3)
@pytest.mark.parametrize("limits", [EPOCHS, STEPS])
@pytest.mark.parametrize("validates", [0, 2])
@pytest.mark.parametrize(
    ("hook", "step"),
    [("on_train_batch_end", 5), ("on_train_epoch_end", 5), ("on_train_epoch_start", 5), ("on_train_batch_start", 3)],
)
def test_resuming_twice(goes_on, tmp_path: Path, hook: str, step: int, limits: dict[str, Any], validates: int) -> None:
    """Whatever saved the first checkpoint. That of an epoch's last batch had the next one begin anew at each later resume."""
    limits = {**limits, "limit_val_batches": 0} if validates == 0 else {**limits, "val_check_interval": validates}
    path = tmp_path / "first.ckpt"
    goes_on.fit(limits, [Saving(hook, step, path)])
    goes_on(limits, path, step)


@pytest.mark.diagonal(most=2)
@pytest.mark.parametrize("limits", [EPOCHS, STEPS])
@pytest.mark.parametrize("step", [3, 5, 7])
def test_checkpoint_after_fit_ended_by_max_steps(goes_on, tmp_path: Path, step: int, limits: dict[str, Any]) -> None:
    path = tmp_path / "first.ckpt"
    _, trainer = goes_on.fit({"max_epochs": -1, "max_steps": step}, [])
    trainer.save_checkpoint(path)
    assert not nothing_left(path, SimpleNamespace(**STEPS | limits | {"max_epochs": 1 + step // 5}))
    goes_on(limits, path, step)


@pytest.mark.diagonal(most=3)
@pytest.mark.parametrize("limits", [EPOCHS, STEPS])
@pytest.mark.parametrize(
    ("hook", "step", "then"),
    [
        ("on_train_batch_end", 3, "stop"),
        ("on_before_optimizer_step", 3, "raise"),
        ("on_train_batch_start", 5, "raise"),
        ("on_train_epoch_start", 5, "raise"),
    ],
)
def test_checkpoint_of_a_fit_that_stopped(
    goes_on, tmp_path: Path, hook: str, step: int, then: str, limits: dict[str, Any]
) -> None:
    """A batch whose step failed is trained on: the loader had delivered it, and a resumed run left it out."""
    path = tmp_path / "first.ckpt"
    with pytest.raises(RuntimeError, match="of the test") if then == "raise" else nullcontext():
        goes_on.fit(limits, [Saving(hook, step, path, then)])
    goes_on(limits, path, step)


def test_checkpoint_of_a_run_that_lost_an_epoch_of_its_counters(goes_on, tmp_path: Path) -> None:
    """As earlier releases saved them after a resume from an epoch's last batch."""
    path = tmp_path / "first.ckpt"
    goes_on.fit(EPOCHS, [Saving("on_train_batch_end", 7, path)])
    checkpoint = torch.load(path, weights_only=False)
    for counts in checkpoint["loops"]["fit_loop"]["epoch_progress"].values():
        counts.update(ready=1, started=1)
    torch.save(checkpoint, path)
    goes_on(EPOCHS, path, 7)


def test_drawn_sampling_seed_comes_back(make_data, make_model, make_trainer, tmp_path: Path, monkeypatch) -> None:
    """Without any seed given one is drawn, and the checkpoint has it."""

    def fit(ckpt: str | None = None) -> Noting:
        model, data = make_model(Noting, dropout=0.0), make_data()
        monkeypatch.delenv("PL_GLOBAL_SEED")
        keep = [] if ckpt else [steps(tmp_path / "ckpt")]
        make_trainer(enable_checkpointing=not ckpt, callbacks=keep).fit(model, data, ckpt_path=ckpt)
        return model

    first = fit()
    resumed = fit(str(tmp_path / "ckpt" / "step=3.ckpt"))
    other = fit()
    assert resumed.seen[-1] == first.seen[-1]
    assert other.seen[-1] != first.seen[-1]


@pytest.mark.diagonal(most=3)
@pytest.mark.parametrize("epoch_over", [False, True])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 10}, "batch_size: 20 in the checkpoint, 10 now"),
        ({"num_neighbors": [4, 5]}, "fanouts:"),
        ({"sampling": SamplingOptions(seed=77)}, "seed: 1 in the checkpoint, 77 now"),
        ({"undirected": True}, "graph:"),
        ({"seeds": {"splits": {"train": learnable_graph()["train_idx"][:-1].tolist()}}}, "seeds_hash"),
    ],
)
def test_other_options_are_refused_by_name(
    undisturbed: Noting,
    make_data,
    make_model,
    make_trainer,
    tmp_path: Path,
    options: dict[str, Any],
    said: str,
    epoch_over: bool,
) -> None:
    """Between epochs, where Lightning reads no states of loaders, as in the middle of one."""
    path = tmp_path / "ckpt" / ("epoch=1.ckpt" if epoch_over else "step=3.ckpt")
    with pytest.raises(OptionError, match=said):
        make_trainer(max_epochs=3).fit(make_model(Noting), make_data(**options), ckpt_path=str(path))


@pytest.mark.parametrize("name", ["epoch=1", "step=3"])
def test_other_number_of_ranks_is_refused_by_name(
    undisturbed: Noting, make_data, make_model, make_trainer, tmp_path: Path, name: str
) -> None:
    checkpoint = torch.load(tmp_path / "ckpt" / f"{name}.ckpt", weights_only=False)
    checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"][0]["plan"]["world_size"] = 2
    torch.save(checkpoint, tmp_path / "two.ckpt")
    with pytest.raises(OptionError, match="world_size: 2 in the checkpoint, 1 now"):
        make_trainer(max_epochs=3).fit(make_model(Noting), make_data(), ckpt_path=str(tmp_path / "two.ckpt"))
