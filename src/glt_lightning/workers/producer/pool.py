"""A pool of sampler processes: assigns tasks to them, and replaces processes that fail."""

from __future__ import annotations

import select
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from glt_lightning.base import SamplerError
from glt_lightning.workers.cluster.owner import OwnerAddresses
from glt_lightning.workers.producer.child import Starter
from glt_lightning.workers.producer.process import LEAVE_S, BatchTask, SamplerProcess
from glt_lightning.workers.producer.samplers import SamplerSource
from glt_lightning.workers.slots import ClosedError, receive

# Before the third start in a row of a process that makes nothing; doubles up to the second. Without a pause, a process that
# fails while it starts (no memory, an unreadable file) would be forked as fast as the host can.
_FIRST_PAUSE_S = 0.1
_MOST_PAUSE_S = 10.0


@dataclass(frozen=True)
class Failure:
    """The failure of a process: it died, hangs or raised.

    message: name of the process and the event, without a full stop.  traceback: the one in that process, or "".
    tasks: the tasks that it did not finish.  offending: the task that raised, if one did.  kind: name of its error.
    final: the process could not open the graph, so a new one would fail as well.
    in_vain: number of processes in a row with this index, this one included, that ended before they made a batch.
    """

    message: str
    traceback: str
    tasks: list[BatchTask]
    offending: BatchTask | None = None
    kind: str = ""
    final: bool = False
    in_vain: int = 1

    def __str__(self) -> str:
        return self.message + (f"\n\nTraceback in the sampler process:\n{self.traceback}" if self.traceback else ".")


# Returns the failure's tasks that are to be made again. Raises to end the iteration with an error.
FailurePolicy = Callable[[Failure], Iterable[BatchTask]]


