"""``python -m lightning launch``: runs a job on several hosts."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING

import yaml  # type: ignore[import-untyped]
from jsonargparse import Namespace

from glt_lightning.base import OptionError
from glt_lightning.cli.messages import OneLineParser
from glt_lightning.launch import LaunchConfig, LaunchFlags, named_hosts, read_launch_file, start_job

if TYPE_CHECKING:
    from glt_lightning.workers import HostedServer

_DESCRIPTION = (
    "Runs a job on several hosts by ssh: copies the configuration, checks all hosts, starts graph servers and trainers, shows "
    "one log, and ends all of them when one fails. Ctrl-C ends the job in order, twice at once."
)


def run_launch(argv: Sequence[str], prog: str) -> None:
    """Runs the subcommand to its end. Raises `GLTError` for wrong options; SystemExit with the status of the job."""
    parser = OneLineParser(prog=prog, description=_DESCRIPTION)
    parser.add_argument("--config", action="config", help="The launch file, in YAML: hosts, command and the rest.")
    parser.add_argument("--dry_run", action="store_true", help="Show what would run on each host, and start nothing.")
    parser.add_argument("--check", action="store_true", help="Check all hosts, and start nothing.")
    parser.add_argument("--verify", action="store_true", help="Check every byte of the partition, too.")
    parser.add_argument("--copy", action="store_true", help="First copy to each host the parts that it needs.")
    parser.add_argument("--submit", action="store_true", help="With engine slurm: hand the job script to sbatch.")
    parser.add_class_arguments(LaunchConfig, None, as_group=False)
    given = parser.parse_args(_with_files(argv))
    flags = LaunchFlags(**{flag.name: given.pop(flag.name) for flag in fields(LaunchFlags)})
    given.pop("config", None)
    config = parser.instantiate_classes(Namespace(given))
    job = LaunchConfig(**{name: config[name] for name in vars(config)})
    sys.exit(start_job(job, flags, _run_rank, _open_server))


def _run_rank(words: list[str]) -> None:
    """Runs the command line of a rank, which imports torch."""
    from glt_lightning.cli.command_line import run_trainer

    run_trainer(words)


def _open_server(words: list[str]) -> HostedServer:
    """Opens the server of a command line of ``serve``, which imports torch."""
    from glt_lightning.cli.serve import open_server

    return open_server(words, "serve")


def _with_files(argv: Sequence[str]) -> list[str]:
    """Replaces paths of launch files in the arguments by their contents, and names of hosts by mappings."""
    given, out = iter(argv), []
    for arg in given:
        name, equals, value = arg.partition("=")
        if name == "--config":
            path = value if equals else next(given, None)
            if path is None:
                raise OptionError("--config: expected the path of a launch file.")
            options, note = read_launch_file(path)
            if note:
                print(note, file=sys.stderr)
            arg = f"--config={json.dumps(options)}"
        elif name in ("--hosts", "--servers") and (value := value if equals else next(given, "")):
            with suppress(yaml.YAMLError):  # the parser names what is wrong
                value = json.dumps(named_hosts(yaml.safe_load(value)))
            arg = f"{name}={value}"
        out.append(arg)
    return out
