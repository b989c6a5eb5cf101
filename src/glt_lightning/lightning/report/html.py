"""The report of a run as one HTML page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

from glt_lightning.lightning.callbacks.epoch_totals import EpochTotals
from glt_lightning.lightning.report.record import RunRecord, by_quantity
from glt_lightning.lightning.report.tables import epoch_table, sampler_table, sampling_table, time_table
from glt_lightning.page.html import facts_html, note_html, plots_html, table_html, text_html, whole_page
from glt_lightning.page.plots import Series, lines

_MOST_PLOTS = 24


def run_html(run: RunRecord) -> str:
    """A report of a run of ``fit`` as one self-contained HTML page. Works for any part of a run, also if no epoch ended.

    Args:
        run: What was recorded of the run.

    Example:
        >>> page = run_html(RunRecord("demo", epochs={0: EpochRecord(0, {"train_loss": 0.5})}))
        >>> "train_loss" in page, page.startswith("<!")
        (True, True)
    """
    body = [facts_html([("outcome", run.outcome), *run.facts, *_not_finite(run)])]
    if run.epochs:
        body += _metrics(run)
        if (totals := run.totals) is not None:
            body += [table_html(time_table(run, totals)), _throughput(run)]
            body += [table_html(sampler_table(totals)), table_html(sampling_table(totals)), _rows(run)]
        body.append(table_html(epoch_table(run)))
    else:
        body.append(note_html("No epoch ended, so there are no figures."))
    if run.configuration:
        body.append(text_html("Configuration", run.configuration))
    return whole_page(run.title, body)


def _metrics(run: RunRecord) -> list[str]:
    groups = by_quantity(run.metrics())
    if not groups:
        return []
    figures = {}
    for quantity, names in list(groups.items())[:_MOST_PLOTS]:
        figures[f"{quantity}, by epoch"] = _over_epochs(run, {name: _values(run, name) for name in names}, "")
    notes = [
        "Metrics as they were at the end of each epoch; one that is logged per step is that of the epoch's last step."
    ]
    if run.world_size > 1:
        notes.append(
            f"They are what rank 0 logged: of all {run.world_size} ranks where the module sums them up (torchmetrics, "
            "sync_dist), else of rank 0."
        )
    if left := list(groups)[_MOST_PLOTS:]:
        notes.append(f"Without a plot: {', '.join(left)}.")
    return [plots_html(figures), note_html(" ".join(notes))]


def _throughput(run: RunRecord) -> str:
    rate = {"seeds/s": _of_totals(run, lambda totals: totals.metrics()["seeds_per_s"])}
    waited = {"waiting": _of_totals(run, lambda totals: 100 * totals.wait_share)}
    return plots_html(
        {
            "Seeds of all ranks per second of training time, by epoch": _over_epochs(run, rate, "1/s"),
            "Share of training time spent waiting for batches, by epoch": _over_epochs(run, waited, "%"),
        }
    )


def _rows(run: RunRecord) -> str:
    """Where rows came from, epoch by epoch; nothing where all were local."""
    totals = run.totals
    assert totals is not None
    if totals.counters.rows == totals.counters.local_rows:
        return ""
    shares = {}
    for name in ("local", "cached", "remote", "disk", "device"):
        if name == "local" or getattr(totals.counters, f"{name}_rows"):
            shares[name] = _of_totals(run, partial(_share_of_rows, name))
    figures = {"Where the rows of attributes came from, by epoch": _over_epochs(run, shares, "%")}
    if totals.counters.remote_rows:
        sent = {"remote": _of_totals(run, lambda each: each.metrics()["remote_mb_per_batch"])}
        figures["Bytes of remote rows per batch, by epoch"] = _over_epochs(run, sent, "MB")
    return plots_html(figures)


def _share_of_rows(source: str, totals: EpochTotals) -> float:
    counters = totals.counters
    return 100 * getattr(counters, f"{source}_rows") / counters.rows if counters.rows else 0.0


def _over_epochs(run: RunRecord, values: dict[str, tuple[float | None, ...]], unit: str) -> str:
    return lines([str(n) for n in run.epochs], [Series(*each) for each in values.items()], unit, thick=False)


def _values(run: RunRecord, name: str) -> tuple[float | None, ...]:
    found = (each.metrics.get(name) for each in run.epochs.values())
    return tuple(v if v is not None and math.isfinite(v) else None for v in found)


def _of_totals(run: RunRecord, value: Callable[[EpochTotals], float]) -> tuple[float | None, ...]:
    return tuple(None if each.totals is None else value(each.totals) for each in run.epochs.values())


def _not_finite(run: RunRecord) -> Iterator[tuple[str, str]]:
    """Metrics that became NaN or infinite: the plots cannot show that."""
    for name in run.metrics():
        bad = [each.epoch for each in run.epochs.values() if not math.isfinite(each.metrics.get(name, 0.0))]
        if bad:
            further = f" and {len(bad) - 1} further epochs" if len(bad) > 1 else ""
            yield "not finite", f"{name} in epoch {bad[0]}{further}"
