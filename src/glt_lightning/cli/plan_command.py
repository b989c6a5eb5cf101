"""``python -m lightning plan --config F.yaml``."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import ArgsType, LightningArgumentParser

from glt_lightning.base import OptionError, at_least
from glt_lightning.cli.command_line import GLTCLI, TrainerParser, require_data
from glt_lightning.cli.messages import keep_groups
from glt_lightning.cli.partition import partition_plan
from glt_lightning.cli.run_line import interruptible
from glt_lightning.cli.subcommands import strategy_class
from glt_lightning.lightning import GLTDataModule, Machines, PlannedRun

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
        parser.add_argument("--gpus", type=int | None, default=None, help="GPUs of each host, each with a rank.")
        parser.add_argument(
            "--gpu", type=str | None, default=None, help="Their kind, such as H100; default: of --machine."
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
        parser.add_argument("--probe_s", type=int, default=30, help="Seconds that measuring may take.")
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
    config, data = cli.config_init, require_data(cli.datamodule)
    at_least("--probe_s", config.probe_s, 1)
    machines = Machines(**{field.name: config[field.name] for field in fields(Machines)})
    if not data.is_partitioned:
        _plan_partition(data, config)
        return
    run = PlannedRun(
        model=cli.model,
        data=data,
        trainer=config.trainer,
        strategy=strategy_class(config.trainer.strategy),
        cluster=config.cluster,
        machines=machines,
        batches=config.batches,
        probe_s=config.probe_s,
    )
    with _quiet():
        plan = run.plan(again=config.probe)
    if config.choose:
        with interruptible("nothing is left of partitions that were made to be counted"):
            chosen, plan = plan.choose(given_options(words))
    plan.require_memory()
    if config.choose:
        print(chosen, flush=True)
    elif config.json:
        print(json.dumps(plan.to_json(), indent=1, allow_nan=False), flush=True)
    else:
        print(plan.text(), flush=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides what is said of Trainers that only measure, and a warning about arguments that are not of the process."""
    logs = {
        log: log.level for log in map(logging.getLogger, ("lightning.pytorch", "lightning.fabric", "glt_lightning"))
    }
    for log in logs:
        log.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for message in (
                "LightningCLI's args parameter",
                ".*configure_optimizers. returned",
                ".*no .validation_step",
            ):
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        for log, level in logs.items():
            log.setLevel(level)


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
        print(plan.text(data.partition_dir, data.partition))
        print(
            "No partition is there yet. Once python -m lightning partition with the same configuration has made it, plan says "
            "what training takes, by its batches.",
            flush=True,
        )
    if error is not None:
        raise error


def given_options(argv: Sequence[str]) -> set[str]:
    """Dotted names of the options in the arguments and in their configurations (``--config={...}``), without ``init_args``."""
    found: set[str] = set()
    for word in argv:
        name, _, value = word.partition("=")
        if name == "--config":
            found |= set(_leaves(json.loads(value)))
        elif name.startswith("--"):
            found.add(name[2:])
    return {name.replace("init_args.", "") for name in found}


def _leaves(given: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, value in given.items():
        yield f"{above}{name}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{name}.")
