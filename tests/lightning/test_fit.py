"""Training with Lightning's own strategies: what the Trainer's switches do to our loaders."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch_geometric.data import Data

from glt_lightning import GLTDataModule, GraphSAGE, PartitionOptions, SamplingOptions
from glt_lightning.base import DataError
from glt_lightning.base.partition import STORAGE
from glt_lightning.lightning import BestCheckpoint
from glt_lightning.lightning.callbacks import checkpoints
from tests.lightning.tiny import NODES, Noting, learnable_graph, save_graph

TRAIN = sorted(learnable_graph()["train_idx"].tolist())


@pytest.fixture(params=[0, 1], ids=["inline", "process"])
def sampling(request: pytest.FixtureRequest) -> SamplingOptions:
    return SamplingOptions(num_workers=request.param, seed=5)


def flat(batches: list[list[int]]) -> list[int]:
    return sorted(i for batch in batches for i in batch)


def test_learns(make_data, make_model, make_trainer, sampling: SamplingOptions) -> None:
    trainer, model, data = make_trainer(max_epochs=8), make_model(), make_data(sampling=sampling)
    trainer.fit(model, data)
    assert trainer.callback_metrics.keys() >= {"train_loss", "val_loss", "val_acc"}
    (result,) = trainer.test(model, data, verbose=False)
    assert result["test_acc"] > 0.8


class PlainAdam(GraphSAGE):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr, fused=False, foreach=False)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_the_fused_optimizer_steps_as_the_other(make_data, make_model, make_trainer, precision) -> None:
    """Also with gradients clipped in mixed precision, which Lightning refuses for what may scale gradients itself."""
    found = {}
    for kind in (GraphSAGE, PlainAdam):
        model, data = make_model(kind, dropout=0.0), make_data(sampling=SamplingOptions(seed=5))
        trainer = make_trainer(max_epochs=2, precision=precision, gradient_clip_val=0.01)
        trainer.fit(model, data)
        found[trainer.optimizers[0].defaults["fused"]] = torch.nn.utils.parameters_to_vector(model.parameters())
    assert found.keys() == {True, False}
    torch.testing.assert_close(found[True], found[False], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("given", [[], [False] * NODES])
def test_an_empty_validation_split_is_no_validation(make_data, make_model, make_trainer, caplog, given) -> None:
    data, model, trainer = make_data(seeds={"splits": {"val": given}}), make_model(), make_trainer(max_epochs=1)
    with caplog.at_level("INFO"):
        trainer.fit(model, data)
    assert "train_loss" in trainer.callback_metrics
    assert "val_loss" not in trainer.callback_metrics
    assert "split 'val' has no seeds: training without validation." in caplog.text
    with pytest.raises(DataError, match=r"split 'val': it has no node\. Give its node ids as"):
        trainer.validate(model, data)


@pytest.mark.parametrize(
    "stored",
    [
        *(kind if kind != "bfloat16" else pytest.param(kind, marks=pytest.mark.slow) for kind in STORAGE),
        pytest.param("kept float16", marks=pytest.mark.slow),
        "kept bfloat16",
        "given float16",
        pytest.param("given bfloat16", marks=pytest.mark.slow),
    ],
)
def test_learns_from_fewer_bytes(make_data, make_model, make_trainer, tmp_path: Path, stored: str) -> None:
    options: dict[str, Any] = {"partition": PartitionOptions(storage={"x": stored})} if stored in STORAGE else {}
    if stored.startswith("kept"):
        options["partition"] = PartitionOptions(storage={"x": stored.removeprefix("kept ")})
        options["sampling"] = SamplingOptions(feature_dtype="stored")
    if stored.startswith("given"):
        arrays = {name: torch.from_numpy(array) for name, array in learnable_graph().items()}
        arrays["x"] = arrays["x"].to(getattr(torch, stored.removeprefix("given ")))
        options["dataset"] = Data(**arrays)
    trainer, model, data = make_trainer(max_epochs=8), make_model(), make_data(**options)
    trainer.fit(model, data)
    (result,) = trainer.test(model, data, verbose=False)
    assert result["test_acc"] > 0.8


def test_every_seed_once_per_epoch_in_a_new_order(
    make_data, make_model, make_trainer, sampling: SamplingOptions
) -> None:
    model = make_model(Noting)
    make_trainer(max_epochs=3).fit(model, make_data(sampling=sampling))
    assert [flat(epoch) for epoch in model.seen] == [TRAIN] * 3
    assert len({str(epoch) for epoch in model.seen}) == 3


@pytest.mark.diagonal(most=6)
@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ({"limit_train_batches": 2, "limit_val_batches": 1}, [2, 2]),
        ({"limit_train_batches": 0.6}, [3, 3]),
        ({"fast_dev_run": 2}, [2]),
        ({"max_steps": 7, "max_epochs": -1}, [5, 2]),
        ({"max_steps": 3, "max_epochs": -1, "accumulate_grad_batches": 2}, [5]),
        ({"num_sanity_val_steps": 0, "val_check_interval": 2}, [5, 5]),
    ],
)
def test_switches_that_end_early(
    make_data, make_model, make_trainer, sampling: SamplingOptions, options: dict, batches: list[int]
) -> None:
    """They cut the epochs of the undisturbed run and change nothing else."""
    model, whole = make_model(Noting), make_model(Noting)
    make_trainer(**options).fit(model, make_data(sampling=sampling))
    make_trainer().fit(whole, make_data(sampling=sampling))
    assert [len(epoch) for epoch in model.seen] == batches
    assert model.seen == [epoch[:n] for epoch, n in zip(whole.seen, batches, strict=False)]


def test_overfit_batches_repeats_the_same_seeds(make_data, make_model, make_trainer) -> None:
    model = make_model(Noting)
    make_trainer(overfit_batches=2, max_epochs=3).fit(model, make_data())
    assert model.seen[0] == model.seen[1] == model.seen[2]
    assert [len(batch) for batch in model.seen[0]] == [20, 20]


def test_reloaded_loaders_go_on_with_the_epochs(make_data, make_model, make_trainer, sampling: SamplingOptions) -> None:
    class Old(Callback):
        def __init__(self) -> None:
            self.loaders: list = []

        def on_train_epoch_start(self, trainer, pl_module) -> None:
            self.loaders.append(trainer.train_dataloader)

    model, whole, old = make_model(Noting), make_model(Noting), Old()
    trainer = make_trainer(reload_dataloaders_every_n_epochs=1, max_epochs=3, callbacks=[old])
    trainer.fit(model, make_data(sampling=sampling))
    make_trainer(max_epochs=3).fit(whole, make_data(sampling=sampling))
    assert model.seen == whole.seen
    assert len(set(map(id, old.loaders))) == 3


def test_lightnings_global_seed_is_the_default_seed(make_data, make_model, make_trainer) -> None:
    models = []
    for sampling in (SamplingOptions(), SamplingOptions(), SamplingOptions(seed=8)):
        models.append(make_model(Noting))
        make_trainer().fit(models[-1], make_data(sampling=sampling))
    first, second, other = models
    assert first.seen == second.seen
    assert first.losses == second.losses
    assert first.seen != other.seen


def test_fits_without_a_validation_split(make_data, make_model, make_trainer, tmp_path: Path) -> None:
    data = make_data(dataset=str(save_graph(tmp_path / "g.npz", drop=("valid_idx",))))
    trainer = make_trainer()
    trainer.fit(make_model(), data)
    assert "val_acc" not in trainer.callback_metrics
    with pytest.raises(DataError, match="split 'val': not in the data set"):
        trainer.validate(make_model(), data, verbose=False)


def test_best_checkpoint_is_the_best_epoch(make_data, make_model, make_trainer) -> None:
    class Scores(Callback):
        def __init__(self) -> None:
            self.seen: list[float] = []

        def on_validation_end(self, trainer, pl_module) -> None:
            if not trainer.sanity_checking:
                self.seen.append(float(trainer.callback_metrics["val_acc"]))

    scores, keep = Scores(), BestCheckpoint()
    data, model = make_data(), make_model(lr=0.05)
    trainer = make_trainer(max_epochs=6, enable_checkpointing=True, callbacks=[scores, keep])
    trainer.fit(model, data)
    assert float(keep.best_model_score) == max(scores.seen)
    assert sorted(p.name for p in Path(keep.best_model_path).parent.iterdir()) == ["best.ckpt", "last.ckpt"]
    (result,) = trainer.validate(model, data, ckpt_path="best", verbose=False)
    assert result["val_acc"] == max(scores.seen)
    (result,) = trainer.validate(model, data, ckpt_path="last", verbose=False)
    assert result["val_acc"] == scores.seen[-1]


@pytest.mark.parametrize(("every", "epochs", "kept"), [(1, 3, [0, 2]), (2, 5, [1, 4])])
def test_last_checkpoint_is_the_last_epoch_whatever_its_score(
    make_data, make_model, make_trainer, every: int, epochs: int, kept: list[int]
) -> None:
    """Also where not every epoch is validated: the first one without ``val_acc`` says nothing about the others."""

    class Worse(Noting):
        def validation_step(self, batch, batch_idx) -> None:
            self.log("val_acc", 1.0 / (1 + self.current_epoch), batch_size=batch.batch_size)

    keep = BestCheckpoint()
    options = {"max_epochs": epochs, "check_val_every_n_epoch": every, "enable_checkpointing": True}
    make_trainer(callbacks=[keep], **options).fit(make_model(Worse), make_data())
    found = [torch.load(path, weights_only=True)["epoch"] for path in (keep.best_model_path, keep.last_model_path)]
    assert found == kept


@pytest.mark.parametrize("better", [False, True])
@pytest.mark.parametrize(
    ("every_s", "stops_at", "written"), [(0, 9, [0, 1, 2, 3]), (1000, 9, [0, 3]), (1000, 2, [0, 2])]
)
def test_last_checkpoint_is_written_once_a_second_and_at_the_end(
    make_data, make_model, make_trainer, monkeypatch, every_s: int, stops_at: int, written: list[int], better: bool
) -> None:
    found: list[int] = []

    class Scored(Noting):
        def validation_step(self, batch, batch_idx) -> None:
            epoch = float(self.current_epoch)
            self.log("val_acc", epoch if better else -epoch, batch_size=batch.batch_size)

        def on_train_epoch_end(self) -> None:
            self.trainer.should_stop = self.current_epoch >= stops_at

    class Keep(BestCheckpoint):
        def _save_checkpoint(self, trainer, filepath: str) -> None:
            found.extend([trainer.current_epoch] * filepath.endswith("last.ckpt"))
            super()._save_checkpoint(trainer, filepath)

    monkeypatch.setattr(checkpoints, "_KEPT_EVERY_S", every_s)
    trainer = make_trainer(callbacks=[Keep()], max_epochs=4, enable_checkpointing=True)
    trainer.fit(make_model(Scored), make_data())
    assert found == written


@pytest.mark.parametrize("fails", [False, True])
def test_the_disk_is_waited_for_once_a_second_and_at_the_end(
    make_data, make_model, make_trainer, monkeypatch, fails: bool
) -> None:
    """Best checkpoints in between are under their name at once."""
    scores, written, on_disk = [0.1, 0.2, 0.3, 0.4, 0.3], [], []
    keep = BestCheckpoint()

    class Scored(Noting):
        def validation_step(self, batch, batch_idx) -> None:
            self.log("val_acc", scores[self.current_epoch], batch_size=batch.batch_size)

        def on_train_epoch_start(self) -> None:
            if self.current_epoch:
                assert torch.load(keep.best_model_path, weights_only=True)["epoch"] == min(self.current_epoch - 1, 3)
            if fails and self.current_epoch == 4:
                raise ZeroDivisionError("mine")

    write, fsync = checkpoints._write, os.fsync

    def noting(path: Path, *arguments: Any) -> None:
        written.append(path.stem)
        write(path, *arguments)

    monkeypatch.setattr(checkpoints, "_write", noting)
    monkeypatch.setattr(os, "fsync", lambda file: (on_disk.append(written[-1]), fsync(file)))
    monkeypatch.setattr(checkpoints, "_KEPT_EVERY_S", 1000.0)
    with pytest.raises(ZeroDivisionError, match="mine") if fails else nullcontext():
        make_trainer(callbacks=[keep], max_epochs=5, enable_checkpointing=True).fit(make_model(Scored), make_data())
    last = [] if fails else ["last"]
    assert written == ["best", "last", "best", "best", "best", *last]
    assert on_disk == ["best", "last", "best", *last]  # the third: of the fourth epoch, before the last is written


def test_best_checkpoint_of_a_module_without_val_acc_is_the_latest(make_data, make_model, make_trainer) -> None:
    class Silent(Noting):
        def validation_step(self, batch, batch_idx) -> None:
            pass

    keep = BestCheckpoint()
    make_trainer(max_epochs=3, enable_checkpointing=True, callbacks=[keep]).fit(make_model(Silent), make_data())
    assert Path(keep.best_model_path).name == "best.ckpt"


@pytest.mark.parametrize("workers", [0, 2])
def test_error_of_the_user_closes_everything(make_data, make_model, make_trainer, workers: int) -> None:
    class Broken(Noting):
        def training_step(self, batch, batch_idx):
            raise ZeroDivisionError("mine")

    data: GLTDataModule = make_data(sampling=SamplingOptions(num_workers=workers))
    with pytest.raises(ZeroDivisionError, match="mine"):
        make_trainer().fit(make_model(Broken), data)
    assert data._standalone.session is None
