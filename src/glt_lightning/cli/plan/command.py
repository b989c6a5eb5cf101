"""``python -m lightning plan --config F.yaml``."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import ArgsType, LightningArgumentParser

from glt_lightning.base import OptionError, numbers
from glt_lightning.cli.command_line import GLTCLI, TrainerParser
from glt_lightning.cli.messages import keep_groups
from glt_lightning.cli.partition import partition_plan, plan_lines
from glt_lightning.cli.plan.changes import changes
from glt_lightning.cli.plan.choose import as_yaml, choose, given_options
from glt_lightning.cli.plan.inputs import Batches, Machines, layout_of, probing_trainer
from glt_lightning.cli.plan.planned import Planned
from glt_lightning.graph import MANIFEST, LocalPartition
from glt_lightning.lightning import (
    GLTDataModule,
    Layout,
    Probe,
    Table,
    dealing_of,
    find_probe,
    keep_probe,
    measure,
    page_text,
    planned_table,
    probe_key,
    require_memory_of,
    threads_of,
    traffic_options,
)

_READ = ("seed_everything", "trainer", "model", "data", "cluster", "optimizer", "lr_scheduler")
_DESCRIPTION = (
    "Says what a run of fit will take before it starts: seconds of an epoch and their parts, memory, network and disk, "
    "what limits it, and what other options would change. Measures some batches and steps here, for at most half a "
    "minute, and keeps the result beside the partition. Starts nothing, and refuses what does not fit."
)


class _PlanCLI(GLTCLI):
    """Makes the model and the data of a configuration, and a Trainer that only measures."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        super().add_arguments_to_parser(parser)
        parser.add_argument(
            "--hosts", type=int | None, default=None, help="Number of hosts; default: trainer.num_nodes."
        )
        parser.add_argument(
            "--ranks", type=int | None, default=None, help="Ranks of each host; default: trainer.devices."
        )
        parser.add_argument(
            "--network", type=str | None, default=None, help="Speed of each host's network, such as 25Gbit."
        )
        parser.add_argument("--latency_ms", type=float, default=0.1, help="Round trip between two hosts.")
        parser.add_argument(
            "--machine",
            type=str | None,
            default=None,
            help="A machine that can be rented, for all hosts: r7i.8xlarge, ...",
        )
        parser.add_argument("--cores", type=int | None, default=None, help="Cores of each host; default: of this one.")
        parser.add_argument(
            "--memory",
            type=str | None,
            default=None,
            help="Memory of each host, such as 64GB; default: what is free here.",
        )
        parser.add_argument(
            "--batches",
            type=int,
            default=16,
            help="Batches of a rank to count rows and bytes in; 0: all, which is exact.",
        )
        parser.add_argument("--probe", action="store_true", help="Measure again, also if there is a fresh probe.")
        parser.add_argument(
            "--choose", action="store_true", help="Print options that are left open as YAML, with the reason of each."
        )
        parser.add_argument("--json", action="store_true", help="Print the numbers as JSON.")

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        super().parse_arguments(parser, args)
        if self.config.cluster.servers:  # which would be asked for their graph
            raise OptionError(
                "cluster.servers: plan reads the partition, and it is at the graph servers. Run plan on a host that has it, "
                "with --cluster.servers []."
            )

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        return Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False)


