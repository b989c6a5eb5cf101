"""The job script of a launched job for SLURM, or of a job array that partitions. Pure functions of the configuration."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from glt_lightning.base import OptionError
from glt_lightning.launch.batch import LaunchSlurm, filled, shell_json, shell_lines
from glt_lightning.launch.hosts import LaunchServer
from glt_lightning.launch.options import PARTITION, LaunchConfig
from glt_lightning.launch.plan import (
    CERTIFICATES,
    DGL_PARTITION,
    UNBUFFERED,
    VARIABLE,
    array_size,
    command_of,
    folder_of,
    partition_command,
    script_job,
    security_of,
    server_process,
)

_LEAST_NOTICE_S = 90  # between SIGTERM and the time limit; SLURM may be late by a minute

# Placeholders in words of a command for values that only the script knows. No argument of a user contains such characters.
_NODE, _CERTS, _RANK, _ADDRESS = "\1node{}\1", "\1certs\1", "\1rank\1", "\1address\1"
_NODE_RANK, _MASTER, _HOSTS = "\1number\1", "\1master\1", "\1hosts\1"


def job_script(config: LaunchConfig, run: str) -> str:
    """Writes the script for sbatch. run: folder of the run, below the folder in which the job is submitted.

    Raises `OptionError` for options that a job of SLURM does not support.
    """
    slurm = config.slurm
    assert slurm is not None
    _check(config)
    nodes = [_NODE.format(number) for number in range(slurm.nodes)]
    job = config.on(nodes, [LaunchServer(host=node, port=slurm.server_port) for node in nodes[: slurm.servers]])
    if job.command == PARTITION:
        return _array_script(job, slurm, run)
    tasks = 1 if job.ranks == "script" else job.devices
    slurm.check(tasks)
    train = _trainer(job)
    with_master = job.is_script or "$MASTER_ADDR" in train
    values = {
        "job": job,
        "slurm": slurm,
        "run": run,
        "options": _options(config, slurm, run, tasks),
        "env": {**UNBUFFERED, **job.defaults.env},
        "with_nodes": with_master or job.security.dir is not None or bool(job.servers),
        "with_master": with_master,
        "start_s": math.ceil(job.limits.start_s),
        "launched": _for_script(job) if job.is_script else {},
        "train": train,
    }
    return filled("slurm.sh.j2", values | (_servers(job) if job.servers else {}))


def _check(config: LaunchConfig) -> None:
    if config.defaults.dir != type(config.defaults)().dir:
        raise OptionError(
            f"defaults.dir: a job of SLURM runs in the folder in which it is submitted; got {config.defaults.dir}. Drop the "
            "option."
        )
    if config.partition.source is not None:
        raise OptionError(
            f"partition: a job of SLURM does not copy {config.partition.source}. Copy it to storage of the cluster by "
            "`glt-lightning pull`, and set partition: {dir: FOLDER}."
        )


def _array_script(job: LaunchConfig, slurm: LaunchSlurm, run: str) -> str:
    """Writes the script of a job array whose elements partition together."""
    slurm.check_array()
    options = [f"--job-name={job.name}", f"--array=0-{array_size(job) - 1}", "--nodes=1", "--ntasks=1"]
    options += _common(slurm)
    # An element that SLURM starts again goes on; another one does the calls that it had.
    options += [f"--output={run}/%A-%a.log", "--requeue", "--open-mode=append", *slurm.options]
    command = shell_lines(partition_command(job, job.run_config), {})
    return filled(
        "slurm-array.sh.j2", {"options": options, "env": {**UNBUFFERED, **job.defaults.env}, "partition": command}
    )


def _options(config: LaunchConfig, slurm: LaunchSlurm, run: str, tasks: int) -> list[str]:
    notice = max(_LEAST_NOTICE_S, math.ceil(config.limits.stop_s))
    options = [f"--job-name={config.name}", f"--nodes={slurm.nodes}", f"--ntasks-per-node={tasks}"]
    options += [f"--gpus-per-node={config.defaults.devices}"] if slurm.gpus else []
    options += _common(slurm)
    options += [f"--output={run}/%j.log", f"--signal=B:TERM@{notice}"]
    options += ["--requeue", "--open-mode=append"] if config.restarts.job else ["--no-requeue"]
    return [*options, *slurm.options]


def _common(slurm: LaunchSlurm) -> list[str]:
    given = [("cpus-per-task", slurm.cpus_per_task), ("time", slurm.time), ("partition", slurm.partition)]
    return [f"--{name}={value}" for name, value in [*given, ("account", slurm.account)] if value is not None]


def _servers(job: LaunchConfig) -> dict[str, str]:
    """Commands of graph servers by name: ``serve``, and ``health``, which waits until one is healthy."""
    machine = job.graph_servers[0]
    words = _as_in_script(job, server_process(job, machine).argv)
    at = words.index("--server.rank") + 1
    words[at] = _RANK
    probe = [machine.python, "-m", "glt_lightning", "serve", "--health", _ADDRESS]
    probe += [*words[words.index("--config") : at - 1], *words[words.index("--cluster.servers") + 2 :]]
    variables = {**_variables(job), _RANK: "1", _ADDRESS: "1"}
    return {"serve": shell_lines(words, variables), "health": shell_lines(probe, variables)}


def _trainer(job: LaunchConfig) -> str:
    args = [word.replace("{node_rank}", _NODE_RANK).replace("{master_addr}", _MASTER) for word in job.args]
    marked = replace(job, args=args)
    words = [job.defaults.python, *([] if job.is_script else ["-m"]), *command_of(marked, marked.trainers[0])]
    return shell_lines(_as_in_script(job, words), _variables(job))


def _for_script(job: LaunchConfig) -> dict[str, str]:
    """Environment variables by which a script learns about its job, quoted for the shell."""
    machine, folder = job.trainers[0], folder_of(job)
    given = security_of(job, machine)
    if job.security.dir is not None:
        given = {name: _certificate(path) for name, path in given.items()}
    launched = {**script_job([], machine.address, given), "hosts": _HOSTS}
    found = {VARIABLE: shell_json(launched, _variables(job), whole=[_HOSTS])}
    return found if folder is None else found | {DGL_PARTITION: shlex.quote(folder)}


def _certificate(path: str) -> str:
    """The path in the job's folder of certificates of a file that other engines copy to ``path``."""
    parts = PurePosixPath(path).parts
    return str(PurePosixPath(_CERTS, *parts[parts.index(CERTIFICATES) + 1 :]))


def _as_in_script(job: LaunchConfig, words: Sequence[str]) -> list[str]:
    """Adapts a command to the folder in which the job is submitted: the configuration is not copied there, and the script makes
    the certificates."""
    found = list(words)
    for at, name in enumerate(words[:-1]):
        if name == "--config":
            found[at + 1] = str(job.run_config)
        elif name.startswith("--cluster.security.") and job.security.dir is not None:
            found[at + 1] = _certificate(words[at + 1])
    return found


def _variables(job: LaunchConfig) -> dict[str, str]:
    """Maps placeholders in words to variables of the script."""
    listed = {json.dumps([each.endpoint for each in job.graph_servers]): "servers"} if job.servers else {}
    nodes = {_NODE.format(number): "SLURMD_NODENAME" for number in range(len(job.hosts))}
    return {**listed, **nodes, _CERTS: "certs", _NODE_RANK: "SLURM_NODEID", _MASTER: "MASTER_ADDR", _HOSTS: "hosts"}
