"""The processes of each host of a launched job, and the variables by which a user's script learns about it. Pure functions of
the configuration."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from glt_lightning import base
from glt_lightning.base import ClusterOptions, OptionError, as_options
from glt_lightning.launch.hosts import Machine
from glt_lightning.launch.options import LaunchConfig
from glt_lightning.workers import CertificateFolder

VARIABLE = "GLT_LAUNCH"
DGL_PARTITION = "DGL_CONF_PATH"  # of DGL's launcher: the partition
FAILURE_VARIABLE = "GLT_LAUNCH_FAILURE"
CERTIFICATES = "certs"  # the folder on each host
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True)
class Process:
    """A process of the job.

    name: unique among the processes of its host.  argv: its command.  env: variables added to the environment.
    failure: file, below its folder, in which `rank_group` writes which rank failed first.
    """

    name: str
    argv: list[str]
    env: Mapping[str, str] = field(default_factory=dict)
    failure: str | None = None


def question_to(machine: Machine, name: str) -> Process:
    """The process that answers one of the questions of `launch.on_host` on a host."""
    return Process(name, [machine.python, "-m", "glt_lightning.launch.on_host", name], machine.env)


def server_process(config: LaunchConfig, machine: Machine) -> Process:
    """The process of a graph server."""
    argv = [machine.python, "-m", "glt_lightning", "serve", "--config", target_of(config.run_config)]
    argv += ["--server.rank", str(machine.number), *_partition(config), *_servers(config), *_security(config, machine)]
    return Process(f"server{machine.number}", argv, {**UNBUFFERED, **machine.env})


def trainer_process(config: LaunchConfig, machine: Machine, run: str, resume: bool = False) -> Process:
    """The process that trains on a host: torchrun with its ranks, or a script. run: folder of the run on the host."""
    words = command_of(config, machine, resume)
    env = {**UNBUFFERED, **_script_variables(config, machine), **machine.env}
    if machine.gpus is not None:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, machine.gpus))
    if config.ranks == "script":
        return Process("trainer", [machine.python, *words], env)
    argv = [machine.python, "-m", "glt_lightning.launch.rank_group"]
    argv += ["--nnodes", str(len(config.hosts)), "--node_rank", str(machine.number)]
    argv += ["--nproc_per_node", str(config.devices), "--master_addr", config.trainers[0].address]
    argv += ["--master_port", str(config.master_port), "--tee", "3", "--log_dir", f"{run}/ranks"]
    failure = f"{run}/failure-{machine.number}.json"  # hosts may share the folder
    env[FAILURE_VARIABLE] = failure
    return Process("trainer", [*argv, *([] if config.is_script else ["-m"]), *words], env, failure)


def array_size(config: LaunchConfig) -> int:
    """The number of processes of the job array that partitions: as many as would train."""
    return config.world_size


def partition_command(config: LaunchConfig, path: str | None) -> list[str]:
    """The command of each process of the job array that partitions. path: of the run's configuration."""
    words = [config.defaults.python, "-m", "glt_lightning", "partition", "--config", str(path), *_partition(config)]
    return [*words, *config.args, "--data.partition.engine", "array"]


def command_of(config: LaunchConfig, machine: Machine, resume: bool = False) -> list[str]:
    """The command of a rank: ``glt_lightning fit ...``, or the script. Numbers of nodes and devices come last, so that the user's
    arguments do not override them."""
    if config.is_script:
        return [config.command, *_filled(config, machine)]
    words = ["glt_lightning", config.command, "--config", target_of(config.run_config)]
    if (strategy := strategy_of(config)) is not None:
        words += ["--trainer.strategy", strategy]
    words += [*_partition(config), *_servers(config), *_security(config, machine)]
    if len(config.hosts) > 1:
        words += ["--cluster.host", machine.address]
    words += _filled(config, machine)
    words += ["--trainer.num_nodes", str(len(config.hosts)), "--trainer.devices", str(config.devices)]
    return [*words, "--ckpt_path", "last"] if resume and config.command == "fit" else words


def _script_variables(config: LaunchConfig, machine: Machine) -> dict[str, str]:
    if not config.is_script:
        return {}
    hosts = [each.address for each in config.trainers]
    return script_environment(hosts, machine.address, security_of(config, machine), folder_of(config))


def strategy_of(config: LaunchConfig) -> str | None:
    """The strategy to pass as an option; None to leave it to the run's configuration."""
    if config.strategy is not None:
        return config.strategy
    if config.servers:
        return "glt_server_client"
    return None if group_of(config, "trainer").get("strategy") is not None else "glt_worker"


def slots_of(config: LaunchConfig, machine: Machine) -> tuple[list[int], int]:
    """Returns the slots whose parts a host has, and the number of slots. A slot is a server, a host that trains, or a rank."""
    if machine.is_server:
        return [machine.number], len(config.servers)
    if (strategy_of(config) or group_of(config, "trainer").get("strategy")) == "glt_server_client":
        return [], 0
    if group_of(config, "cluster").get("placement") == "rank":
        first = machine.number * config.devices
        return list(range(first, first + config.devices)), config.world_size
    return [machine.number], len(config.hosts)


