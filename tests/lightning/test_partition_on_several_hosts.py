"""``python -m lightning partition`` with ``--assign_only``, and in a job array, makes the folder that `fit` makes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from glt_lightning import GLTDataModule
from glt_lightning.base import PartitionOptions
from glt_lightning.cli import main

TIMEOUT_S = 120


@pytest.fixture
def args(graph_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    data = ["--data", "GLTDataModule", "--data.dataset", str(graph_npz), "--data.root", "root"]
    return ["partition", *data, "--data.undirected", "true", "--data.partition.num_parts", "3"]


def made_alone(graph_npz: Path, options: PartitionOptions) -> dict[str, bytes]:
    alone = GLTDataModule(str(graph_npz), root="alone", undirected=True, partition=options)
    alone.prepare_data()
    return content(alone.partition_dir)


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_assigning_alone(args: list[str], graph_npz: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([*args, "--data.partition.algorithm", "metis", "--assign_only", "parts.npz"])
    first, sizes, then = capsys.readouterr().out.splitlines()
    assert first == "assigned: parts.npz"
    assert sizes.startswith("  node: ")
    assert then.startswith("Give it as --data.partition.algorithm parts.npz, with")
    options = PartitionOptions(num_parts=3, algorithm="parts.npz")
    main([*args, "--data.partition.algorithm", "parts.npz", "--data.partition.dir", "parts"])
    assert content(Path("parts")) == made_alone(graph_npz, options)


@pytest.mark.slow
def test_a_job_array(args: list[str], graph_npz: Path) -> None:
    """The same command three times at once, as SLURM or Kubernetes start it, on hosts that share the folder."""
    args += ["--data.partition.engine", "array", "--data.partition.dir", "parts"]
    processes = []
    for number in (2, 0, 1):
        env = os.environ | {"SLURM_ARRAY_TASK_ID": str(number + 5), "SLURM_ARRAY_TASK_MIN": "5"}
        env |= {"SLURM_ARRAY_TASK_COUNT": "3"}
        command = [sys.executable, "-m", "glt_lightning", *args]
        processes.append(
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    said = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], said
    assert content(Path("parts")) == made_alone(graph_npz, PartitionOptions(num_parts=3))
    assert not [*Path().glob(".parts*")]


def test_an_array_without_its_environment(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*args, "--data.partition.engine", "array", "--data.partition.dir", "parts"])
    assert "partition.engine: array: none of SLURM_ARRAY_TASK_ID" in capsys.readouterr().err


def test_parts_go_with_verify(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([*args, "--parts", "0"])
    assert end.value.code == 2
    assert "run the same command on each, with data.partition.engine: array" in capsys.readouterr().err


def test_no_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["partition", "--data", "GLTDataModule", "--data.partition.dir", "parts", "--assign_only", "a.npz"])
    assert end.value.code == 2
    assert "error: dataset: not given. Name the graph to partition:" in capsys.readouterr().err