def run_plan(argv: Sequence[str], prog: str) -> None:
    """Runs the subcommand to its end. Raises `GLTError` for errors, and for a job that does not fit; SystemExit for help."""
    words = keep_groups(argv, _READ)
    with _quiet():
        cli = _PlanCLI(
            LightningModule,
            LightningDataModule,
            run=False,
            save_config_callback=None,
            subclass_mode_model=True,
            subclass_mode_data=True,
            parser_class=TrainerParser,
            parser_kwargs={"prog": prog, "description": _DESCRIPTION},
            args=words,
        )
    config, data = cli.config_init, cli.datamodule
    if not isinstance(data, GLTDataModule):
        raise OptionError("data: expected a GLTDataModule. Give --config of a run, or --data.")
    machines = Machines.of(config)
    if not (data.partition_dir / MANIFEST).is_file():
        _plan_partition(data, config)
        return
    partition = LocalPartition.open(data.partition_dir)
    layout = layout_of(machines, config.trainer, data, config.cluster)
    batches = _batches(data, partition, config)
    probe, key = _probe(cli, data, partition, layout, again=config.probe)
    plan = _plan(probe, layout, batches, config.trainer, machines.available)
    if plan.counted is not None:
        keep_probe(partition.directory, key, replace(probe, counted={**probe.counted, layout.name: plan.counted}))
    if config.choose:
        choices, plan = choose(plan, given_options(words))
    require_memory_of(plan.memory, plan.available, data.sampling, data.batch_size)
    if config.choose:
        print(as_yaml(choices), flush=True)
    else:
        print((_json if config.json else _text)(plan, machines, config), flush=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides what Lightning says of a Trainer that only measures, and its warning about arguments that are not of the process."""
    log = logging.getLogger("lightning.pytorch")
    before = log.level
    log.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="LightningCLI's args parameter")
            yield
    finally:
        log.setLevel(before)


def _plan_partition(data: GLTDataModule, config: Any) -> None:
    """Says what making the partition takes, which comes first: epochs are planned by its batches. Raises `PartitionError` if it
    cannot be made."""
    if config.choose:
        raise OptionError(
            f"--choose: {data.partition_dir}: no partition is there yet, and options are chosen by its batches. "
            "Run python -m lightning partition with the same configuration first."
        )
    plan, error = partition_plan(data)
    if config.json:
        print(json.dumps({"partition": plan.to_json()}, indent=1, allow_nan=False), flush=True)
    else:
        print("\n".join(plan_lines(data, plan)))
        print(
            "No partition is there yet. Once python -m lightning partition with the same configuration has made it, plan says "
            "what training takes, by its batches.",
            flush=True,
        )
    if error is not None:
        raise error


def _batches(data: GLTDataModule, partition: LocalPartition, config: Any) -> Batches:
    if config.batches < 0:
        raise OptionError(f"--batches: expected at least 0, got {config.batches}.")
    return Batches(partition, data, traffic_options(data, max(1, config.batches), []), config.batches)


def _probe(
    cli: GLTCLI, data: GLTDataModule, partition: LocalPartition, layout: Layout, *, again: bool
) -> tuple[Probe, str]:
    """The constants of this configuration on this machine, and the key by which they are kept."""
    folder, graph = partition.directory, partition.manifest.options_hash
    threads, workers = threads_of(layout), data.sampling
    with tempfile.TemporaryDirectory() as temporary:
        make_trainer = probing_trainer(cli.config_init.trainer, temporary)
        key = probe_key(graph, data, cli.model, make_trainer().precision, threads)
        probe = None if again else find_probe(folder, key)
        if probe is None:
            before = torch.get_num_threads()
            torch.set_num_threads(threads)
            print("measuring some batches and steps, for at most half a minute", file=sys.stderr, flush=True)
            try:
                with _quiet():
                    probe = measure(make_trainer, cli.model, data)
            finally:
                torch.set_num_threads(before)
                data.sampling = workers
            keep_probe(folder, key, probe)
    return probe, key


def _plan(probe: Probe, layout: Layout, batches: Batches, trainer: Any, available: int) -> Planned:
    layout = replace(layout, parameter_bytes=probe.parameter_bytes)
    if batches.why_not is not None and layout.owners > 1:
        raise OptionError(f"plan: rows of other hosts cannot be counted: {batches.why_not}.")
    dealing = dealing_of(
        batches.data, trainer.limit_train_batches, trainer.limit_val_batches, trainer.check_val_every_n_epoch
    )
    counted = None if batches.why_not is not None else batches.counted(layout)
    return Planned(
        probe=probe,
        layout=layout,
        dealing=dealing,
        counted=counted,
        batches=batches,
        available=available,
        ratio=batches.ratio(layout),
    )


# What is printed


def _text(plan: Planned, machines: Machines, config: Any) -> str:
    tables = [planned_table(plan.expected), _memory_table(plan), _network_and_disk(plan)]
    tables.append(_changes_table(plan))
    return page_text(_facts(plan, machines, config), [table for table in tables if table.rows])


def _facts(plan: Planned, machines: Machines, config: Any) -> list[tuple[str, str]]:
    layout, probe, totals = plan.layout, plan.probe, plan.expected.mid
    where = f"{numbers.counted(layout.hosts, 'host')} with {numbers.counted(layout.ranks, 'rank')} each"
    samplers = numbers.counted(layout.workers, "sampler")
    facts = [
        ("configuration", f"{plan.batches.partition.directory}, {where}, {samplers} per rank"),
        ("epoch", f"{numbers.duration(plan.seconds)}, bound by {totals.bound()}"),
        (
            "measured",
            f"{probe.train.batches} batches on {probe.machine}, {probe.made} (load {probe.load:.1f} per core)",
        ),
    ]
    return [*facts, *(("not measured", text) for text in _unmeasured(plan, machines, config))]


def _unmeasured(plan: Planned, machines: Machines, config: Any) -> list[str]:
    layout, probe, found = plan.layout, plan.probe, []
    if layout.hosts > 1:
        if machines.network is None:
            found.append(
                f"the network: {8 * layout.bytes_per_s / 1e9:g} Gbit/s is assumed; --network says another speed"
            )
        found.append("hosts: all are taken to be alike")
    if config.machine is not None:
        found.append(f"{config.machine}: a core is taken to be one of this machine")
    if layout.world_size > 1:
        found.append("the sum of gradients over ranks: computed from the size of the model")
    if str(config.trainer.accelerator) not in ("cpu", "auto") or (torch.cuda.is_available()):
        found.append("GPUs: the steps were measured on the CPU")
    if probe.validation is None:
        found.append("validation: there is none, or it is computed layer by layer")
    if plan.counted is None:
        found.append(f"rows and bytes: those of the measured batches stand for all; {plan.batches.why_not}")
    return found


def _memory_table(plan: Planned) -> Table:
    own, memory = plan.probe.memory, plan.memory
    rows = [
        ("process of a rank: Python, torch and Lightning", numbers.size(own.base)),
        ("process of a rank: model, gradients, optimizer", numbers.size(own.model)),
        ("process of a rank: step", numbers.size(own.work)),
        ("sampler processes of the host", numbers.size(memory.samplers)),
        ("batches in flight of the host", numbers.size(memory.batches)),
        ("caches of the host", numbers.size(memory.cache)),
        ("needed by a host", numbers.size(memory.needed)),
        ("a host has", numbers.size(plan.available)),
        ("mapped files, as far as there is room", numbers.size(memory.pages)),
    ]
    return Table("Memory", ("", "bytes"), tuple(row for row in rows if row[1] != "0 B"))


def _network_and_disk(plan: Planned) -> Table:
    manifest, layout = plan.batches.partition.manifest, plan.layout
    rows = [("partition on disk, all parts", numbers.size(sum(entry.bytes for entry in manifest.arrays.values())))]
    rows.append(("checkpoints, best and last", numbers.size(_checkpoints(plan))))
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


def _checkpoints(plan: Planned) -> float:
    """Bytes of two checkpoints: parameters and the state of the optimizer, without gradients."""
    return 2 * max(0.0, plan.probe.memory.model - plan.probe.parameter_bytes)


def _changes_table(plan: Planned) -> Table:
    rows = [
        (each.name, f"{each.seconds:+.2f} s" if abs(each.seconds) < 100 else f"{each.seconds:+,.0f} s", each.how)
        for each in changes(plan)
    ]
    note = "seconds of an epoch, each change by itself; of its batches 16 are counted, or as many as --batches says"
    return Table("What would change", ("", "epoch", "from"), tuple(rows), note)


def _json(plan: Planned, machines: Machines, config: Any) -> str:
    expected, memory = plan.expected, plan.memory
    values = {
        "layout": asdict(plan.layout),
        "epoch": {end: asdict(getattr(expected, end)) for end in ("low", "mid", "high")},
        "bound": expected.mid.verdict,
        "memory": {**asdict(memory), "needed": memory.needed, "available": plan.available},
        "process": asdict(plan.probe.memory),
        "counted": None if plan.counted is None else asdict(plan.counted),
        "changes": [asdict(each) for each in changes(plan)],
        "not_measured": _unmeasured(plan, machines, config),
        "probe": plan.probe.to_json(),
    }
    return json.dumps(values, indent=1, allow_nan=False)