class SamplerPool:
    """Owns sampler processes. Not thread-safe. Close it: that ends the processes.

    A process that failed is replaced, at once or, if those before it made no batch, after a growing pause. The new one
    serves at the same address and is sent the owners of the other parts. The tasks that ``on_failure`` returns go to the
    least busy process; one that is to be made `alone` waits for a process without other tasks.

    threads: number of batches that a process makes at once.  timeout_s: the deadline of a message whose transfer has begun.
    resilient: a process that raised goes on with its other tasks, and a start that fails is retried; for a server, whose
    clients share processes. Otherwise the process is replaced, and a failed start raises.
    """

    def __init__(
        self,
        source: SamplerSource,
        num_workers: int,
        threads: int,
        timeout_s: float,
        on_failure: FailurePolicy,
        *,
        resilient: bool = False,
    ) -> None:
        self._source, self._threads, self._timeout_s, self._on_failure = source, threads, timeout_s, on_failure
        self._resilient = resilient
        self._addresses: dict[int, str] = {}  # by index of the process
        self._opened: set[int] = set()
        self._owners: Sequence[OwnerAddresses] = ()
        self._handle: Mapping[str, Any] | None = None
        self._waiting: deque[BatchTask] = deque()
        self._reserved: SamplerProcess | None = None  # gets no new tasks until it is free for a task to be made alone
        self._in_vain = [0] * num_workers  # processes in a row that ended before they made a batch
        self._due_s: dict[int, float] = {}  # when to start the process of an index
        self.restarts = 0
        self._processes: list[SamplerProcess | None] = [None] * num_workers
        self._starter = Starter()
        self._finalizer = weakref.finalize(self, _stop_all, self._processes, self._starter)
        for index in range(num_workers):
            self._processes[index] = SamplerProcess(index, source, threads, timeout_s, self._starter)

    @property
    def processes(self) -> list[SamplerProcess]:
        """The running processes."""
        return [process for process in self._processes if process is not None]

    def is_open(self, process: SamplerProcess) -> bool:
        """Tells whether a process has opened the graph."""
        return process.index in self._opened

    @property
    def num_tasks(self) -> int:
        """Number of tasks in flight, those that wait for a process included."""
        return len(self._waiting) + sum(len(process.tasks) for process in self.processes)

    def wait_open(self, timeout_s: float) -> bool:
        """Waits until every process has opened the graph. Returns False if that takes longer than ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while len(self._opened) < len(self._processes):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            for _ in self.poll(left_s):
                raise AssertionError("nothing was submitted yet")
        return True

    @property
    def addresses(self) -> list[str]:
        """The address at which each process serves its parts, once it is open."""
        return [self._addresses[index] for index in range(len(self._processes))]

    def join(self, owners: Sequence[OwnerAddresses]) -> None:
        """Sends all processes, also those started later, the owners of the parts that they do not map."""
        self._owners = owners
        for process in self.processes:
            process.join(owners)

    def keep(self, handle: Mapping[str, Any]) -> None:
        """Sends all processes, also those started later, the handle of the remote cache."""
        self._handle = handle
        for process in self.processes:
            process.keep(handle)

    def submit(self, task: BatchTask) -> None:
        """Assigns a task to the least busy process."""
        self._waiting.append(task)
        self._spread()

    def drop(self, run: int) -> None:
        """Drops queued batches of a run in all processes, which then reply without a batch."""
        for process in self.processes:
            if any(task.run == run for task in process.tasks.values()):
                process.drop(run)

    def forget(self, slot: int) -> None:
        """Closes a slot in all processes. It must belong to no task in flight."""
        for process in self.processes:
            process.forget(slot)

    def poll(self, timeout_s: float, also: int | None = None) -> Iterator[tuple[BatchTask, dict[str, Any]]]:
        """Yields finished tasks with the reply of the process. Waits up to ``timeout_s`` for a message or the end of a process,
        or until the file descriptor ``also`` is readable."""
        poll = select.poll()
        by_fd = {process.fileno(): process for process in self.processes}
        for fd in (*by_fd, *([] if also is None else [also])):
            poll.register(fd, select.POLLIN)
        now = time.monotonic()
        until = min([now + max(0.0, timeout_s), *self._due_s.values()])
        for fd, _ in poll.poll(max(0.0, until - now) * 1000):
            process = by_fd.get(fd)
            if process is None or self._processes[process.index] is not process:
                continue  # ``also``, or a process that was replaced while this loop ran
            try:
                header, _, _ = receive(process.sock)
                process.heard_s = time.monotonic()
            except (ClosedError, TimeoutError):
                self._replace(process, process.exit_reason())
                continue
            done = self._take(process, header)
            if done is not None:
                yield done
        self._start_due()
        self._spread()

    def replace(self, process: SamplerProcess, reason: str) -> None:
        """Kills a process, as if it had died."""
        self._replace(process, reason)

    def close(self) -> None:
        """Ends the processes. Safe to call twice."""
        self._finalizer()
        self._waiting.clear()
        self._due_s.clear()

    # -- tasks

    def _spread(self) -> None:
        """Assigns waiting tasks as long as a process can take one."""
        while (found := self._next()) is not None:
            process, task = found
            self._waiting.remove(task)
            try:
                process.submit(task)
            except ClosedError:
                self._replace(process, process.exit_reason())
            except TimeoutError as error:
                self._replace(process, f"accepts no requests ({error})")

    def _next(self) -> tuple[SamplerProcess, BatchTask] | None:
        """Chooses the next task to submit, and its process; None if no process can take one.

        A task to be made alone reserves the least busy process, which gets no new tasks until it is idle: otherwise a busy
        pool would never have an idle process for it.
        """
        free = [p for p in self.processes if not any(task.alone for task in p.tasks.values())]
        if not free or not self._waiting:
            return None
        lone = next((task for task in self._waiting if task.alone), None)
        if lone is None:
            self._reserved = None
        elif self._reserved is None:
            self._reserved = min(free, key=lambda p: len(p.tasks))
        if lone is not None and self._reserved is not None and not self._reserved.tasks:
            process, self._reserved = self._reserved, None
            return process, lone
        unreserved = [p for p in free if p is not self._reserved]
        task = next((task for task in self._waiting if not task.alone), None)
        return None if task is None or not unreserved else (min(unreserved, key=lambda p: len(p.tasks)), task)

    def _take(self, process: SamplerProcess, header: dict[str, Any]) -> tuple[BatchTask, dict[str, Any]] | None:
        """Handles a message of a process. Returns a finished task and its reply, or None for any other message."""
        if "opened" in header:
            self._opened.add(process.index)
            if header["address"] is not None:
                self._addresses[process.index] = header["address"]
            return None
        if "run" not in header:
            self._replace(process, f"cannot start: {header['error']}", header["traceback"], final=True)
            return None
        key = (header["run"], header["number"])
        if "error" not in header:
            self._in_vain[process.index] = 0
            return process.tasks.pop(key), header
        offending, kind = process.tasks[key], header["error"].partition(":")[0]
        reason = f"failed at batch {header['number']}: {header['error']}"
        if self._resilient:
            del process.tasks[key]
            failure = Failure(f"{process.name} {reason}", header["traceback"], [offending], offending, kind)
            self._waiting.extend(self._on_failure(failure))
        else:
            self._replace(process, reason, header["traceback"], offending, kind)
        return None

    # -- processes

    def _replace(
        self,
        process: SamplerProcess,
        reason: str,
        traceback: str = "",
        offending: BatchTask | None = None,
        kind: str = "",
        final: bool = False,
    ) -> None:
        process.kill()  # first: from now on it writes to no slot, so its tasks may be made again into the same ones
        index, tasks = process.index, list(process.tasks.values())
        self._processes[index] = None
        self._opened.discard(index)
        if self._reserved is process:
            self._reserved = None
        if final and not self.processes:  # no process is left to make the waiting tasks
            tasks += self._waiting
            self._waiting.clear()
        if offending is not None:  # it works, and a batch does not
            self._in_vain[index] = 0
        self._due_s[index] = time.monotonic() + self._pause_s(index)
        self._in_vain[index] += offending is None
        message, in_vain = f"{process.name} {reason}", self._in_vain[index]
        again = list(self._on_failure(Failure(message, traceback, tasks, offending, kind, final, in_vain)))
        self.restarts += 1
        self._waiting.extendleft(reversed(again))  # in front and in order: training waits for the oldest batch
        self._start_due()
        self._spread()

    def _pause_s(self, index: int) -> float:
        in_vain = self._in_vain[index]
        return 0.0 if in_vain < 2 else min(_MOST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(in_vain - 2, 30))

    def _start_due(self) -> None:
        now = time.monotonic()
        for index in [index for index, due_s in self._due_s.items() if due_s <= now]:
            del self._due_s[index]
            # At the address of the process before it: its peers have no other, and `join` is not repeated on their side.
            source = replace(self._source, serve=self._addresses.get(index, self._source.serve))
            try:
                process = SamplerProcess(index, source, self._threads, self._timeout_s, self._starter)
            except SamplerError:
                if not self._resilient:
                    raise
                self._in_vain[index] += 1
                self._due_s[index] = now + max(_FIRST_PAUSE_S, self._pause_s(index))
                continue
            self._processes[index] = process
            if self._owners:
                process.join(self._owners)
            if self._handle is not None:
                process.keep(self._handle)


def _stop_all(processes: list[SamplerProcess | None], starter: Starter) -> None:
    running = [process for process in processes if process is not None]
    try:
        for process in running:
            process.hang_up()
        deadline = time.monotonic() + LEAVE_S
        for process in running:
            process.stop(max(0.0, deadline - time.monotonic()))
    finally:
        processes[:] = [None] * len(processes)
        starter.close()
