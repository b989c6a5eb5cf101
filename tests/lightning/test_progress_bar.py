"""The progress bar: what it counts, what its rate means, how it fits a terminal."""

from __future__ import annotations

import io
import logging
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from glt_lightning.lightning import SeedProgressBar
from glt_lightning.lightning.callbacks import progress_bar
from glt_lightning.lightning.callbacks.progress_bar import _Bar
from glt_lightning.sampler.plan import EpochPlan
from tests.lightning.tiny import Noting

LOSSES = "train_loss=0.532, val_loss=0.510"
METRICS = {"train_loss": 0.532, "val_loss": 0.51, "val_acc": 0.8231}


class Clock:
    """A time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def make_bar() -> Any:
    bars: list[_Bar] = []

    def make(columns: int, count: Callable[[int], int] | None = None, done: int = 0) -> tuple[_Bar, Clock]:
        bar = _Bar(file=io.StringIO(), ncols=columns, smoothing=0, miniters=1)
        bars.append(bar)
        clock = Clock()
        bar._time = clock
        bar.begin("Epoch 3", count, 200, done)
        return bar, clock

    yield make
    for bar in bars:
        bar.close()


@pytest.mark.parametrize("shuffle_placement", ["global", "owner"])
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_seeds_of_all_ranks_are_counted(world: int, exact: bool, shuffle_placement: str) -> None:
    for n in range(world, 40):
        owner = np.arange(n) % world if shuffle_placement == "owner" else None
        plans = [
            EpochPlan(
                seeds=np.arange(n), batch_size=4, seed=0, loader="a", rank=r, world_size=world, exact=exact, owner=owner
            )
            for r in range(world)
        ]
        sizes = [[len(request.seeds) for request in plan.requests(0)] for plan in plans]
        assert len(plans[0]) == max(map(len, plans))
        for steps in range(len(plans[0]) + 1):
            assert plans[0].seeds_after(steps) == sum(sum(each[:steps]) for each in sizes)


def test_the_rate_is_of_the_phase(make_bar) -> None:
    """Neither what an earlier process did, nor other work, nor the time since the last batch is in it."""
    bar, clock = make_bar(160, lambda steps: 64 * steps, done=50)
    clock.now += 2.0
    bar.advance(100, METRICS)
    clock.now += 7.0
    bar.leave_out(7.0)
    clock.now += 5.0  # of a batch in the making
    assert " 6,400/12,800 seeds [00:02<00:04, 1,600 seeds/s, train_loss=0.532, " in str(bar)
    bar.advance(150, METRICS)
    assert "9,600/12,800 seeds [00:07<00:03, 914 seeds/s, " in str(bar)


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (160, rf"Epoch 3:  50%\|#+ +\| 100/200 batches \[00:04<00:04, 25 batches/s, {LOSSES}, val_acc=0.823\]"),
        (100, r"Epoch 3:  50%, 00:04 left, 25 batches/s, train_loss=0.532, val_loss=0.510, val_acc=0.823"),
        (80, r"Epoch 3:  50%, 25 batches/s, train_loss=0.532, val_loss=0.510, val_acc=0.823"),
        (70, r"Epoch 3:  50%, 25 batches/s, train_loss=0.532, val_loss=0.510"),
        (30, r"Epoch 3:  50%, 25 batches/s"),
    ],
)  # fmt: skip
def test_it_fits_the_terminal(make_bar, columns: int, shown: str) -> None:
    bar, clock = make_bar(columns)
    clock.now += 4.0
    bar.advance(100, METRICS)
    assert re.fullmatch(shown, str(bar))
    assert len(str(bar)) <= columns


def test_no_rate_before_the_first_batch(make_bar) -> None:
    bar, _ = make_bar(80, lambda steps: 10 * steps)
    assert str(bar).endswith("| 0/2,000 seeds [00:00<?, ? seeds/s]")


class Spy(SeedProgressBar):
    """Notes the bars of the phases as they look when they end."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[str] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        self.ended.append(str(self.train_progress_bar))

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self.ended.append(str(self.val_progress_bar))
        super().on_validation_end(trainer, pl_module)

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        self.ended.append(str(self.test_progress_bar))
        super().on_test_end(trainer, pl_module)

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        self.ended.append(str(self.predict_progress_bar))
        super().on_predict_end(trainer, pl_module)


