"""The plan of a run: an epoch and the memory of a host, what limits them, and what other options would change."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule, Trainer

from glt_lightning.base import ClusterOptions, OptionError, numbers, parse_rate
from glt_lightning.graph import BatchArrays, HostTier, LocalPartition, usable_cores
from glt_lightning.lightning.planner.batches import Batches
from glt_lightning.lightning.planner.changes import Change, as_yaml, changes, choose
from glt_lightning.lightning.planner.deadline import Deadline
from glt_lightning.lightning.planner.expected import (
    Expected,
    dealing_of,
    expect,
    owners_of,
    planned_table,
    samplers_of,
    strategy_of,
    threads_of,
)
from glt_lightning.lightning.planner.gpus import COMPUTED, EFFICIENCIES, GpuMemory, OnGpu, on_gpu
from glt_lightning.lightning.planner.machines import Machines
from glt_lightning.lightning.planner.memory import HostMemory, host_memory, require_memory_of
from glt_lightning.lightning.planner.probe import PROBE_S, Probe, measure
from glt_lightning.lightning.planner.record import find_probe, keep_probe, probe_key
from glt_lightning.lightning.planner.rules import Counted, Dealing, Layout
from glt_lightning.lightning.report.page import Table, page_text
from glt_lightning.lightning.strategies.server_client import GLTServerClientStrategy
from glt_lightning.loader import remote_cache_bytes
from glt_lightning.partition import mapped_memory
from glt_lightning.sampling import drawn_on_gpu
from glt_lightning.workers import placed_parts

if TYPE_CHECKING:
    from glt_lightning.lightning.datamodule import GLTDataModule


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run of ``fit`` to plan, whose partition is there.

    trainer: options of the Trainer, by name.  strategy: its class.  machines: the hosts.  batches: to count on each of some
    ranks; 0 for all.  probe_s: that measuring may take; outside of the main thread what has begun goes on to its end.
    """

    model: LightningModule
    data: GLTDataModule
    trainer: Any
    strategy: type
    cluster: ClusterOptions
    machines: Machines
    batches: int = 16
    probe_s: float = PROBE_S

    @property
    def layout(self) -> Layout:
        hosts = self.machines.hosts or self.trainer.num_nodes
        ranks, kind = self.machines.ranks or _devices(self.trainer.devices), self.strategy
        layout = Layout(
            hosts=hosts,
            ranks=ranks,
            owners=owners_of(hosts, ranks, kind, self.cluster),
            workers=samplers_of(ranks, kind, self.data.sampling),
            concurrency=self.data.sampling.concurrency,
            cores=self.machines.cores or usable_cores(),
            latency_s=self.machines.latency_ms / 1000,
            served=issubclass(kind, GLTServerClientStrategy),
        )
        if (gpu := self.machines.on) is not None:
            samples = not layout.served and self.data.sampling.topology != "cpu"
            layout = replace(layout, gpu_samples=samples, sums_bytes_per_s=gpu.sums_bytes_per_s)
        if self.machines.network is None:
            return layout
        return replace(layout, bytes_per_s=parse_rate("--network", self.machines.network))

    def make_trainer(self, folder: str, **options: Any) -> Trainer:
        """A Trainer of this process, with the options on which a step depends, and further ones."""
        names = ("precision", "accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm")
        given = {name: self.trainer.get(name) for name in names if self.trainer.get(name) is not None}
        return Trainer(
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            default_root_dir=folder,
            **given,
            **options,
        )

    def plan(self, *, again: bool = False) -> Plan:
        """Plans the run by a probe of this machine and some sampled batches. The probe is kept beside the partition.

        again: measure also if there is a fresh probe. Raises `OptionError` for what cannot be planned.
        """
        partition = LocalPartition.open(self.data.partition_dir)
        layout, batches = self.layout, Batches(partition, self.data, self.batches)
        probe, key = _probe(self, batches, layout, again=again)
        layout = replace(layout, parameter_bytes=probe.parameter_bytes)
        if batches.why_not is not None and layout.owners > 1:
            raise OptionError(f"plan: rows of other hosts cannot be counted: {batches.why_not}.")
        trainer = self.trainer
        plan = Plan(
            run=self,
            probe=probe,
            layout=layout,
            dealing=dealing_of(
                self.data, trainer.limit_train_batches, trainer.limit_val_batches, trainer.check_val_every_n_epoch
            ),
            counted=None if batches.why_not is not None else batches.counted(layout),
            batches=batches,
            available=self.machines.available,
            ratio=batches.ratio(layout),
        )
        if plan.counted is not None:
            keep_probe(partition.directory, key, replace(probe, counted={**probe.counted, layout.name: plan.counted}))
        return plan


