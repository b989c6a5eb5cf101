"""Runs a cell, and holds what came of it against what must."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.faults import cells
from tests.faults.cells import Cell, Ends, GoesOn
from tests.faults.harm import FAULTS, KILLED
from tests.faults.job import Job, read_notes, start_job
from tests.faults.places import World, open_place
from tests.faults.remains import NO_SOCKETS, Files, Sockets

_GOES_ON_S = 90.0  # after the fault, on a slow machine
_HANG_S = 20.0  # beyond the stated end; then all is killed
_EARLY = 4  # limit_train_batches
_DISK = 256  # KiB

# (stage, epoch) -> how often each seed came, over all ranks
Seeds = dict[tuple[str, int], Counter[int]]


@dataclass(frozen=True)
class Found:
    """What an undisturbed run found: the digest of the weights after each epoch, and its seeds."""

    weights: list[str]
    seeds: Seeds


@dataclass
class Row:
    """What came of a cell. complaints: what does not hold; none if it does."""

    cell: Cell
    outcome: str = "hangs"
    statuses: list[str] = field(default_factory=list)
    seconds: float = 0.0
    weights_equal: bool | None = None
    lost: int | None = None
    doubled: int | None = None
    leftovers: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    output: str = ""


def run_calm(world: World, folder: Path, *, early: bool) -> Found:
    """An undisturbed run of one host."""
    cell = Cell(cells.HOST, "none", "", GoesOn())
    limit = _EARLY if early else None
    with open_place(cell.mode, world, folder) as place, start_job(cell, place, folder, "output", limit) as job:
        if not job.wait(_GOES_ON_S) or job.statuses != [0, 0]:
            raise AssertionError(f"an undisturbed run ends with {job.statuses}:\n{job.output}")
        return _found(job.work)


def run_cell(cell: Cell, world: World, folder: Path, calm: Found) -> Row:
    """folder: empty.  calm: of the same length."""
    row = Row(cell)
    try:
        _run(cell, world, folder, calm, row)
    except AssertionError as error:  # it does not come as far as its fault
        row.outcome, row.output, row.complaints = "no fault", str(error), [str(error).splitlines()[0]]
    else:
        _judge(cell, row)
    return row


def _run(cell: Cell, world: World, folder: Path, calm: Found, row: Row) -> None:
    with ExitStack() as stack:
        place = stack.enter_context(open_place(cell.mode, world, folder))
        for name in ("work", "tmp"):
            (folder / name).mkdir()
        output = stack.enter_context(_output(cell, folder / "work"))
        files = Files(folder / "tmp", [folder / "work", world.graph.folder.parent])
        network = place.pid_in_network(stack)
        limit = _EARLY if cell.point == cells.EARLY else None
        job = stack.enter_context(start_job(cell, place, folder, output, limit))
        sockets = _strike(cell, job, row)
        row.leftovers += job.end_servers() + sockets.still_there(network) + files.left()
        row.output = job.output
        _compare(cell, row, _found(job.work), calm)


@contextlib.contextmanager
def _output(cell: Cell, work: Path) -> Iterator[str]:
    """The folder where the run writes: on a small disk of its own if that is to be full."""
    if cell.fault != "disk full":
        yield "output"
        return
    disk = work / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK}k", "tmpfs", disk], check=True)
    try:
        yield "disk/output"
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def _strike(cell: Cell, job: Job, row: Row) -> Sockets:
    """Does harm at the point, and waits for the ends. Returns the sockets that there were."""
    sockets = NO_SOCKETS
    if cell.point:
        job.wait_at_point(cell.point)
        sockets = Sockets.of(job.processes())
    struck_s = time.monotonic()
    then = FAULTS[cell.fault](job)
    job.go()
    then()
    limit_s = _GOES_ON_S if isinstance(cell.expected, GoesOn) else cell.expected.within_s + _HANG_S
    ended = job.wait(struck_s + limit_s - time.monotonic())
    row.seconds = time.monotonic() - struck_s
    row.statuses = [str(status) for status in job.statuses]
    if ended:
        row.outcome = "ok" if job.statuses == [0, 0] else "error"
    else:
        job.kill()
    row.leftovers += job.left()
    if cell.fault == "server stopped" and job.servers:
        with contextlib.suppress(psutil.Error):
            job.server().send_signal(signal.SIGCONT)
    return sockets


def _found(work: Path) -> Found:
    weights = read_notes(work, "weights")
    seeds: Seeds = {}
    for stage, epoch, ids in (line for lines in read_notes(work, "seeds") for line in lines):
        seeds.setdefault((stage, epoch), Counter()).update(ids)
    return Found([digest for pair in zip(*weights, strict=False) for digest in pair], seeds)


def _compare(cell: Cell, row: Row, found: Found, calm: Found) -> None:
    stages = calm.seeds.keys() | found.seeds.keys()
    more = [found.seeds.get(stage, Counter()) - calm.seeds.get(stage, Counter()) for stage in stages]
    if cell.point != cells.PREDICT:
        row.doubled = sum(each.total() for each in more)
    if row.outcome == "ok":
        row.weights_equal = found.weights == calm.weights
        less = [calm.seeds.get(stage, Counter()) - found.seeds.get(stage, Counter()) for stage in stages]
        row.lost = sum(each.total() for each in less)


def _judge(cell: Cell, row: Row) -> None:
    expected, wrong = cell.expected, row.complaints
    if isinstance(expected, GoesOn):
        if row.outcome != "ok":
            wrong.append("it must go on")
        elif not row.weights_equal:
            wrong.append("the weights differ from those of an undisturbed run")
        if row.lost:
            wrong.append("seeds are lost")
    else:
        wrong += _judge_end(cell, expected, row)
    if row.doubled:
        wrong.append("seeds come twice")
    if row.leftovers:
        wrong.append("something is left behind")


def _judge_end(cell: Cell, expected: Ends, row: Row) -> list[str]:
    if row.outcome != "error":
        return [f"it must end with an error within {expected.within_s:g} s"]
    wrong = []
    if row.seconds > expected.within_s:
        wrong.append(f"it must end within {expected.within_s:g} s")
    for rank, status in enumerate(row.statuses):
        # below 0: a signal, such as SIGABRT of a library
        right = status == "-9" if KILLED.get(cell.fault) == rank else int(status) > 0
        if not right:
            wrong.append(f"rank {rank} ends with status {status}")
    if expected.status0 is not None and row.statuses[0] != str(expected.status0):
        wrong.append(f"rank 0 must end with status {expected.status0}")
    if not re.search(expected.naming, row.output.partition("--- server")[0]):
        wrong.append(f"nobody says who is to blame ({expected.naming})")
    return wrong


def report(row: Row) -> str:
    """Why a cell does not hold, with what its processes printed."""
    said: list[Any] = [
        f"{row.cell.name}: {'; '.join(row.complaints)}",
        f"exits {row.statuses} after {row.seconds:.1f} s",
    ]
    return "\n".join([*said, *row.leftovers, row.output])
