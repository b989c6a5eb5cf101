"""The JobSet of a launched job for Kubernetes. Pure functions of the configuration."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import yaml  # type: ignore[import-untyped]

from glt_lightning.errors import OptionError
from glt_lightning.launch.batch import LaunchKubernetes
from glt_lightning.launch.environment import DGL_PARTITION, VARIABLE, script_job
from glt_lightning.launch.files import FileCopy, files_for_all
from glt_lightning.launch.hosts import LaunchServer
from glt_lightning.launch.machine import Machine
from glt_lightning.launch.options import LaunchConfig
from glt_lightning.launch.plan import (
    CERTIFICATES,
    folder_of,
    security_files,
    security_of,
    server_process,
    slots_of,
    target_of,
    trainer_process,
)
from glt_lightning.launch.shell import shell_json, shell_lines

_GRAPH, _TRAINER = "graph", "trainer"
_DIR = "/glt-run"
_MOST_BYTES = 1_000_000  # of a ConfigMap
_LONGEST_KEY = 253  # characters; two dots do not begin a key
_PROBE_S, _PROBE_LIMIT_S = 15, 30  # a probe starts an interpreter
_LONGEST_POD = 57  # characters: with five more at random and '-', which every pod gets, a label of DNS
_RESTART = "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"
# What stands in words of a command for what only a pod knows. No argument of a user contains such characters.
_INDEX, _HOST = "\1index\1", "\1host\1"
_POD = {_INDEX: "JOB_COMPLETION_INDEX", _HOST: "host"}


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes texts of several lines as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _block)


def on_pods(config: LaunchConfig) -> LaunchConfig:
    """The job on the pods that a JobSet makes, by their names. Raises `OptionError`."""
    group = config.kubernetes
    assert group is not None
    last = [_pod(config.name, role, count - 1) for role, count in ((_TRAINER, group.nodes), (_GRAPH, group.servers))]
    longest = max(last, key=len)
    if not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", config.name) or len(longest) > _LONGEST_POD:
        raise OptionError(
            f"name: Kubernetes needs small letters, digits and '-', and names of pods such as {longest} of at most "
            f"{_LONGEST_POD} characters; got {config.name!r}."
        )
    if config.restarts.job and not keeps_results(config):
        raise OptionError(
            f"restarts.job: {config.restarts.job} starts again need the checkpoints of those before, and no volume has the "
            "folder of the run. Set kubernetes.volumes, and defaults.dir below one of them."
        )
    hosts = [f"{_pod(config.name, _TRAINER, n)}.{config.name}" for n in range(group.nodes)]
    servers = [f"{_pod(config.name, _GRAPH, n)}.{config.name}" for n in range(group.servers)]
    return config.on(hosts, [LaunchServer(host=host, port=group.server_port) for host in servers])


def job_objects(config: LaunchConfig) -> list[dict[str, Any]]:
    """What ``kubectl apply`` is given: a ConfigMap with the files, and the JobSet. Raises `OptionError`."""
    group, job = config.kubernetes, on_pods(config)
    assert group is not None
    space = {} if group.namespace is None else {"namespace": group.namespace}
    files = files_for_all(job)
    jobs = [_replicated(_GRAPH, job, group, files)] if job.servers else []
    jobs.append(_replicated(_TRAINER, job, group, files))
    if job.servers:
        jobs[1]["dependsOn"] = [{"name": _GRAPH, "status": "Ready"}]
    job_set = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": job.name, **space},
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": job.name},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [_TRAINER]},
            "failurePolicy": {"maxRestarts": job.restarts.job},
            "replicatedJobs": jobs,
        },
    }
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{job.name}-files", **space},
        "data": _contents(files),
    }
    return [config_map, job_set]


def job_text(config: LaunchConfig) -> str:
    """The objects as YAML. Raises `OptionError`."""
    return str(yaml.dump_all(job_objects(config), Dumper=_Dumper, sort_keys=False, width=1000))


def secret_command(config: LaunchConfig) -> list[str]:
    """The command that gives the pods their certificates. Raises `OptionError`."""
    group, folder = config.kubernetes, config.security.dir
    assert group is not None
    assert folder is not None
    names = sorted({name for machine in on_pods(config).machines for name in security_files(machine).values()})
    space = [] if group.namespace is None else ["--namespace", group.namespace]
    files = [f"--from-file={PurePosixPath(folder, name)}" for name in names]
    return ["kubectl", "create", "secret", "generic", _secret(config), *space, *files]


def _pod(name: str, role: str, index: int) -> str:
    return f"{name}-{role}-0-{index}"


def _secret(config: LaunchConfig) -> str:
    return f"{config.name}-certs"


def _contents(files: Sequence[FileCopy]) -> dict[str, str]:
    found, total = {}, 0
    for key, each in _by_key(files).items():
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
    """Each file by its key in the ConfigMap, which cannot be a path: two paths may look alike there, and get numbers."""
    found: dict[str, FileCopy] = {}
    for each in files:
        wanted = key = re.sub(r"[^-._a-zA-Z0-9]", "_", each.target)
        number = 1
        while key in found or key.startswith("..") or len(key) > _LONGEST_KEY:
            number += 1
            key = f"{number}-{wanted[-_LONGEST_KEY // 2 :]}"
        found[key] = each
    return found


def _replicated(role: str, job: LaunchConfig, group: LaunchKubernetes, files: Sequence[FileCopy]) -> dict[str, Any]:
    count = group.servers if role == _GRAPH else group.nodes
    pods = {
        "parallelism": count,
        "completions": count,
        "completionMode": "Indexed",
        "backoffLimit": job.restarts.servers * count if role == _GRAPH else 0,
        "template": {"spec": _pod_spec(role, job, group, files)},
    }
    return {"name": role, "replicas": 1, "template": {"spec": pods}}


def _pod_spec(role: str, job: LaunchConfig, group: LaunchKubernetes, files: Sequence[FileCopy]) -> dict[str, Any]:
    folder = _folder(job)
    mounts: list[dict[str, Any]] = [{"name": claim, "mountPath": path} for claim, path in group.volumes.items()]
    volumes: list[dict[str, Any]] = [
        {"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in group.volumes
    ]
    for name, path in _scratch(job, group):
        mounts.append({"name": name, "mountPath": path})
        volumes.append({"name": name, "emptyDir": {}})
    for key, each in _by_key(files).items():
        mounts.append({"name": "files", "mountPath": str(PurePosixPath(folder, each.target)), "subPath": key})
    volumes.append({"name": "files", "configMap": {"name": f"{job.name}-files"}})
    if job.security.dir is not None:
        own = {"mountPath": str(PurePosixPath(folder, CERTIFICATES)), "subPathExpr": f"$({_POD[_INDEX]})"}
        mounts.append({"name": "certs", **own, "readOnly": True})
        volumes.append({"name": "certs", "secret": {"secretName": _secret(job), "items": _per_pod(role, job)}})
    if role == _TRAINER:  # NCCL's and gloo's shared memory; the default is 64 MB
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    base = {"image": group.image, "workingDir": folder, "volumeMounts": mounts}
    env = [{"name": name, "value": value} for name, value in job.defaults.env.items()]
    spec: dict[str, Any] = {"restartPolicy": "OnFailure" if role == _GRAPH else "Never"}
    if (pull := _pull(role, job)) is not None:
        spec["initContainers"] = [{"name": "pull", **base, "command": ["bash", "-c", pull], "env": env}]
    container = _server(job, group) if role == _GRAPH else _trains(job, group)
    container["env"] = [*container.get("env", []), {"name": "PYTHONUNBUFFERED", "value": "1"}, *env]
    spec["containers"] = [{"name": "serve" if role == _GRAPH else "train", **base, **container}]
    spec["volumes"] = volumes
    return spec


def _per_pod(role: str, job: LaunchConfig) -> list[dict[str, str]]:
    """What of the Secret lies in which folder of its volume: a folder for each pod of a role, of which the pod mounts its own."""
    machines = job.graph_servers if role == _GRAPH else job.trainers
    named = ((index, name) for index, machine in enumerate(machines) for name in security_files(machine).values())
    return [{"key": name, "path": f"{index}/{name}"} for index, name in named]


def _folder(job: LaunchConfig) -> str:
    """Where the processes run."""
    given = job.defaults.dir
    if given == type(job.defaults)().dir:
        return _DIR
    if not given.startswith("/"):
        raise OptionError(f"defaults.dir: a container needs an absolute path, got {given!r}.")
    return given


def _scratch(job: LaunchConfig, group: LaunchKubernetes) -> list[tuple[str, str]]:
    """Folders that end with their pod, since no claim has them."""
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
    """Whether what the job writes is still there when its pods have ended."""
    assert config.kubernetes is not None
    return _in_claim(_folder(config), config.kubernetes)


def _in_claim(path: str, group: LaunchKubernetes) -> bool:
    return any(PurePosixPath(path).is_relative_to(mounted) for mounted in group.volumes.values())


def _machine(job: LaunchConfig, role: str) -> Machine:
    return job.graph_servers[0] if role == _GRAPH else job.trainers[0]


def _shell(role: str, job: LaunchConfig, words: Sequence[str], more: str = "") -> str:
    """A command that every pod of a role runs. The first pod's words differ from another's in its number and name alone."""
    return f"{_host(role, job)}\n{more}exec {shell_lines(words, _POD)}"


def _host(role: str, job: LaunchConfig) -> str:
    """Sets the variable of a pod's own name."""
    return f'host="{_pod(job.name, role, 0).removesuffix("0")}$JOB_COMPLETION_INDEX.{job.name}"'


