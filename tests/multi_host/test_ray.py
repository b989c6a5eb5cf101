"""Training on a Ray cluster of several nodes, each a network namespace: the weights of one host, also where a node is killed."""

from __future__ import annotations

import os
import re
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.helpers import started
from tests.helpers.hosts import hosts, why_not
from tests.helpers.ray_nodes import RayNodes, ray_nodes
from tests.helpers.run import Run
from tests.multi_host.jobs import LIMIT_S, ONE_THREAD, config, same

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[RayNodes]:
    """Two nodes with three CPUs each, and room for a third."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    for name in ("ray", "pydantic"):
        if find_spec(name) is None:
            pytest.skip("needs ray[train]")
    env = {"GLOO_SOCKET_IFNAME": "eth0", "RAY_DEDUP_LOGS": "0", "RAY_memory_monitor_refresh_ms": "0", **ONE_THREAD}
    with hosts(3) as made, ray_nodes(made, 2, cpus=3, env=env) as cluster:
        yield cluster


def driver(nodes: RayNodes, folder: Path, *argv: str) -> Any:
    """Runs a program on the first node."""
    env = {**nodes.env, "RAY_ADDRESS": nodes.address, "FOLDER": str(folder)}
    return started(nodes.made.command(0, [sys.executable, *argv]), cwd=folder, env=env)


def weights(run: Run) -> dict[str, torch.Tensor]:
    """Of the last checkpoint that a driver reported."""
    assert run.wait(2 * LIMIT_S) == 0, run.output
    (path,) = re.findall(r"checkpoint: (\S+)$", run.output, re.M)  # behind a line of Ray's that has no end yet, or not
    found: dict[str, torch.Tensor] = torch.load(Path(path, "checkpoint.ckpt"), weights_only=False)["state_dict"]
    return found


@pytest.mark.parametrize("servers", [0, 2])
@pytest.mark.parametrize("devices", [1, 2])
def test_two_nodes_train_as_one(tmp_path, nodes, whole, calm, devices, servers):
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config()))
    job = {
        "command": "fit",
        "config": "run.yaml",
        "engine": "ray",
        "ray": {"nodes": 2, "servers": servers, "storage": str(tmp_path / "storage")},
        "defaults": {"devices": devices, "dir": str(tmp_path)},
        "partition": {"from": str(whole), "dir": "copied"},
    }
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(job))
    with driver(nodes, tmp_path, "-m", "glt_lightning", "launch", "--config", "cluster.yaml") as run:
        same(weights(run), calm(2, 2 * devices))
        assert "ip=10.77.0.2" in run.output, run.output


SCRIPT = """
    import os, sys, time
    from pathlib import Path
    import ray
    from lightning.pytorch import Callback, Trainer, seed_everything
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from glt_lightning import GLTDataModule, GraphSAGE
    from glt_lightning.lightning import ReportToRay, ray_job, ray_worker

    FOLDER, WHOLE, SERVERS = Path(os.environ["FOLDER"]), sys.argv[1], int(sys.argv[2])

    class Waits(Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            if trainer.global_step == 8 and not (FOLDER / "killed").exists():
                time.sleep(600)
            with open(FOLDER / f"steps{trainer.global_rank}", "a") as steps:
                steps.write(f"{trainer.global_step}\\n")

    def parts(node):
        return {"dir": node.pull(WHOLE, FOLDER / node.cluster.host)}

    def make_data(**more):
        return GLTDataModule(num_neighbors=[5, 5], batch_size=64, **more)

    def serve(node):
        return node.serve(make_data(partition=parts(node)))

    def train(config):
        with ray_worker(config["job"]) as worker:
            seed_everything(3, workers=True)
            data = make_data(cluster=worker.cluster, **({} if SERVERS else {"partition": parts(worker)}))
            model = GraphSAGE(data.num_features, data.num_classes, num_layers=2, dropout=0.0)
            trainer = Trainer(
                strategy="glt_server_client" if SERVERS else "glt_worker",
                accelerator="cpu",
                max_epochs=2,
                enable_checkpointing=False,
                enable_progress_bar=False,
                logger=False,
                callbacks=[ReportToRay(every_n_steps=2), Waits()],
                **worker.trainer_options,
            )
            trainer.fit(model, data, ckpt_path=worker.checkpoint)

    if __name__ == "__main__":
        ray.init()
        with ray_job(serve, SERVERS) as job:
            result = TorchTrainer(
                train,
                train_loop_config={"job": job},
                scaling_config=ScalingConfig(num_workers=2, placement_strategy="SPREAD"),
                run_config=RunConfig(
                    name="run", storage_path=str(FOLDER / "storage"), failure_config=FailureConfig(max_failures=5)
                ),
            ).fit()
        print(f"checkpoint: {result.checkpoint.path}\\n", end="")
"""


@pytest.mark.parametrize("servers", [0, 2])
def test_a_killed_node_changes_no_bit(tmp_path, nodes, whole, calm, servers):
    """In the middle of the second epoch of five steps; another node takes its place, with its parts."""
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    with driver(nodes, tmp_path, "script.py", str(whole), str(servers)) as run:
        deadline = time.monotonic() + LIMIT_S
        known = tmp_path / "storage" / "run" / "checkpoint_manager_snapshot.json"
        while not known.exists() or '"step":7' not in known.read_text():
            assert run.popen.poll() is None, run.output
            assert time.monotonic() < deadline, run.output
            time.sleep(0.05)
        own = [sorted(each.name for each in (tmp_path / nodes.made.address(n)).glob("part*")) for n in range(2)]
        assert sorted(own) == [["part0"], ["part1"]]
        (tmp_path / "killed").touch()
        for pid in nodes.made.processes(1):
            os.kill(pid, signal.SIGKILL)
        nodes.start(2)
        same(weights(run), calm(2))
        assert "10.77.0.3" in run.output
    steps = (tmp_path / "steps0").read_text().split()
    assert [int(step) for step in steps] == [*range(8), 7, 8, 9]  # from the checkpoint after seven steps
