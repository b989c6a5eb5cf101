"""A run that goes on from a checkpoint ends where the undisturbed run ends, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from glt_lightning import SamplingOptions
from glt_lightning.errors import OptionError
from tests.lightning.tiny import Noting, learnable_graph


def steps(folder: Path) -> ModelCheckpoint:
    """Keeps a checkpoint of every step that is a multiple of three; an epoch has five."""
    return ModelCheckpoint(dirpath=folder, filename="{step}", every_n_train_steps=3, save_top_k=-1)


def final_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.fixture
def undisturbed(make_data, make_model, make_trainer, tmp_path: Path) -> Noting:
    model = make_model(Noting, dropout=0.0)
    trainer = make_trainer(max_epochs=3, enable_checkpointing=True, callbacks=[steps(tmp_path / "ckpt")])
    trainer.fit(model, make_data(sampling=SamplingOptions(num_workers=1)))
    return model


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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 10}, "batch_size: 20 in the checkpoint, 10 now"),
        ({"num_neighbors": [4, 5]}, "fanouts:"),
        ({"sampling": SamplingOptions(seed=77)}, "seed: 1 in the checkpoint, 77 now"),
        ({"splits": {"train": learnable_graph()["train_idx"][:-1].tolist()}}, "seeds_hash"),
    ],
)
def test_other_options_are_refused_by_name(
    undisturbed: Noting, make_data, make_model, make_trainer, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        make_trainer(max_epochs=3).fit(
            make_model(Noting), make_data(**options), ckpt_path=str(tmp_path / "ckpt" / "step=3.ckpt")
        )
