"""No child outlives the process that started it, though it may be stopped, busy or not yet at work."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from glt_lightning.base import SamplingOptions, ServingOptions
from glt_lightning.kernels import child
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.workers import ServerPlan, ServerProcess
from glt_lightning.workers.producer.child import Starter
from tests.helpers import started
from tests.helpers.contents import contents
from tests.helpers.family import settle
from tests.helpers.partitions import partitioned, small_graph

GONE_S = 5.0
SPEC = LoaderSpec(name="train", split="train", num_neighbors=[3, 2], batch_size=4, shuffle=True)
ENV = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])}

# Starts a child, stops it (unless it is to be met while it starts) and is killed.
SAMPLER = """
import os, signal, sys
from glt_lightning.graph import LocalPartition
from glt_lightning.base import SamplingOptions
from glt_lightning.workers.producer.subprocess import SubprocessProducer

producer = SubprocessProducer(LocalPartition.open(sys.argv[1]), SamplingOptions(num_workers=2))
if sys.argv[2] == "stopped":
    assert producer._pool.wait_open(30)
    for pid in producer.pids:
        os.kill(pid, signal.SIGSTOP)
print("ready", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
SERVER = """
import os, signal, sys
from glt_lightning.base import ServingOptions
from glt_lightning.workers import ServerPlan
from glt_lightning.workers import ServerProcess

plan = ServerPlan(directory=sys.argv[1], cluster=ServingOptions(num_workers=1), address="127.0.0.1:0", token="0123456789abcdef")
server = ServerProcess(plan, 0, print)
os.kill(server.pid, signal.SIGSTOP)
print("ready", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def partition(tmp_path_factory):
    return partitioned(small_graph(), tmp_path_factory.mktemp("graph"), 2)


@pytest.mark.parametrize(("code", "state"), [(SAMPLER, "stopped"), (SAMPLER, "starting"), (SERVER, "stopped")])
def test_killed_parent(partition, code: str, state: str) -> None:
    with started([sys.executable, "-c", code, str(partition.directory), state], env=ENV) as run:
        assert run.wait(60) == -signal.SIGKILL, run.output
        assert "ready" in run.output
        assert settle(run.family, GONE_S) == []


def test_parent_that_ended_before_its_child_began() -> None:
    """It is adopted by another process by then."""
    argv = [sys.executable, "-P", child.__file__, "1", "[]", "no_such_module", "0"]
    ended = subprocess.run(argv, capture_output=True)
    assert (ended.returncode, ended.stderr) == (1, b"")


def test_thread_that_ends_after_it_opened_a_loader(partition) -> None:
    """The kernel kills the children of a thread; samplers stay with their process."""
    with Session(partition, seed=5) as context:
        want = [contents(batch) for batch in context.make_loader(SPEC)]
    opened: list[Session] = []
    thread = threading.Thread(target=lambda: opened.append(Session(partition, SamplingOptions(num_workers=1), seed=5)))
    thread.start()
    thread.join()
    with opened[0] as context:
        loader = context.make_loader(SPEC)
        assert [contents(batch) for batch in loader] == want
        assert loader.stats().restarts == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_to_all_processes_of_a_job_leave_samplers_to_the_trainer(partition, number: int) -> None:
    """The trainer ends them with the run, in order; until then it needs their batches, and would start them again."""
    with Session(partition, SamplingOptions(num_workers=2), seed=5) as context:
        want = [contents(batch) for batch in context.make_loader(SPEC)]
        for pid in context._producer.pids:
            os.kill(pid, number)
        loader = context.make_loader(SPEC)
        assert [contents(batch) for batch in loader] == want
        assert loader.stats().restarts == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_to_all_processes_of_a_job_leave_the_server_to_the_trainer(partition, capfd, number: int) -> None:
    plan = ServerPlan(
        directory=str(partition.directory),
        cluster=ServingOptions(num_workers=1),
        address="127.0.0.1:0",
        token="0123456789abcdef",
    )
    server = ServerProcess(plan, 1, pytest.fail)
    process = psutil.Process(server.pid)
    try:
        for each in (process, *process.children(recursive=True)):
            each.send_signal(number)
        with pytest.raises(psutil.TimeoutExpired):
            process.wait(0.5)
    finally:
        server.close()
    assert not process.is_running()
    assert "restarting" not in capfd.readouterr().err


def test_signals_to_a_child_that_starts_leave_it_to_its_parent(tmp_path: Path, monkeypatch, capfd) -> None:
    """Ctrl-C during the imports of a sampler or a server printed its traceback, and the run restarted it while it ended."""
    (tmp_path / "slow_child.py").write_text("import os, time\ntime.sleep(0.5)\ndef main(fd): os.write(fd, b'main')\n")
    monkeypatch.syspath_prepend(tmp_path)
    ours, theirs = socket.socketpair()
    starter = Starter()
    with ours, theirs:
        process = starter.start("slow_child", theirs)
        for _ in range(40):  # from the first instruction on
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
            time.sleep(0.01)
        assert process.wait(20) == 0
        assert ours.recv(9) == b"main"
    starter.close()
    assert capfd.readouterr().err == ""


def test_stopped_samplers_are_killed_on_close(partition) -> None:
    """All of them within one deadline."""
    with Session(partition, SamplingOptions(num_workers=3), seed=5) as context:
        next(iter(context.make_loader(SPEC)))
        stopped = [psutil.Process(pid) for pid in context._producer.pids]
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
    assert not any(process.is_running() for process in stopped)
