"""A launched job with ``engine: ray``: the ranks are workers of Ray Train, each of which runs the command line of a rank, and
graph servers are actors, each of which opens the server of a command line of ``serve``."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any

from glt_lightning.base import OptionError
from glt_lightning.launch.hosts import LaunchServer
from glt_lightning.launch.options import LaunchConfig
from glt_lightning.launch.plan import command_of, group_of
from glt_lightning.lightning import RayNode, ray_job, ray_module, ray_worker
from glt_lightning.workers import HostedServer

_LOCAL = "local"  # ray.address: a cluster on this host for the time being
_ACCELERATOR = "--trainer.accelerator"
_ENVIRONMENT = '[{"class_path": "ray.train.lightning.RayLightningEnvironment"}]'


def launch_on_ray(
    config: LaunchConfig,
    run_rank: Callable[[list[str]], object],
    open_server: Callable[[list[str]], HostedServer],
    *,
    dry_run: bool,
) -> int:
    """Runs a job to its end, or shows the command of its ranks. Returns an exit status. Raises `OptionError`.

    run_rank: runs these words of a command line, in a worker.  open_server: opens the server of such words, in an actor.
    """
    group = config.ray
    assert group is not None
    words, devices = _words(config), int(config.defaults.devices)  # type: ignore[arg-type]  # a number, as for every cluster
    if dry_run:
        servers = f"{group.servers} graph servers, and " if group.servers else ""
        print(f"{servers}{devices} x {group.nodes} workers of Ray: {shlex.join(['glt-lightning', *words])}")
        return 0
    train, torch = _module("ray.train"), _module("ray.train.torch")
    _connect(group.address, devices * group.nodes * group.cpus_per_task + group.servers)
    gpus = _asks_for_gpus(config, words, devices * group.nodes)
    resources = {"CPU": group.cpus_per_task} | ({"GPU": 1} if gpus else {})
    given = {
        "run_rank": run_rank,
        "open_server": open_server,
        "words": words,
        "config": Path(str(config.run_config)).read_text(),
        "dir": None if config.defaults.dir == type(config.defaults)().dir else config.defaults.dir,
        "here": os.getcwd() if group.address == _LOCAL else None,
        "env": dict(config.defaults.env),
        "partition": (config.partition.source, config.partition.dir),
        "insecure": config.security.insecure,
        "certified": bool(group_of(config, "cluster", "security")),
    }
    scaling = train.ScalingConfig(
        num_workers=devices * group.nodes,
        use_gpu=gpus,
        resources_per_worker=resources,
        placement_strategy="STRICT_PACK" if group.nodes == 1 else "SPREAD",
    )
    run = train.RunConfig(
        name=config.name,
        storage_path=group.storage,
        failure_config=train.FailureConfig(max_failures=config.restarts.job),
        checkpoint_config=train.CheckpointConfig(num_to_keep=2),
    )
    with ray_job(partial(serve_node, given), group.servers, port=group.server_port) as job:
        loop = given | {"job": job}
        trainer = torch.TorchTrainer(run_worker, train_loop_config=loop, scaling_config=scaling, run_config=run)
        try:
            result = trainer.fit()
        except train.TrainingFailedError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            return 1
    # In one write with its end: a thread of Ray's writes the workers' lines meanwhile.
    sys.stdout.write(f"checkpoint: {None if result.checkpoint is None else result.checkpoint.path}\n")
    sys.stdout.flush()
    return 0


def run_worker(given: Mapping[str, Any]) -> None:
    """Runs the command in a worker, from the last checkpoint that was reported."""
    with ray_worker(given["job"]) as worker, tempfile.TemporaryDirectory(prefix="glt-ray-") as copy:
        command, *words = given["words"]
        words = [command, *_arrive(given, worker, Path(copy, "run.yaml")), *words]
        if words[0] == "fit" and worker.checkpoint is not None:
            words += ["--ckpt_path", worker.checkpoint]
        given["run_rank"](words)


def serve_node(given: Mapping[str, Any], node: RayNode) -> HostedServer:
    """Opens a graph server in an actor."""
    with tempfile.TemporaryDirectory(prefix="glt-ray-") as copy:
        words = ["--server.rank", str(node.number), *_arrive(given, node, Path(copy, "run.yaml"))]
        opened: HostedServer = given["open_server"](words)
    return opened


def _arrive(given: Mapping[str, Any], node: RayNode, path: Path) -> list[str]:
    """Makes a process of a node ready for a command line. Returns the words that this node adds. path: for the configuration."""
    if (folder := given["dir"] or given["here"]) is not None:
        os.makedirs(folder, exist_ok=True)
        os.chdir(folder)  # Ray starts processes in a folder of its own
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    os.environ.update(given["env"])
    path.write_text(given["config"])
    source, partition = given["partition"]
    if source is not None:
        node.pull(source, partition)
    words = ["--config", str(path), *([] if partition is None else ["--data.partition.dir", partition])]
    if node.cluster.servers:
        words += ["--cluster.servers", json.dumps(node.cluster.servers)]
    if node.cluster.host is not None:
        words += ["--cluster.host", node.cluster.host]
    if given["insecure"]:
        words += ["--cluster.security.insecure", "true"]
    elif node.cluster.security.tls and not given["certified"]:  # else the configuration names certificates
        for name in ("ca", "cert", "key"):
            words += [f"--cluster.security.{name}", getattr(node.cluster.security, name)]
    return words


def _words(config: LaunchConfig) -> list[str]:
    """The command of a rank, without the name of the program, and without the words that each node adds."""
    group = config.ray
    assert group is not None
    if config.security.dir is not None or config.files:
        raise OptionError(
            "security.dir, files: with engine ray nothing is copied to the nodes, and each process makes a key of its own. Drop "
            "security.dir, and keep files on storage that all nodes share."
        )
    if config.partition.source is not None and group_of(config, "cluster").get("placement") == "rank":
        raise OptionError(
            "partition: from: with engine ray parts are copied for cluster.placement host. Drop one of them."
        )
    servers = [LaunchServer(host=f"server{number}", port=group.server_port) for number in range(group.servers)]
    job = config.on([f"node{number}" for number in range(group.nodes)], servers)
    words = command_of(job, job.trainers[0])[1:]
    added = ("--config", "--data.partition.dir", "--cluster.servers", "--cluster.host", "--cluster.security.insecure")
    for name in added:  # by each node
        if name in words:
            del words[words.index(name) : words.index(name) + 2]
    if config.command == "fit":
        every = [] if group.every_n_steps is None else ["--trainer.callbacks.every_n_steps", str(group.every_n_steps)]
        words += ["--trainer.callbacks+", "glt_lightning.lightning.ReportToRay", *every]
    return [*words, "--trainer.plugins", _ENVIRONMENT]


def _asks_for_gpus(config: LaunchConfig, words: list[str], ranks: int) -> bool:
    """Tells whether each rank gets a GPU of Ray: without one, Ray hides all of a node from it."""
    assert config.ray is not None
    if config.ray.gpus is not None:
        return config.ray.gpus
    accelerator = group_of(config, "trainer").get("accelerator", "auto")
    for word, after in zip_longest(words, words[1:], fillvalue=""):
        name, equals, value = word.partition("=")
        if name == _ACCELERATOR:  # the last one counts
            accelerator = value if equals else after
    if accelerator == "auto":
        return bool(_module("ray").cluster_resources().get("GPU", 0) >= ranks)
    return accelerator in ("gpu", "cuda")


def _connect(address: str | None, cpus: int) -> None:
    ray = _module("ray")
    if ray.is_initialized():
        return
    try:
        if address == _LOCAL:
            ray.init(num_cpus=cpus)
        else:
            ray.init(address or os.environ.get("RAY_ADDRESS", "auto"))
    except (OSError, ValueError, RuntimeError) as error:
        why = str(error).strip().partition("\n")[0]
        raise OptionError(f"ray.address: {address}: no Ray cluster answered: {why}") from None


def _module(name: str) -> ModuleType:
    try:
        return ray_module(name)
    except OptionError as error:
        raise OptionError(f"engine: {str(error)[0].lower()}{str(error)[1:]}") from None