def _devices(given: Any) -> int:
    """Ranks of a host. ``auto`` is one on a CPU."""
    if isinstance(given, (list, tuple)):
        return len(given)
    text = str(given)
    return int(text) if text.isdigit() and int(text) else len(text.split(",")) if "," in text else 1


def _probe(run: PlannedRun, batches: Batches, layout: Layout, *, again: bool) -> tuple[Probe, str]:
    """The constants of this configuration on this machine, and the key by which they are kept."""
    partition, data = batches.partition, run.data
    folder, graph = partition.directory, partition.manifest.options_hash
    threads, sampling, strategy = threads_of(layout), data.sampling, strategy_of(layout, run.strategy)
    with tempfile.TemporaryDirectory() as temporary:
        make_trainer = partial(run.make_trainer, temporary)
        key = probe_key(graph, data, run.model, make_trainer().precision, threads, strategy)
        probe = None if again else find_probe(folder, key)
        if probe is None or probe.missed:
            before = torch.get_num_threads()
            torch.set_num_threads(threads)
            print(f"measuring some batches and steps, for at most {run.probe_s:g} s", file=sys.stderr, flush=True)
            try:
                probe = measure(make_trainer, run.model, data, strategy, Deadline(run.probe_s), batches)
            finally:
                torch.set_num_threads(before)
                data.sampling = sampling
            keep_probe(folder, key, probe)
    return probe, key


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run will take, as far as it can be changed. counted: None where batches are not counted.  available: bytes of memory
    of a host.  ratio: size of the remote cache; None without one."""

    run: PlannedRun
    probe: Probe
    layout: Layout
    dealing: Dealing
    counted: Counted | None
    batches: Batches
    available: int
    ratio: float | None

    @property
    def expected(self) -> Expected:
        return expect(self.probe, self.layout, self.dealing, self.counted, self.gpu)

    @cached_property
    def gpu(self) -> OnGpu | None:
        """Where ranks train; None: on the CPU. Raises `OptionError` for a graph that is to be there and does not fit."""
        if (kind := self.run.machines.on) is None:
            return None
        data, mapped, layout = self.run.data, self.batches.partition, self.layout
        parts = placed_parts(0, layout.owners, mapped.manifest.num_parts)
        partition = LocalPartition.open(mapped.directory, parts=parts) if layout.owners > 1 else mapped
        return on_gpu(
            kind,
            BatchArrays.of(partition, drawn_on_gpu(mapped.manifest, data.sampling)),
            data,
            self.run.trainer.precision,
            samples=layout.gpu_samples and layout.workers == 0,
            parameters=self.probe.parameter_bytes,
        )

    @property
    def gpu_memory(self) -> GpuMemory | None:
        """Of the GPU of a rank."""
        if self.gpu is None:
            return None
        own, ahead = self.probe.memory, self.run.data.sampling.prefetch if self.gpu.samples else 1
        return self.gpu.memory(own.model, own.work, (1 + ahead) * max(self.probe.largest_batches))

    @property
    def seconds(self) -> float:
        """Of an epoch, with validation."""
        totals = self.expected.mid
        return (totals.elapsed_s + totals.validation_s) / totals.ranks

    @property
    def memory(self) -> HostMemory:
        data, manifest, layout = self.batches.data, self.batches.partition.manifest, self.layout
        parts = placed_parts(0, layout.owners, manifest.num_parts)
        mapped = mapped_memory(manifest)
        cache = 0.0 if self.ratio is None else remote_cache_bytes(manifest, self.ratio)
        sampling = replace(data.sampling, num_workers=layout.workers, concurrency=layout.concurrency)
        passes = replace(self.dealing, every=1).passes(self.probe.seeds, self.probe.validation_seeds, layout.world_size)
        return host_memory(
            self.probe.memory,
            sampling,
            layout,
            self.probe.largest_batches,
            [passes.steps, passes.validation_steps][: len(self.probe.largest_batches)],
            self.available,
            remote=0.0 if not self.counted else self.counted.remote.row_bytes / max(1.0, self.counted.row_bytes),
            cache=cache + (self._attributes_in_memory or 0),
            pages=sum(mapped[p].total - mapped[p].splits for p in parts) + mapped[0].splits,
            locked=0 if self.gpu is None else self.gpu.locked,
        )

    @property
    def _attributes_in_memory(self) -> int | None:
        """Bytes of the host tier; None without one."""
        cache, manifest = self.batches.data.cache, self.batches.partition.manifest
        if cache.memory != "auto":
            return cache.memory_bytes
        return HostTier.automatic_budget(
            manifest, placed_parts(0, self.layout.owners, manifest.num_parts), self.available
        )

    def changes(self) -> list[Change]:
        """What each of several options would change, by itself."""
        return changes(self)

    def choose(self, given: Iterable[str]) -> tuple[str, Plan]:
        """Chooses what is not among the ``given`` options, one after the other. Returns the choices as YAML with the reason of
        each, and the plan with them."""
        choices, plan = choose(self, given)
        return as_yaml(choices), plan

    def require_memory(self) -> None:
        """Raises `OptionError` for a job that does not fit on its hosts."""
        data = self.batches.data
        require_memory_of(self.memory, self.available, data.sampling, data.batch_size)
        if self.gpu is not None and self.gpu_memory is not None:
            self.gpu.require(self.gpu_memory, data.batch_size)

    def text(self) -> str:
        """The plan as facts and aligned tables, for a terminal."""
        tables = [
            planned_table(self.expected, self.gpu),
            _memory_table(self),
            _gpu_table(self),
            _network_and_disk(self),
        ]
        tables.append(_changes_table(self))
        return page_text(_facts(self), [table for table in tables if table.rows])

    def to_json(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        expected, memory = self.expected, self.memory
        return {
            "layout": asdict(self.layout),
            "epoch": {end: asdict(getattr(expected, end)) for end in ("low", "mid", "high")},
            "bound": expected.mid.verdict,
            "memory": {**asdict(memory), "needed": memory.needed, "available": self.available},
            "process": asdict(self.probe.memory),
            "gpu": self._gpu_json(),
            "counted": None if self.counted is None else asdict(self.counted),
            "changes": [asdict(each) for each in self.changes()],
            "not_measured": _unmeasured(self),
            "probe": self.probe.to_json(),
        }

    def _gpu_json(self) -> dict[str, Any] | None:
        if self.gpu is None or (memory := self.gpu_memory) is None:
            return None
        return {**asdict(self.gpu), "memory": {**asdict(memory), "needed": memory.needed}, "how": COMPUTED}


# What is shown of a plan.


def _facts(plan: Plan) -> list[tuple[str, str]]:
    layout, probe, totals = plan.layout, plan.probe, plan.expected.mid
    where = f"{numbers.counted(layout.hosts, 'host')} with {numbers.counted(layout.ranks, 'rank')} each"
    samplers = numbers.counted(layout.workers, "sampler")
    facts = [
        ("configuration", f"{plan.batches.partition.directory}, {where}, {samplers} per rank"),
        ("epoch", f"{numbers.duration(plan.seconds)}, bound by {totals.bound()}" + _computed(plan)),
        (
            "measured",
            f"{probe.train.batches} batches on {probe.machine}, {probe.made} (load {probe.load:.1f} per core)",
        ),
    ]
    if layout.hosts > 1:
        parts = plan.batches.partition.manifest.num_parts
        places = range(max(1, layout.owners // layout.hosts))
        placed = {part for place in places for part in placed_parts(place, layout.owners, parts)}
        facts.insert(1, ("parts", f"each host has {len(placed)} of {parts}"))
    return [*facts, *(("not measured", text) for text in _unmeasured(plan))]


def _unmeasured(plan: Plan) -> list[str]:
    layout, probe, machines, found = plan.layout, plan.probe, plan.run.machines, []
    if layout.hosts > 1:
        if machines.network is None:
            found.append(
                f"the network: {8 * layout.bytes_per_s / 1e9:g} Gbit/s is assumed; --network says another speed"
            )
        found.append("hosts: all are taken to be alike")
    if machines.machine is not None:
        found.append(f"{machines.machine}: a core is taken to be one of this machine")
    if layout.world_size > 1:
        found.append("the sum of gradients over ranks: its time on the way is computed from the size of the model")
    if (gpu := plan.gpu) is not None:
        low, mid, high = EFFICIENCIES
        found.append(
            f"{gpu.gpu.name}: steps, batches, copies, sums and memory of GPUs are computed from published figures, of which "
            f"{mid:.0%} ({high:.0%} to {low:.0%}) are taken to be reached"
        )
    elif str(plan.run.trainer.accelerator) not in ("cpu", "auto") or torch.cuda.is_available():
        found.append("GPUs: the steps were measured on the CPU; --gpus and --gpu plan them on GPUs")
    found += probe.missed
    if probe.validation is None and not probe.validation_seeds:
        found.append("validation: there is none, or it is computed layer by layer")
    if plan.counted is None:
        found.append(f"rows and bytes: those of the measured batches stand for all; {plan.batches.why_not}")
    return found


def _memory_table(plan: Plan) -> Table:
    own, memory = plan.probe.memory, plan.memory
    rows = [
        ("process of a rank: Python, torch and Lightning", numbers.size(own.base)),
        ("process of a rank: model, gradients, optimizer", numbers.size(own.model)),
        ("process of a rank: step", numbers.size(own.work)),
        ("process of a rank: graph server's client", numbers.size(own.client)),
        (
            f"sampler processes{' and graph server' if plan.layout.served else ''} of the host",
            numbers.size(memory.samplers),
        ),
        ("batches in flight of the host", numbers.size(memory.batches)),
        ("rows on their way between hosts", numbers.size(memory.answers)),
        ("caches of the host", numbers.size(memory.cache)),
        ("arrays that GPUs read on the host", numbers.size(memory.locked)),
        ("needed by a host", numbers.size(memory.needed)),
        ("a host has", numbers.size(plan.available)),
        ("mapped files, as far as there is room", numbers.size(memory.pages)),
    ]
    return Table("Memory", ("", "bytes"), tuple(row for row in rows if row[1] != "0 B"))


def _gpu_table(plan: Plan) -> Table:
    gpu, memory, rows = plan.gpu, plan.gpu_memory, []
    if gpu is not None and memory is not None:
        rows = [
            ("CUDA and its libraries", numbers.size(memory.context)),
            ("model, gradients, optimizer", numbers.size(memory.model)),
            ("step", numbers.size(memory.work)),
            ("batches in training and ahead", numbers.size(memory.batches)),
            ("graph", numbers.size(memory.graph)),
            ("attributes", numbers.size(memory.attributes)),
            ("needed", numbers.size(memory.needed)),
            (f"{gpu.gpu.name} has", numbers.size(gpu.gpu.memory)),
        ]
    return Table(f"Memory of each GPU, {COMPUTED}", ("", "bytes"), tuple(row for row in rows if row[1] != "0 B"))


def _computed(plan: Plan) -> str:
    return "" if plan.gpu is None else f"; {COMPUTED}"


def _network_and_disk(plan: Plan) -> Table:
    manifest, layout = plan.batches.partition.manifest, plan.layout
    rows = [("partition on disk, all parts", numbers.size(sum(entry.bytes for entry in manifest.arrays.values())))]
    rows.append(("checkpoints, best and last", numbers.size(_checkpoints(plan))))
    if (held := plan._attributes_in_memory) is not None:
        rows.append(("read from disk: attributes beyond", numbers.size(held)))
    if plan.counted is not None and plan.counted.remote.nbytes:
        remote, totals = plan.counted.remote, plan.expected.mid
        speed = layout.ranks * remote.nbytes * totals.batches / totals.elapsed_s
        rows += [
            ("messages of a batch", f"{numbers.size(remote.nbytes)} in {numbers.count(remote.requests)} calls"),
            ("messages of a host", f"{numbers.size(speed)} per second"),
        ]
        if layout.hosts > 1:
            rows.append(("of its network", numbers.percent(speed / layout.bytes_per_s)))
    return Table("Network and disk", ("", ""), tuple(rows))


def _checkpoints(plan: Plan) -> float:
    """Bytes of two checkpoints: parameters and the state of the optimizer, without gradients."""
    return 2 * max(0.0, plan.probe.memory.model - plan.probe.parameter_bytes)


def _changes_table(plan: Plan) -> Table:
    rows = [
        (each.name, f"{each.seconds:+.2f} s" if abs(each.seconds) < 100 else f"{each.seconds:+,.0f} s", each.how)
        for each in plan.changes()
    ]
    note = "seconds of an epoch, each change by itself; of its batches 16 are counted, or as many as --batches says"
    return Table("What would change", ("", "epoch", "from"), tuple(rows), note)
