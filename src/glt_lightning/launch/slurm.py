"""The job script of a launched job for SLURM. Pure functions of the configuration."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from glt_lightning.errors import OptionError
from glt_lightning.launch.batch import LaunchSlurm
from glt_lightning.launch.environment import DGL_PARTITION, VARIABLE, script_job
from glt_lightning.launch.hosts import LaunchServer
from glt_lightning.launch.options import LaunchConfig
from glt_lightning.launch.plan import CERTIFICATES, command_of, folder_of, security_of, server_process
from glt_lightning.launch.shell import filled, shell_json, shell_lines

_LEAST_NOTICE_S = 90  # between SIGTERM and the time limit; SLURM may be late by a minute

# What stands in words of a command for what only the script knows. No argument of a user contains such characters.
_NODE, _CERTS, _RANK, _ADDRESS = "\1node{}\1", "\1certs\1", "\1rank\1", "\1address\1"
_NODE_RANK, _MASTER, _HOSTS = "\1number\1", "\1master\1", "\1hosts\1"

_BEGIN = """#!/bin/bash
@options@

set -euo pipefail
cd "$SLURM_SUBMIT_DIR"

@env@
# SLURM sends SIGTERM to this script alone, before the time limit: what runs gets it from here.
running=()
end() {
  [ ${#running[@]} = 0 ] || kill -TERM "${running[@]}" 2>/dev/null || true
  wait
}
trap end TERM EXIT
"""
_NODES = """names=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
mapfile -t nodes <<< "$names"
"""
_MAKE_CERTS = """
# For the nodes of this start alone: another start may have other nodes.
export certs=@run@/certs-"$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"
@python@ -m glt_lightning certs --dir "$certs" --token --hosts "$(IFS=,; echo "${nodes[*]}")"
"""
_SERVERS = """
# Graph servers, beside the trainers of the first nodes. One that ends is started again.
export servers="[@listed@]"
server() {
  exec @serve@
}
export -f server
serve() {
  local step
  trap 'kill -TERM "$step"; wait "$step"; exit' TERM
  for _ in {0..@restarts@}; do
    srun --overlap --nodes=1 --ntasks=1 --label --nodelist="$2" bash -c 'server "$1"' server "$1" &
    step=$!
    wait "$step" && return
    echo "graph server $1 on $2 ended" >&2
    sleep 1
  done
}
for rank in {0..@last@}; do
  serve "$rank" "${nodes[$rank]}" &
  running+=($!)
done
healthy() {
  @health@
}
for rank in {0..@last@}; do
  until answer=$(SLURMD_NODENAME=${nodes[0]} healthy "${nodes[$rank]}:@port@" 2>&1); do
    if ((SECONDS > @start_s@)) || ! kill -0 "${running[$rank]}" 2>/dev/null; then
      echo "error: graph server $rank on ${nodes[$rank]} is not healthy (limits.start_s: @start_s@ s): $answer" >&2
      exit 1
    fi
    sleep 1
  done
done
"""
_MASTER_OF = """export MASTER_ADDR="${nodes[0]}"
export MASTER_PORT=@port@
"""
_HOSTS_OF = """export hosts="[@listed@]"
"""
_RANKS = """  export RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID" GROUP_RANK="$SLURM_NODEID"
  export WORLD_SIZE="$SLURM_NTASKS" LOCAL_WORLD_SIZE=@devices@
"""
_TRAINERS = """
@hosts@trainer() {
@script@  exec @train@
}
export -f trainer
@resume@srun --label --kill-on-bad-exit=1@cores@ bash -c trainer &
trainers=$!
running+=("$trainers")
status=0
wait "$trainers" || status=$?
"""
_RESUME = """export resume=
if ((${SLURM_RESTART_COUNT:-0} > 0)); then
  resume="--ckpt_path last"
fi
"""
_REQUEUE = """
# Not where somebody has cancelled the job.
if ((status != 0 && ${SLURM_RESTART_COUNT:-0} < @restarts@)) &&
  scontrol show job "$SLURM_JOB_ID" | grep -q JobState=RUNNING; then
  scontrol requeue "$SLURM_JOB_ID"
fi
"""


def job_script(config: LaunchConfig, run: str) -> str:
    """The script for sbatch. run: folder of the run, below the folder in which the job is submitted.

    Raises `OptionError` for what a job of SLURM cannot do.
    """
    slurm = config.slurm
    assert slurm is not None
    _check(config)
    nodes = [_NODE.format(number) for number in range(slurm.nodes)]
    job = config.on(nodes, [LaunchServer(host=node, port=slurm.server_port) for node in nodes[: slurm.servers]])
    tasks = 1 if job.ranks == "script" else job.devices
    slurm.check(tasks)
    env = {"PYTHONUNBUFFERED": "1", **job.defaults.env}
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in env.items()]
    rest = ""
    if job.security.dir is not None:
        rest += filled(_MAKE_CERTS, run=shlex.quote(run), python=shlex.quote(job.defaults.python))
    if job.servers:
        rest += _servers(job)
    rest += _trainers(job, slurm.cpus_per_task is not None)
    master = filled(_MASTER_OF, port=str(job.master_port)) if job.is_script or "$MASTER_ADDR" in rest else ""
    lines += [_NODES, master] if "nodes[" in master + rest else []
    text = filled(_BEGIN, options=_options(config, slurm, run, tasks), env="".join(lines)) + rest
    if job.restarts.job:
        text += filled(_REQUEUE, restarts=str(job.restarts.job))
    return text + 'exit "$status"\n'


def _check(config: LaunchConfig) -> None:
    if config.defaults.dir != type(config.defaults)().dir:
        raise OptionError(
            f"defaults.dir: a job of SLURM runs in the folder in which it is submitted; got {config.defaults.dir}. Drop the "
            "option."
        )
    if config.partition.source is not None:
        raise OptionError(
            f"partition: a job of SLURM does not copy {config.partition.source}. Copy it to storage of the cluster by "
            "`glt-lightning pull`, and set partition: {dir: FOLDER}."
        )


def _options(config: LaunchConfig, slurm: LaunchSlurm, run: str, tasks: int) -> str:
    notice = max(_LEAST_NOTICE_S, math.ceil(config.limits.stop_s))
    options = [f"--job-name={config.name}", f"--nodes={slurm.nodes}", f"--ntasks-per-node={tasks}"]
    options += [f"--cpus-per-task={slurm.cpus_per_task}"] if slurm.cpus_per_task is not None else []
    options += [f"--gpus-per-node={config.defaults.devices}"] if slurm.gpus else []
    for name, text in (("time", slurm.time), ("partition", slurm.partition), ("account", slurm.account)):
        options += [f"--{name}={text}"] if text is not None else []
    options += [f"--output={run}/%j.log", f"--signal=B:TERM@{notice}"]
    options += ["--requeue", "--open-mode=append"] if config.restarts.job else ["--no-requeue"]
    return "\n".join(f"#SBATCH {option}" for option in [*options, *slurm.options])


def _servers(job: LaunchConfig) -> str:
    machine = job.graph_servers[0]
    words = _as_in_script(job, server_process(job, machine).argv)
    at = words.index("--server.rank") + 1
    words[at] = _RANK
    probe = [
        machine.python,
        "-m",
        "glt_lightning",
        "serve",
        "--health",
        _ADDRESS,
        *words[words.index("--config") : at - 1],
    ]
    probe += words[words.index("--cluster.servers") + 2 :]
    variables = {**_variables(job), _RANK: "1", _ADDRESS: "1"}
    return filled(
        _SERVERS,
        listed=", ".join(rf"\"${{nodes[{n}]}}:{each.port}\"" for n, each in enumerate(job.servers)),
        serve=shell_lines(words, variables),
        health=shell_lines(probe, variables),
        restarts=str(job.restarts.servers),
        last=str(len(job.servers) - 1),
        port=str(machine.port),
        start_s=str(math.ceil(job.limits.start_s)),
    )


def _trainers(job: LaunchConfig, with_cores: bool) -> str:
    args = [word.replace("{node_rank}", _NODE_RANK).replace("{master_addr}", _MASTER) for word in job.args]
    marked = replace(job, args=args)
    words = [job.defaults.python, *([] if job.is_script else ["-m"]), *command_of(marked, marked.trainers[0])]
    listed = ", ".join(rf"\"${{nodes[{n}]}}\"" for n in range(len(job.hosts)))
    resumes = job.restarts.job > 0 and job.command == "fit"
    return filled(
        _TRAINERS,
        hosts=filled(_HOSTS_OF, listed=listed) if job.is_script else "",
        script=_for_script(job) if job.is_script else "",
        train=shell_lines(_as_in_script(job, words), _variables(job)) + (" $resume" if resumes else ""),
        resume=_RESUME if resumes else "",
        cores=' --cpus-per-task="$SLURM_CPUS_PER_TASK"' if with_cores else "",  # srun does not take the job's by itself
    )


def _for_script(job: LaunchConfig) -> str:
    """What ``launch`` tells a script, and torchrun its ranks."""
    machine, folder = job.trainers[0], folder_of(job)
    given = security_of(job, machine)
    if job.security.dir is not None:
        given = {name: _certificate(path) for name, path in given.items()}
    launched = {**script_job([], machine.address, given), "hosts": _HOSTS}
    text = "" if job.ranks == "script" else filled(_RANKS, devices=str(job.devices))
    text += f"  export {VARIABLE}={shell_json(launched, _variables(job), whole=[_HOSTS])}\n"
    return text if folder is None else f"{text}  export {DGL_PARTITION}={shlex.quote(folder)}\n"


def _certificate(path: str) -> str:
    """Where the script makes what would be copied to ``path``."""
    parts = PurePosixPath(path).parts
    return str(PurePosixPath(_CERTS, *parts[parts.index(CERTIFICATES) + 1 :]))


def _as_in_script(job: LaunchConfig, words: Sequence[str]) -> list[str]:
    """Words of a command, which runs where it is submitted: there the configuration is not copied, and certificates are made."""
    found = list(words)
    for at, name in enumerate(words[:-1]):
        if name == "--config":
            found[at + 1] = str(job.run_config)
        elif name.startswith("--cluster.security.") and job.security.dir is not None:
            found[at + 1] = _certificate(words[at + 1])
    return found


def _variables(job: LaunchConfig) -> dict[str, str]:
    """What stands in words for a variable of the script."""
    listed = {json.dumps([each.endpoint for each in job.graph_servers]): "servers"} if job.servers else {}
    nodes = {_NODE.format(number): "SLURMD_NODENAME" for number in range(len(job.hosts))}
    return {**listed, **nodes, _CERTS: "certs", _NODE_RANK: "SLURM_NODEID", _MASTER: "MASTER_ADDR", _HOSTS: "hosts"}
