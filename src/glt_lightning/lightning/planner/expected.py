"""What an epoch is expected to take, with its range, and what it took: the same rows side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule, Trainer

from glt_lightning.base import ClusterOptions, SamplingOptions, numbers
from glt_lightning.graph import usable_cores
from glt_lightning.lightning.callbacks.monitor import EpochTotals
from glt_lightning.lightning.planner.gpus import COMPUTED, EFFICIENCIES, OnGpu
from glt_lightning.lightning.planner.probe import RANKS, SERVED, Probe
from glt_lightning.lightning.planner.record import find_probe, probe_key
from glt_lightning.lightning.planner.rules import (
    NOTHING_REMOTE,
    BatchCost,
    Counted,
    Dealing,
    ExpectedTotals,
    Layout,
    Limit,
    expect_epoch,
)
from glt_lightning.lightning.report.page import Table
from glt_lightning.lightning.strategies.ranks import fair_threads
from glt_lightning.lightning.strategies.server_client import GLTServerClientStrategy
from glt_lightning.lightning.strategies.worker import GLTWorkerStrategy

if TYPE_CHECKING:
    from glt_lightning.lightning.datamodule import GLTDataModule

_MARGIN = 0.1  # of a time, below which nobody would call it wrong


@dataclass(frozen=True)
class Expected:
    """An epoch at its ``low``, ``mid`` and ``high`` end."""

    low: ExpectedTotals
    mid: ExpectedTotals
    high: ExpectedTotals


@dataclass(frozen=True)
class Quantity:
    """A row of what is planned and measured. exact: a count, without a range.  wall: seconds that other work on the machine makes
    longer."""

    name: str
    value: Callable[[EpochTotals], float]
    show: Callable[[float], str]
    exact: bool = False
    wall: bool = False


def _of_rank(name: str) -> Callable[[EpochTotals], float]:
    return lambda totals: getattr(totals, name) / totals.ranks


def _of_counters(name: str) -> Callable[[EpochTotals], float]:
    return lambda totals: getattr(totals.counters, name)


# The parts of an epoch, as plan and the report of a run name them
QUANTITIES = (
    Quantity("epoch, without validation", _of_rank("elapsed_s"), numbers.duration, wall=True),
    Quantity("steps: model, gradients", lambda t: (t.elapsed_s - t.wait_s) / t.ranks, numbers.duration, wall=True),
    Quantity("waiting for batches", _of_rank("wait_s"), numbers.duration, wall=True),
    Quantity("validation", _of_rank("validation_s"), numbers.duration, wall=True),
    Quantity("CPU time of the processes of ranks", lambda totals: totals.core_s, numbers.duration),
    Quantity("samplers: drawing neighbours", _of_counters("sample_s"), numbers.duration, wall=True),
    Quantity("samplers: copying rows", _of_counters("gather_s"), numbers.duration, wall=True),
    Quantity("samplers: waiting for owners", _of_counters("remote_s"), numbers.duration, wall=True),
    Quantity("batches", lambda t: t.batches, numbers.count, exact=True),
    Quantity("seeds", lambda t: t.seeds, numbers.count, exact=True),
    Quantity("bytes of local rows", _of_counters("local_bytes"), numbers.size),
    Quantity("bytes of cached rows", _of_counters("cached_bytes"), numbers.size),
    Quantity("bytes of remote rows", _of_counters("remote_bytes"), numbers.size),
)


def expect(
    probe: Probe, layout: Layout, dealing: Dealing, counted: Counted | None = None, gpu: OnGpu | None = None
) -> Expected:
    """The expectation of an epoch with a probe's constants. counted: what was counted of batches with this layout; None: the
    probe's batches stand for all, and nothing is remote.  gpu: where ranks train; None: on the CPU."""
    passes = dealing.passes(probe.seeds, probe.validation_seeds, layout.world_size)
    validation: tuple[BatchCost | None, ...] = (None, None, None)
    if probe.validation is not None:
        validation = tuple(each.of_seeds(passes.validation_seeds) for each in probe.validation.ends)
    counted = None if counted is None else counted.of_seeds(passes.seeds)
    remote = NOTHING_REMOTE if counted is None else counted.remote
    found = []
    for full, validated, efficiency in zip(probe.train.ends, validation, EFFICIENCIES, strict=True):
        train = full.of_seeds(passes.seeds)
        train = train if counted is None else train.with_counts(counted)
        if gpu is not None:
            train = gpu.cost(train, efficiency)
            validated = None if validated is None else gpu.cost(validated, efficiency)
        found.append(
            expect_epoch(
                train,
                passes.steps,
                layout,
                remote=remote,
                link=probe.hosts_link if layout.hosts > 1 else probe.link,
                validation=validated,
                validation_steps=passes.validation_steps,
            )
        )
    low, mid, high = found
    return Expected(low, mid, high)


