"""The constants of the rules, measured on this machine: batches of the real loader, steps of the real model, a connection."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.distributed import HashStore, ProcessGroupGloo
from torch.utils._pytree import tree_leaves

from glt_lightning.base import OptionError
from glt_lightning.graph import usable_cores
from glt_lightning.lightning.callbacks.monitor import SamplingMonitor
from glt_lightning.lightning.callbacks.precision import bfloat16_ratio, weight_shapes
from glt_lightning.lightning.planner.batches import Batches
from glt_lightning.lightning.planner.deadline import Deadline, Late
from glt_lightning.lightning.planner.gpus import StepWork
from glt_lightning.lightning.planner.memory import SAMPLER_BYTES, ProcessMemory
from glt_lightning.lightning.planner.rules import BatchCost, Connection, Counted, RemoteCost
from glt_lightning.loader import DistNeighborLoader
from glt_lightning.workers import InlineProducer, time_calls

if TYPE_CHECKING:
    from glt_lightning.lightning.datamodule import GLTDataModule

MOST_BATCHES, _MOST_VALIDATED = 22, 8
_WARM = 2  # the first batches also load code and take memory for the first time
_TRAIN_S, _TAKEN_S, _MOST_IDLE_S = 15.0, 3.0, 0.05
_SUMS = 20
PROBE_S, _OF_BATCHES = 30.0, 2 / 3  # of all, and the share after which batches end that are enough
RANKS, SERVED = "glt_worker", "glt_server_client"  # strategies whose part in a step is measured
_CLEAR = Path("/proc/self/clear_refs")


_OF_HOSTS = "questions to owners of other hosts"
_Found = TypeVar("_Found")


@dataclass(frozen=True, kw_only=True)
class Spread:
    """What a batch costs: ``mid``, and between ``low`` and ``high`` eight of ten batches. largest: bytes of the largest."""

    low: BatchCost
    mid: BatchCost
    high: BatchCost
    batches: int
    largest: float

    @classmethod
    def of(cls, costs: list[BatchCost]) -> Spread:
        """Of batches, at least one; leaves out those that warm up, if there are enough."""
        kept = costs[_WARM:] if len(costs) > 2 * _WARM else costs
        mid = BatchCost.mean(kept)
        times = [f.name for f in fields(BatchCost) if f.name.endswith("_s")]
        ends = [{name: float(np.quantile([getattr(c, name) for c in kept], q)) for name in times} for q in (0.1, 0.9)]
        low = replace(mid, **{name: min(value, getattr(mid, name)) for name, value in ends[0].items()})
        high = replace(mid, **{name: max(value, getattr(mid, name)) for name, value in ends[1].items()})
        return cls(low=low, mid=mid, high=high, batches=len(kept), largest=max(each.nbytes for each in costs))

    def map(self, change: Callable[[BatchCost], BatchCost]) -> Spread:
        return Spread(
            low=change(self.low),
            mid=change(self.mid),
            high=change(self.high),
            batches=self.batches,
            largest=self.largest,
        )

    @property
    def ends(self) -> tuple[BatchCost, BatchCost, BatchCost]:
        return self.low, self.mid, self.high


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What was measured of a configuration on a machine.

    train, validation: batches of each; None: no validation was measured.  seeds, validation_seeds: in an epoch.
    memory: of this process, and of a sampler.  parameter_bytes: of the model.  bfloat16: how much faster the
    model's products are in bfloat16; None: not measured.
    link, hosts_link: a connection within the machine (between ranks), and an encrypted one, as between hosts; calls and bytes
    are those of batches that ask an owner, and with graph servers those of batches as they are.  cores: that the process may
    use.  load: of the machine, per core, meanwhile.
    counted: counts of batches, by hosts and ranks of each, such as ``2x1``.
    missed: what could not be measured, each with the reason; it is left out of the plan.
    """

    train: Spread
    seeds: int
    memory: ProcessMemory
    parameter_bytes: int
    link: Connection
    hosts_link: Connection
    cores: int
    load: float
    machine: str
    made: str
    validation: Spread | None = None
    validation_seeds: int = 0
    bfloat16: float | None = None
    counted: Mapping[str, Counted] = field(default_factory=dict)
    missed: Sequence[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def largest_batches(self) -> list[float]:
        """Bytes of the largest batch that was measured, in training and in validation."""
        return [each.largest for each in (self.train, self.validation) if each is not None]

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Probe:
        """Raises TypeError, KeyError or ValueError for anything that `to_json` does not give."""
        given = dict(raw)
        for name, kind in (("memory", ProcessMemory), ("link", Connection), ("hosts_link", Connection)):
            given[name] = _numbers(kind, given[name])
        for name in ("train", "validation"):
            if given[name] is not None:
                ends = {end: _numbers(BatchCost, given[name][end]) for end in ("low", "mid", "high")}
                sizes = int(given[name]["batches"]), float(given[name]["largest"])
                given[name] = Spread(**ends, batches=sizes[0], largest=sizes[1])
        given["counted"] = {str(name): _counted(raw) for name, raw in given["counted"].items()}
        return cls(**given)


def _counted(raw: Mapping[str, Any]) -> Counted:
    counts = {name: float(value) for name, value in raw.items() if name != "remote"}
    return Counted(**counts, remote=_numbers(RemoteCost, raw["remote"]))


def _numbers(kind: Any, raw: Mapping[str, Any]) -> Any:
    return kind(**{name: float(value) for name, value in raw.items()})


def measure(
    make_trainer: Callable[..., Trainer],
    module: LightningModule,
    data: GLTDataModule,
    strategy: str | None = None,
    deadline: Deadline | None = None,
    batches: Batches | None = None,
) -> Probe:
    """Fits some batches in this process, without writing anything but what is partitioned, and takes their times.

    make_trainer: makes a Trainer of the run's options that count for a step, with these keywords. The weights of ``module``
    change.  strategy: of the ranks, by name; None: there is one without any.  deadline: of everything; None: in `PROBE_S`.
    batches: that ask an owner; None: calls without any work are measured.

    What does not end by then is marked as not measured. Raises `OptionError` if that are all batches of training.
    """
    deadline = deadline or Deadline(PROBE_S)
    parts = _Parts(deadline)
    data.sampling = replace(data.sampling, num_workers=0, worker_devices=[])
    watch = _Watch()
    base = _own_bytes()
    parameters = _nbytes(module.parameters())
    validates = data.evaluation.mode != "layerwise"  # which computes all nodes, whatever the limit
    trainer = make_trainer(
        max_epochs=1,
        limit_train_batches=MOST_BATCHES,
        limit_val_batches=_MOST_VALIDATED if validates else 0,
        callbacks=[watch, SamplingMonitor(line=False)],
    )
    shapes = weight_shapes(module)
    train, validation = watch.train, watch.validation
    try:
        with deadline.cut(_OF_BATCHES, lambda: train.costs):
            trainer.fit(module, datamodule=data)
    except Late:
        if not train.costs:
            raise OptionError(
                f"--probe_s: no batch was made and trained in {deadline.seconds:g} s. Give more seconds, or a smaller "
                f"data.batch_size than {data.batch_size}."
            ) from None
        if validates and not validation.costs:
            parts.miss("validation")
    state = _nbytes(
        value for optimizer in trainer.optimizers for each in optimizer.state.values() for value in each.values()
    )
    model = 2 * parameters + state
    work = max(0.0, watch.peak - base - (model - parameters) - watch.slots)

    def calls(name: str, *, encrypted: bool) -> Connection:
        return Connection(**parts.of(name, lambda: _timed_calls(batches, strategy, encrypted=encrypted)) or {})

    hosts_link, link = None, None
    if strategy == RANKS:  # whose batches owners decide most
        hosts_link, link = calls(_OF_HOSTS, encrypted=True), calls("questions to owners", encrypted=False)
    handed, processes = _handed(make_trainer, data, train.spread.mid, strategy, parameters, parts)
    validated = handed if strategy == SERVED else {"handed_s": handed["handed_s"]}  # without DDP
    return Probe(
        train=train.spread.map(lambda cost: replace(cost, **handed)),
        validation=validation.spread.map(lambda cost: replace(cost, **validated)) if validation.costs else None,
        seeds=train.seeds,
        validation_seeds=validation.seeds if validates else 0,
        memory=ProcessMemory(base=base - parameters, model=model, work=work, batches=watch.slots, **processes),
        parameter_bytes=parameters,
        bfloat16=parts.of("products in bfloat16", lambda: bfloat16_ratio(shapes)) if shapes else None,
        link=link or Connection(),
        hosts_link=hosts_link or calls(_OF_HOSTS, encrypted=True),
        cores=usable_cores(),
        load=os.getloadavg()[0] / (os.cpu_count() or 1),
        machine=machine_name(),
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        missed=parts.missed,
    )


def _timed_calls(batches: Batches | None, strategy: str | None, *, encrypted: bool = False) -> dict[str, float]:
    """Of questions to owners; graph servers, which have all parts, send batches as they are."""
    if batches is None or batches.why_not is not None or strategy == SERVED:
        return time_calls(encrypted=encrypted)
    return batches.time_calls(encrypted=encrypted)


@dataclass
class _Parts:
    """Measures what a plan can do without. missed: as of `Probe`."""

    deadline: Deadline
    missed: list[str] = field(default_factory=list)

    def of(self, name: str, work: Callable[[], _Found]) -> _Found | None:
        """What the work returns; None if it does not end in time, or a connection cannot be made."""
        try:
            with self.deadline.cut():
                return work()
        except Late:
            self.miss(name)
        except (RuntimeError, ConnectionError) as error:  # of gloo, of Flight
            self.missed.append(f"{name}: {str(error).partition(chr(10))[0]}")
        return None

    def miss(self, name: str) -> None:
        self.missed.append(f"{name}: the {self.deadline.seconds:g} s of the probe were over")


def _nbytes(tensors: Any) -> int:
    known = (t for t in tensors if isinstance(t, torch.Tensor) and not isinstance(t, torch.nn.UninitializedParameter))
    return sum(t.nbytes for t in known)


@dataclass
class _Pass:
    """The batches of one pass: their costs, and the state after the last one."""

    costs: list[BatchCost] = field(default_factory=list)
    seeds: int = 0
    began_s: float = 0.0
    mark: dict[str, float] = field(default_factory=dict)
    cpu_s: float = 0.0  # when the step began
    work: StepWork = field(default_factory=StepWork)

    @property
    def spread(self) -> Spread:
        """Of the batches, all with the work of the first."""
        return Spread.of([self.work.of(each) for each in self.costs])

    def begin_step(self) -> None:
        """Counts the work of the first step, which is no measure of times."""
        if not self.costs:
            self.work.__enter__()  # type: ignore[no-untyped-call]
        self.cpu_s = time.process_time()

    def begin(self, loader: DistNeighborLoader) -> None:
        self.seeds, self.began_s, self.mark = len(loader.plan.seeds), time.perf_counter(), _mark(loader)

    def add(self, loader: DistNeighborLoader, batch: Any) -> None:
        if not self.costs:
            self.work.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        now = _mark(loader)
        spent = {name: now[name] - self.mark[name] for name in now}
        nbytes = sum(leaf.nbytes for leaf in tree_leaves(batch.to_dict()) if isinstance(leaf, torch.Tensor))
        self.costs.append(_cost(spent, now["cpu_s"] - self.cpu_s, nbytes))
        self.mark = _mark(loader)


def _cost(spent: Mapping[str, float], within_cpu_s: float, nbytes: int) -> BatchCost:
    """The cost of a batch as on a quiet machine: what took less CPU time than wall time waited for a core. within_cpu_s: CPU
    seconds between the hooks of a step, outside of which the loader is asked, and Lightning works, too."""
    ran = _ran(spent["cpu_s"] - within_cpu_s, spent["wait_s"])
    step_cpu_s = spent["cpu_s"] - ran * spent["wait_s"]
    collate_s = max(0.0, spent["wait_s"] - spent["sample_s"] - spent["gather_s"])
    counts = {name: spent[name] for name in ("seeds", "named_nodes", "nodes", "edges", "rows", "row_bytes")}
    return BatchCost(
        **counts,
        nbytes=nbytes,
        sample_s=ran * spent["sample_s"],
        gather_s=ran * spent["gather_s"],
        collate_s=ran * collate_s,
        step_s=min(spent["time_s"] - spent["wait_s"], step_cpu_s),
        step_cpu_s=step_cpu_s,
    )


def _ran(cpu_s: float, wait_s: float) -> float:
    """The share of a wait for a batch that this process makes in which it was on a core."""
    return min(1.0, cpu_s / wait_s) if wait_s else 1.0


def _mark(loader: DistNeighborLoader) -> dict[str, float]:
    stats = loader.stats()
    counters = stats.counters
    places = ("local", "cached", "remote", "disk", "device")
    return {
        "time_s": time.perf_counter(),
        "cpu_s": time.process_time(),
        "wait_s": stats.wait_s,
        "sample_s": counters.sample_s,
        "gather_s": counters.gather_s + counters.disk_s,
        "rows": counters.rows,
        "row_bytes": sum(getattr(counters, f"{place}_bytes") for place in places),
        **{name: getattr(stats, name) for name in ("seeds", "named_nodes", "nodes", "edges")},
    }


class _Watch(Callback):
    """Takes the times of training and validation batches, and the most memory that the process took."""

    def __init__(self) -> None:
        self.train, self.validation = _Pass(), _Pass()
        self.peak, self.slots = 0, 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        with suppress(OSError):
            _CLEAR.write_text("5")  # the peak begins again
        self.train.begin(_loader(trainer.train_dataloader))

    def on_train_batch_start(self, *_: Any) -> None:
        self.train.begin_step()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.train.add(_loader(trainer.train_dataloader), batch)
        if time.perf_counter() - self.train.began_s > _TRAIN_S and batch_idx >= _WARM:
            trainer.should_stop = True

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.validation.begin(_loader(trainer.val_dataloaders))

    def on_validation_batch_start(self, *_: Any) -> None:
        self.validation.begin_step()

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *_: Any
    ) -> None:
        self.validation.add(_loader(trainer.val_dataloaders), batch)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self.train.costs and not self.peak:
            self.on_train_end(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.peak = _peak_bytes()
        producer = _producer(trainer)
        self.slots = producer.slot_bytes if isinstance(producer, InlineProducer) else 0


# How batches come from other processes to the trainer


class _Idle(LightningModule):
    """Sleeps in each step, and has a gradient."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self._step_s, self._weight = step_s, torch.nn.Parameter(torch.zeros(1))

    def training_step(self, *_: Any) -> torch.Tensor:
        time.sleep(self._step_s)
        return self._weight.sum()

    def validation_step(self, *_: Any) -> None:
        return None

    def configure_optimizers(self) -> None:
        return None


class _Taken(Callback):
    """Takes the CPU seconds of the trainer's thread, and of its process, from batch to batch, and the memory of this
    process and of a sampler. inline: batches are made here, too, which does not count."""

    def __init__(self, inline: bool) -> None:
        self.sampler_bytes, self.own_bytes = SAMPLER_BYTES, 0
        self.inline, self.marks, self.began_s = inline, list[tuple[float, float]](), 0.0
        self.made_s, self.end_s, self.last = 0.0, 0.0, dict.fromkeys(("wait_s", "sample_s", "gather_s"), 0.0)

    def on_train_batch_end(self, *_: Any) -> None:
        self.end_s = time.thread_time()

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        now, thread_s = _mark(_loader(trainer.train_dataloader)), time.thread_time()
        wait_s, sample_s, gather_s = (now[name] - before for name, before in self.last.items())
        if self.inline:
            self.made_s += _ran(thread_s - self.end_s, wait_s) * (sample_s + gather_s)
        self.last = {name: now[name] for name in self.last}
        self.marks.append((thread_s - self.made_s, time.process_time() - self.made_s))
        self.began_s = self.began_s or now["time_s"]
        if now["time_s"] - self.began_s > _TAKEN_S and len(self.marks) > _WARM + 1:  # a busy machine
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if pids := getattr(_producer(trainer), "pids", []):
            self.sampler_bytes = max(_status("RssAnon", pid) for pid in pids)
        self.own_bytes = _own_bytes()

    @property
    def each(self) -> tuple[float, float]:
        """Medians, as other programs disturb single batches; of those that warm nothing up, if there are enough."""
        marks = self.marks[_WARM:] if len(self.marks) > 2 * _WARM else self.marks
        thread_s, process_s = np.median(np.diff(marks, axis=0), axis=0) if len(marks) > 1 else (0.0, 0.0)
        return float(thread_s), float(process_s)


def _handed(
    make_trainer: Callable[..., Trainer],
    data: GLTDataModule,
    batch: BatchCost,
    strategy: str | None,
    parameters: int,
    parts: _Parts,
) -> tuple[dict[str, float], dict[str, float]]:
    """What sampler processes, and the strategy of the ranks, add to a batch that is made in this process by itself, and to the
    memory of its processes. parameters: bytes of them."""
    idle_s = min(_MOST_IDLE_S, batch.step_s)

    def taken(workers: int, **options: Any) -> _Taken:
        data.sampling = replace(data.sampling, num_workers=workers, topology="auto", features="auto")
        watch = _Taken(inline=not workers)
        validated = _WARM if workers else 0  # for which samplers have memory, too
        trainer = make_trainer(
            max_epochs=1, limit_train_batches=MOST_BATCHES, limit_val_batches=validated, callbacks=[watch], **options
        )
        trainer.fit(_Idle(idle_s), datamodule=data)
        return watch

    found, memory = {"handed_s": 0.0}, dict[str, float]()
    own = parts.of("what samplers and strategies add to a batch", lambda: taken(0))
    sampled = None if own is None else parts.of("what a sampler adds to a batch", lambda: taken(1))
    if own is not None and sampled is not None:
        found["handed_s"] = max(0.0, sampled.each[0] - own.each[0])
        memory["sampler"] = sampled.sampler_bytes
    if strategy is None:
        return found, memory
    if own is not None:
        ranked = parts.of(f"what {strategy} adds to a batch", lambda: taken(int(strategy == SERVED), strategy=strategy))
        if ranked is not None:
            added = [max(0.0, spent - own.each[0]) for spent in ranked.each]
            found |= {"ranked_s": added[0], "ranked_cpu_s": added[1]}
            if strategy == SERVED and sampled is not None:
                memory["client"] = max(0, ranked.own_bytes - sampled.own_bytes)
    summed_s = parts.of("CPU time of sums of gradients", lambda: _summed_cpu_s(parameters, idle_s, parts.deadline))
    return found if summed_s is None else found | {"summed_cpu_s": summed_s}, memory


def _summed_cpu_s(nbytes: int, step_s: float, deadline: Deadline) -> float:
    """CPU seconds of each of two ranks that sum up so many bytes after each step: two threads here. A sum of 4 bytes took 0.1 ms
    without the pauses of steps, and 0.8 ms with them. Raises the error of a rank, and TimeoutError for no sum in time."""
    store, gradients = HashStore(), [torch.zeros(max(1, nbytes // 4)) for _ in range(2)]
    within, began_s, counts, cpu_s = timedelta(seconds=max(0.1, deadline.left_s / 3)), time.perf_counter(), [], []

    def warm() -> None:  # and as many as then are in time
        each_s = (time.perf_counter() - began_s) / _WARM
        counts.append(max(1, min(_SUMS, int(deadline.left_s / 2 / each_s))))
        cpu_s.append(time.process_time())

    started = threading.Barrier(2, warm)

    def rank(number: int) -> None:
        try:
            group = ProcessGroupGloo(store, number, 2, within)
            for _ in range(_WARM):
                step(group, number)
            started.wait(within.total_seconds())
            for _ in range(counts[0]):
                step(group, number)
        except BaseException:
            started.abort()
            raise

    def step(group: ProcessGroupGloo, number: int) -> None:
        time.sleep(step_s)
        group.allreduce([gradients[number]]).wait()  # type: ignore[attr-defined]

    with ThreadPoolExecutor(2) as pool:
        ranks = [pool.submit(rank, number) for number in range(2)]
        errors = [error for each in ranks if (error := each.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error  # not that of the other rank, which waits for this one
    return (time.process_time() - cpu_s[0]) / (2 * counts[0])


def _loader(given: Any) -> DistNeighborLoader:
    return next(leaf for leaf in tree_leaves(given) if isinstance(leaf, DistNeighborLoader))


def _producer(trainer: Trainer) -> Any:
    return trainer.datamodule._host().session.producer  # type: ignore[attr-defined]


# Memory of processes


def _status(name: str, process: int | str = "self") -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    return 0 if found is None else int(found[1]) * 1024


def _own_bytes() -> int:
    """Bytes of resident memory that are not pages of files."""
    return _status("RssAnon") + _status("RssShmem")


def _peak_bytes() -> int:
    """The same at the peak; pages of files are taken as they are now."""
    return max(_own_bytes(), _status("VmHWM") - _status("RssFile"))


# The machine


def machine_name() -> str:
    """The processor, the cores that this process may use, and the memory, by which constants are kept."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    total = re.search(r"^MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)
    memory = 0 if total is None else round(int(total[1]) / 2**20)
    return f"{'CPU' if model is None else model[1].strip()}, {usable_cores()} cores, {memory} GiB"
