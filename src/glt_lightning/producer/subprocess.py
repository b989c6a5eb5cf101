"""Sampling in processes of their own, which write batches straight into memory shared with the trainer."""

from __future__ import annotations

import select
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from glt_lightning.channel.slots import PinMemory, SharedSlot, SlotPool
from glt_lightning.channel.wire import ClosedError, receive
from glt_lightning.cluster.member import Holder
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.errors import SamplerError
from glt_lightning.options import SamplingOptions
from glt_lightning.producer.process import SamplerProcess, Task, batches_at_once
from glt_lightning.producer.samplers import SamplerSource
from glt_lightning.sampler.request import BatchRequest, SamplerConfig
from glt_lightning.sampler.sample import Placed, Sample


@dataclass
class _Run:
    """One iteration of a loader: its tasks that are issued and not yet delivered, in plan order."""

    id: int
    config: SamplerConfig
    requests: Iterator[BatchRequest]
    tasks: OrderedDict[int, Task] = field(default_factory=OrderedDict)
    largest: int = 0  # bytes of its largest batch so far


class SubprocessProducer:
    """Owns ``num_workers`` sampler processes, shared by all loaders of a rank.

    The trainer alone schedules: it names the batch, the process and the slot. A process that dies or raises is replaced
    and its batches are asked for again, which gives the very same batches; after ``max_restarts`` the error reaches the
    trainer. There is no thread: replies are read while the trainer waits for a batch.
    """

    def __init__(
        self, source: SamplerSource | LocalPartition, options: SamplingOptions, pin: PinMemory | None = None
    ) -> None:
        self._options = options
        self._source = source if isinstance(source, SamplerSource) else SamplerSource.of(source)
        self._addresses: dict[int, str] = {}  # by index of the process
        self._holders: Sequence[Holder] = ()
        self._threads = batches_at_once(self._source, options.num_workers, options.concurrency)
        self._slots = SlotPool(SharedSlot, 0, pin)
        self._runs: dict[int, _Run] = {}
        self._ids = count()
        self._ended: deque[_Run] = deque()
        self._abandoned = 0  # tasks of ended runs whose slots are still with a sampler
        self._closed = False
        self.restarts = 0
        self._processes: list[SamplerProcess] = []
        self._finalizer = weakref.finalize(self, _stop_all, self._processes)
        for index in range(options.num_workers):
            self._processes.append(SamplerProcess(index, self._source, self._threads, options.timeout_s))

    @property
    def fresh_slots(self) -> int:
        return self._slots.fresh_slots

    @property
    def pids(self) -> list[int]:
        """Process ids of the samplers."""
        return [p.pid for p in self._processes]

    def addresses(self) -> list[str]:
        """Where each process serves its parts; waits until all do. A process that is restarted keeps its address."""
        deadline = self._deadline()
        while len(self._addresses) < len(self._processes):
            self._read_replies(deadline)
        return [self._addresses[process.index] for process in self._processes]

    def join(self, holders: Sequence[Holder]) -> None:
        """Tells all processes who has the parts that they do not map."""
        self._holders = holders
        for process in self._processes:
            process.join(holders)

    def stream(self, config: SamplerConfig, requests: Iterator[BatchRequest]) -> Iterator[Sample]:
        self._check_open()
        run = _Run(next(self._ids), config, requests)
        self._runs[run.id] = run
        try:
            self._top_up(run)
            while run.tasks:
                task = next(iter(run.tasks.values()))
                self._wait_for(task)
                del run.tasks[task.request.number]
                box = [self._deliver(run, task)]
                self._top_up(run)  # the samplers work on while the trainer does
                yield box.pop()  # nothing here holds the batch while the trainer has it
                self._check_open()
        finally:
            # Not more: an abandoned iterator is closed wherever the garbage collector finds it, also between the two
            # halves of a message.
            self._ended.append(run)

    def close(self) -> None:
        self._closed = True
        self._finalizer()
        self._runs.clear()
        self._ended.clear()
        self._slots.close()

    # -- scheduling

    def _top_up(self, run: _Run) -> None:
        """Issues requests up to the run's allowance; the next due batch always gets memory."""
        self._sweep()
        each = self._options.num_workers * self._options.concurrency
        self._slots.limit = each * len(self._runs) + 2  # one batch in use, one just being replaced
        budget = self._options.channel_bytes
        if budget is not None and run.largest:
            each = max(1, min(each, budget // run.largest))
        while len(run.tasks) < each:
            slot = self._slots.take()
            while slot is None and not run.tasks and self._abandoned:
                self._read_replies(self._deadline())  # an ended run's slots come back first
                slot = self._slots.take()
            if slot is None and run.tasks:
                return
            request = next(run.requests, None)
            if request is None:
                if slot is not None:
                    self._slots.give_back(slot)
                return
            chosen = slot or self._slots.take_fresh()
            assert isinstance(chosen, SharedSlot)
            task = Task(run.id, run.config, request, chosen, once=not self._slots.owns(chosen))
            run.tasks[request.number] = task
            self._issue(min(self._processes, key=lambda p: len(p.tasks)), task)

    def _issue(self, process: SamplerProcess, task: Task) -> None:
        try:
            process.submit(task)
        except (ClosedError, TimeoutError) as error:
            self._replace(process, f"does not take requests ({error})")

    def _wait_for(self, task: Task) -> None:
        deadline = self._deadline()
        while task.reply is None:
            self._read_replies(deadline, task)

    def _deadline(self) -> float:
        return time.monotonic() + self._options.timeout_s

    def _read_replies(self, deadline: float, task: Task | None = None) -> None:
        """Handles what the samplers sent; waits for at least one message or a death."""
        poll = select.poll()
        by_fd = {p.fileno(): p for p in self._processes}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready:
            waiting = [p for p in self._processes if task is None or task in p.tasks.values()]
            who = ", ".join(p.name for p in waiting)
            what = "a reply" if task is None else f"batch {task.request.number}"
            raise SamplerError(f"{who}: no answer with {what} within sampling.timeout_s = {self._options.timeout_s} s.")
        for fd, _ in ready:
            process = by_fd[fd]
            try:
                header, _, _ = receive(process.sock)
            except (ClosedError, TimeoutError):
                self._replace(process, process.epitaph())
                continue
            self._handle(process, header)

    def _handle(self, process: SamplerProcess, header: dict[str, Any]) -> None:
        if "opened" in header:
            if header["address"] is not None:
                self._addresses[process.index] = header["address"]
            return
        if "error" in header and "run" not in header:
            self._replace(process, f"cannot start: {header['error']}", header["traceback"], final=True)
            return
        key = (header["run"], header["number"])
        if "error" in header:
            self._replace(process, f"failed at batch {header['number']}: {header['error']}", header["traceback"])
            return
        task = process.tasks.pop(key)
        if task.run in self._runs:
            task.reply = header
        else:
            self._abandoned -= 1
            self._slots.give_back(task.slot)

    def _replace(self, process: SamplerProcess, reason: str, traceback: str = "", final: bool = False) -> None:
        """Starts another process in place of a failed one and gives it the same tasks."""
        process.kill()
        said = f"{process.name} {reason}"
        if final or self.restarts >= self._options.max_restarts:
            self.close()
            limit = "" if final else f" after {self.restarts} restarts (sampling.max_restarts)"
            raise SamplerError(
                said + limit + (f"\n\nTraceback in the sampler process:\n{traceback}" if traceback else ".")
            )
        self.restarts += 1
        source = replace(self._source, serve=self._addresses.get(process.index, self._source.serve))
        again = SamplerProcess(process.index, source, self._threads, self._options.timeout_s)
        self._processes[process.index] = again
        if self._holders:
            again.join(self._holders)
        for task in process.tasks.values():
            if task.run in self._runs:
                self._issue(self._processes[process.index], task)  # which may be replaced, too, meanwhile
            else:
                self._abandoned -= 1
                self._slots.give_back(task.slot)

    def _deliver(self, run: _Run, task: Task) -> Sample:
        reply = task.reply
        assert reply is not None
        task.slot.attach()
        nbytes = reply["nbytes"]
        run.largest = max(run.largest, nbytes)
        memory = self._slots.lend(task.slot, nbytes)
        layout = [Placed(name, dtype, tuple(shape), offset) for name, dtype, shape, offset in reply["layout"]]
        return Sample(task.request.number, {p.name: p.view(memory) for p in layout})

    def _sweep(self) -> None:
        """Forgets ended runs: what samplers still make for them is dropped when it comes."""
        while self._ended:
            run = self._ended.popleft()
            del self._runs[run.id]
            for task in run.tasks.values():
                if task.reply is None:
                    self._abandoned += 1
                else:
                    self._slots.give_back(task.slot)
            for process in self._processes:
                if any(t.run == run.id for t in process.tasks.values()):
                    process.drop(run.id)

    def _check_open(self) -> None:
        if self._closed:
            raise SamplerError("the loader's context is closed; make a new loader.")


def _stop_all(processes: list[SamplerProcess]) -> None:
    for process in processes:
        process.hang_up()
    for process in processes:
        process.stop()
    processes.clear()
