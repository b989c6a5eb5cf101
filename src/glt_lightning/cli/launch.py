"""``python -m lightning launch``: runs a job on several hosts."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

import yaml  # type: ignore[import-untyped]
from jsonargparse import Namespace

from glt_lightning.base import OptionError
from glt_lightning.cli.launch_files import write_job
from glt_lightning.cli.messages import OneLineParser
from glt_lightning.launch import (
    FILE_ENGINES,
    LaunchConfig,
    LaunchedJob,
    MergedLog,
    Preflight,
    agent_command,
    files_for,
    files_for_all,
    here,
    make_certificates,
    named_hosts,
    read_launch_file,
    server_process,
    trainer_process,
)

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
    flags = {name: given.pop(name) for name in ("dry_run", "check", "verify", "copy", "submit")}
    given.pop("config", None)
    config = parser.instantiate_classes(Namespace(given))
    job = LaunchConfig(**{name: config[name] for name in vars(config)})
    run = f"runs/{job.name}/{time.strftime('%Y%m%d-%H%M%S')}"
    if job.engine in FILE_ENGINES:
        sys.exit(write_job(job, run, flags))
    if flags["submit"]:
        raise OptionError(f"--submit: only for engine slurm; the engine is {job.engine}. Drop the flag.")
    if flags["copy"] and job.partition.source is None:
        raise OptionError(
            "--copy: the launch file does not say from where. Set partition: {from: SOURCE, dir: FOLDER}."
        )
    if flags["dry_run"]:
        _show(job, run)
    else:
        sys.exit(_run(job, run, flags))


def _with_files(argv: Sequence[str]) -> list[str]:
    """The arguments, with the contents of launch files in place of their paths, and with hosts that are mere names."""
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


def _run(config: LaunchConfig, run: str, flags: Mapping[str, bool]) -> int:
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # output of hosts may be in any language
    with closing(MergedLog(Path(run), sys.stdout)) as log:
        here(config)  # an error before anything is made
        if made := make_certificates(config):
            log.info(f"made {', '.join(made)} in {config.security.dir}")
        preflight = Preflight(config, log, verify=flags["verify"])
        job = LaunchedJob(config, run, log, preflight.check, copies=flags["copy"], only_check=flags["check"])
        status = asyncio.run(job.run())
        log.info(f"ended with status {status}; logs are in {run}")
        return status


def _show(config: LaunchConfig, run: str) -> None:
    """What would be done on each host."""
    for machine in here(config):
        plan = server_process(config, machine) if machine.is_server else trainer_process(config, machine, run)
        print(f"{machine.name}:")
        print(f"  agent: {shlex.join(agent_command(config, machine))}")
        for each in [*files_for_all(config), *files_for(config, machine)]:
            print(f"  copy: {each.source} -> {machine.dir}/{each.target}")
        variables = [f"{name}={shlex.quote(value)}" for name, value in plan.env.items()]
        print(f"  run: cd {shlex.quote(machine.dir)} && {' '.join([*variables, shlex.join(plan.argv)])}")
