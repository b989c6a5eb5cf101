"""Whatever ends a run, the target folder is complete or absent, and the next run succeeds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from glt_lightning.base import PartitionError, PartitionOptions
from glt_lightning.graph import Manifest
from glt_lightning.partition import partition_graph, whole_file
from glt_lightning.partition.folder import exclusive, whole_folder
from tests.helpers.partition_truth import random_source, read_folder

TIMEOUT_S = 60

PARTITION = """
    import resource, sys, time
    from pathlib import Path
    import numpy as np
    from glt_lightning.base import GLTError
    from glt_lightning.base import PartitionOptions
    from glt_lightning.partition import partition_graph
    from glt_lightning.partition.build import builder
    from tests.helpers.partition_truth import random_source

    target, how = Path(sys.argv[1]), sys.argv[2]
    source = random_source(np.random.default_rng(0))
    if how == "stop":  # in the middle of writing: say so, and wait to be killed
        def manifest(*args, **options):
            Path(sys.argv[3]).touch()
            time.sleep(600)
        builder.manifest_head = manifest
    if how == "slow":
        write = builder.Builder._write_edges
        def slow(*args):
            Path(sys.argv[3]).touch()
            time.sleep(1)
            return write(*args)
        builder.Builder._write_edges = slow
    if how == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (4200, 4200))
    try:
        partition_graph(source, target, PartitionOptions(num_parts=2))
    except GLTError as error:
        sys.exit(f"{type(error).__name__}: {error}")
"""


def start(*args: object) -> subprocess.Popen[str]:
    code = textwrap.dedent(PARTITION)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parents[2])])}
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A target folder whose writer was killed just before it would have been done."""
    target = tmp_path / "out" / "p"
    with start(target, "stop", tmp_path / "reached") as process:
        try:
            wait_for(tmp_path / "reached", process)
        finally:
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=TIMEOUT_S)
    return target


def test_killed_run_leaves_no_target_and_the_next_succeeds(killed: Path) -> None:
    assert not killed.exists()
    assert [p.name.rpartition("-")[0] for p in killed.parent.iterdir() if p.is_dir()] == [".p.tmp"]
    partition_graph(random_source(np.random.default_rng(0)), killed, PartitionOptions(num_parts=2))
    read_folder(killed)
    assert [p.name for p in killed.parent.iterdir()] == ["p"]


def test_reader_of_a_killed_run_is_told(killed: Path) -> None:
    with pytest.raises(PartitionError, match="there is no such folder"):
        Manifest.load(killed)


def test_disk_full_speaks_and_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "out" / "p"
    with start(target, "full") as process:
        _, error = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert error.startswith("PartitionError: ")
    assert str(target.parent) in error
    assert "bytes needed" in error
    assert "free" in error
    assert list(target.parent.iterdir()) == []


def test_too_little_space_is_said_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=1000))
    monkeypatch.setattr("glt_lightning.partition.build.builder.count_edges", None)
    with pytest.raises(
        PartitionError, match=r"needs at least [\d,]+ bytes of disk, working files included, but 1,000 are free"
    ):
        partition_graph(random_source(np.random.default_rng(0)), tmp_path / "out" / "p", PartitionOptions())
    assert list((tmp_path / "out").iterdir()) == []


def test_error_in_the_middle_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("glt_lightning.partition.build.builder.manifest_head", fail)
    with pytest.raises(KeyboardInterrupt):
        partition_graph(random_source(np.random.default_rng(0)), tmp_path / "out" / "p", PartitionOptions())
    assert list((tmp_path / "out").iterdir()) == []


def test_second_writer_waits_and_finds_it_done(tmp_path: Path) -> None:
    target = tmp_path / "out" / "p"
    with start(target, "slow", tmp_path / "reached") as first:
        wait_for(tmp_path / "reached", first)
        manifest = partition_graph(random_source(np.random.default_rng(0)), target, PartitionOptions(num_parts=2))
        assert first.wait(TIMEOUT_S) == 0, first.communicate()
        first.communicate()
    assert Manifest.load(target) == manifest
    assert [p.name for p in target.parent.iterdir()] == ["p"]


def test_waiting_has_a_deadline(tmp_path: Path) -> None:
    with (
        exclusive(tmp_path / "p", 1),
        pytest.raises(PartitionError, match="another process was still writing this folder"),
    ):
        partition_graph(random_source(np.random.default_rng(0)), tmp_path / "p", PartitionOptions(), timeout_s=0.1)
    assert list(tmp_path.iterdir()) == []


def test_live_neighbour_is_left_alone(tmp_path: Path) -> None:
    mine, dead, other = (tmp_path / f".p.tmp-{pid}" for pid in (os.getppid(), os.getpid(), "notes"))
    for folder in (mine, dead, other):
        folder.mkdir()
    with whole_folder(tmp_path / "p") as temporary:
        assert temporary == dead
        assert list(temporary.iterdir()) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([mine.name, other.name, "p"])


def test_whole_file(tmp_path: Path) -> None:
    with whole_file(tmp_path / "a.npz") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "a.npz").read_text() == "new"

    def half() -> None:
        with whole_file(tmp_path / "a.npz") as temporary:
            temporary.write_text("half")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        half()
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]
    assert (tmp_path / "a.npz").read_text() == "new"
