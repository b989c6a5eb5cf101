"""``python -m lightning partition``: makes the folder that fit would, reports, verifies, leaves nothing when interrupted."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from glt_lightning import GLTDataModule
from glt_lightning.base import PartitionOptions
from glt_lightning.cli import main
from glt_lightning.partition.build import builder
from tests.helpers import started

# The command line, stopped when all but the manifest is written.
STOPPED = """
import sys, time
from pathlib import Path
from glt_lightning.cli import main
from glt_lightning.partition.build import builder

def stop(*args, **options):
    Path("reached").touch()
    time.sleep(600)

builder.manifest_head = stop
main(sys.argv[1:])
"""


@pytest.fixture
def data(graph_npz: Path) -> dict[str, Any]:
    return {"dataset": str(graph_npz), "root": "root", "num_neighbors": [4, 3], "batch_size": 10}


@pytest.fixture
def config(data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run whose trainer and model partition cannot know."""
    monkeypatch.chdir(tmp_path)
    run = {
        "seed_everything": 1,
        "trainer": {"strategy": "of.a.module.elsewhere", "devices": 64},
        "model": {"class_path": "not.installed.here.Model"},
        "data": {"class_path": "GLTDataModule", "init_args": data | {"partition": {"num_parts": 2}}},
        "cluster": {"num_workers": 1},
    }
    Path("run.yaml").write_text(yaml.safe_dump(run))
    return "run.yaml"


