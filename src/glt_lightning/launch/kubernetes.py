"""The JobSet of a launched job for Kubernetes. Pure functions of the configuration."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from glt_lightning.base import OptionError
from glt_lightning.launch.batch import LaunchKubernetes, filled, shell_json, shell_lines
from glt_lightning.launch.files import FileCopy, files_for_all
from glt_lightning.launch.hosts import LaunchServer, Machine
from glt_lightning.launch.options import PARTITION, LaunchConfig
from glt_lightning.launch.plan import (
    CERTIFICATES,
    DGL_PARTITION,
    VARIABLE,
    array_size,
    folder_of,
    partition_command,
    script_job,
    security_files,
    security_of,
    server_process,
    slots_of,
    target_of,
    trainer_process,
)

_GRAPH, _TRAINER, _ARRAY = "graph", "trainer", "array"
_DIR = "/glt-run"
_MOST_BYTES = 1_000_000  # of a ConfigMap
_LONGEST_KEY = 253  # characters; two dots do not begin a key
_PROBE_S = 15  # between two probes, each of which starts an interpreter
_LONGEST_POD = 57  # characters: with five more at random and '-', which every pod gets, a label of DNS
# Placeholders in words of a command for values that only a pod knows. No argument of a user contains such characters.
_INDEX, _HOST = "\1index\1", "\1host\1"
_POD = {_INDEX: "JOB_COMPLETION_INDEX", _HOST: "host"}


def on_pods(config: LaunchConfig) -> LaunchConfig:
    """Replaces the hosts of a job by the pods that a JobSet makes, under their names. Raises `OptionError`."""
    group = config.kubernetes
    assert group is not None
    devices = config.defaults.devices if config.command == PARTITION else 1
    many = group.nodes * (devices if isinstance(devices, int) else len(devices))
    last = [_pod(config.name, role, count - 1) for role, count in ((_TRAINER, many), (_GRAPH, group.servers))]
    longest = max(last, key=len)
    if not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", config.name) or len(longest) > _LONGEST_POD:
        raise OptionError(
            f"name: Kubernetes needs small letters, digits and '-', and names of pods such as {longest} of at most "
            f"{_LONGEST_POD} characters; got {config.name!r}."
        )
    if config.restarts.job and config.command != PARTITION and not keeps_results(config):
        raise OptionError(
            f"restarts.job: {config.restarts.job} starts again need the checkpoints of those before, and no volume has the "
            "folder of the run. Set kubernetes.volumes, and defaults.dir below one of them."
        )
    hosts = [f"{_pod(config.name, _TRAINER, n)}.{config.name}" for n in range(group.nodes)]
    servers = [f"{_pod(config.name, _GRAPH, n)}.{config.name}" for n in range(group.servers)]
    return config.on(hosts, [LaunchServer(host=host, port=group.server_port) for host in servers])


def job_text(config: LaunchConfig) -> str:
    """Writes the input of ``kubectl apply``: a ConfigMap with the files, and the JobSet. Raises `OptionError`."""
    group, job = config.kubernetes, on_pods(config)
    assert group is not None
    folder, files = _folder(job), _by_key(files_for_all(job))
    values = {
        "job": job,
        "group": group,
        "roles": [_role(role, job, group) for role in _roles(job)],
        "texts": _texts(files),
        "files": {key: str(PurePosixPath(folder, each.target)) for key, each in files.items()},
        "folder": folder,
        "scratch": _scratch(job, group),
        "secret": _secret(job) if needs_secret(job) else None,
        "certificates": str(PurePosixPath(folder, CERTIFICATES)),
        "probe_s": _PROBE_S,
        "start_probes": max(1, math.ceil(job.limits.start_s / _PROBE_S)),
    }
    return filled("kubernetes.yaml.j2", values)


def secret_command(config: LaunchConfig) -> list[str]:
    """The command that makes the Secret with the certificates of the pods. Raises `OptionError`."""
    group, folder = config.kubernetes, config.security.dir
    assert group is not None
    assert folder is not None
    names = sorted({name for machine in on_pods(config).machines for name in security_files(machine).values()})
    space = [] if group.namespace is None else ["--namespace", group.namespace]
    files = [f"--from-file={PurePosixPath(folder, name)}" for name in names]
    return ["kubectl", "create", "secret", "generic", _secret(config), *space, *files]


def needs_secret(config: LaunchConfig) -> bool:
    """Tells whether the pods of a job speak with each other, and so need certificates."""
    return config.security.dir is not None and config.command != PARTITION


def _roles(job: LaunchConfig) -> Sequence[str]:
    if job.command == PARTITION:
        return (_ARRAY,)
    return (_GRAPH, _TRAINER) if job.servers else (_TRAINER,)


def _pod(name: str, role: str, index: int) -> str:
    return f"{name}-{role}-0-{index}"


def _secret(config: LaunchConfig) -> str:
    return f"{config.name}-certs"


def _texts(files: Mapping[str, FileCopy]) -> dict[str, str]:
    """The contents of the files, by their keys in the ConfigMap."""
    found, total = {}, 0
    for key, each in files.items():
        try:
            text = each.source.read_text()
        except UnicodeDecodeError:
            raise OptionError(
                f"files: {each.source} is not text, which a ConfigMap holds. Build it into the image."
            ) from None
        total += len(text.encode())
        found[key] = text
    if total > _MOST_BYTES:
        raise OptionError(
            f"files: {total:,} bytes in all, and a ConfigMap holds {_MOST_BYTES:,}. Build them into the image."
        )
    return found


def _by_key(files: Sequence[FileCopy]) -> dict[str, FileCopy]:
    """Maps keys in the ConfigMap to files. A key cannot contain a slash; paths that would get the same key are numbered."""
    found: dict[str, FileCopy] = {}
    for each in files:
        wanted = key = re.sub(r"[^-._a-zA-Z0-9]", "_", each.target)
        number = 1
        while key in found or key.startswith("..") or len(key) > _LONGEST_KEY:
            number += 1
            key = f"{number}-{wanted[-_LONGEST_KEY // 2 :]}"
        found[key] = each
    return found


@dataclass(frozen=True)
class _Role:
    """Values for the template of the pods that serve the graph, of those that train, or of those that partition.

    pull, command, probe: shell commands, or None.  certificates: pairs (key in the Secret, path in its volume).
    """

    name: str
    count: int
    command: str
    pull: str | None
    probe: str | None
    certificates: Sequence[tuple[str, str]]


def _role(role: str, job: LaunchConfig, group: LaunchKubernetes) -> _Role:
    if role == _ARRAY:
        return _Role(role, array_size(job), _partitions(job, group), None, None, [])
    count = group.servers if role == _GRAPH else group.nodes
    command, probe = (_server(job, group)) if role == _GRAPH else (_trains(job), None)
    return _Role(role, count, command, _pull(role, job), probe, _per_pod(role, job) if job.security.dir else [])


def _per_pod(role: str, job: LaunchConfig) -> list[tuple[str, str]]:
    """Pairs (key in the Secret, path in its volume) of a role. Each pod has a folder, of which it mounts only its own, so that
    it does not see the keys of others."""
    machines = job.graph_servers if role == _GRAPH else job.trainers
    named = ((index, name) for index, machine in enumerate(machines) for name in security_files(machine).values())
    return [(name, f"{index}/{name}") for index, name in named]


def _folder(job: LaunchConfig) -> str:
    """The working folder of the processes in their containers. Raises `OptionError` for a relative path."""
    given = job.defaults.dir
    if given == type(job.defaults)().dir:
        return _DIR
    if not given.startswith("/"):
        raise OptionError(f"defaults.dir: a container needs an absolute path, got {given!r}.")
    return given


def _scratch(job: LaunchConfig, group: LaunchKubernetes) -> list[tuple[str, str]]:
    """Pairs of name and path of the folders that are lost when their pod ends, since no claim covers them."""
    found = []
    if not _in_claim(_folder(job), group):
        found.append(("run", _folder(job)))
    if job.partition.dir is not None and not _in_claim(job.partition.dir, group):
        if job.partition.source is None:
            raise OptionError(
                f"partition.dir: {job.partition.dir} is on no volume. Give kubernetes.volumes: {{CLAIM: PATH}} that has it, or "
                "partition: {from: SOURCE} to copy it into each pod."
            )
        found.append(("partition", str(PurePosixPath(job.partition.dir).parent)))
    return found


def keeps_results(config: LaunchConfig) -> bool:
    """Tells whether the files that a job writes outlive its pods."""
    assert config.kubernetes is not None
    return _in_claim(_folder(config), config.kubernetes)


def _in_claim(path: str, group: LaunchKubernetes) -> bool:
    return any(PurePosixPath(path).is_relative_to(mounted) for mounted in group.volumes.values())


def _machine(job: LaunchConfig, role: str) -> Machine:
    return job.graph_servers[0] if role == _GRAPH else job.trainers[0]


def _shell(role: str, job: LaunchConfig, words: Sequence[str], more: str = "") -> str:
    """Writes the command of every pod of a role, from the words of the first pod with placeholders for its number and name."""
    return f"{_host(role, job)}\n{more}exec {shell_lines(words, _POD)}"


def _host(role: str, job: LaunchConfig) -> str:
    """Writes a line of shell that sets the variable ``host`` to a pod's own name."""
    return f'host="{_pod(job.name, role, 0).removesuffix("0")}$JOB_COMPLETION_INDEX.{job.name}"'


