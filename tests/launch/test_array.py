"""A job array that `launch` writes partitions: each of its elements is run by hand, with its number in the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glt_lightning.launch import LaunchConfig
from glt_lightning.launch.slurm import job_script
from tests.helpers import started
from tests.launch.job_set import job_objects

TIMEOUT_S = 240
RUN = """
data:
  class_path: glt_lightning.GLTDataModule
  init_args:
    dataset: graph
    undirected: true
    partition: {num_parts: 3, hotness: vip, memory_bytes: 1048576}
"""


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def job(engine: str, **more: Any) -> LaunchConfig:
    given = {"command": "partition", "run_config": "run.yaml", "engine": engine, "args": ["--batches", "1"]}
    return LaunchConfig(**given, **{"defaults": {"python": sys.executable}} | more)


def run_elements(script: str, elements: list[Mapping[str, str]]) -> list[str]:
    """What each element prints; they run at the same time."""
    env = {"PYTHONPATH": os.pathsep.join(sys.path), "SLURM_SUBMIT_DIR": str(Path.cwd())}
    with ExitStack() as stack:
        runs = [
            stack.enter_context(started(["bash", "-c", script], env=env | dict(each), cwd=Path.cwd()))
            for each in elements
        ]
        for run in runs:
            assert run.wait(TIMEOUT_S) == 0, run.output
        return [run.output for run in runs]


@pytest.mark.slow
def test_an_array_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is the one that a single process makes, byte for byte. The first element starts last, as in a queue."""
    monkeypatch.chdir(tmp_path)
    rng, nodes = np.random.default_rng(0), 20_000
    Path("graph").mkdir()
    np.save("graph/edge_index.npy", (rng.random((2, 400_000)) ** 2 * nodes).astype(np.int64))
    np.save("graph/x.npy", rng.random((nodes, 50), np.float32))
    np.save("graph/y.npy", rng.integers(0, 5, nodes))
    np.save("graph/train.npy", np.arange(0, nodes, 3))
    Path("run.yaml").write_text(RUN)
    alone = [sys.executable, "-m", "glt_lightning", "partition", "--config", "run.yaml", "--batches", "1"]
    alone += ["--data.partition.dir", "alone", "--data.partition.processes", "1"]
    with started(alone, env={"PYTHONPATH": os.pathsep.join(sys.path)}, cwd=tmp_path) as run:
        assert run.wait(TIMEOUT_S) == 0, run.output

    slurm = job_script(job("slurm", slurm={"nodes": 3}, partition={"dir": "by-slurm"}), "runs/now")
    (array,) = (line for line in slurm.splitlines() if "--array" in line)
    assert array == "#SBATCH --array=0-2"
    given = [
        {"SLURM_ARRAY_TASK_ID": str(n), "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "0"} for n in (1, 2, 0)
    ]
    printed = run_elements(slurm, given)
    assert ["partitioned: by-slurm" in text for text in printed] == [False, False, True]  # the report is made once
    assert content(Path("by-slurm")) == content(Path("alone"))

    group = {"image": "i", "nodes": 2, "volumes": {"data": str(tmp_path)}}
    folder = str(tmp_path / "by-pods")
    pods = job("kubernetes", kubernetes=group, partition={"dir": folder}, defaults={"python": sys.executable})
    (objects,) = job_objects(pods)[1]["spec"]["replicatedJobs"]
    (container,) = objects["template"]["spec"]["template"]["spec"]["containers"]
    run_elements(container["command"][-1], [{"JOB_COMPLETION_INDEX": str(n)} for n in (1, 0)])
    assert content(Path(folder)) == content(Path("alone"))
