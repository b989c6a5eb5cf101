"""Sampler processes as one: tasks go to the least busy, a process that dies or raises is replaced."""

from __future__ import annotations

import select
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from glt_lightning.channel.wire import ClosedError, receive
from glt_lightning.cluster.member import Holder
from glt_lightning.producer.process import SamplerProcess, Task
from glt_lightning.producer.samplers import SamplerSource


@dataclass(frozen=True)
class Failure:
    """A process that died, hangs or raised.

    said: its name and what happened, without a full stop.  traceback: in that process, or "".
    tasks: what it had.  culprit: the one that it raised for, if it raised.  final: a new process would fail, too.
    """

    said: str
    traceback: str
    tasks: list[Task]
    culprit: Task | None = None
    final: bool = False

    def __str__(self) -> str:
        return self.said + (f"\n\nTraceback in the sampler process:\n{self.traceback}" if self.traceback else ".")


# Before a process is replaced: returns which of the failure's tasks the new one shall do. Raises to end it all.
Judge = Callable[[Failure], Iterable[Task]]


class SamplerPool:
    """Owns sampler processes. Not for several threads. Close it: that ends them.

    A restarted process serves at the address it had, is told who holds the other parts, and gets the tasks that
    ``judge`` leaves to it.
    """

    def __init__(self, source: SamplerSource, num_workers: int, threads: int, timeout_s: float, judge: Judge) -> None:
        self._source, self._threads, self._timeout_s, self._judge = source, threads, timeout_s, judge
        self._addresses: dict[int, str] = {}  # by index of the process
        self._opened: set[int] = set()
        self._holders: Sequence[Holder] = ()
        self.restarts = 0
        self.processes: list[SamplerProcess] = []
        self._finalizer = weakref.finalize(self, _stop_all, self.processes)
        for index in range(num_workers):
            self.processes.append(SamplerProcess(index, source, threads, timeout_s))

    def wait_open(self, timeout_s: float) -> bool:
        """Waits until every process has opened the graph; False if that takes longer."""
        deadline = time.monotonic() + timeout_s
        while len(self._opened) < len(self.processes):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            for _ in self.poll(left_s):
                raise AssertionError("nothing was submitted yet")
        return True

    @property
    def addresses(self) -> list[str]:
        """Where each process serves its parts, once it is open."""
        return [self._addresses[process.index] for process in self.processes]

    def join(self, holders: Sequence[Holder]) -> None:
        """Tells all processes who has the parts that they do not map."""
        self._holders = holders
        for process in self.processes:
            process.join(holders)

    def submit(self, task: Task) -> None:
        """Gives a task to the least busy process."""
        self._issue(min(self.processes, key=lambda p: len(p.tasks)), task)

    def drop(self, run: int) -> None:
        """Tells the processes that queued batches of a run are no longer wanted; they answer them with nothing."""
        for process in self.processes:
            if any(task.run == run for task in process.tasks.values()):
                process.drop(run)

    def forget(self, slot: int) -> None:
        """Tells the processes that a slot is gone. None of their tasks may be about to write it."""
        for process in self.processes:
            process.forget(slot)

    def poll(self, timeout_s: float, also: int | None = None) -> Iterator[tuple[Task, dict[str, Any]]]:
        """Tasks that are done, with what the process said. Waits for at least one message or death, or for the file
        descriptor ``also`` to become readable."""
        poll = select.poll()
        by_fd = {process.fileno(): process for process in self.processes}
        for fd in (*by_fd, *([] if also is None else [also])):
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(max(0.0, timeout_s) * 1000):
            process = by_fd.get(fd)
            if process is None or process not in self.processes:
                continue
            try:
                header, _, _ = receive(process.sock)
            except (ClosedError, TimeoutError):
                self._replace(process, process.epitaph())
                continue
            done = self._take(process, header)
            if done is not None:
                yield done

    def close(self) -> None:
        """Ends the processes. Safe to call twice."""
        self._finalizer()

    def _take(self, process: SamplerProcess, header: dict[str, Any]) -> tuple[Task, dict[str, Any]] | None:
        if "opened" in header:
            self._opened.add(process.index)
            if header["address"] is not None:
                self._addresses[process.index] = header["address"]
            return None
        if "error" not in header:
            return process.tasks.pop((header["run"], header["number"])), header
        if "run" not in header:
            self._replace(process, f"cannot start: {header['error']}", header["traceback"], final=True)
            return None
        culprit = process.tasks[header["run"], header["number"]]
        said = f"failed at batch {header['number']}: {header['error']}"
        self._replace(process, said, header["traceback"], culprit)
        return None

    def _issue(self, process: SamplerProcess, task: Task) -> None:
        try:
            process.submit(task)
        except ClosedError:
            self._replace(process, process.epitaph())
        except TimeoutError as error:
            self._replace(process, f"does not take requests ({error})")

    def _replace(
        self,
        process: SamplerProcess,
        reason: str,
        traceback: str = "",
        culprit: Task | None = None,
        final: bool = False,
    ) -> None:
        process.kill()
        tasks = list(process.tasks.values())
        again = self._judge(Failure(f"{process.name} {reason}", traceback, tasks, culprit, final))
        self.restarts += 1
        self._opened.discard(process.index)
        source = replace(self._source, serve=self._addresses.get(process.index, self._source.serve))
        fresh = SamplerProcess(process.index, source, self._threads, self._timeout_s)
        self.processes[process.index] = fresh
        if self._holders:
            fresh.join(self._holders)
        for task in again:
            self._issue(self.processes[process.index], task)  # which may be replaced, too, meanwhile


def _stop_all(processes: list[SamplerProcess]) -> None:
    for process in processes:
        process.hang_up()
    for process in processes:
        process.stop()
    processes.clear()
