"""A stand-in for SLURM: `sbatch` here, and programs called srun and scontrol that start tasks on hosts in network namespaces."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from tests.helpers.hosts import Hosts

# Starts the tasks of a step: on all nodes of the job, or on one (--nodelist), each with what SLURM tells a task.
_SRUN = r"""#!{python}
import os, signal, subprocess, sys

given, command = {{}}, sys.argv[1:]
while command[0].startswith("--"):
    name, _, value = command.pop(0).partition("=")
    given[name] = value
job = os.environ["SLURM_JOB_NODELIST"].split(",")
nodes = given["--nodelist"].split(",") if "--nodelist" in given else job
each = 1 if "--ntasks" in given else int(os.environ["SLURM_NTASKS_PER_NODE"])
spaces = dict(zip(job, os.environ["FAKE_SLURM_SPACES"].split(",")))
tasks = []
for node_id, node in enumerate(nodes):
    for local in range(each):
        env = dict(os.environ, SLURM_PROCID=str(len(tasks)), SLURM_LOCALID=str(local), SLURM_NODEID=str(node_id),
            SLURMD_NODENAME=node, SLURM_NTASKS=str(each * len(nodes)), SLURM_STEP_ID="0")
        tasks.append(subprocess.Popen(["ip", "netns", "exec", spaces[node], *command], env=env))

def end(number=signal.SIGTERM, frame=None):
    for task in tasks:
        if task.poll() is None:
            task.terminate()

signal.signal(signal.SIGTERM, end)
status = 0
left = list(tasks)
while left:
    for task in list(left):
        try:
            found = task.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        left.remove(task)
        found = found if found >= 0 else 128 - found
        if found and not status:
            status = found
            if "--kill-on-bad-exit" in given:
                end()
sys.exit(status)
"""
_SCONTROL = r"""#!/bin/bash
case "$1 $2" in
  "show hostnames") echo "${3//,/$'\n'}" ;;
  "show job") echo "   JobState=${FAKE_SLURM_STATE:-RUNNING} Reason=None" ;;
  "requeue "*) echo "$2" >> requeued ;;
esac
"""


def install_slurm(folder: Path) -> None:
    """Writes srun and scontrol."""
    for name, text in (("srun", _SRUN.format(python=sys.executable)), ("scontrol", _SCONTROL)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def sbatch(script: Path, made: Hosts, programs: Path, restarts: int = 0) -> tuple[list[str], dict[str, str]]:
    """The command that runs a job script on its first node, and its environment: what sbatch makes of the script's options."""
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", script.read_text(), re.MULTILINE))
    count, each = int(options["nodes"]), int(options["ntasks-per-node"])
    nodes = ",".join(made.address(n) for n in range(count))
    env = {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NAME": options["job-name"],
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_NODELIST": nodes,
        "SLURM_JOB_NUM_NODES": str(count),
        "SLURM_NNODES": str(count),
        "SLURM_NTASKS": str(count * each),
        "SLURM_NTASKS_PER_NODE": str(each),
        "SLURM_SUBMIT_DIR": str(Path.cwd()),
        "FAKE_SLURM_SPACES": ",".join(made.names[:count]),
        "PATH": f"{programs}:{os.environ['PATH']}",
        **({"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}),
    }
    return made.command(0, ["bash", script]), env