def counts(ended: list[str]) -> list[str]:
    return [re.sub(r" *\d+%\|.*?\|| \[.*", "", text) for text in ended]


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_bar, "_live", lambda: True)


def test_each_phase_counts_its_seeds(make_data, make_model, make_trainer, live, capsys) -> None:
    spy = Spy()
    trainer = make_trainer(callbacks=[spy], enable_progress_bar=True, max_epochs=1, num_sanity_val_steps=0, logger=True)
    model, data = make_model(), make_data(batch_size=30, eval_batch_size=50)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    trainer.predict(model, data, return_predictions=False)
    wanted = ["Validation: 50/50 seeds", "Epoch 0: 100/100 seeds", "Testing: 90/90 seeds", "Predicting: 240/240 seeds"]
    assert counts(spy.ended) == wanted
    assert "v_num" not in spy.ended[1]
    assert "train_loss=" in spy.ended[1]
    shown = capsys.readouterr().out
    assert "it/s" not in shown
    assert "Epoch 0: 100%" in re.split(r"[\r\n]", shown.split("Testing")[0].rstrip())[-1]  # it is left behind


def test_a_resumed_epoch_counts_on(make_data, make_model, make_trainer, tmp_path, live) -> None:
    keep = ModelCheckpoint(str(tmp_path), filename="middle", every_n_train_steps=3, save_top_k=-1)
    trainer = make_trainer(callbacks=[keep], enable_checkpointing=True, max_steps=3, max_epochs=1)
    trainer.fit(make_model(), make_data())
    spy, first = Spy(), []

    class Resumed(Noting):
        def on_train_batch_end(self, *_: Any) -> None:
            first.append((spy.train_progress_bar.initial, spy.train_progress_bar.n))

    trainer = make_trainer(callbacks=[spy], enable_progress_bar=True, max_epochs=1)
    trainer.fit(make_model(Resumed), make_data(), ckpt_path=tmp_path / "middle.ckpt")
    assert first == [(60, 80), (60, 100)]
    assert counts(spy.ended)[-1] == "Epoch 0: 100/100 seeds"


def test_loaders_of_others_count_batches(make_trainer, live) -> None:
    from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset

    spy = Spy()
    trainer = make_trainer(callbacks=[spy], enable_progress_bar=True, max_epochs=1, limit_val_batches=0)
    trainer.fit(BoringModel(), DataLoader(RandomDataset(32, 8)))
    assert counts(spy.ended) == ["Epoch 0: 8/8 batches"]


def test_a_file_gets_few_frames(make_data, make_model, make_trainer, capsys) -> None:
    trainer = make_trainer(callbacks=[SeedProgressBar()], enable_progress_bar=True, max_epochs=2)
    trainer.fit(make_model(), make_data(batch_size=2))
    shown = capsys.readouterr().out
    assert shown.endswith("]\n")  # so that nothing is said on the same line
    frames = [frame for frame in re.split(r"[\r\n]", shown) if frame.strip()]
    assert [frame[:14] for frame in frames] == ["Epoch 0: 100%|", "Epoch 1: 100%|"]
    assert "\r" not in shown  # each is a line


def test_a_line_of_the_log_does_not_follow_the_bar(make_data, make_model, make_trainer, live, capsys) -> None:
    """Such as that of EarlyStopping, after which no epoch begins that would close the bar."""
    lightning = logging.getLogger("lightning.pytorch")
    handler = logging.StreamHandler(sys.stdout)
    lightning.addHandler(handler)

    class Stops(Noting):
        def on_train_epoch_end(self) -> None:
            lightning.info("enough")
            self.trainer.should_stop = True

    try:
        trainer = make_trainer(callbacks=[SeedProgressBar()], enable_progress_bar=True, max_epochs=4)
        trainer.fit(make_model(Stops), make_data())
    finally:
        lightning.removeHandler(handler)
    shown = capsys.readouterr().out
    assert re.search(r"\r *\renough\n", shown)
    assert shown.count("enough") == 1
    assert not handler.filters
    assert shown.endswith("\n")
