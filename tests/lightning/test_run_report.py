"""`RunReport`: when the page of a run is written, and what is in it."""

from __future__ import annotations

import csv
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger
from lightning.pytorch.utilities.exceptions import SIGTERMException

from glt_lightning.lightning import RunReport
from tests.helpers import run_script
from tests.lightning.report.test_run_html import rows
from tests.lightning.test_two_ranks import WITH_TESTS
from tests.lightning.tiny import Noting

KEPT: dict[str, Any] = {"logger": True, "enable_checkpointing": True}


class Logging(Noting):
    """Logs also where callbacks cannot see it at once."""

    def on_train_epoch_end(self) -> None:
        self.log("late", torch.tensor(10.0 + self.current_epoch))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("train_twice", loss, on_step=True, on_epoch=True, batch_size=1)
        return loss


class Failing(Noting):
    """Fails in the third step of the second epoch."""

    error: BaseException = RuntimeError("out of <paper>\nsecond line")

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if (self.current_epoch, batch_idx) == (1, 2):
            raise self.error
        return super().training_step(batch, batch_idx)


def page_of(folder: Path) -> str:
    (path,) = folder.rglob("report.html")
    return path.read_text()


def test_a_run_that_ends_well(make_data, make_model, make_trainer, tmp_path: Path) -> None:
    callbacks = [LearningRateMonitor(), ModelCheckpoint(filename="best", monitor="val_acc", mode="max")]
    trainer = make_trainer(callbacks=callbacks, max_epochs=4, check_val_every_n_epoch=2, log_every_n_steps=1, **KEPT)
    trainer.fit(make_model(Logging), make_data())
    page, folder = page_of(tmp_path), tmp_path / "lightning_logs" / "version_0"
    assert trainer.checkpoint_callback.best_model_path == str(folder / "checkpoints" / "best.ckpt")
    assert (folder / "report.html").is_file()
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    assert "finished after 4 epochs and 20 steps of the optimizer" in page
    assert f"val_acc {float(trainer.checkpoint_callback.best_model_score):.4g}" in page
    assert rows(page)["seeds"][0] == "400"
    assert "<main>" in page, "a screen reader asks for it"
    assert "<th></th>" not in page
    assert page.count('class="wide"') == page.count('class="wide" tabindex="0"')  # scrolled by keyboard
    names = re.findall(r"<th>(.*?)</th>", page[page.index("<h2>Epochs</h2>") :])
    assert set(names) >= {"epoch", "train_loss", "train_twice", "val_loss", "val_acc", "late", "seeds/s"}
    assert not {"train_twice_step", "train_twice_epoch", "glt/seeds_per_s"} & set(names)
    table = [dict(zip(names[1:], rows(page)[str(epoch)], strict=True)) for epoch in range(4)]
    assert [row["late"] for row in table] == ["10", "11", "12", "13"]
    assert [row["val_acc"] == "-" for row in table] == [True, False, True, False]  # not that of the epoch before
    with (folder / "metrics.csv").open() as file:  # what the logger was given
        logged = list(csv.DictReader(file))
    for name in ("val_acc", "val_loss", "train_twice"):
        given = [row[f"{name}_epoch" if name == "train_twice" else name] for row in logged]
        assert [row[name] for row in table if row[name] != "-"] == [f"{float(value):.4g}" for value in given if value]
    speeds = [float(row["glt/seeds_per_s"]) for row in logged if row["glt/seeds_per_s"]]  # 24 bits of those in the page
    assert [float(row["seeds/s"].replace(",", "")) for row in table] == pytest.approx(speeds, abs=0.51)
    configuration = page[page.index("<h2>Configuration</h2>") :]
    assert "hidden_channels: 16" in configuration
    assert "batch_size: 20" in configuration


