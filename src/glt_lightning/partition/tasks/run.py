"""Runs tasks, in this process or by an executor; skips those whose results an interrupted run left.

The ledger is a folder with one file per finished task. Its name is a hash of all that the task depends on: the partition, the
name of the task and its arguments. The file has the result, so a run that starts again asks for the same results and gets
those that are there. It is written last and by a rename: what has no entry is done again, over what is left of it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from glt_lightning.base import DataError, GLTError, OptionError, PartitionError
from glt_lightning.partition.tasks.exchange import save_text
from glt_lightning.partition.tasks.job import JOB, Job
from glt_lightning.partition.tasks.processes import WorkerLost

_ERRORS: tuple[type[GLTError], ...] = (DataError, OptionError, PartitionError)
_TRIES = 3  # of a task whose process is lost
# What Dask and Ray raise when they have tried again often enough. By name: neither is imported here.
_LOST = {"KilledWorker", "WorkerCrashedError", "NodeDiedError", "OutOfMemoryError"}


class AnyJob(Protocol):
    """What tasks work on: the partition of a graph, or the conversion of tables.

    Attributes:
        folder: Folder of the whole run.
        out, work: What will be renamed, and the files between tasks.
    """

    folder: Path
    out: Path
    work: Path

    @property
    def tasks(self) -> Mapping[str, Callable[..., Any]]:
        """The tasks: functions of the job and of JSON values that return a JSON value, by name."""
        ...

    def save(self) -> str:
        """Writes the file `JOB` of the folder, by which other processes open the job. Returns its nonce."""
        ...


class Calls:
    """Runs the tasks of one job.

    executor: where they run; None: in this process, one after the other.
    key: a text that changes with the user's data and options.
    """

    def __init__(self, job: AnyJob, key: str, executor: Executor | None) -> None:
        self.job, self._key, self._executor = job, key, executor
        for folder in (job.out, job.work, _ledger(job.folder)):
            folder.mkdir(parents=True, exist_ok=True)
        self._nonce = "" if executor is None else job.save()

    def run(
        self,
        name: str,
        calls: Sequence[Mapping[str, Any]],
        done: Callable[[int], object] = lambda units: None,
        units: Sequence[int] | None = None,
    ) -> list[Any]:
        """Runs a task with each of ``calls`` as arguments. Returns the results in their order.

        done: called with the units of each call that is finished.

        Raises the `GLTError` of the first call that fails; `PartitionError` if the process of a task is lost again and again.
        """
        waiting = {n: self._submit(name, args) for n, args in enumerate(calls) if self._found(name, args) is None}
        results = []
        for n, args in enumerate(calls):
            results.append(self._result(name, args, waiting[n]) if n in waiting else self._found(name, args))
            done(0 if units is None else units[n])
        return [each["result"] for each in results]

    def finished(self, name: str, calls: Sequence[Mapping[str, Any]]) -> bool:
        """Tells whether nothing is left to do of these calls: what only they read is not needed again."""
        return all(self._found(name, args) is not None for args in calls)

    def once(self, name: str, args: Mapping[str, Any], work: Callable[[], Any]) -> Any:
        """Returns the result of work that this process does itself, unless it is in the ledger."""
        found = self._found(name, args)
        if found is None:
            found = {"result": work()}
            _write(self._file(name, args), found)
        return found["result"]

    def _submit(self, name: str, args: Mapping[str, Any]) -> Future[Any] | None:
        if self._executor is None:
            return None
        return self._executor.submit(
            run_task, str(self.job.folder), self._nonce, str(self._file(name, args)), name, args
        )

    def _result(self, name: str, args: Mapping[str, Any], future: Future[Any] | None) -> Any:
        for tries_left in reversed(range(_TRIES)):
            try:
                answer = self._here(name, args) if future is None else future.result()
                break
            except WorkerLost as error:
                if not tries_left:
                    raise PartitionError(f"partition: {name}: {error}, {_TRIES} times.") from None
                future = self._submit(name, args)
            except Exception as error:
                if type(error).__name__ not in _LOST:
                    raise
                text = str(error).strip().partition("\n")[0]
                raise PartitionError(f"partition: {name}: {type(error).__name__}: {text}") from error
        if "error" in answer:
            kind, text = answer["error"]
            raise next(e for e in _ERRORS if e.__name__ == kind)(text)
        return answer

    def _here(self, name: str, args: Mapping[str, Any]) -> Any:
        return _perform(lambda: self.job, self._file(name, args), name, args)

    def _file(self, name: str, args: Mapping[str, Any]) -> Path:
        text = json.dumps([self._key, name, args], sort_keys=True)
        return _ledger(self.job.folder) / hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def _found(self, name: str, args: Mapping[str, Any]) -> Any:
        try:
            return json.loads(self._file(name, args).read_bytes())
        except (FileNotFoundError, ValueError):  # a machine that lost power may leave an empty file
            return None


class Tasks(Calls):
    """Runs the tasks of one partition."""

    job: Job


def run_task(folder: str, nonce: str, entry: str, name: str, args: Mapping[str, Any]) -> Any:
    """Runs a task in a process of an executor."""
    return _perform(lambda: open_job(folder, nonce), Path(entry), name, args)


@lru_cache(maxsize=1)
def open_job(folder: str, nonce: str) -> AnyJob:
    """Opens a job once per process. nonce: as `AnyJob.save` returned it, which proves that this process sees the same folder.

    Raises `PartitionError` if it does not.
    """
    try:
        raw = json.loads((Path(folder) / JOB).read_bytes())
    except FileNotFoundError:
        raw = {}
    if raw.get("nonce") != nonce:
        raise PartitionError(
            f"{folder}: host {os.uname().nodename} does not see this folder, in which tasks exchange files. Choose one that all "
            "workers share (partition.dir; for tables, data.root)."
        )
    if "tables" in raw:
        from glt_lightning.partition.sources.tables.job import TableJob

        return TableJob.opened(raw, Path(folder))
    return Job.opened(raw, Path(folder))


def _perform(job: Callable[[], AnyJob], entry: Path, name: str, args: Mapping[str, Any]) -> Any:
    """Runs a task and writes its entry into the ledger. Errors about the user's data are results: no engine shall retry them."""
    try:
        opened = job()
        answer = {"result": opened.tasks[name](opened, **json.loads(json.dumps(args)))}
    except _ERRORS as error:
        kind = next(e for e in _ERRORS if isinstance(error, e))
        return {"error": [kind.__name__, str(error)]}
    return _write(entry, answer)


def _write(entry: Path, answer: Any) -> Any:
    text = json.dumps(answer)
    save_text(entry, text)
    return json.loads(text)


def _ledger(folder: Path) -> Path:
    return folder / "ledger"
