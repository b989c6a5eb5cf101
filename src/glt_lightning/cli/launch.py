"""``python -m lightning launch``: runs a job on several hosts."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

import yaml  # type: ignore[import-untyped]
from jsonargparse import Namespace

from glt_lightning.base import OptionError
from glt_lightning.cli.launch_ray import launch_on_ray
from glt_lightning.cli.messages import OneLineParser
from glt_lightning.launch import (
    FILE_ENGINES,
    PARTITION,
    LaunchConfig,
    LaunchedJob,
    LaunchError,
    MergedLog,
    Preflight,
    agent_command,
    files_for,
    files_for_all,
    here,
    job_script,
    job_text,
    keeps_results,
    make_certificates,
    named_hosts,
    needs_secret,
    on_pods,
    read_launch_file,
    secret_command,
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
    if job.engine == "ray":
        _refuse(flags, job.engine, "check", "verify", "copy", "submit")
        sys.exit(launch_on_ray(job, dry_run=flags["dry_run"]))
    if job.command == PARTITION:
        raise OptionError(
            f"command: partition runs as a job array of slurm or kubernetes; the engine is {job.engine}. Set one of these, or "
            "run `glt-lightning partition` on one host, with data.partition.engine (docs/partitioning.md)."
        )
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
    """Prints the processes of each host, for ``--dry_run``."""
    for machine in here(config):
        plan = server_process(config, machine) if machine.is_server else trainer_process(config, machine, run)
        print(f"{machine.name}:")
        print(f"  agent: {shlex.join(agent_command(config, machine))}")
        for each in [*files_for_all(config), *files_for(config, machine)]:
            print(f"  copy: {each.source} -> {machine.dir}/{each.target}")
        variables = [f"{name}={shlex.quote(value)}" for name, value in plan.env.items()]
        print(f"  run: cd {shlex.quote(machine.dir)} && {' '.join([*variables, shlex.join(plan.argv)])}")


# Files of launched jobs that a cluster starts: written to the folder of the run, or shown, or submitted.


_SUBMIT_S = 120.0


def write_job(config: LaunchConfig, run: str, flags: Mapping[str, bool]) -> int:
    """Writes the job file for SLURM or Kubernetes, and prints the commands to use it. Returns an exit status.

    run: folder of the run.  flags: ``dry_run`` prints the file instead, ``submit`` passes it to sbatch.
    Raises `OptionError` for what the engine cannot do, `LaunchError` if the job cannot be submitted.
    """
    is_slurm = config.engine == "slurm"
    if flags["submit"] and not is_slurm:
        raise OptionError("--submit: only for engine slurm. Apply the file of engine kubernetes with kubectl.")
    _refuse(flags, config.engine, "check", "verify", "copy")
    text = job_script(config, run) if is_slurm else job_text(config)
    if flags["dry_run"]:
        print(text, end="")
        return 0
    path = Path(run, "job.sbatch" if is_slurm else "job.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if flags["submit"]:
        return _submit(path)
    for line in [f"sbatch {path}"] if is_slurm else _steps(config, path):
        print(line)
    return 0


def _refuse(flags: Mapping[str, bool], engine: str, *names: str) -> None:
    for name in names:
        if flags[name]:
            raise OptionError(f"--{name}: only for engine ssh and here; nobody logs in to the hosts of {engine}.")


def _steps(config: LaunchConfig, path: Path) -> list[str]:
    """The commands that start a job of Kubernetes."""
    lines = []
    if needs_secret(config):
        make_certificates(on_pods(config))
        lines.append(shlex.join(secret_command(config)))
    lines.append(f"kubectl apply -f {path}")
    if config.command != PARTITION and not keeps_results(config):
        lines.append(
            "# No volume has the folder of the run, so logs and checkpoints end with their pods. Set kubernetes.volumes, and "
            "defaults.dir below one of them."
        )
    return lines


def _submit(path: Path) -> int:
    if shutil.which("sbatch") is None:
        raise LaunchError(f"--submit: there is no sbatch on this host. Submit {path} where there is one.")
    try:
        return subprocess.run(["sbatch", str(path)], timeout=_SUBMIT_S, check=False).returncode
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"--submit: sbatch did not end within {_SUBMIT_S:.0f} s. Look with squeue for the job."
        ) from None
