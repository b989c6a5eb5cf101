"""The page of a run: its figures, from what was recorded."""

from __future__ import annotations

import re
from html import unescape

import pytest

from glt_lightning.lightning.callbacks.monitor import ADVICE, EpochTotals, stages
from glt_lightning.lightning.report.run import EpochRecord, RunRecord, by_quantity, run_html
from glt_lightning.sampling import Counters
from tests.lightning.report.test_partition import Page

REMOTE = Counters(
    local_rows=600,
    local_bytes=6000,
    cached_rows=250,
    cached_bytes=2500,
    remote_rows=150,
    remote_bytes=40_000_000,
    sample_s=1.0,
    remote_s=6.0,
    gather_s=1.0,
)
LOCAL = Counters(local_rows=1000, local_bytes=10_000, sample_s=3.0, gather_s=1.0)


def rows(page: str) -> dict[str, list[str]]:
    """The other cells of each row of all tables, by the first."""
    found = re.findall(r"<tr>(<td>.*?)</tr>", page)
    cells = [[unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", row)] for row in found]
    return {first: others for first, *others in cells}


def run_of(counters: Counters, ranks: int, epochs: int = 2, **options: object) -> RunRecord:
    """Epochs of 10 s in each rank's time, 4 s of them waiting, and 2 s of validation."""
    totals = EpochTotals(ranks, 20, 2000, 2000, 1000, 1400, 4.0 * ranks, 10.0 * ranks, 2.0 * ranks, counters)
    records = {n: EpochRecord(n, {"train_loss": 1.0 / (n + 1), "val_acc": 0.5}, totals) for n in range(epochs)}
    return RunRecord(**{"title": "GraphSAGE: version_0", "world_size": ranks, "epochs": records, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_figures(ranks: int) -> None:
    found = rows(run_html(run_of(REMOTE, ranks, seconds=30.0)))
    assert found["training steps"] == ["12.0 s", "40.0 %"]  # of each rank
    assert found["waiting for batches"] == ["8.00 s", "26.7 %"]
    assert found["validation"] == ["4.00 s", "13.3 %"]
    assert found["other"] == ["6.00 s", "20.0 %"]
    assert found["whole run"] == ["30.0 s", ""]
    assert found["seeds"] == ["4,000", "200 per second"]  # of all ranks in the 20 s of training
    assert found["batches"] == ["40", "2 per second"]
    assert found["network: waiting for owners of remote rows"] == ["12.0 s", "75.0 %"]
    assert found["local rows"] == ["1,200", "60.0 %, 12 kB"]
    assert found["cached rows"] == ["500", "25.0 %, 5 kB"]
    assert found["remote rows"] == ["300", "15.0 %, 80 MB"]
    assert found["cache hit rate"] == ["", "62.5 %"]
    assert found["remote bytes per batch"] == ["", "2 MB"]
    assert found["0"] == ["1", "0.5", "200", "40.0 %", "network"]
    assert found["1"] == ["0.5", "0.5", "200", "40.0 %", "network"]


@pytest.mark.parametrize(
    "run",
    [
        RunRecord("a"),
        RunRecord("a", outcome="failed: <b>", epochs={0: EpochRecord(0)}),
        RunRecord("a", epochs={0: EpochRecord(0, {"train_loss": float("nan"), "r2": -3.0})}),
        run_of(LOCAL, 1),
        run_of(REMOTE, 2, epochs=200, configuration="trainer:\n  x: '<script>'\n"),
        RunRecord("a", epochs={0: EpochRecord(0, {}, EpochTotals(1, elapsed_s=1.0))}),
    ],
)
def test_page_stands_alone(run: RunRecord) -> None:
    page, parser = run_html(run), Page()
    parser.feed(page)
    assert parser.open == []
    assert not {"script", "link", "img", "iframe", "b"} & parser.tags
    assert "http" not in page
    assert "nan" not in "".join(re.findall(r' d="[^"]*"', page))


def test_of_many_epochs_some_rows_are_shown() -> None:
    page = run_html(run_of(LOCAL, 1, epochs=201))
    shown = [int(name) for name in rows(page) if name.isdigit()]
    assert shown == [*range(0, 200, 5), 200]
    assert "every 5 epochs, and the last" in page


def test_gaps_and_values_that_are_not_finite() -> None:
    epochs = {n: EpochRecord(n, {"train_loss": loss}) for n, loss in ((0, 1.0), (1, float("nan")), (2, float("inf")))}
    epochs[2].metrics["val_acc"] = 0.25
    page = run_html(RunRecord("a", epochs=epochs))
    assert "train_loss in epoch 1 and 1 further epochs" in page
    found = rows(page)
    assert (found["0"], found["1"], found["2"]) == (["1", "-"], ["nan", "-"], ["inf", "0.25"])


def test_where_rows_came_from_is_shown_where_some_are_not_local() -> None:
    assert "Bytes of remote rows per batch" in run_html(run_of(REMOTE, 2))
    assert "Where the rows of attributes came from" not in run_html(run_of(LOCAL, 2))


def test_hit_rate_is_explained_where_it_is_shown() -> None:
    assert "the hit rate is of rows of other parts" in run_html(run_of(REMOTE, 2))
    assert "hit rate" not in run_html(run_of(LOCAL, 1))


def test_several_ranks_are_said() -> None:
    assert "of all 2 ranks" in run_html(run_of(LOCAL, 2))
    assert "rank 0" not in run_html(run_of(LOCAL, 1))


def test_metrics_of_one_quantity_share_a_plot() -> None:
    names = ["train_loss", "val_loss", "val/acc", "test_acc", "lr-Adam", "valid_loss", "train_"]
    assert by_quantity(names) == {
        "loss": ["train_loss", "val_loss", "valid_loss"],
        "acc": ["val/acc", "test_acc"],
        "lr-Adam": ["lr-Adam"],
        "train_": ["train_"],
    }


def test_there_is_advice_for_every_verdict() -> None:
    assert ADVICE.keys() == {"compute", "cores", *stages(LOCAL)}
