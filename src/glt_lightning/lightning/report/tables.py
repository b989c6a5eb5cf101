"""The tables of the report of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from glt_lightning.base import numbers
from glt_lightning.lightning.callbacks.epoch_totals import EpochTotals
from glt_lightning.lightning.callbacks.verdict import ADVICE, stages
from glt_lightning.lightning.page.html import Table
from glt_lightning.lightning.report.record import RunRecord

_MOST_ROWS = 50


def time_table(run: RunRecord, totals: EpochTotals) -> Table:
    """Where the wall-clock time of the run went."""
    ranks = totals.ranks
    spent = {
        "training steps": (totals.elapsed_s - totals.wait_s) / ranks,
        "waiting for batches": totals.wait_s / ranks,
        "validation": totals.validation_s / ranks,
    }
    spent["other"] = max(0.0, run.seconds - sum(spent.values()))
    whole = sum(spent.values())
    rows = [(name, numbers.duration(s), numbers.percent(s / whole if whole else 0.0)) for name, s in spent.items()]
    mean = "" if ranks == 1 else f"means over the {ranks} ranks; "
    note = (
        f"{mean}other: starting samplers, the sanity check, checkpoints and callbacks between epochs, and an epoch that did "
        "not end"
    )
    return Table(
        "Where the time went", ("", "time", "share"), (*rows, ("whole run", numbers.duration(whole), "")), note
    )


def sampler_table(totals: EpochTotals) -> Table:
    """What the samplers spent their time on."""
    spent = stages(totals.counters)
    names = {"sampling": "drawing neighbours, relabelling", "network": "waiting for owners of remote rows"}
    names |= {"disk": "reading rows from disk", "copy": "copying rows into batches"}
    whole = sum(spent.values())
    rows = [
        (f"{stage}: {names[stage]}", numbers.duration(s), numbers.percent(s / whole if whole else 0.0))
        for stage, s in spent.items()
    ]
    return Table(
        "Where the samplers' time went",
        ("", "time", "share"),
        tuple(rows),
        f"added up over all samplers, which work at the same time. Training was bound by {totals.bound()}. "
        f"{ADVICE[totals.verdict]}",
    )


def sampling_table(totals: EpochTotals) -> Table:
    """What was sampled, and where the rows came from."""
    metrics, counters, ranks = totals.metrics(), totals.counters, totals.ranks
    rows = [
        ("seeds", numbers.count(totals.seeds), f"{numbers.rate(metrics['seeds_per_s'])} per second"),
        ("batches", numbers.count(totals.batches), f"{numbers.rate(metrics['batches_per_s'])} per second"),
        ("sampled edges", numbers.count(totals.edges), f"{numbers.rate(metrics['sampled_edges_per_s'])} per second"),
        ("deduplicated draws", "", numbers.percent(metrics["deduplicated_share"])),
    ]
    sources = {
        "local rows": (counters.local_rows, counters.local_bytes),
        "cached rows": (counters.cached_rows, counters.cached_bytes),
        "remote rows": (counters.remote_rows, counters.remote_bytes),
        "rows from disk": (counters.disk_rows, counters.disk_bytes),
        "rows on the GPU": (counters.device_rows, counters.device_bytes),
    }
    for name, (count, size) in sources.items():
        if count or name in ("local rows", "remote rows"):
            share = numbers.percent(count / counters.rows if counters.rows else 0.0)
            rows.append((name, numbers.count(count), f"{share}, {numbers.size(size)}"))
    if "cache_hit_rate" in metrics:
        rows.append(("cache hit rate", "", numbers.percent(metrics["cache_hit_rate"])))
        rows.append(("remote bytes per batch", "", numbers.size(1e6 * metrics["remote_mb_per_batch"])))
        hits = "; the hit rate is of rows of other parts"
    else:
        hits = ""
    return Table(
        "Sampling",
        ("", "all epochs", ""),
        tuple(rows),
        f"of {'all ' if ranks > 1 else ''}{ranks} rank{'s' if ranks > 1 else ''}, training epochs that ended, without "
        "validation; per second of training time. Rows are those of node and edge attributes, each counted once per batch"
        f"{hits}",
    )


def epoch_table(run: RunRecord) -> Table:
    """One row per epoch, or per some of many."""
    names = run.metrics()
    epochs = list(run.epochs.values())
    every = -(-len(epochs) // _MOST_ROWS)
    sampled = any(each.totals is not None for each in epochs)
    head = ("epoch", *names, *(("seeds/s", "waiting for batches", "bound by") if sampled else ()))
    rows = []
    for each in [*epochs[:-1:every], *epochs[-1:]]:
        row = [str(each.epoch), *(value_text(each.metrics.get(name)) for name in names)]
        if sampled:
            row += _sampling_cells(each.totals)
        rows.append(tuple(row))
    note = f"every {every} epochs, and the last" if every > 1 else ""
    return Table("Epochs", head, tuple(rows), note)


def _sampling_cells(totals: EpochTotals | None) -> Sequence[str]:
    if totals is None:
        return (numbers.NONE,) * 3
    rate = numbers.rate(totals.metrics()["seeds_per_s"])
    return rate, numbers.percent(totals.wait_share), totals.verdict


def value_text(value: float | None) -> str:
    """A metric."""
    if value is None:
        return numbers.NONE
    return f"{value:.4g}" if math.isfinite(value) else str(value)
