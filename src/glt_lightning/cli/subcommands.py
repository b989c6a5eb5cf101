"""The subcommands that do not run a Trainer."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.strategies import StrategyRegistry
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher

from glt_lightning.base import ClusterOptions, OptionError
from glt_lightning.cli import program
from glt_lightning.cli.messages import OneLineParser
from glt_lightning.cli.program import TRAINER_COMMANDS
from glt_lightning.lightning import (
    BestCheckpoint,
    GLTDataModule,
    GLTServerClientStrategy,
    GLTStrategy,
    PrecisionProbe,
    PredictionWriter,
    RunReport,
    SamplingMonitor,
    WholeCheckpointIO,
    meet_hosts,
)
from glt_lightning.models import EdgePredictor, GraphSAGE, LinkPredictor, NodePredictor


@dataclass(frozen=True)
class Tool:
    """A subcommand. help: one line.  run: called with the arguments and the program's name with the subcommand."""

    help: str
    run: Callable[[Sequence[str], str], None]


def _demo(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.cli.demo import run_demo

    run_demo(argv, prog)


def _partition(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.cli.partition import run_partition

    run_partition(argv, prog)


def _append(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.cli.versions import run_append

    run_append(argv, prog)


def _compact(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.cli.versions import run_compact

    run_compact(argv, prog)


def _pull(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.cli.partition import run_pull

    run_pull(argv, prog)


def _report(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.cli.report_command import run_report

    run_report(argv, prog)


def _plan(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.cli.plan_command import run_plan

    run_plan(argv, prog)


def _serve(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.cli.serve import run_serve

    run_serve(argv, prog)


def _launch(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.cli.launch import run_launch

    run_launch(argv, prog)


def _neighbours(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.cli.embed import run_neighbours

    run_neighbours(argv, prog)


def _certs(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.workers import run_certs

    run_certs(list(argv))


def _completion(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.cli.completion import run_completion

    run_completion(argv, prog)


_RUN: Mapping[str, Callable[[Sequence[str], str], None]] = {
    "demo": _demo,
    "partition": _partition,
    "append": _append,
    "compact": _compact,
    "pull": _pull,
    "report": _report,
    "plan": _plan,
    "serve": _serve,
    "launch": _launch,
    "neighbours": _neighbours,
    "certs": _certs,
    "completion": _completion,
}

TOOLS = {name: Tool(help, _RUN[name]) for name, help in program.TOOLS.items()}


def list_tools(parser: LightningArgumentParser) -> None:
    """Adds these subcommands to the help of the program and to the error for a wrong subcommand. They have their own parsers."""
    action = parser._subcommands_action
    assert action is not None
    for each in action._choices_actions:
        each.help = TRAINER_COMMANDS.get(each.dest, each.help)  # Lightning cuts the first line of a docstring
    for name, tool in TOOLS.items():
        action.add_subcommand(name, OneLineParser(description=tool.help), help=tool.help)


# ``--data.help`` and ``--model.help`` without a class: which classes there are, and how to see the options of one.


_READY: dict[str, list[type]] = {
    "data": [GLTDataModule],
    "model": [EdgePredictor, GraphSAGE, LinkPredictor, NodePredictor],
}


# jsonargparse knows a class by its name alone once it is imported
CALLBACKS = (BestCheckpoint, PrecisionProbe, PredictionWriter, RunReport, SamplingMonitor, WholeCheckpointIO)
_BASES = {"data": LightningDataModule, "model": LightningModule}
_OWN = {"data": "my_module.MyDataModule", "model": "my_module.MyModel"}


def asked_for_classes(argv: Sequence[str]) -> str | None:
    """The group, ``data`` or ``model``, whose help the arguments ask for without a class; None if they do not."""
    for number, arg in enumerate(argv):
        group = arg.removeprefix("--").removesuffix(".help")
        if group in _BASES and arg == f"--{group}.help":
            following = argv[number + 1 : number + 2]
            if not following or following[0].startswith("-"):
                return group
    return None


def ready_classes(group: str, command: str) -> str:
    """Writes a help page about the classes of a group. command: such as ``python -m lightning fit``."""
    found = _READY[group]
    width = max(len(kind.__name__) for kind in found)
    lines = [f"  {kind.__name__:<{width}}  {_first_line(kind)}" for kind in found]
    return "\n".join(
        [
            f"--{group} takes the name of a ready class, or the dotted path of your own {_BASES[group].__name__}.",
            "",
            *lines,
            "",
            f"Options of one:  {command} --{group}.help {found[0].__name__}",
            f"One of your own: {command} --{group} {_OWN[group]} (a file in the current folder; docs/lightning.md)",
        ]
    )


def class_names(group: str) -> list[str]:
    """Names of the ready classes of a group."""
    return [kind.__name__ for kind in _READY[group]]


def _first_line(kind: type) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0]


# Handling of the strategy beyond what Lightning's command line does.


def check_strategy(strategy: Any) -> None:
    """Raises `OptionError` for a name that the registry does not have."""
    known = ["auto", *StrategyRegistry.available_strategies()]
    if isinstance(strategy, str) and strategy not in known:
        ours = ", ".join(name for name in known if name.startswith("glt_") and "_find_unused_" not in name)
        near = difflib.get_close_matches(strategy, known, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise OptionError(
            f"trainer.strategy: expected auto, {ours}, ddp or another strategy of Lightning; got {strategy!r}.{hint}"
        )


def cluster_of_data(cluster: Any, strategy: Any) -> Any:
    """The group ``cluster`` for a data module whose graph may be at graph servers; None with other strategies, for which the data
    module samples the local partition."""
    return cluster if issubclass(strategy_class(strategy), GLTServerClientStrategy) else None


def strategy_class(strategy: Any) -> type:
    """The class of ``trainer.strategy`` in a configuration; `object` where it is left to Lightning."""
    name = strategy if isinstance(strategy, str) else "" if strategy is None else strategy.class_path
    if name in StrategyRegistry:
        kind: Any = StrategyRegistry[name]["strategy"]
    else:
        module, _, last = name.rpartition(".")
        kind = getattr(import_module(module), last) if module else None
    return kind if isinstance(kind, type) else object


def num_samplers(config: Any) -> int:
    """The sampler processes that a rank of a run will have, as its configuration says; none where graph servers sample."""
    number = config.get("data.init_args.sampling.num_workers", config.get("data.sampling.num_workers"))
    if not isinstance(number, int) or issubclass(strategy_class(config.trainer.strategy), GLTServerClientStrategy):
        return 0
    return number


def with_cluster(strategy: Any, cluster: ClusterOptions) -> Any:
    """Sets the group ``cluster`` of a strategy of this package; other strategies are returned unchanged."""
    if isinstance(strategy, str) and strategy in StrategyRegistry and _is_ours(StrategyRegistry[strategy]["strategy"]):
        strategy = StrategyRegistry.get(strategy)
    if isinstance(strategy, GLTStrategy) and strategy.cluster is None:
        strategy.cluster = cluster
    return strategy


def meet_other_hosts(trainer: Trainer, cluster: ClusterOptions) -> object:
    """Waits for the other hosts of the job. A strategy of Lightning would wait inside torch, where it logs nothing and handles no
    signals; strategies of this package wait themselves. Keep the returned object until there is a process group.

    Raises `PeerError` if a host is missing after ``cluster.deadlines.join_s``, `OptionError` for a strategy without this wait.
    """
    strategy: Any = trainer.strategy
    if trainer.num_nodes == 1 or isinstance(strategy, GLTStrategy) or not hasattr(strategy, "cluster_environment"):
        return None
    if isinstance(strategy.launcher, _MultiProcessingLauncher):
        # Rank 0 is a process that has yet to be forked or spawned, and opens the port where the hosts would meet by now.
        raise OptionError(
            f"trainer.num_nodes: {trainer.num_nodes} hosts need a strategy that starts each rank as a command, and this one "
            "forks or spawns them. Choose ddp, or a strategy of ours (docs/cluster.md)."
        )
    return meet_hosts(strategy, cluster.deadlines.join_s, first_ranks=True)


def _is_ours(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, GLTStrategy)
