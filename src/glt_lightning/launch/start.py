"""Starts a job as ``glt-lightning launch`` does, by the engine that its configuration names, or shows what would run."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from glt_lightning.base import OptionError
from glt_lightning.launch.files import files_for, files_for_all, make_certificates
from glt_lightning.launch.job import LaunchedJob, here
from glt_lightning.launch.kubernetes import job_text, keeps_results, needs_secret, on_pods, secret_command
from glt_lightning.launch.messages import MergedLog
from glt_lightning.launch.options import FILE_ENGINES, PARTITION, LaunchConfig
from glt_lightning.launch.plan import server_process, trainer_process
from glt_lightning.launch.preflight import Preflight
from glt_lightning.launch.remote import LaunchError, agent_command
from glt_lightning.launch.slurm import job_script

if TYPE_CHECKING:
    from glt_lightning.workers import HostedServer

_SUBMIT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class LaunchFlags:
    """What `launch` is asked to do other than run the job.

    dry_run: show what would run on each host, or the file for the cluster.  check: end after the check of all hosts.
    verify: that check compares every byte of the partition.  copy: each host first copies the parts that it needs.
    submit: pass the job script to sbatch.
    """

    dry_run: bool = False
    check: bool = False
    verify: bool = False
    copy: bool = False
    submit: bool = False

    def refuse(self, engine: str, *names: str) -> None:
        """Raises `OptionError` for those of the flags that only an engine with hosts of its own has."""
        for name in names:
            if getattr(self, name):
                raise OptionError(f"--{name}: only for engine ssh and here; nobody logs in to the hosts of {engine}.")


def start_job(
    config: LaunchConfig,
    flags: LaunchFlags,
    run_rank: Callable[[list[str]], object],
    open_server: Callable[[list[str]], HostedServer],
) -> int:
    """Runs a job to its end, or writes the file with which a cluster starts it. Returns an exit status.

    run_rank, open_server: run the command line of a rank, and open the server of one of ``serve``, both without the name of the
    program, in processes of Ray.
    Raises `OptionError` for flags that the engine does not have, `LaunchError` if the job cannot be submitted.
    """
    run = f"runs/{config.name}/{time.strftime('%Y%m%d-%H%M%S')}"
    if config.engine in FILE_ENGINES:
        return _write_job(config, run, flags)
    if config.engine == "ray":
        from glt_lightning.launch.on_ray import launch_on_ray

        flags.refuse(config.engine, "check", "verify", "copy", "submit")
        return launch_on_ray(config, run_rank, open_server, dry_run=flags.dry_run)
    if config.command == PARTITION:
        raise OptionError(
            f"command: partition runs as a job array of slurm or kubernetes; the engine is {config.engine}. Set one of these, "
            "or run `glt-lightning partition` on one host, with data.partition.engine (docs/partitioning.md)."
        )
    if flags.submit:
        raise OptionError(f"--submit: only for engine slurm; the engine is {config.engine}. Drop the flag.")
    if flags.copy and config.partition.source is None:
        raise OptionError(
            "--copy: the launch file does not say from where. Set partition: {from: SOURCE, dir: FOLDER}."
        )
    if flags.dry_run:
        _show(config, run)
        return 0
    return _run(config, run, flags)


def _run(config: LaunchConfig, run: str, flags: LaunchFlags) -> int:
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # output of hosts may be in any language
    with closing(MergedLog(Path(run), sys.stdout)) as log:
        here(config)  # an error before anything is made
        if made := make_certificates(config):
            log.info(f"made {', '.join(made)} in {config.security.dir}")
        preflight = Preflight(config, log, verify=flags.verify)
        job = LaunchedJob(config, run, log, preflight.check, copies=flags.copy, only_check=flags.check)
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


def _write_job(config: LaunchConfig, run: str, flags: LaunchFlags) -> int:
    """Writes the job file for SLURM or Kubernetes, and prints the commands to use it. Returns an exit status."""
    is_slurm = config.engine == "slurm"
    if flags.submit and not is_slurm:
        raise OptionError("--submit: only for engine slurm. Apply the file of engine kubernetes with kubectl.")
    flags.refuse(config.engine, "check", "verify", "copy")
    text = job_script(config, run) if is_slurm else job_text(config)
    if flags.dry_run:
        print(text, end="")
        return 0
    path = Path(run, "job.sbatch" if is_slurm else "job.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if flags.submit:
        return _submit(path)
    for line in [f"sbatch {path}"] if is_slurm else _steps(config, path):
        print(line)
    return 0


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
