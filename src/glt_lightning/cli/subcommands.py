"""The subcommands that do not run a Trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lightning.pytorch.cli import LightningArgumentParser

from glt_lightning import base
from glt_lightning.base import TRAINER_COMMANDS
from glt_lightning.cli.messages import OneLineParser


@dataclass(frozen=True)
class Tool:
    """help: one line.  run: takes the arguments, and how the program is called with the subcommand."""

    help: str
    run: Callable[[Sequence[str], str], None]


def _partition(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.cli.partition import run_partition

    run_partition(argv, prog)


def _pull(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.cli.pull import run_pull

    run_pull(argv, prog)


def _report(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.cli.report_command import run_report

    run_report(argv, prog)


def _serve(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.cli.serve import run_serve

    run_serve(argv, prog)


def _launch(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.cli.launch import run_launch

    run_launch(argv, prog)


def _neighbours(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.cli.neighbours import run_neighbours

    run_neighbours(argv, prog)


def _certs(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.workers import run_certs

    run_certs(list(argv))


def _completion(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.cli.completion import run_completion

    run_completion(argv, prog)


_RUN: Mapping[str, Callable[[Sequence[str], str], None]] = {
    "partition": _partition,
    "pull": _pull,
    "report": _report,
    "serve": _serve,
    "launch": _launch,
    "neighbours": _neighbours,
    "certs": _certs,
    "completion": _completion,
}
TOOLS = {name: Tool(help, _RUN[name]) for name, help in base.TOOLS.items()}


def list_tools(parser: LightningArgumentParser) -> None:
    """Puts them into the help of the program, and into the error of a wrong subcommand. They have their own parsers."""
    action = parser._subcommands_action
    assert action is not None
    for each in action._choices_actions:
        each.help = TRAINER_COMMANDS.get(each.dest, each.help)  # Lightning cuts the first line of a docstring
    for name, tool in TOOLS.items():
        action.add_subcommand(name, OneLineParser(description=tool.help), help=tool.help)
