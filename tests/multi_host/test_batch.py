"""The files for SLURM and Kubernetes, run: a stand-in for SLURM, and the commands of containers, on hosts in namespaces."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from glt_lightning.launch import LaunchConfig
from glt_lightning.launch.files import make_certificates
from glt_lightning.launch.kubernetes import on_pods
from glt_lightning.launch.slurm import job_script
from tests.helpers import started
from tests.helpers.hosts import Hosts, hosts, why_not
from tests.helpers.slurm import install_slurm, sbatch
from tests.launch.job_set import job_objects
from tests.multi_host.jobs import LIMIT_S, ONE_THREAD, config, same, weights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
DEFAULTS = {"python": sys.executable, "env": {"GLOO_SOCKET_IFNAME": "eth0", **ONE_THREAD}}


@pytest.fixture(scope="module")
def made() -> Iterator[Hosts]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with hosts(3) as found:
        yield found


def slurm_job(tmp_path: Path, whole: Path, **more: Any) -> tuple[Path, Path]:
    """A job script in the current folder, and the folder of the stand-ins."""
    Path("run.yaml").write_text(yaml.safe_dump(config()))
    shutil.copytree(whole, "part")
    given: dict[str, Any] = {
        "command": "fit",
        "run_config": "run.yaml",
        "engine": "slurm",
        "security": {"dir": "certs"},
    }
    given |= {"defaults": DEFAULTS, "slurm": {"nodes": 2}}
    script, programs = Path("job.sbatch"), tmp_path / "bin"
    script.write_text(job_script(LaunchConfig(**given | more), "runs/run/now"))
    programs.mkdir()
    install_slurm(programs)
    return script, programs


@pytest.mark.parametrize("servers", [0, 2])
def test_slurm(made, whole, calm, tmp_path, monkeypatch, servers):
    monkeypatch.chdir(tmp_path)
    script, programs = slurm_job(tmp_path, whole, slurm={"nodes": 2, "servers": servers})
    argv, env = sbatch(script, made, programs)
    with started(argv, cwd=tmp_path, env=env) as run:
        assert run.wait(LIMIT_S) == 0, run.output
    assert "glt_server_client" in script.read_text() if servers else "glt_worker" in script.read_text()
    same(weights(tmp_path), calm(2))
    assert {file.name for file in Path("runs/run/now/certs-4711-0").iterdir()} >= {"10.77.0.1.pem", "10.77.0.2.key"}


def test_slurm_runs_a_script_of_dgls_names(made, whole, dgl_alone, tmp_path, monkeypatch):
    """It learns its rank, the hosts and their certificates from the job script alone."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(Path(__file__).with_name("dgl_script.py"), ".")
    Path("ip_config.txt").write_text("".join(f"{made.address(n)} 30050\n" for n in range(2)))
    own = {"command": "dgl_script.py", "args": ["ip_config.txt"], "run_config": None, "partition": {"dir": "part"}}
    script, programs = slurm_job(tmp_path, whole, **own)
    argv, env = sbatch(script, made, programs)
    with started(argv, cwd=tmp_path, env=env) as run:
        assert run.wait(2 * LIMIT_S) == 0, run.output
        assert all(f"trained by {n} on host {n} of 2" in run.output for n in range(2)), run.output
    same(torch.load("weights.pt", weights_only=True), dgl_alone)


def test_slurm_ends_and_is_queued_again(made, whole, calm, tmp_path, monkeypatch):
    """SIGTERM to the script ends servers and trainers; the job is queued again, and its second start ends the work."""
    monkeypatch.chdir(tmp_path)
    more = {"slurm": {"nodes": 2, "servers": 1}, "restarts": {"job": 1}, "args": ["--trainer.max_epochs", "100000"]}
    script, programs = slurm_job(tmp_path, whole, **more)
    argv, env = sbatch(script, made, programs)
    with started(argv, cwd=tmp_path, env=env) as run:
        deadline = time.monotonic() + LIMIT_S
        while not list(tmp_path.rglob("last*.ckpt")):
            assert time.monotonic() < deadline, run.output
            assert run.popen.poll() is None, run.output
            time.sleep(0.1)
        run.popen.terminate()  # `ip netns exec` has become the script
        assert run.wait(LIMIT_S) != 0
    assert Path("requeued").read_text() == "4711\n"
    assert not any(made.processes(host) for host in range(2))


def pod(made: Hosts, host: int, command: list[str], folder: Path, index: int) -> tuple[list[str], dict[str, Any]]:
    """A container's command on a host, as the pod with an index."""
    env = {"JOB_COMPLETION_INDEX": str(index), "RESTART": "0", "PYTHONUNBUFFERED": "1", **DEFAULTS["env"]}
    return made.command(host, command), {"cwd": folder, "env": env}


@contextlib.contextmanager
def named(made: Hosts, names: list[str]) -> Iterator[None]:
    """Lets hosts find each other by name: ``ip netns exec`` takes /etc/hosts from there."""
    lines = ["127.0.0.1 localhost", *(f"{made.address(n)} {name}" for n, name in enumerate(names))]
    folders = [Path("/etc/netns", name) for name in made.names]
    try:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "hosts").write_text("\n".join(lines) + "\n")
        yield
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def test_containers(made, whole, calm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(yaml.safe_dump(config()))
    folder = tmp_path / "data" / "run"
    job = LaunchConfig(
        command="fit",
        run_config="run.yaml",
        engine="kubernetes",
        name="p",
        defaults={**DEFAULTS, "dir": str(folder)},
        kubernetes={"image": "none", "nodes": 2, "servers": 1, "volumes": {"data": str(tmp_path / "data")}},
        security={"dir": "certs"},
        partition={"source": str(whole), "dir": str(tmp_path / "pod" / "part")},
    )
    pods = on_pods(job)
    make_certificates(pods)
    shutil.copytree("certs", folder / "certs")
    shutil.copy("run.yaml", folder)
    graph, trainer = (
        each["template"]["spec"]["template"]["spec"] for each in job_objects(job)[1]["spec"]["replicatedJobs"]
    )
    with named(made, [each.address for each in pods.machines]):
        argv, how = pod(made, 0, graph["initContainers"][0]["command"], folder, 0)
        Path(job.partition.dir).parent.mkdir()
        with started(argv, **how) as pull:
            assert pull.wait(LIMIT_S) == 0, pull.output
        argv, how = pod(made, 0, graph["containers"][0]["command"], folder, 0)
        with started(argv, **how) as serve:
            argv, how = pod(made, 0, graph["containers"][0]["readinessProbe"]["exec"]["command"], folder, 0)
            deadline = time.monotonic() + LIMIT_S
            while subprocess.run(
                argv, cwd=how["cwd"], env={**how["env"], "PATH": "/usr/bin:/bin"}, check=False
            ).returncode:
                assert time.monotonic() < deadline, serve.output
                time.sleep(0.2)
            with contextlib.ExitStack() as stack:
                runs = []
                for index in range(2):
                    argv, how = pod(made, 1 + index, trainer["containers"][0]["command"], folder, index)
                    runs.append(stack.enter_context(started(argv, **how)))
                for run in runs:
                    assert run.wait(LIMIT_S) == 0, run.output
            serve.popen.terminate()
            assert serve.wait(LIMIT_S) == 0, serve.output
    same(weights(folder), calm(2))