def _as_any(words: Sequence[str], job: LaunchConfig, role: str) -> list[str]:
    """Words of the first pod's command, with marks for its number and name. Other pods, and the first as master, stay."""
    own = {"--server.rank", "--node_rank", "--cluster.host", "--cluster.security.cert", "--cluster.security.key"}
    first = _machine(job, role)
    found = list(words)
    for at, name in enumerate(words[:-1]):
        if name in own:
            found[at + 1] = _INDEX if words[at + 1] == str(first.number) else _of_host(words[at + 1], first)
    return found


def _of_host(value: Any, first: Machine) -> Any:
    """A name, or the path of a file called after it."""
    return value.replace(first.address, _HOST) if isinstance(value, str) else value


def _server(job: LaunchConfig, group: LaunchKubernetes) -> dict[str, Any]:
    words = _as_any(server_process(job, job.graph_servers[0]).argv, job, _GRAPH)
    probe = [job.defaults.python, "-m", "glt_lightning", "serve", "--health", f"{_HOST}:{group.server_port}"]
    probe += ["--config", target_of(job.run_config), *words[words.index("--cluster.servers") + 2 :]]
    check = {
        "exec": {"command": ["bash", "-c", _shell(_GRAPH, job, probe)]},
        "periodSeconds": _PROBE_S,
        "timeoutSeconds": _PROBE_LIMIT_S,
    }
    return {
        "command": ["bash", "-c", _shell(_GRAPH, job, words)],
        "ports": [{"containerPort": group.server_port}],
        "startupProbe": {**check, "failureThreshold": max(1, math.ceil(job.limits.start_s / _PROBE_S))},
        "readinessProbe": check,
        "livenessProbe": {**check, "failureThreshold": 3},
        **_resources(group.server_resources, 0),
    }