def test_a_file_of_the_user_stays(make_data, make_model, make_trainer, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("<html>of the user</html>")
    callbacks = [ModelCheckpoint(dirpath=tmp_path), RunReport()]
    trainer = make_trainer(callbacks=callbacks, max_epochs=1, enable_checkpointing=True)
    trainer.fit(make_model(), make_data())
    assert page_of(tmp_path) == "<html>of the user</html>"


@pytest.mark.parametrize(
    ("error", "raised", "outcome"),
    [
        (RuntimeError("out of <paper>\nsecond line"), RuntimeError, "failed: RuntimeError: out of &lt;paper&gt;"),
        (KeyboardInterrupt(), SystemExit, "interrupted by Ctrl-C"),
        (SIGTERMException(), SIGTERMException, "ended by SIGTERM"),
    ],
)
def test_a_run_that_breaks(
    make_data, make_model, make_trainer, tmp_path, monkeypatch, error: BaseException, raised: type, outcome: str
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)  # Lightning ignores further Ctrl-C for good
    model = make_model(Failing)
    model.error = error
    with pytest.raises(raised):
        make_trainer(max_epochs=3, **KEPT).fit(model, make_data())
    page = page_of(tmp_path)
    assert f"{outcome}, in epoch 1 after 3 of 5 steps" in page
    assert rows(page)["seeds"][0] == "100"  # of the epoch that ended
    assert "1" not in rows(page)


def test_a_fit_that_does_not_begin_leaves_the_page_of_the_one_before(
    make_data, make_model, make_trainer, tmp_path, monkeypatch
) -> None:
    model, data = make_model(), make_data()
    trainer = make_trainer(max_epochs=1, **KEPT)
    trainer.fit(model, data)
    monkeypatch.setattr(model, "setup", lambda stage: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(model, data)
    assert "finished after 1 epoch " in page_of(tmp_path)


def test_a_page_that_cannot_be_written_is_one_line(make_data, make_model, make_trainer, tmp_path, caplog) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "run" / "report.html").mkdir(parents=True)
    keep = ModelCheckpoint(str(tmp_path / "run"))
    make_trainer(callbacks=[keep], enable_checkpointing=True, max_epochs=1).fit(make_model(), make_data())
    (said,) = [line for line in caplog.messages if "report" in line]
    path = tmp_path / "run" / "report.html"
    assert said == f"the report of this run cannot be written to {path}: Is a directory. Training is not affected."
    assert sorted(each.suffix for each in path.parent.iterdir()) == [".ckpt", ".html"]


def test_a_defect_of_the_report_ends_no_run(make_data, make_model, make_trainer, monkeypatch, caplog) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("glt_lightning.lightning.callbacks.run_report.run_html", lambda _: 1 / 0)
    make_trainer(max_epochs=1, **KEPT).fit(make_model(), make_data())
    assert [line for line in caplog.messages if "ZeroDivisionError: division by zero. Training is not" in line]


def test_no_page_where_a_run_keeps_nothing(make_data, make_model, make_trainer, tmp_path) -> None:
    make_trainer(max_epochs=1).fit(make_model(), make_data())
    make_trainer(fast_dev_run=True, **KEPT).fit(make_model(), make_data())
    make_trainer(callbacks=[RunReport(enabled=False)], max_epochs=1, **KEPT).fit(make_model(), make_data())
    make_trainer(barebones=True, max_epochs=1, logger=None, enable_checkpointing=None).fit(make_model(), make_data())
    assert not list(tmp_path.rglob("report.html"))


def test_it_is_written_anew_while_the_run_goes_on(make_data, make_model, make_trainer, tmp_path) -> None:
    report, now, seen = RunReport(), [0.0], []
    report._clock = lambda: now[0]

    class Looking(Noting):
        def on_train_epoch_start(self) -> None:
            pages = [path.read_text() for path in tmp_path.rglob("report.html")]
            seen.append([re.findall(r"not finished at [\d:]+, in epoch (\d)", page)[0] for page in pages])

        def on_train_epoch_end(self) -> None:
            now[0] += 80.0

    trainer = make_trainer(callbacks=[report], max_epochs=5, **KEPT)
    trainer.fit(make_model(Looking), make_data())
    assert seen == [[], [], ["2"], ["2"], ["4"]]
    assert "<dt>duration</dt><dd>6 min 40 s</dd>" in page_of(tmp_path)


def test_a_run_that_goes_on(make_data, make_model, make_trainer, tmp_path) -> None:
    """In a second fit of the same Trainer, and from a checkpoint in mid-epoch by another."""
    keep = ModelCheckpoint(str(tmp_path / "first"), filename="middle", every_n_train_steps=13, save_top_k=-1)
    model, data = make_model(), make_data()
    trainer = make_trainer(callbacks=[keep], enable_checkpointing=True, max_epochs=2)
    trainer.fit(model, data)
    trainer.fit_loop.max_epochs = 3
    trainer.fit(model, data)
    page = (tmp_path / "first" / "report.html").read_text()
    assert rows(page)["seeds"][0] == "300"
    keep = ModelCheckpoint(str(tmp_path / "second"))
    trainer = make_trainer(callbacks=[keep], enable_checkpointing=True, max_epochs=3)
    trainer.fit(make_model(), make_data(), ckpt_path=tmp_path / "first" / "middle.ckpt")
    page = (tmp_path / "second" / "report.html").read_text()
    assert "epoch 2 after 3 of 5 steps; its figures count the steps since then" in page
    assert "first/middle.ckpt" in page
    assert rows(page)["seeds"][0] == "40"


class Keeping(Logger):
    """A logger of one's own."""

    name, version = "mine", 0

    def __init__(self) -> None:
        super().__init__()
        self.metrics: dict[str, float] = {}

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.metrics |= metrics

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        pass


def test_loggers_receive_the_sampling_metrics(make_data, make_model, make_trainer, tmp_path) -> None:
    mine, table = Keeping(), CSVLogger(tmp_path, name="tables")
    trainer = make_trainer(logger=[mine, table], max_epochs=1)
    trainer.fit(make_model(), make_data())
    wanted = {name for name in trainer.callback_metrics if name.startswith("glt/")}
    assert {"glt/seeds_per_s", "glt/wait_share", "glt/local_share"} <= wanted
    assert wanted <= mine.metrics.keys()
    with (Path(table.log_dir) / "metrics.csv").open() as file:
        assert wanted <= set(next(csv.reader(file)))


def test_tensorboard_receives_the_sampling_metrics(make_data, make_model, make_trainer, tmp_path) -> None:
    pytest.importorskip("tensorboard")
    from lightning.pytorch.loggers import TensorBoardLogger
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path)
    make_trainer(logger=logger, max_epochs=2).fit(make_model(), make_data())
    events = EventAccumulator(logger.log_dir)
    events.Reload()
    assert len(events.Scalars("glt/seeds_per_s")) == 2
    assert (Path(logger.log_dir) / "report.html").is_file()