def folder_of(config: LaunchConfig) -> str | None:
    """The folder of the partition; None if it is not known before the run."""
    found = config.partition.dir or group_of(config, "data", "init_args", "partition").get("dir")
    return None if found is None else str(found)


def group_of(config: LaunchConfig, *names: str) -> Mapping[str, Any]:
    """Reads a group of the run's configuration; empty if it has none. Raises `OptionError` for a file that cannot be read."""
    found = read_yaml(config.run_config) if config.run_config is not None else {}
    for name in names:
        found = found.get(name) or {}
        if not isinstance(found, Mapping):
            return {}
    return found


def read_yaml(path: str) -> Mapping[str, Any]:
    """Reads a file of options. Raises `OptionError` if it cannot be read or contains none."""
    raw = base.read_yaml(path)
    if not isinstance(raw, Mapping):
        raise OptionError(f"config: {path} contains no options.")
    return raw


def target_of(path: str | None) -> str:
    """The path of a copied file below the folder of each host: its relative path here, or its name if it is not below the current
    folder."""
    given = PurePosixPath(path or "")
    return given.name if given.is_absolute() or ".." in given.parts else str(given)


def placeholders(config: LaunchConfig, machine: Machine) -> Mapping[str, str]:
    """Values of the placeholders that arguments may contain in braces."""
    return {
        "node_rank": str(machine.number),
        "num_nodes": str(len(config.hosts)),
        "devices": str(config.devices),
        "master_addr": config.trainers[0].address,
        "master_port": str(config.master_port),
        "host": machine.address,
    }


def _filled(config: LaunchConfig, machine: Machine) -> list[str]:
    filled = []
    for word in config.args:
        for name, value in placeholders(config, machine).items():
            word = word.replace("{" + name + "}", value)
        filled.append(word)
    return filled


def _partition(config: LaunchConfig) -> list[str]:
    return [] if config.partition.dir is None else ["--data.partition.dir", config.partition.dir]


def _servers(config: LaunchConfig) -> list[str]:
    return ["--cluster.servers", json.dumps([each.endpoint for each in config.graph_servers])] if config.servers else []


def security_files(machine: Machine) -> dict[str, str]:
    """Maps options of ``cluster.security`` to files below `CERTIFICATES`. They are named after the host, as hosts may share the
    folder.

    Raises `OptionError` for a host whose files would be those of the authority.
    """
    return CertificateFolder.files_of("servers" if machine.is_server else "hosts", machine.address)


def security_of(config: LaunchConfig, machine: Machine) -> dict[str, Any]:
    """``cluster.security`` of the processes on a host."""
    if config.security.insecure:
        return {"insecure": True}
    if config.security.dir is None:
        return dict(group_of(config, "cluster", "security"))
    return {option: f"{CERTIFICATES}/{name}" for option, name in security_files(machine).items()}


def _security(config: LaunchConfig, machine: Machine) -> list[str]:
    if config.security.insecure:
        return ["--cluster.security.insecure", "true"]
    if config.security.dir is None:
        return []
    given = security_of(config, machine)
    return [word for option, path in given.items() for word in (f"--cluster.security.{option}", path)]


@dataclass(frozen=True)
class LaunchedScript:
    """Information for a script about its job. hosts: addresses of the hosts that train, by node rank.
    cluster: ``host``, the address of this host, and ``security`` of the job."""

    hosts: tuple[str, ...]
    cluster: ClusterOptions


def script_environment(
    hosts: Sequence[str], host: str, security: Mapping[str, Any], folder: str | None
) -> dict[str, str]:
    """The environment variables of a script on a host. folder: folder of the partition."""
    given = {VARIABLE: json.dumps(script_job(hosts, host, security))}
    return given if folder is None else given | {DGL_PARTITION: folder}


def script_job(hosts: Sequence[str], host: str, security: Mapping[str, Any]) -> dict[str, Any]:
    """The value of the variable `VARIABLE`, before it is written as JSON."""
    return {"hosts": list(hosts), "cluster": {"host": host, "security": dict(security)}}


def launched_script() -> LaunchedScript | None:
    """Reads the information that ``launch`` has given to this script; None if it was not started by ``launch``. Raises
    `OptionError` for an invalid value of `VARIABLE`."""
    text = os.environ.get(VARIABLE)
    if text is None:
        return None
    try:
        given = json.loads(text)
        hosts, cluster = tuple(map(str, given["hosts"])), dict(given["cluster"])
    except (ValueError, KeyError, TypeError) as error:
        raise OptionError(f"{VARIABLE}: cannot read {text!r:.100} ({error}); `launch` sets this variable.") from None
    return LaunchedScript(hosts, as_options(ClusterOptions, "cluster", cluster))
