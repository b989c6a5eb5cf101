"""The report of a run as one HTML page."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]
from lightning.pytorch import LightningModule, Trainer

from glt_lightning.base import numbers
from glt_lightning.lightning.callbacks.monitor import ADVICE, EpochTotals, stages
from glt_lightning.lightning.report.page import Series, Table, lines, render

if TYPE_CHECKING:
    from glt_lightning.lightning.planner.expected import Expected  # which most runs do without

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
    found = [
        (time_table(run, totals), speed),
        (sampler_table(totals), {}),
        (sampling_table(totals), _rows(run, totals)),
    ]
    if run.expected is not None:
        from glt_lightning.lightning.planner.expected import comparison

        found.append((comparison(run.expected, totals, run.counted_epochs), {}))
    return found


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


# The tables of the report of a run.


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


# What a run was configured with, as YAML.


_TRAINER = (
    "max_epochs",
    "max_steps",
    "precision",
    "accumulate_grad_batches",
    "gradient_clip_val",
    "check_val_every_n_epoch",
)


def configuration(trainer: Trainer, pl_module: LightningModule) -> str:
    """That of the command line, if it made this run; in a script, what the objects know of themselves."""
    if (found := _of_command_line(trainer)) is not None:
        return found
    known: dict[str, Any] = {"trainer": {name: _plain(getattr(trainer, name, None)) for name in _TRAINER}}
    known["model"] = {"class": _name(pl_module), **_hparams(pl_module)}
    if (data := getattr(trainer, "datamodule", None)) is not None:
        known["data"] = {"class": _name(data), **(_hparams(data) or _arguments(data))}
    return str(yaml.safe_dump(known, sort_keys=False, allow_unicode=True))


def _of_command_line(trainer: Trainer) -> str | None:
    module = sys.modules.get("lightning.pytorch.cli")
    if module is None:  # who did not come by it has no such callback, and need not import it
        return None
    found = [each for each in trainer.callbacks if isinstance(each, module.SaveConfigCallback)]  # type: ignore[attr-defined]
    if not found:
        return None
    made: str | None = getattr(found[0], "text", None)  # of our own command line, which makes it once
    return made or str(found[0].parser.dump(found[0].config, skip_none=False))


def _hparams(target: Any) -> dict[str, Any]:
    return {str(name): _plain(value) for name, value in dict(getattr(target, "hparams", {})).items()}


def _arguments(target: Any) -> dict[str, Any]:
    """The constructor's arguments that the object has as attributes of the same names."""
    names = list(inspect.signature(type(target).__init__).parameters)[1:]
    return {name: _plain(getattr(target, name)) for name in names if hasattr(target, name)}


def _plain(value: Any) -> Any:
    """What YAML can hold; of other objects their class."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set)) and len(value) <= 100:
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else _name(value)


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


# What is recorded of a run.


_STAGE = re.compile(r"(train|training|val|valid|validation|test)[_/]")


@dataclass
class EpochRecord:
    """An epoch that ended.

    Attributes:
        epoch: Its number, from 0.
        metrics: Values that the module logged in it, as they were at its end.
        totals: Totals of sampling over all ranks. None: no loader was ours.

    Example:
        >>> EpochRecord(0, {"val_acc": 0.75}).metrics
        {'val_acc': 0.75}
    """

    epoch: int
    metrics: dict[str, float] = field(default_factory=dict)
    totals: EpochTotals | None = None


@dataclass
class RunRecord:
    """A run of ``fit`` so far.

    Attributes:
        title: Heading of the report.
        world_size: Number of ranks.
        outcome: How the run ended; empty while it goes on.
        seconds: Time since its beginning, on rank 0.
        facts: Further rows of the summary, (name, value).
        epochs: Epochs by number; those of an earlier fit of the same Trainer are among them.
        configuration: The configuration as YAML.
        expected: What an epoch was planned to take. None: nothing was planned.

    Example:
        >>> run = RunRecord("demo", world_size=2)
        >>> run.epochs[0] = EpochRecord(0, {"train_loss": 0.7, "val_acc": 0.75})
        >>> run.metrics(), run.totals
        (['train_loss', 'val_acc'], None)
    """

    title: str
    world_size: int = 1
    outcome: str = ""
    seconds: float = 0.0
    facts: list[tuple[str, str]] = field(default_factory=list)
    epochs: dict[int, EpochRecord] = field(default_factory=dict)
    configuration: str = ""
    expected: Expected | None = None

    @property
    def counted_epochs(self) -> int:
        """The number of epochs in ``totals``."""
        return sum(each.totals is not None for each in self.epochs.values())

    @property
    def totals(self) -> EpochTotals | None:
        """Of all epochs; its seconds are those of each rank, added up."""
        known = [each.totals for each in self.epochs.values() if each.totals is not None]
        if not known:
            return None
        total = EpochTotals.from_list(
            [sum(numbers) for numbers in zip(*(each.to_list() for each in known), strict=True)]
        )
        total.ranks = max(each.ranks for each in known)
        return total

    def metrics(self) -> list[str]:
        """Names of the metrics, in the order in which they came."""
        return list(dict.fromkeys(name for each in self.epochs.values() for name in each.metrics))


def by_quantity(names: Iterable[str]) -> dict[str, list[str]]:
    """``train_loss`` and ``val_loss`` are both ``loss``, and belong into one plot."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_STAGE.sub("", name, count=1) or name, []).append(name)
    return groups