TWO_RANKS = """
import sys
import torch
from lightning.pytorch import Trainer
from glt_lightning import ClusterOptions, GLTDataModule, GLTWorkerStrategy
from glt_lightning.lightning import BestCheckpoint
from tests.lightning.tiny import Noting

torch.set_num_threads(1)
if __name__ == "__main__":
    data = GLTDataModule(sys.argv[1], "root", num_neighbors=[5, 5], batch_size=10, partition={"num_parts": 2})
    strategy = GLTWorkerStrategy(cluster=ClusterOptions(placement="rank"))
    trainer = Trainer(strategy=strategy, accelerator="cpu", devices=2, max_epochs=2, callbacks=[BestCheckpoint()],
        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Noting(), data)
    found = trainer.callback_metrics
    if trainer.global_rank == 0:
        print("ACCURACY", float(found["val_acc"]), flush=True)
"""


@pytest.mark.slow
def test_two_ranks(graph_npz: Path, tmp_path: Path) -> None:
    output = run_script(TWO_RANKS, str(graph_npz), cwd=tmp_path, env=WITH_TESTS).stdout
    page = page_of(tmp_path)
    found = rows(page)
    assert found["seeds"][0] == "200"
    assert found["batches"][0] == "20"
    assert "2 on 1 host (GLTWorkerStrategy, cpu)" in page
    counted = [int(found[f"{name} rows"][0].replace(",", "")) for name in ("local", "remote")]
    shown = [float(found[f"{name} rows"][1].split(" %")[0]) for name in ("local", "remote")]
    assert shown == pytest.approx([100 * n / sum(counted) for n in counted], abs=0.051)
    said = re.search(r"ACCURACY (\S+)", output)
    assert said is not None
    assert found["1"][page_columns(page).index("val_acc")] == f"{float(said[1]):.4g}"
    assert "Where the rows of attributes came from, by epoch" in page


def page_columns(page: str) -> list[str]:
    return re.findall(r"<th>(.*?)</th>", page[page.index("<h2>Epochs</h2>") :])[1:]
