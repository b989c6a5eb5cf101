"""The commands of the program, and its answers that need no torch, whose import takes seconds."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence

from glt_lightning.base import __version__

PROG = "python -m lightning"
DESCRIPTION = "Trains graph neural networks on partitioned graphs."
EPILOG = f"Each subcommand has its own options: {PROG} fit --help. A wrong option is an error of one line."
TRAINER_COMMANDS = {
    "fit": "Trains a model, with validation if the data has a validation split.",
    "validate": "Evaluates a model on the validation split.",
    "test": "Evaluates a model on the test split.",
    "predict": "Writes a model's predictions for nodes.",
    "embed": "Writes a model's outputs for all nodes, computed exactly, layer by layer.",
    "recommend": "Writes the best destinations of each source by a link model, without those that it has.",
    "deploy": "Answers requests over HTTP with a model's predictions.",
    "replay": "Computes the recorded answers of an endpoint once more, and compares them.",
}
TOOLS = {
    "demo": "Trains and tests a model on a graph that needs no download; a first run.",
    "partition": "Makes the partition of a configuration and reports on it, or verifies one.",
    "append": "Adds rows of tables to a partition, or deletes some, as its next version.",
    "compact": "Makes a partition of its own from a version of one.",
    "pull": "Copies a partition, or the parts that a host needs, and checks each piece.",
    "report": "Shows the contents of a partition and the expected traffic of training on it.",
    "plan": "Says what a run will take before it starts: seconds, memory, network, disk, and what does not fit.",
    "serve": "Runs a graph server for trainers with strategy glt_server_client, or shows the status of one.",
    "launch": "Runs a job on several hosts by ssh, and shows one log.",
    "neighbours": "Prints the nodes whose embeddings are nearest to those of a node.",
    "certs": "Makes the certificates and the secret of a job.",
    "completion": "Prints a script for completion in bash or zsh.",
}
_WIDTH, _INDENT = 100, 16


def quick_answer(words: Sequence[str]) -> str | None:
    """The text for a command line that asks for the versions or for the program's page; None for every other."""
    if list(words) == ["--version"]:
        return versions()
    return _page() if list(words) in (["--help"], ["-h"]) else None


def versions() -> str:
    """The version of the package, and in parentheses those of the libraries below it."""
    from importlib.metadata import version

    libraries = ", ".join(f"{name} {version(name)}" for name in ("lightning", "torch", "torch_geometric"))
    return f"glt_lightning {__version__} ({libraries}, Python {sys.version.split()[0]})"


def _page() -> str:
    options = {
        "-h, --help": "Show this page and exit.",
        "--version": "Print versions and exit.",
    }
    lines = [f"usage: {PROG} SUBCOMMAND [options]", "", DESCRIPTION, "", "options:", *_table(options), ""]
    lines += ["subcommands:", *_table(TRAINER_COMMANDS | TOOLS), "", *textwrap.wrap(EPILOG, _WIDTH)]
    return "\n".join(lines)


def _table(rows: dict[str, str]) -> list[str]:
    return [
        line
        for name, text in rows.items()
        for line in textwrap.wrap(
            text, _WIDTH, initial_indent=f"    {name}".ljust(_INDENT), subsequent_indent=" " * _INDENT
        )
    ]