def said(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    capsys.readouterr()
    main(["partition", *args])
    return capsys.readouterr().out


def test_plan(config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes nothing, and says with one line what cannot be made."""
    lines = said(capsys, "--config", config, "--plan").splitlines()
    assert re.fullmatch(r"root/partitions/\S+: 2 parts, random", lines[0])
    assert lines[1].split() == ["tasks", "reads", "CPU"]
    assert [line.split("  ")[0] for line in lines[2:-3]] == [
        *["checking values", "counting edges", "assigning nodes (first process)", "numbering nodes"],
        *["writing nodes", "writing edges", "hashing files"],
    ]
    assert [line.partition(":")[0] for line in lines[-3:]] == ["memory", "disk", "time"]
    assert not Path("root/partitions").exists()
    monkeypatch.setattr("glt_lightning.partition.assign.assigners.available_memory", lambda: 0)
    with pytest.raises(SystemExit) as ended:
        main(["partition", "--config", config, "--plan", "--data.partition.algorithm", "metis"])
    assert ended.value.code == 1
    assert "partition.algorithm: metis takes about" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["partition", "--config", config, "--plan", "--assign_only", "a.npz"])
    assert "--assign_only and --plan: give only one of them" in capsys.readouterr().err


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[Any, str]:
    """The exit status and the one line that is said."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(["partition", *args])
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    return end.value.code, line


def test_makes_what_fit_makes_and_reports(
    config: str, data: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, "--config", config, "--data.partition.num_parts", "3", "--html", "report.html")
    module = GLTDataModule(**data, partition=PartitionOptions(num_parts=3))
    assert text.startswith(f"partitioned: {module.partition_dir}\n")
    assert text.count("num_neighbors") == text.count("num_neighbors [4, 3], batch_size 10") == 1  # nothing of defaults
    assert "part 2" in text
    assert Path("report.html").read_text().startswith("<!DOCTYPE html>")
    before = module.partition_dir.stat().st_mtime_ns
    module.prepare_data()
    again = said(capsys, "--config", config, "--data.partition.num_parts", "3", "--batches", "2", "--cache", "[]")
    assert again.startswith(f"was partitioned already: {module.partition_dir}\n")
    assert "Hit rate" not in again
    assert "2 sampled batches" in again
    assert module.partition_dir.stat().st_mtime_ns == before


def test_algorithm_and_json(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "--config", config, "--data.partition.algorithm", "streaming", "--json")
    report = json.loads(text)
    assert report["contents"]["made_by"]["algorithm"] == "streaming"
    assert report["options"]["num_neighbors"] == [4, 3]


def test_verify(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "--config", config, "--data.partition.dir", "parts")
    for args in (
        ["--verify", "parts"],
        ["--config", config, "--data.partition.dir", "parts", "--verify"],
        ["--verify", "--config", config, "--data.partition.dir", "parts"],
    ):
        assert said(capsys, *args).startswith("parts: good. Checked: ")
    file = Path("parts/part1/nodes/0/x.npy")
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    status, line = refused(capsys, "--verify", "parts")
    assert status == 1
    assert line.startswith(f"error: {file}: damaged: checksum ")
    assert refused(capsys, "--verify", "elsewhere")[0] == 1


@pytest.mark.parametrize(
    ("args", "line"),
    [
        ([], "error: data: expected a GLTDataModule, got nothing."),
        (["--verify"], "error: data: expected a GLTDataModule, got nothing."),
        (["--config", "none.yaml"], "error: --config: cannot read none.yaml: No such file or directory."),
        (["--config"], "error: --config: expected the path of a YAML file."),
        (["--config", "run.yaml", "--batches", "0"], "error: batches: expected an integer >= 1, got 0."),
        (["--config", "run.yaml", "--html", "none/r.html"], "error: --html: there is no folder "),
        (["--config", "run.yaml", "--data.partition.algorithm", "mets"], "error: partition.algorithm: expected random"),
        (
            ["--verify", "p", "--parts", "0;1"],
            "error: --parts: expected numbers of parts such as 0,2, got '0;1'.",
        ),
        (["--hash", "p", "--parts", "0"], "error: --parts: goes with --verify alone."),
        (
            ["--config", "run.yaml", "--data.partition.engine", "dusk"],
            "error: data.partition.engine: expected one of 'processes', 'array', 'dask', 'ray', 'spark'; got dusk.",
        ),
        (
            ["--config", "run.yaml", "--data.partition.address", "tcp://a:1"],
            "error: partition.address: belongs to dask, ray, spark, not to processes.",
        ),
        (["--config", "run.yaml", "--data.partition.processes", "0"], "error: partition.processes: expected"),
        (["--config", "run.yaml", "--verfy"], "error: unrecognized arguments: --verfy. Did you mean --verify?"),
    ],
)
def test_wrong_options_get_one_line_before_any_work(
    config: str, capsys: pytest.CaptureFixture[str], args: list[str], line: str
) -> None:
    status, text = refused(capsys, *args)
    assert status == 2
    assert text.startswith(line)
    assert not Path("root").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_in_this_process(
    config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def stop(*_args: object, **_options: object) -> None:
        assert len(list(Path("made").iterdir())) == 2  # the lock and the unfinished folder
        signal.raise_signal(number)

    monkeypatch.setattr(builder, "manifest_head", stop)
    with pytest.raises(SystemExit) as ended:
        main(["partition", "--config", config, "--data.partition.dir", "made/parts"])
    assert ended.value.code == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted; made/parts: nothing is left of it."
    assert list(Path("made").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(config: str, tmp_path: Path, number: signal.Signals) -> None:
    root = str(Path(__file__).parents[2])
    env = {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", STOPPED, "partition", "--config", config, "--data.partition.dir", "made/parts"]
    with started(command, cwd=tmp_path, env=env) as run:
        deadline = time.monotonic() + 60
        while not Path("reached").exists():
            assert run.popen.poll() is None, run.output
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert len(list(Path("made").iterdir())) == 2  # the lock and the unfinished folder
        run.popen.send_signal(number)
        assert run.wait(30) == 130
        lines = run.output.splitlines()
    assert lines[-1] == "interrupted; made/parts: nothing is left of it."
    assert not any("Traceback" in line for line in lines)
    assert list(Path("made").iterdir()) == []