def _as_any(words: Sequence[str], job: LaunchConfig, role: str) -> list[str]:
    """Replaces the first pod's number and name in its command by placeholders. Names of other pods, and that of the first one
    as master, stay."""
    own = {"--server.rank", "--node_rank", "--cluster.host", "--cluster.security.cert", "--cluster.security.key"}
    first = _machine(job, role)
    found = list(words)
    for at, name in enumerate(words[:-1]):
        if name in own:
            found[at + 1] = _INDEX if words[at + 1] == str(first.number) else _of_host(words[at + 1], first)
    return found


def _of_host(value: Any, first: Machine) -> Any:
    """Replaces the first pod's name in a value, which is the name itself or the path of a file named after it."""
    return value.replace(first.address, _HOST) if isinstance(value, str) else value


def _server(job: LaunchConfig, group: LaunchKubernetes) -> tuple[str, str]:
    """Returns the command of a graph server, and that of its health probe."""
    words = _as_any(server_process(job, job.graph_servers[0]).argv, job, _GRAPH)
    probe = [job.defaults.python, "-m", "glt_lightning", "serve", "--health", f"{_HOST}:{group.server_port}"]
    probe += ["--config", target_of(job.run_config), *words[words.index("--cluster.servers") + 2 :]]
    return _shell(_GRAPH, job, words), _shell(_GRAPH, job, probe)


