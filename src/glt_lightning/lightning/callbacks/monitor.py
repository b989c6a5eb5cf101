"""`SamplingMonitor`: how fast batches come, where their rows come from, and how long training waits for them."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch.utils._pytree import tree_leaves
from tqdm import tqdm

from glt_lightning.base import numbers
from glt_lightning.loader import DistNeighborLoader, LoaderStats
from glt_lightning.sampling import Counters

_SHOWN_EVERY_S = 0.5
_RATE = "glt/seeds_per_s"


class SamplingMonitor(Callback):
    """Logs totals of each training epoch over all ranks, as metrics ``glt/...`` (docs/reference/callbacks.md lists them) and as a
    line for people, which names what the epoch was bound by. Lightning's progress bar shows the seeds per second.

    Validation is not counted. Without a loader of ours nothing is logged. All ranks must have this callback, or none.

    Args:
        line: Whether there is a line.

    Example:
        >>> trainer = Trainer(callbacks=[SamplingMonitor(line=False)], max_epochs=1)
        >>> trainer.fit(model, datamodule)
        >>> float(trainer.callback_metrics["glt/local_share"])  # all rows are on this host
        1.0
    """

    def __init__(self, line: bool = True) -> None:
        self.line = line
        self.totals: EpochTotals | None = None  # of the latest epoch that ended, over all ranks
        self._elapsed_s, self._validation_s, self._since = 0.0, 0.0, 0.0
        self._before = EpochTotals()
        self._threads: ThreadTimes = {}
        self._shown = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(trainer)  # an epoch that is resumed in its middle does not start

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(trainer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._lap()
        if trainer.progress_bar_callback is not None and self._since - self._shown >= _SHOWN_EVERY_S:
            self._shown = self._since
            self._show_rate(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._lap()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        now = time.perf_counter()
        self._validation_s += now - self._since
        self._since = now

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        totals = _over_ranks(trainer, self._mine(trainer))
        self.totals = totals if totals.ranks and totals.elapsed_s else None
        if self.totals is None:
            return
        # Not by `LightningModule.log`, which sums up over steps and ranks: it took 0.3 ms a metric, a tenth of cora's epochs.
        metrics = {f"glt/{name}": torch.tensor(value) for name, value in totals.metrics().items()}
        trainer.callback_metrics.update(metrics)
        trainer._logger_connector.log_metrics(metrics)
        trainer.progress_bar_metrics[_RATE] = float(metrics[_RATE])
        if self.line:
            _say(f"glt: epoch {trainer.current_epoch}: {totals.line()}")

    def _show_rate(self, trainer: Trainer) -> None:
        """Shows the rate of the epoch so far in the bar. Rank 0 draws it, and its rate stands for all: ranks train in step."""
        mine = self._mine(trainer)
        if mine.ranks:
            trainer.progress_bar_metrics[_RATE] = trainer.world_size * mine.seeds / mine.elapsed_s

    def _begin(self, trainer: Trainer) -> None:
        self._elapsed_s, self._validation_s, self._since = 0.0, 0.0, time.perf_counter()
        self._before = _so_far(trainer)
        self._threads = thread_times()

    def _lap(self) -> None:
        now = time.perf_counter()
        self._elapsed_s += now - self._since
        self._since = now

    def _mine(self, trainer: Trainer) -> EpochTotals:
        """What this rank did in the epoch so far; nothing without a loader of ours."""
        totals = _so_far(trainer).since(self._before)
        if any(True for _ in _loaders(trainer)):
            totals.ranks, totals.elapsed_s, totals.validation_s = 1, self._elapsed_s, self._validation_s
            totals.core_s, totals.core_wait_s = times_since(self._threads)
        return totals


def _say(text: str) -> None:
    """A line in the log, not behind a progress bar."""
    with tqdm.external_write_mode(file=sys.stderr):
        rank_zero_info(fitted(text, shutil.get_terminal_size().columns) if sys.stderr.isatty() else text)


def fitted(text: str, columns: int) -> str:
    """Broken between words where a terminal would break it anywhere."""
    return textwrap.fill(text, columns, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def _so_far(trainer: Trainer) -> EpochTotals:
    """Totals of the training loaders since they were made."""
    totals = EpochTotals()
    for loader in _loaders(trainer):
        totals.add(loader.stats())
    return totals


def _loaders(trainer: Trainer) -> Iterator[DistNeighborLoader]:
    yield from (leaf for leaf in tree_leaves(trainer.train_dataloader) if isinstance(leaf, DistNeighborLoader))


def _over_ranks(trainer: Trainer, mine: EpochTotals) -> EpochTotals:
    """The sum over ranks. A collective call, also for ranks that have nothing to add."""
    if trainer.world_size == 1:
        return mine
    numbers = torch.tensor(mine.to_list(), dtype=torch.float64, device=trainer.strategy.root_device)
    return EpochTotals.from_list(trainer.strategy.reduce(numbers, reduce_op="sum").tolist())


# What the batches of an epoch took, over all ranks: as sums, as metrics, and in one line.


_MB = 1e6


@dataclass
class EpochTotals:
    """Sums over the loaders of a rank, or over ranks.

    ranks: those that trained with loaders of ours.  elapsed_s: of training, without validation; validation_s: of that.
    named_nodes: as in `LoaderStats`.  core_s: of their threads on a core; core_wait_s: of those that could run and had no core.
    Seconds of ranks are added up, as if one had followed the other.
    """

    ranks: int = 0
    batches: int = 0
    seeds: int = 0
    named_nodes: int = 0
    nodes: int = 0
    edges: int = 0
    wait_s: float = 0.0
    elapsed_s: float = 0.0
    validation_s: float = 0.0
    counters: Counters = field(default_factory=Counters)
    core_s: float = 0.0
    core_wait_s: float = 0.0

    def add(self, stats: LoaderStats) -> None:
        """Adds what a loader has delivered so far."""
        self.batches += stats.batches
        self.seeds += stats.seeds
        self.named_nodes += stats.named_nodes
        self.nodes += stats.nodes
        self.edges += stats.edges
        self.wait_s += stats.wait_s
        self.counters.add(stats.counters)

    def since(self, before: EpochTotals) -> EpochTotals:
        """What came on top of an earlier state."""
        return self.from_list([now - then for now, then in zip(self.to_list(), before.to_list(), strict=True)])

    def to_list(self) -> list[int | float]:
        """All numbers in order: what ranks add up."""
        counts = [self.ranks, self.batches, self.seeds, self.named_nodes, self.nodes, self.edges]
        seconds = [self.wait_s, self.elapsed_s, self.validation_s, self.core_s, self.core_wait_s]
        return [*counts, *seconds, *self.counters.to_list()]

    @classmethod
    def from_list(cls, values: Sequence[int | float]) -> EpochTotals:
        """What `to_list` gave, or a sum of such."""
        ranks, batches, seeds, named, nodes, edges = (int(n) for n in values[:6])
        wait_s, elapsed_s, validation_s, core_s, core_wait_s = values[6:11]
        counters = Counters(*values[11:])  # type: ignore[arg-type]
        counts = ranks, batches, seeds, named, nodes, edges
        return cls(*counts, wait_s, elapsed_s, validation_s, counters, core_s, core_wait_s)

    @property
    def wait_share(self) -> float:
        return _share(self.wait_s, self.elapsed_s)

    @property
    def core_wait_share(self) -> float:
        return _share(self.core_wait_s, self.core_s + self.core_wait_s)

    @property
    def verdict(self) -> str:
        return verdict(self.wait_share, self.core_wait_share, self.counters)

    def metrics(self) -> dict[str, float]:
        """Rates over all ranks, shares of sums, and means over all batches. ``cache_hit_rate`` where rows of other parts
        were needed."""
        counters, elapsed_s = self.counters, self.elapsed_s / self.ranks
        asked = counters.cached_rows + counters.remote_rows
        named = self.named_nodes + self.edges
        found = {
            "batches_per_s": self.batches / elapsed_s,
            "seeds_per_s": self.seeds / elapsed_s,
            "sampled_edges_per_s": self.edges / elapsed_s,
            "wait_share": self.wait_share,
            "core_wait_share": self.core_wait_share,
            "local_share": _share(counters.local_rows, counters.rows),
            "remote_rows_per_batch": _share(counters.remote_rows, self.batches),
            "remote_mb_per_batch": _share(counters.remote_bytes / _MB, self.batches),
            "disk_rows_per_batch": _share(counters.disk_rows, self.batches),
            "deduplicated_share": _share(named - self.nodes, named),
        }
        return found | ({"cache_hit_rate": counters.cached_rows / asked} if asked else {})

    def line(self) -> str:
        """The same for people, with what the epoch was bound by. Rows are left out where all of them are local."""
        metrics = self.metrics()
        waited = f"{self.wait_share:.0%} waiting for batches"
        line = f"{numbers.rate(metrics['seeds_per_s'])} seeds/s, {waited}, bound by {self.bound()}"
        if self.counters.rows == self.counters.local_rows:
            return line
        return f"{line}; rows: {self._sources(metrics)}"

    def _sources(self, metrics: dict[str, float]) -> str:
        counters = self.counters
        rows = {
            "local": counters.local_rows,
            f"cached (hit rate {metrics.get('cache_hit_rate', 0.0):.2f})": counters.cached_rows,
            f"remote ({_amount(metrics['remote_mb_per_batch'])} MB per batch)": counters.remote_rows,
            "disk": counters.disk_rows,
            "on the GPU": counters.device_rows,
        }
        found = [f"{_percent(n, counters.rows)} {source}" for source, n in rows.items() if n or source == "local"]
        return ", ".join(found)

    def bound(self) -> str:
        """The verdict, and the share of the samplers' time, or of its threads' time, that went into it."""
        found, spent = self.verdict, stages(self.counters)
        if found == "cores":
            return f"cores ({self.core_wait_share:.0%} of thread time without a core)"
        return f"{found} ({_share(spent[found], sum(spent.values())):.0%} of sampler time)" if found in spent else found


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _percent(part: int, whole: int) -> str:
    share = _share(part, whole)
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def _amount(value: float) -> str:
    """Two digits at least, where there is anything."""
    return f"{value:.1f}" if value >= 1 or not value else f"{value:.2g}"


# What the threads of this process got of the cores: the scheduler's own count, which also sees other processes.


ThreadTimes = dict[str, tuple[float, float]]
_TASKS = Path("/proc/self/task")


def thread_times(tasks: Path = _TASKS) -> ThreadTimes:
    """Seconds of each thread, by its id: on a core, and of waiting for one. Empty where the kernel does not count them."""
    found = {}
    for task in os.listdir(tasks) if tasks.exists() else ():
        # the thread has just ended, or the kernel has no schedstat
        with suppress(OSError), open(f"{tasks}/{task}/schedstat", "rb", buffering=0) as file:
            ran_ns, waited_ns, _ = file.read().split()
            found[task] = int(ran_ns) / 1e9, int(waited_ns) / 1e9
    return found


def times_since(before: ThreadTimes, tasks: Path = _TASKS) -> tuple[float, float]:
    """Seconds on a core and of waiting for one since `thread_times` gave ``before``, over the threads that still live."""
    ran_s = waited_s = 0.0
    for thread, now in thread_times(tasks).items():
        then = before.get(thread, (0.0, 0.0))
        ran_s, waited_s = ran_s + now[0] - then[0], waited_s + now[1] - then[1]
    return ran_s, waited_s


# What an epoch was bound by.


MOST_WAIT = 0.1  # share of training time; below it, faster samplers would hardly shorten an epoch

# What may help, by verdict.
ADVICE = {
    "cores": (
        "More threads want to run than there are cores: fewer ranks, sampling.num_workers or threads of torch "
        "(OMP_NUM_THREADS), or less other work on this host, may help."
    ),
    "compute": "Samplers keep up: a faster device or a smaller model would shorten an epoch.",
    "sampling": "More sampling.num_workers (of graph servers: in their configuration) or smaller num_neighbors may help.",
    "network": (
        "A larger cache.ratio, a partition.algorithm that cuts fewer edges (metis, streaming), fewer bytes per row "
        "(partition.storage) or more sampling.concurrency may help."
    ),
    "disk": "A larger cache.memory, a faster disk or fewer bytes per row (partition.storage) may help.",
    "copy": "Fewer bytes per row (partition.storage), more sampling.num_workers or more memory may help.",
}


def stages(counters: Counters) -> dict[str, float]:
    """Seconds that samplers spent, by what they spent them on."""
    return {
        "sampling": counters.sample_s,
        "network": counters.remote_s,
        "disk": counters.disk_s,
        "copy": counters.gather_s,
    }


def verdict(wait_share: float, core_wait_share: float, counters: Counters) -> str:
    """``cores`` where the threads of the trainer lose more time to others than it waits for batches, ``compute`` where it
    hardly waits for either, else what the samplers spent most time on: ``sampling``, ``network``, ``disk`` or ``copy``."""
    lost = (1 - wait_share) * core_wait_share  # while it waits for a batch, its threads want no core
    if lost >= MOST_WAIT and lost > wait_share:
        return "cores"
    if wait_share < MOST_WAIT:
        return "compute"
    spent = stages(counters)
    return max(spent, key=lambda stage: spent[stage])
