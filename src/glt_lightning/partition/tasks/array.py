"""Partitioning by a job array: the same command on any number of processes that see one folder, and nothing else between them.

Process 0 decides what is to be done, and puts each call of a task into a file. Every process takes calls that nobody has taken,
process 0 too; the ledger has the results. If a process dies with a call, process 0 does it: done twice, a task does no harm.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from glt_lightning.base import OptionError, PartitionError
from glt_lightning.partition.tasks.exchange import save_text
from glt_lightning.partition.tasks.run import run_task

# Environment of a process: its number, and how many there are (SLURM arrays, srun, Indexed Jobs of Kubernetes, MPI).
_NUMBERS = ("SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_COUNTS = ("SLURM_ARRAY_TASK_COUNT", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_FIRST = "SLURM_ARRAY_TASK_MIN"
_POLL_S = 0.05
_PATIENCE_S = 10.0  # with a call that another process has taken, beyond three times the longest call so far


def array_number() -> int:
    """Returns the number of this process in its job array. Raises `OptionError` without one."""
    for name in _NUMBERS:
        if name in os.environ:
            return int(os.environ[name]) - (int(os.environ.get(_FIRST, 0)) if name == _NUMBERS[0] else 0)
    raise OptionError(
        f"partition.engine: array: none of {', '.join(_NUMBERS)} is in the environment. Run the command in a SLURM array, by "
        "srun, or as an Indexed Job; or set JOB_COMPLETION_INDEX to 0, 1, ... in each process."
    )


def array_size() -> int | None:
    return next((int(os.environ[name]) for name in _COUNTS if name in os.environ), None)


class ArrayExecutor(Executor):
    """The calls of process 0. Whoever waits for a result does calls that nobody has taken."""

    def __init__(self, folder: Path) -> None:
        self._calls = folder / "calls"
        shutil.rmtree(self._calls, ignore_errors=True)  # of a run that was killed
        self._calls.mkdir(parents=True)
        self._waiting: dict[str, _Call] = {}
        self.longest_s = 0.0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        assert fn.__name__ == "run_task"
        assert not kwargs
        call = _Call(self, self._calls, args)
        self._waiting[call.id] = call
        return call

    def one_more(self) -> bool:
        """Does a call that nobody has taken. Returns False if there is none."""
        for call in [*self._waiting.values()]:
            if call.done():
                del self._waiting[call.id]
            elif _taken(self._calls, call.id):
                begin = time.monotonic()
                call.do()
                self.longest_s = max(self.longest_s, time.monotonic() - begin)
                return True
        return False


class _Call(Future[Any]):
    """A call of a task, done by some process of the array."""

    def __init__(self, owner: ArrayExecutor, calls: Path, given: tuple[Any, ...]) -> None:
        super().__init__()
        # the entry in the ledger, and the run: what a process has taken of a run that was killed is no call of this one
        self.id = f"{given[1]}.{Path(given[2]).name}"
        self._owner, self._answer, self._given = owner, calls / f"{self.id}.answer", given
        save_text(calls / f"{self.id}.call", json.dumps(given))

    def do(self) -> None:
        _do(self._answer, self._given)

    def done(self) -> bool:
        return self._answer.exists()

    def result(self, timeout: float | None = None) -> Any:
        idle_since: float | None = None
        while not self.done():
            if self._owner.one_more():
                idle_since = None
                continue
            now = time.monotonic()
            idle_since = now if idle_since is None else idle_since
            if now - idle_since > _PATIENCE_S + 3 * self._owner.longest_s:
                self.do()
            time.sleep(_POLL_S)
        return json.loads(self._answer.read_bytes())


def help_along(folder: Path, finished: Callable[[], bool], timeout_s: float) -> None:
    """Does calls of a run whose process 0 is another one, until it is finished.

    folder: of the run.  Raises `PartitionError` if there was no call for ``timeout_s``.
    """
    seen, begun = time.monotonic(), False
    while not finished():
        gone, begun = begun and not folder.exists(), begun or folder.exists()
        if gone and not finished():
            raise PartitionError(
                f"{folder}: process 0 has ended before the partition was finished. Its error says why."
            )
        for call in sorted((folder / "calls").glob("*.call")):
            if not call.with_suffix(".answer").exists() and _taken(call.parent, call.stem):
                try:
                    _do(call.with_suffix(".answer"), json.loads(call.read_bytes()))
                except FileNotFoundError:
                    break  # process 0 has finished, and removed the folder
                seen = time.monotonic()
        if time.monotonic() - seen > timeout_s:
            raise PartitionError(
                f"{folder}: no work for {timeout_s:.0f} s. Process 0 has to run with the same data and options, and in a folder "
                "that all processes share (partition.dir)."
            )
        time.sleep(_POLL_S)


def _do(answer: Path, given: Any) -> None:
    save_text(answer, json.dumps(run_task(*given)))


def _taken(calls: Path, call: str) -> bool:
    """Takes a call. Returns False if a process has taken it before."""
    try:
        os.close(os.open(calls / f"{call}.taken", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC))
    except (FileExistsError, FileNotFoundError):
        return False
    return True
