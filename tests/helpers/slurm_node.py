"""A cluster of SLURM with one node, which is this machine: its daemons with a configuration of their own."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_START_S = 30.0
_CONFIG = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def why_no_slurm() -> str | None:
    """Why SLURM cannot run here; None if it can."""
    missing = [tool for tool in ("munged", "slurmctld", "slurmd", "sbatch", "sinfo") if _tool(tool) is None]
    return f"{', '.join(missing)} not installed: apt-get install slurm-wlm munge" if missing else None


@contextlib.contextmanager
def slurm_node(folder: Path) -> Iterator[dict[str, str]]:
    """Runs the cluster. Gives the environment in which sbatch and its like find it."""
    for each in ("state", "spool"):
        (folder / each).mkdir()
    key, config = folder / "munge.key", folder / "slurm.conf"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = {"controller_port": one.getsockname()[1], "port": other.getsockname()[1]}
    config.write_text(_CONFIG.format(host=host_name(), user=getpass.getuser(), folder=folder, **ports))
    munge = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.sock"]
    munge += [f"--{name}={folder}/munged.{end}" for name, end in (("pid-file", "pid"), ("seed-file", "seed"))]
    munge += [f"--log-file={folder}/munged.log"]
    env = {"SLURM_CONF": str(config)}
    with contextlib.ExitStack() as stack:
        for argv in (munge, ["slurmctld", "-D", "-f", str(config)], ["slurmd", "-D", "-f", str(config)]):
            stack.enter_context(_daemon(argv, folder, env))
        _wait_for_idle(folder, env)
        yield env


def host_name() -> str:
    """As SLURM names the node: without its domain."""
    return socket.gethostname().partition(".")[0]


def asked(env: dict[str, str], *argv: str) -> str:
    """What a program of SLURM answers."""
    done = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (argv, done.stdout, done.stderr)
    return done.stdout


@contextlib.contextmanager
def _daemon(argv: Sequence[str], folder: Path, env: dict[str, str]) -> Iterator[None]:
    with (folder / f"{argv[0]}.out").open("wb") as out:
        command = [str(_tool(argv[0])), *argv[1:]]
        daemon = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **env}, cwd=folder
        )
    try:
        yield
    finally:
        daemon.terminate()
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait(10)


def _wait_for_idle(folder: Path, env: dict[str, str]) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        found = subprocess.run(["sinfo", "-h", "-o", "%T"], env={**os.environ, **env}, capture_output=True, text=True)
        if found.stdout.strip() == "idle":
            return
        logs = "\n".join(path.read_text() for path in folder.glob("*.out"))
        assert time.monotonic() < deadline, (found, logs)
        time.sleep(0.2)


def _tool(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