def _trains(job: LaunchConfig, group: LaunchKubernetes) -> dict[str, Any]:
    args = [word.replace("{node_rank}", _INDEX).replace("{host}", _HOST) for word in job.args]
    process = trainer_process(replace(job, args=args), job.trainers[0], f"runs/{job.name}")
    words, more, env = _as_any(process.argv, job, _TRAINER), _for_script(job), []
    if job.restarts.job and job.command == "fit":
        more = 'resume=\nif [ "$RESTART" != 0 ]; then resume="--ckpt_path last"; fi\n'
        env.append({"name": "RESTART", "valueFrom": {"fieldRef": {"fieldPath": _RESTART}}})
    text = _shell(_TRAINER, job, words, more) + (" $resume" if more else "")
    gpus = job.devices if group.gpus else 0
    return {"command": ["bash", "-c", text], "env": env, **_resources(group.trainer_resources, gpus)}


def _for_script(job: LaunchConfig) -> str:
    """Sets what ``launch`` tells a script."""
    if not job.is_script:
        return ""
    first = job.trainers[0]
    security = {name: _of_host(value, first) for name, value in security_of(job, first).items()}
    launched, folder = script_job([each.address for each in job.trainers], _HOST, security), folder_of(job)
    lines = [f"export {VARIABLE}={shell_json(launched, _POD)}"]
    lines += [] if folder is None else [f"export {DGL_PARTITION}={shlex.quote(folder)}"]
    return "".join(f"{line}\n" for line in lines)


def _resources(asked: Mapping[str, int | float | str], gpus: int) -> dict[str, Any]:
    limits = {"limits": {"nvidia.com/gpu": gpus}} if gpus else {}
    found = {**({"requests": dict(asked)} if asked else {}), **limits}
    return {"resources": found} if found else {}


def _pull(role: str, job: LaunchConfig) -> str | None:
    """Copies to a pod the parts that it needs, unless it has them."""
    first = _machine(job, role)
    slots, count = slots_of(job, first)
    if job.partition.source is None or not slots:
        return None
    if len(slots) > 1:
        raise OptionError(
            "partition: from: with cluster.placement rank a pod does not know which parts its ranks need. Set cluster.placement: "
            "host, or mount a volume with the partition."
        )
    given = {
        "source": job.partition.source,
        "folder": job.partition.dir,
        "slots": [_INDEX],
        "of": count,
        "security": {name: _of_host(value, first) for name, value in security_of(job, first).items()},
    }
    text = shell_json(given, _POD, whole=[_INDEX])
    return f"{_host(role, job)}\nprintf %s {text} |\n  {shlex.quote(job.defaults.python)} -m glt_lightning.launch.copy"
