"""The subcommands that do not run a Trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lightning.pytorch.cli import LightningArgumentParser

from glt_lightning.lightning.cli.messages import OneLineParser


@dataclass(frozen=True)
class Tool:
    """help: one line.  run: takes the arguments, and how the program is called with the subcommand."""

    help: str
    run: Callable[[Sequence[str], str], None]


def _partition(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.lightning.cli.partition import run_partition

    run_partition(argv, prog)


def _pull(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.lightning.cli.pull import run_pull

    run_pull(argv, prog)


def _share(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.lightning.cli.share import run_share

    run_share(argv, prog)


def _report(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.lightning.cli.report import run_report

    run_report(argv, prog)


def _serve(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.lightning.cli.serve import run_serve

    run_serve(argv, prog)


def _launch(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.lightning.cli.launch import run_launch

    run_launch(argv, prog)


def _neighbours(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.lightning.cli.neighbours import run_neighbours

    run_neighbours(argv, prog)


def _certs(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.transport.certs import run_certs

    run_certs(list(argv))


def _completion(argv: Sequence[str], prog: str) -> None:
    from glt_lightning.lightning.cli.completion import run_completion

    run_completion(argv, prog)


TOOLS: Mapping[str, Tool] = {
    "partition": Tool("Makes the partition of a configuration and reports on it, or verifies one.", _partition),
    "pull": Tool("Copies a partition, or the parts that a host needs, and checks each piece.", _pull),
    "share": Tool("Serves the files of a partition folder to hosts that copy them.", _share),
    "report": Tool("Shows the contents of a partition and the expected traffic of training on it.", _report),
    "serve": Tool(
        "Runs a graph server for trainers with strategy glt_server_client, or shows the status of one.", _serve
    ),
    "launch": Tool("Runs a job on several hosts by ssh, and shows one log.", _launch),
    "neighbours": Tool("Prints the nodes whose embeddings are nearest to those of a node.", _neighbours),
    "certs": Tool("Makes the certificates and the secret of a job.", _certs),
    "completion": Tool("Prints a script for completion in bash or zsh.", _completion),
}


_OF_TRAINER = {  # Lightning's are the first line of a docstring, cut where that ends
    "fit": "Trains a model, with validation if the data has a validation split.",
    "validate": "Evaluates a model on the validation split.",
    "test": "Evaluates a model on the test split.",
    "predict": "Writes a model's predictions for nodes.",
    "embed": "Writes a model's outputs for all nodes, computed exactly, layer by layer.",
}


def list_tools(parser: LightningArgumentParser) -> None:
    """Puts them into the help of the program, and into the error of a wrong subcommand. They have their own parsers."""
    action = parser._subcommands_action
    assert action is not None
    for each in action._choices_actions:
        each.help = _OF_TRAINER.get(each.dest, each.help)
    for name, tool in TOOLS.items():
        action.add_subcommand(name, OneLineParser(description=tool.help), help=tool.help)
