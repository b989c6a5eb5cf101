"""The job script, run by SLURM itself on one node: its sbatch, srun and scontrol, in place of stand-ins."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers.slurm_node import asked, host_name, slurm_node, why_no_slurm
from tests.multi_host.jobs import LIMIT_S, ONE_THREAD, config, same, weights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
_OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    if (reason := why_no_slurm()) is not None:
        pytest.skip(reason)
    with slurm_node(tmp_path_factory.mktemp("slurm")) as env:
        yield env


def submitted(env: dict[str, str], folder: Path, whole: Path, **more: Any) -> int:
    """The number of a job of two ranks, which ``launch --submit`` has handed to sbatch in ``folder``."""
    shutil.copytree(whole, folder / "part")
    (folder / "run.yaml").write_text(yaml.safe_dump(config()))
    given: dict[str, Any] = {"command": "fit", "config": "run.yaml", "engine": "slurm", "slurm": {"nodes": 1}}
    given |= {"defaults": {"python": sys.executable, "devices": 2, "env": {"GLOO_SOCKET_IFNAME": "lo", **ONE_THREAD}}}
    (folder / "cluster.yaml").write_text(yaml.safe_dump(given | {"security": {"dir": "certs"}} | more))
    argv = [sys.executable, "-m", "glt_lightning", "launch", "--config", "cluster.yaml", "--submit"]
    # Not by `started`: the job inherits the environment, and would be ended with the command that submitted it.
    done = subprocess.run(
        argv, cwd=folder, env={**os.environ, **ONE_THREAD, **env}, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    return int(done.stdout.rpartition("Submitted batch job ")[2])


def state(slurm: dict[str, str], job: int) -> str:
    return asked(slurm, "scontrol", "show", "job", str(job)).partition("JobState=")[2].split()[0]


def log(folder: Path, job: int) -> str:
    return "\n".join(path.read_text() for path in folder.glob(f"runs/run/*/{job}.log"))


def wait_until_over(slurm: dict[str, str], folder: Path, job: int) -> str:
    """Its last state. A job that was queued again would wait two minutes, for the epilogues of other clusters."""
    deadline = time.monotonic() + LIMIT_S
    while (found := state(slurm, job)) not in _OVER:
        assert time.monotonic() < deadline, (found, log(folder, job))
        if found == "PENDING":
            subprocess.run(
                ["scontrol", "update", f"JobId={job}", "StartTime=now"],
                env={**os.environ, **slurm},
                check=False,
                capture_output=True,
            )
        time.sleep(0.5)
    return found


@pytest.mark.parametrize("servers", [0, 1])
def test_a_job_trains_as_without_slurm(slurm, whole, calm, tmp_path, servers):
    job = submitted(slurm, tmp_path, whole, slurm={"nodes": 1, "servers": servers})
    assert wait_until_over(slurm, tmp_path, job) == "COMPLETED", log(tmp_path, job)
    same(weights(tmp_path), calm(2))
    (certificates,) = tmp_path.glob(f"runs/run/*/certs-{job}-0")
    assert (certificates / f"{host_name()}.pem").exists()


_DYING_ONCE = """
import os
from pathlib import Path
from lightning.pytorch import Callback

class DyingOnce(Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        mark = Path("died")
        if trainer.global_rank == 1 and trainer.current_epoch == 1 and batch_idx == 2 and not mark.exists():
            mark.touch()
            os._exit(9)
"""


def test_a_job_that_fails_is_queued_again_and_goes_on(slurm, whole, calm, tmp_path):
    (tmp_path / "own_callback.py").write_text(_DYING_ONCE)
    args = ["--trainer.callbacks", "own_callback.DyingOnce"]
    job = submitted(slurm, tmp_path, whole, args=args, restarts={"job": 1})
    assert wait_until_over(slurm, tmp_path, job) == "COMPLETED", log(tmp_path, job)
    assert (tmp_path / "died").exists()
    assert "Restarts=1" in asked(slurm, "scontrol", "show", "job", str(job))
    same(weights(tmp_path), calm(2))


def test_a_job_that_is_cancelled_leaves_nothing(slurm, whole, tmp_path):
    more = {"slurm": {"nodes": 1, "servers": 1}, "args": ["--trainer.max_epochs", "100000"], "restarts": {"job": 3}}
    job = submitted(slurm, tmp_path, whole, **more)
    deadline = time.monotonic() + LIMIT_S
    while "glt: epoch 0" not in log(tmp_path, job):
        assert time.monotonic() < deadline, log(tmp_path, job)
        time.sleep(0.2)
    asked(slurm, "scancel", str(job))
    assert wait_until_over(slurm, tmp_path, job) == "CANCELLED"
    deadline = time.monotonic() + 60
    while left := processes_in(tmp_path):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def processes_in(folder: Path) -> list[str]:
    """Command lines of what runs in a folder."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(each / "cwd") == str(folder):
                found.append((each / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it has ended
            continue
    return found
