"""A launched job with ``engine: ray``: the ranks are workers of Ray Train, each of which runs the command line of a rank."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from glt_lightning.base import OptionError
from glt_lightning.launch.options import LaunchConfig
from glt_lightning.launch.plan import command_of
from glt_lightning.lightning import ray_worker

_LOCAL = "local"  # ray.address: a cluster on this host for the time being
_HOST = "\1host\1"
_ENVIRONMENT = '[{"class_path": "ray.train.lightning.RayLightningEnvironment"}]'


def launch_on_ray(config: LaunchConfig, run_rank: Callable[[list[str]], object], *, dry_run: bool) -> int:
    """Runs a job to its end, or shows the command of its ranks. Returns an exit status. Raises `OptionError`.

    run_rank: runs these words of a command line, in a worker.
    """
    group = config.ray
    assert group is not None
    words = _words(config)
    if dry_run:
        print(f"{config.defaults.devices} x {group.nodes} workers of Ray: {shlex.join(['glt-lightning', *words])}")
        return 0
    train, torch = _module("ray.train"), _module("ray.train.torch")
    devices = int(config.defaults.devices)  # type: ignore[arg-type]  # a number, as for every cluster
    resources = {"CPU": group.cpus_per_task} | ({"GPU": 1} if group.gpus else {})
    _connect(group.address, devices * group.nodes * group.cpus_per_task)
    given = {
        "run_rank": run_rank,
        "words": words,
        "config": Path(str(config.run_config)).read_text(),
        "dir": None if config.defaults.dir == type(config.defaults)().dir else config.defaults.dir,
        "here": os.getcwd() if group.address == _LOCAL else None,
        "env": dict(config.defaults.env),
    }
    trainer = torch.TorchTrainer(
        run_worker,
        train_loop_config=given,
        scaling_config=train.ScalingConfig(
            num_workers=devices * group.nodes,
            use_gpu=group.gpus,
            resources_per_worker=resources,
            placement_strategy="STRICT_PACK" if group.nodes == 1 else "SPREAD",
        ),
        run_config=train.RunConfig(
            name=config.name,
            storage_path=group.storage,
            failure_config=train.FailureConfig(max_failures=config.restarts.job),
            checkpoint_config=train.CheckpointConfig(num_to_keep=2),
        ),
    )
    try:
        result = trainer.fit()
    except train.TrainingFailedError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    print(f"checkpoint: {None if result.checkpoint is None else result.checkpoint.path}", flush=True)
    return 0


def run_worker(given: Mapping[str, Any]) -> None:
    """Runs the command in a worker, from the last checkpoint that was reported."""
    if (folder := given["dir"] or given["here"]) is not None:
        os.makedirs(folder, exist_ok=True)
        os.chdir(folder)  # Ray starts workers in a folder of its own
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    os.environ.update(given["env"])
    with ray_worker() as worker, tempfile.TemporaryDirectory(prefix="glt-ray-") as copy:
        path = Path(copy, "run.yaml")
        path.write_text(given["config"])
        words = [word.replace(_HOST, worker.host) for word in given["words"]]
        words[words.index("--config") + 1] = str(path)
        if words[0] == "fit" and worker.checkpoint is not None:
            words += ["--ckpt_path", worker.checkpoint]
        given["run_rank"](words)


def _words(config: LaunchConfig) -> list[str]:
    """The command of a rank, without the name of the program."""
    group = config.ray
    assert group is not None
    if config.security.dir is not None or config.partition.source is not None or config.files:
        raise OptionError(
            "security.dir, files, and from of partition: with engine ray nothing is copied to the nodes. Keep these files on "
            "storage that all nodes share, and name them in the run's configuration."
        )
    job = config.on([_HOST, *(f"node{number}" for number in range(1, group.nodes))], [])
    words = command_of(job, job.trainers[0])[1:]
    if config.command == "fit":
        every = [] if group.every_n_steps is None else ["--trainer.callbacks.every_n_steps", str(group.every_n_steps)]
        words += ["--trainer.callbacks+", "glt_lightning.lightning.ReportToRay", *every]
    return [*words, "--trainer.plugins", _ENVIRONMENT]


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
        return import_module(name)
    except ImportError as error:
        raise OptionError(f"engine: ray: {error}. Install it: pip install 'glt-lightning[ray-train]'.") from None