def layout_of(trainer: Trainer, data: GLTDataModule, parameter_bytes: int) -> Layout:
    """The layout of a run that has begun."""
    hosts, options = trainer.num_nodes, getattr(trainer.strategy, "options", None)
    ranks = max(1, trainer.world_size // hosts)
    return Layout(
        hosts=hosts,
        ranks=ranks,
        owners=owners_of(hosts, ranks, type(trainer.strategy), options),
        workers=samplers_of(ranks, type(trainer.strategy), data.sampling),
        concurrency=data.sampling.concurrency,
        cores=usable_cores(),
        parameter_bytes=parameter_bytes,
        served=issubclass(type(trainer.strategy), GLTServerClientStrategy),
    )


def owners_of(hosts: int, ranks: int, strategy: type, cluster: ClusterOptions | None) -> int:
    """Number of places with parts of their own."""
    if not issubclass(strategy, GLTWorkerStrategy):
        return 1
    return hosts * ranks if cluster is not None and cluster.placement == "rank" else hosts


def samplers_of(ranks: int, strategy: type, sampling: SamplingOptions) -> int:
    """Sampler processes for each rank of a host; those of a graph server are shared by its ranks."""
    if not issubclass(strategy, GLTServerClientStrategy):
        return sampling.num_workers
    return max(1, ClusterOptions().serving(sampling).num_workers // ranks)


def strategy_of(layout: Layout, strategy: type) -> str | None:
    """The name of a strategy whose part in a step is that of the ranks'; None: they have none."""
    if layout.served:
        return SERVED
    return RANKS if layout.world_size > 1 or issubclass(strategy, GLTWorkerStrategy) else None


def threads_of(layout: Layout) -> int:
    """Threads of torch of each rank, as the strategy will set them."""
    return min(torch.get_num_threads(), fair_threads(layout.cores, layout.ranks, layout.ranks * layout.workers))


def expected_of_run(trainer: Trainer, module: LightningModule) -> Expected | None:
    """The expectation of an epoch of a run that has begun, if `plan` was asked for its configuration on this machine."""
    data: Any = getattr(trainer, "datamodule", None)
    graph = getattr(data, "graph_hash", None)
    if graph is None or data._servers or trainer.strategy.root_device.type != "cpu":
        return None
    layout = layout_of(trainer, data, 0)
    strategy = strategy_of(layout, type(trainer.strategy))
    key = probe_key(graph, data, module, trainer.precision, torch.get_num_threads(), strategy)
    probe = find_probe(data.partition_dir, key)
    if probe is None:
        return None
    counted = probe.counted.get(layout.name)
    if layout.owners > 1 and counted is None:
        return None
    layout = layout_of(trainer, data, probe.parameter_bytes)
    dealing = dealing_of(data, trainer.limit_train_batches, trainer.limit_val_batches, trainer.check_val_every_n_epoch)
    return expect(probe, layout, dealing, counted)


def dealing_of(data: GLTDataModule, limit: Limit, validation_limit: Limit, every: int | None) -> Dealing:
    """How the seeds of a data module become batches. limit, validation_limit, every: options of the Trainer."""
    return Dealing(
        batch_size=data.batch_size,
        validation_batch_size=data.evaluation.batch_size or data.batch_size,
        owned=data.sampling.seed_placement == "owner",
        limit=limit,
        validation_limit=validation_limit,
        every=every,
    )


_COPIES = Quantity("copies to GPUs", lambda totals: getattr(totals, "copy_s", 0.0), numbers.duration)
_ALL_CPU = Quantity("CPU time of all processes", lambda totals: getattr(totals, "cpu_s", 0.0), numbers.duration)


def planned_table(expected: Expected, gpu: OnGpu | None = None) -> Table:
    """What an epoch is expected to take. gpu: where ranks train."""
    shown = [each for each in (*QUANTITIES, _COPIES, _ALL_CPU) if each.value(expected.mid)]
    rows = [(each.name, _shown(each, expected)) for each in shown]
    title = "An epoch"
    if gpu is not None:
        title = f"An epoch; its seconds are {COMPUTED}"
    ranks = f"; by rank, bytes and times of samplers of all {expected.mid.ranks}" if expected.mid.ranks > 1 else ""
    return Table(title, ("", "planned"), tuple(rows), f"mean (most batches between){ranks}")


def comparison(expected: Expected, totals: EpochTotals, epochs: int) -> Table:
    """Planned and measured, by epoch. totals: sums over ``epochs`` epochs."""
    rows = []
    for each in QUANTITIES:
        planned, took = each.value(expected.mid), _measured(each, totals, epochs)
        if planned or took:
            away = "" if not planned else f"{took / planned - 1:+.0%}"
            rows.append((each.name, _shown(each, expected), each.show(took), away))
    note = "by epoch, means over the epochs that ended; seconds are as on a machine without other work"
    return Table("Planned and measured", ("", "planned", "measured", "difference"), tuple(rows), note)


def misses(expected: Expected, totals: EpochTotals, epochs: int) -> list[str]:
    """The times and bytes that are outside of their range, each as a phrase; of a machine with other work CPU time and bytes
    alone."""
    lost = totals.core_wait_share
    busy = lost > expected.high.core_wait_share + _MARGIN
    found = []
    for each in QUANTITIES:
        if busy and each.wall:
            continue
        low, high = _ends(each, expected)
        took = _measured(each, totals, epochs)
        if not low * (1 - _MARGIN) <= took <= high * (1 + _MARGIN):
            found.append(f"{each.name} {each.show(took)}, planned {_shown(each, expected)}")
    if busy and found:
        found.append(f"other work took {lost:.0%} of the threads' time, so that seconds are not compared")
    return found


def _measured(each: Quantity, totals: EpochTotals, epochs: int) -> float:
    return each.value(totals) / epochs


def _ends(each: Quantity, expected: Expected) -> tuple[float, float]:
    values = [each.value(end) for end in (expected.low, expected.mid, expected.high)]
    return min(values), max(values)


def _shown(each: Quantity, expected: Expected) -> str:
    low, high = _ends(each, expected)
    mid = each.show(each.value(expected.mid))
    return mid if each.exact or low == high else f"{mid} ({each.show(low)} to {each.show(high)})"
