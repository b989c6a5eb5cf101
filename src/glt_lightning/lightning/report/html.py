"""The report of a run as one HTML page."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from glt_lightning.lightning.callbacks.epoch_totals import EpochTotals
from glt_lightning.lightning.page.html import Table, render
from glt_lightning.lightning.page.plots import Series, lines
from glt_lightning.lightning.report.record import RunRecord, by_quantity
from glt_lightning.lightning.report.tables import epoch_table, sampler_table, sampling_table, time_table

_MOST_PLOTS = 24


def run_html(run: RunRecord) -> str:
    """A report of a run of ``fit`` as one self-contained HTML page. Works for any part of a run, also if no epoch ended. Needs
    jinja2 and matplotlib.

    Args:
        run: What was recorded of the run.

    Example:
        >>> page = run_html(RunRecord("demo", epochs={0: EpochRecord(0, {"train_loss": 0.5})}))
        >>> "train_loss" in page, page.startswith("<!")
        (True, True)
    """
    groups = list(by_quantity(run.metrics()).items())
    return render(
        "run.html",
        title=run.title,
        run=run,
        not_finite=_not_finite(run),
        metrics={f"{quantity}, by epoch": _metrics(run, names) for quantity, names in groups[:_MOST_PLOTS]},
        not_shown=[quantity for quantity, _ in groups[_MOST_PLOTS:]],
        sampling=[] if run.totals is None else _sampling(run, run.totals),
        epochs=epoch_table(run) if run.epochs else None,
    )


def _metrics(run: RunRecord, names: list[str]) -> str:
    values = {}
    for name in names:
        found = (each.metrics.get(name) for each in run.epochs.values())
        values[name] = tuple(v if v is not None and math.isfinite(v) else None for v in found)
    return _over_epochs(run, values, "")


def _sampling(run: RunRecord, totals: EpochTotals) -> list[tuple[Table, dict[str, str]]]:
    """The tables about sampling, with the plots that belong to each."""
    rate = {"seeds/s": _of_totals(run, lambda totals: totals.metrics()["seeds_per_s"])}
    waited = {"waiting": _of_totals(run, lambda totals: 100 * totals.wait_share)}
    speed = {
        "Seeds of all ranks per second of training time, by epoch": _over_epochs(run, rate, "1/s"),
        "Share of training time spent waiting for batches, by epoch": _over_epochs(run, waited, "%"),
    }
    return [(time_table(run, totals), speed), (sampler_table(totals), {}), (sampling_table(totals), _rows(run, totals))]


def _rows(run: RunRecord, totals: EpochTotals) -> dict[str, str]:
    """Where rows came from, epoch by epoch; nothing where all were local."""
    if totals.counters.rows == totals.counters.local_rows:
        return {}
    shares = {}
    for name in ("local", "cached", "remote", "disk", "device"):
        if name == "local" or getattr(totals.counters, f"{name}_rows"):
            shares[name] = _of_totals(run, partial(_share_of_rows, name))
    figures = {"Where the rows of attributes came from, by epoch": _over_epochs(run, shares, "%")}
    if totals.counters.remote_rows:
        sent = {"remote": _of_totals(run, lambda each: each.metrics()["remote_mb_per_batch"])}
        figures["Bytes of remote rows per batch, by epoch"] = _over_epochs(run, sent, "MB")
    return figures


def _share_of_rows(source: str, totals: EpochTotals) -> float:
    counters = totals.counters
    return 100 * getattr(counters, f"{source}_rows") / counters.rows if counters.rows else 0.0


def _over_epochs(run: RunRecord, values: dict[str, tuple[float | None, ...]], unit: str) -> str:
    return lines([str(n) for n in run.epochs], [Series(*each) for each in values.items()], unit, thick=False)


def _of_totals(run: RunRecord, value: Callable[[EpochTotals], float]) -> tuple[float | None, ...]:
    return tuple(None if each.totals is None else value(each.totals) for each in run.epochs.values())


def _not_finite(run: RunRecord) -> list[tuple[str, str]]:
    """Metrics that became NaN or infinite: the plots cannot show that."""
    found = []
    for name in run.metrics():
        bad = [each.epoch for each in run.epochs.values() if not math.isfinite(each.metrics.get(name, 0.0))]
        if bad:
            further = f" and {len(bad) - 1} further epochs" if len(bad) > 1 else ""
            found.append(("not finite", f"{name} in epoch {bad[0]}{further}"))
    return found
