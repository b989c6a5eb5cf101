"""What is recorded of a run."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from glt_lightning.lightning.callbacks.epoch_totals import EpochTotals

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
