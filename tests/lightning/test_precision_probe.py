"""The products of a model are timed in both precisions, and a run may choose by that."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from glt_lightning import GraphSAGE
from glt_lightning.lightning import PrecisionProbe, RunReport
from glt_lightning.lightning.callbacks import precision
from glt_lightning.lightning.callbacks.precision import bfloat16_ratio, weight_shapes


def _probe(ratio: float, **options: Any) -> PrecisionProbe:
    probe = PrecisionProbe(**options)
    probe._measure = lambda shapes: ratio
    return probe


def test_weights_of_products_are_found() -> None:
    module = torch.nn.Sequential(
        torch.nn.Embedding(100, 32), torch.nn.Linear(32, 16), torch.nn.Linear(32, 16), torch.nn.Linear(16, 2),
        torch.nn.LazyLinear(64),
    )  # fmt: skip
    assert weight_shapes(module) == {(32, 16): 2}


def test_measuring_draws_nothing_and_restores_the_threads() -> None:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    ratio = bfloat16_ratio({(64, 64): 2, (300, 8): 1})
    assert ratio is None or ratio > 0
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("tick_s", [0.01, 1e-6])
def test_a_coarse_clock_measures_nothing(monkeypatch: pytest.MonkeyPatch, tick_s: float) -> None:
    """10 ms: one product fits between two ticks, and takes no time by such a clock."""
    calls = itertools.count()
    monkeypatch.setattr(precision.time, "thread_time", lambda: next(calls) * 0.001 // tick_s * tick_s)
    ratio = bfloat16_ratio({(64, 64): 2})
    assert (
        ratio is None if tick_s > 0.001 else ratio == pytest.approx(1.0, rel=0.01)
    )  # a difference is off by a tick at most


@pytest.mark.parametrize(
    ("ratio", "choose", "precision", "line"),
    [
        (
            1.8,
            False,
            "32-true",
            "precision: products of the model's shapes are 1.8 times as fast in bfloat16 here; --trainer",
        ),
        (1.8, True, "bf16-mixed", "1.8 times as fast in bfloat16 here: training in bf16-mixed."),
        (1.1, False, "32-true", None),
        (0.5, True, "32-true", None),
    ],
)
def test_what_is_said_and_chosen(
    make_data, make_model, make_trainer, caplog, ratio: float, choose: bool, precision: str, line: str | None
) -> None:
    seen = []

    class Watched(GraphSAGE):
        def training_step(self, *given: Any) -> Any:
            seen.append(torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype)
            return super().training_step(*given)

    trainer = make_trainer(
        callbacks=[_probe(ratio, choose=choose)], max_epochs=1, limit_train_batches=2, limit_val_batches=1
    )
    model = make_model(Watched, hidden_channels=16)
    trainer.fit(model, make_data())
    assert trainer.precision == precision
    assert seen == [torch.bfloat16 if precision == "bf16-mixed" else torch.float32] * 2
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    said = [each.getMessage() for each in caplog.records if each.getMessage().startswith("precision:")]
    assert len(said) == (line is not None)
    assert line is None or line in said[0]


def test_a_precision_of_the_trainer_stays(make_data, make_model, make_trainer) -> None:
    probe = _probe(0.1, choose=True)
    trainer = make_trainer(callbacks=[probe], precision="bf16-mixed", max_epochs=1, limit_train_batches=1)
    trainer.fit(make_model(), make_data())
    assert (trainer.precision, probe.ratio, probe.chosen) == ("bf16-mixed", None, None)


@pytest.mark.parametrize("first", ["bf16-mixed", "32-true"])
def test_a_run_that_resumes_keeps_the_choice(
    make_data, make_model, make_trainer, tmp_path: Path, caplog, first: str
) -> None:
    ratios = {"bf16-mixed": 2.0, "32-true": 0.5}
    once = make_trainer(callbacks=[_probe(ratios[first], choose=True)], max_epochs=1, limit_train_batches=2)
    once.fit(make_model(hidden_channels=16), make_data())
    once.save_checkpoint(tmp_path / "one.ckpt")
    other = _probe(2.5 - ratios[first], choose=True)
    again = make_trainer(callbacks=[other], max_epochs=2, limit_train_batches=2)
    again.fit(make_model(hidden_channels=16), make_data(), ckpt_path=tmp_path / "one.ckpt", weights_only=True)
    assert again.precision == first
    assert f"precision: {first}, as the run that is resumed chose." in caplog.text


def test_the_report_and_the_default(make_data, make_model, make_trainer, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("glt_lightning.lightning.callbacks.precision.bfloat16_ratio", lambda shapes: 1.9)
    trainer = make_trainer(max_epochs=1, limit_train_batches=1, limit_val_batches=0, enable_checkpointing=True)
    trainer.fit(make_model(hidden_channels=16), make_data())
    kinds = [type(each) for each in trainer.callbacks]
    assert kinds.count(PrecisionProbe) == 1
    report = next(each for each in trainer.callbacks if isinstance(each, RunReport))
    assert report.record is not None
    assert [text for name, text in report.record.facts if name == "precision"] == [
        "products of the model's shapes are 1.9 times as fast in bfloat16 here; "
        "--trainer.precision bf16-mixed may speed up the step by up to that"
    ]