def _partitions(job: LaunchConfig, group: LaunchKubernetes) -> str:
    """Writes the command of the pods that partition. Raises `OptionError` unless they share the folder of the partition."""
    folder = folder_of(job)
    if folder is None or not _in_claim(str(PurePosixPath(_folder(job), folder)), group):
        raise OptionError(
            f"partition.dir: {folder}: the pods of the array make the partition together, so its folder has to be on a volume. "
            "Give kubernetes.volumes: {CLAIM: PATH}, and partition: {dir: FOLDER} below that path."
        )
    words = [*partition_command(job, target_of(job.run_config)), "--data.partition.processes", str(array_size(job))]
    return f"exec {shell_lines(words, {})}"


def _trains(job: LaunchConfig) -> str:
    args = [word.replace("{node_rank}", _INDEX).replace("{host}", _HOST) for word in job.args]
    process = trainer_process(replace(job, args=args), job.trainers[0], f"runs/{job.name}")
    words, more = _as_any(process.argv, job, _TRAINER), _for_script(job)
    if job.restarts.job and job.command == "fit":
        more = 'resume=\nif [ "$RESTART" != 0 ]; then resume="--ckpt_path last"; fi\n'
    return _shell(_TRAINER, job, words, more) + (" $resume" if more else "")


def _for_script(job: LaunchConfig) -> str:
    """Writes shell lines that set the variables by which a script learns about its job."""
    if not job.is_script:
        return ""
    first = job.trainers[0]
    security = {name: _of_host(value, first) for name, value in security_of(job, first).items()}
    launched, folder = script_job([each.address for each in job.trainers], _HOST, security), folder_of(job)
    lines = [f"export {VARIABLE}={shell_json(launched, _POD)}"]
    lines += [] if folder is None else [f"export {DGL_PARTITION}={shlex.quote(folder)}"]
    return "".join(f"{line}\n" for line in lines)


def _pull(role: str, job: LaunchConfig) -> str | None:
    """Writes the command that copies to a pod the parts that it needs and lacks; None if the job copies none."""
    first = _machine(job, role)
    slots, count = slots_of(job, first)
    if job.partition.source is None or not slots:
        return None
    if len(slots) > 1:
        raise OptionError(
            "partition: from: with cluster.placement rank a pod does not know which parts its ranks need. Set cluster.placement: "
            "host, or mount a volume with the partition."
        )
    given = {"source": job.partition.source, "folder": job.partition.dir, "slots": [_INDEX], "of": count}
    text = shell_json(given, _POD, whole=[_INDEX])
    return f"printf %s {text} |\n  {shlex.quote(job.defaults.python)} -m glt_lightning.launch.on_host copy"
