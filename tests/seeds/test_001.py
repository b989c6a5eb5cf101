"""Every command of document 001 has its equivalent here, which runs: what prepares data, trains on two nodes, launches both, and
trains from servers."""

from __future__ import annotations

import os
import re
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.run import started
from tests.seeds.documents import document

# Program of the document -> our commands, which run at the same time. {port} is filled in.
RUN = "-m lightning fit --config run.yaml"
NODES = " --trainer.num_nodes 2 --trainer.devices 1"
EQUIVALENTS: dict[str, list[str]] = {
    "pip install": ["-c 'import glt_lightning'"],
    "partition_ogbn_dataset.py": ["-m lightning partition --config run.yaml --data.partition.num_parts 2"],
    "dist_train_sage_supervised.py": [
        f"NODE_RANK={rank} MASTER_ADDR=localhost MASTER_PORT={{port}} {RUN} --trainer.strategy glt_worker "
        f"--cluster.placement rank{NODES}"
        for rank in range(2)
    ],
    "run_dist_train_sage_sup.py": ["-m lightning launch --config cluster.yaml"],
    "dist_train_sage_supervised_with_server.py": [
        *(f"-m lightning serve --config servers.yaml --server.rank {rank}" for rank in range(2)),
        *(
            f"NODE_RANK={rank} MASTER_ADDR=localhost MASTER_PORT={{port}} -m lightning fit --config servers.yaml "
            f"--trainer.strategy glt_server_client{NODES}"
            for rank in range(2)
        ),
    ],
}
CONFIG = """\
seed_everything: 1
model: {class_path: glt_lightning.GraphSAGE, init_args: {hidden_channels: 8, num_layers: 2}}
data:
  class_path: glt_lightning.GLTDataModule
  init_args: {dataset: graph.npz, root: data, num_neighbors: [2, 2], batch_size: 32, partition: {num_parts: 2}}
trainer: {max_epochs: 1, accelerator: cpu, logger: false, enable_progress_bar: false, enable_checkpointing: false}
"""
LAUNCH = """\
command: fit
config: run.yaml
engine: here
hosts: [{host: localhost}]
defaults: {python: PYTHON, dir: ., devices: 2}
"""


def commands(text: str) -> list[str]:
    """The command lines of fenced blocks; lines that go on are joined."""
    found = []
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            if re.match(r"(?:\w+=\S+ )*(?:python|pip) ", line):
                found.append(line)
    return found


def programs(lines: list[str]) -> list[str]:
    """What the commands start, once each, in their order."""
    starts = [re.sub(r"^(?:\w+=\S+ )*", "", line).split() for line in lines]
    return list(dict.fromkeys("pip install" if words[0] == "pip" else words[1] for words in starts))


def test_commands_are_found() -> None:
    text = "```\npip install a\nA=0,1 python b.py \\\n  --c=1\n\nx: 1\n```\n"
    assert commands(text) == ["pip install a", "A=0,1 python b.py --c=1"]
    assert programs(commands(text)) == ["pip install", "b.py"]


def write_folder(folder: Path, addresses: list[str]) -> None:
    ring = np.arange(200)
    np.savez(
        folder / "graph.npz",
        x=np.eye(4, dtype=np.float32)[ring % 4],
        y=ring % 4,
        edge_index=np.stack([np.repeat(ring, 2), (np.repeat(ring, 2) + np.tile([4, 8], 200)) % 200]),
        train_idx=ring[:128],
        valid_idx=ring[128:160],
        test_idx=ring[160:],
    )
    (folder / "run.yaml").write_text(CONFIG)
    (folder / "servers.yaml").write_text(f"{CONFIG}cluster: {{servers: [{', '.join(addresses)}]}}\n")
    (folder / "cluster.yaml").write_text(LAUNCH.replace("PYTHON", sys.executable))


def run_together(folder: Path, lines: list[str]) -> None:
    """Servers are told to end when the others have."""
    with ExitStack() as stack:
        runs = {}
        for line in lines:
            words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", line)]
            env = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
            argv = [sys.executable, *words[len(env) :]]
            runs[line] = stack.enter_context(started(argv, cwd=folder, env={"OMP_NUM_THREADS": "1", **env}))
        for line, run in runs.items():
            if " serve " not in line:
                assert run.wait(200) == 0, "\n".join(f"{each}\n{other.output}" for each, other in runs.items())
        for line, run in runs.items():
            if " serve " in line:
                run.popen.terminate()
                assert run.wait(60) == 0, run.output


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_has_an_equivalent_that_runs(tmp_path: Path) -> None:
    named = programs(commands(document("001")))
    assert named == ["pip install", "partition_ogbn_dataset.py", *list(EQUIVALENTS)[2:]]
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(4)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        ports = [probe.getsockname()[1] for probe in probes]
    write_folder(tmp_path, [f"127.0.0.1:{port}" for port in ports[:2]])
    for number, name in enumerate(named):
        port = ports[2 + number % 2]
        run_together(tmp_path, [line.replace("{port}", str(port)) for line in EQUIVALENTS[name]])
    assert any(entry.name.startswith("graph-") for entry in os.scandir(tmp_path / "data/partitions"))
