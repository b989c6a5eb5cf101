"""The processes of a cell: two ranks that stop at a point, and the servers that were started for them."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from tests.faults import cells
from tests.faults.cells import Cell
from tests.faults.places import Place
from tests.faults.program import Options
from tests.helpers import Run
from tests.helpers.family import describe, settle
from tests.lightning.serving import free_addresses

_START_S = 90.0  # until rank 0 is at its point
_GONE_S = 10.0  # after the end of a process, nothing that it started is left


class Job:
    """Made by `start_job`. ``folder`` has ``work``, where the ranks run and write, and ``tmp``, their temporary files."""

    def __init__(self, place: Place, folder: Path, stack: ExitStack) -> None:
        self.place, self.work, self.temporary = place, folder / "work", folder / "tmp"
        self._stack = stack
        self.ranks: list[Run] = []
        self.servers = [self._start_server(rank) for rank in range(len(place.servers))]
        self.away: set[int] = set()  # servers that were killed for good
        self._point = ""

    # -- start

    def _start_server(self, rank: int) -> Run:
        plan = json.dumps(self.place.plan(rank).to_json())
        return self._stack.enter_context(self.place.server(plan, self.work, self.temporary))

    def start_ranks(self, options: Options) -> None:
        for run in self.servers:
            self._until(lambda run=run: "listening at" in run.output, [run], "server")
        port = free_addresses(1)[0].rpartition(":")[2]
        for rank in range(2):
            trainer = self.place.trainer(rank, options.to_json(), port, self.work, self.temporary)
            self.ranks.append(self._stack.enter_context(trainer))

    def wait_at_point(self, point: str) -> None:
        """Until rank 0 is there and, unless that is the start, its streams are older than the deadline of a reconnect."""
        self._point = point
        at, began = self.work / "at", self.work / "began"
        self._until(at.exists, self.ranks, f"rank at the point {point!r}")
        if point != cells.START:
            age_s = time.time() - began.stat().st_mtime
            time.sleep(max(0.0, cells.RECONNECT_S + 1 - age_s))

    def go(self) -> None:
        (self.work / "go").touch()

    def _until(self, fact: Callable[[], bool], runs: list[Run], what: str) -> None:
        deadline = time.monotonic() + _START_S
        while not fact():
            ended = any(run.popen.poll() is not None for run in runs)
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"no {what} within {_START_S:g} s:\n{self.output}")
            time.sleep(0.05)

    # -- who is there

    @property
    def output(self) -> str:
        """What ranks and servers printed."""
        said = [(f"rank {n}", run) for n, run in enumerate(self.ranks)]
        said += [(f"server {n}", run) for n, run in enumerate(self.servers)]
        return "\n".join(f"--- {who}\n{run.output}" for who, run in said)

    def processes(self) -> list[psutil.Process]:
        return [process for run in (*self.ranks, *self.servers) for process in run.family()]

    def rank(self, number: int) -> psutil.Process:
        return psutil.Process(self.ranks[number].popen.pid)

    def server(self) -> psutil.Process:
        """The server that faults befall: the one of rank 1, which does not wait at the point, or that of the run."""
        if self.servers:
            return psutil.Process(self.servers[1].popen.pid)
        (found,) = _children(self.rank(0), "server.child")
        return found

    def sampler(self) -> psutil.Process:
        """The sampler that faults befall: of rank 1, but at the end of the run, which it may have left by then."""
        number = 0 if self._point == cells.SHUTDOWN else 1
        owner = self.server() if self.place.strategy == "glt_server_client" else self.rank(number)
        (found,) = samplers_of(owner)
        return found

    def restart_server(self) -> None:
        """Where the killed one was."""
        if self.servers:
            self.servers[1] = self._start_server(1)

    # -- the end

    def wait(self, limit_s: float) -> bool:
        """Waits until the ranks have ended; False if that takes longer."""
        return settle(lambda: [None for status in self.statuses if status is None], limit_s) == []

    def kill(self) -> None:
        for run in self.ranks:
            run.popen.kill()

    @property
    def statuses(self) -> list[int | None]:
        return [run.popen.poll() for run in self.ranks]

    def left(self) -> list[str]:
        """Processes that the ranks started, some seconds after their end."""
        return [describe(process) for run in self.ranks for process in settle(run.family, _GONE_S)]

    def end_servers(self) -> list[str]:
        """Asks the servers to end, and says what was wrong with that."""
        wrong = []
        for number, run in enumerate(self.servers):
            if number in self.away:
                continue
            if run.popen.poll() is not None:
                wrong.append(f"server {number} ended with status {run.popen.returncode}")
                continue
            run.popen.send_signal(signal.SIGTERM)
        for number, run in enumerate(self.servers):
            if number not in self.away and run.popen.poll() is None:
                with contextlib.suppress(Exception):
                    run.popen.wait(_GONE_S)
                if run.popen.poll() != 0:
                    wrong.append(f"server {number}: SIGTERM leads to status {run.popen.poll()}")
            wrong += [describe(process) for process in settle(run.family, _GONE_S)]
        return wrong


@contextlib.contextmanager
def start_job(cell: Cell, place: Place, folder: Path, output: str, limit: int | None = None) -> Iterator[Job]:
    """Starts the processes of a cell. folder: empty.  output: folder of checkpoints and predictions."""
    with ExitStack() as stack:
        for name in ("work", "tmp"):
            (folder / name).mkdir(exist_ok=True)
        job = Job(place, folder, stack)
        options = Options(
            strategy=place.strategy,
            cluster=asdict(place.cluster),
            data=place.data,
            point=cell.point,
            raises=cell.fault == "rank 1 raises",
            limit=limit,
            output=output,
        )
        job.start_ranks(options)
        yield job


def read_notes(folder: Path, name: str) -> list[list[Any]]:
    """What each rank wrote down so far."""
    found: list[list[Any]] = []
    for rank in range(2):
        path = folder / f"{name}{rank}.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        found.append([json.loads(line) for line in lines if line.endswith("\n")])  # a killed rank writes half a line
    return found


def samplers_of(process: psutil.Process) -> list[psutil.Process]:
    """The sampler processes that a rank or a server has itself."""
    return _children(process, "producer.worker")


def _children(process: psutil.Process, module: str) -> list[psutil.Process]:
    return [child for child in process.children() if module in " ".join(child.cmdline())]
