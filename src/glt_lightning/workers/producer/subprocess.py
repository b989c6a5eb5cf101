"""Sampling in child processes, which write batches straight into memory shared with the trainer."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from glt_lightning.base import SamplerError, SamplingOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.sampling import BatchRequest, Counters, Sample
from glt_lightning.workers.cluster.owner import OwnerAddresses
from glt_lightning.workers.cluster.remote_rows import Traffic
from glt_lightning.workers.producer.base import LEAST, InFlight
from glt_lightning.workers.producer.look_ahead import LoaderRun, LookAhead
from glt_lightning.workers.producer.pool import Failure, SamplerPool
from glt_lightning.workers.producer.process import STEP_S, BatchTask, StandStill, batches_at_once
from glt_lightning.workers.producer.samplers import SamplerSource
from glt_lightning.workers.slots import PinMemory, SharedSlot, SlotPool
from glt_lightning.workers.transport.message import own_layout

_FAILED = "failed"  # in the reply of a batch that cannot be made: the error


class _SamplerPatience:
    """The deadline of a wait for samplers. It begins again after this process itself was stopped."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._still = seconds, StandStill()
        self._end_s = time.monotonic() + seconds

    def left_s(self) -> float:
        if self._still.happened():
            self._end_s = time.monotonic() + self._seconds
        return self._end_s - time.monotonic()


class SubprocessProducer(LookAhead[BatchTask, BatchTask]):
    """Makes batches in ``num_workers`` sampler processes, shared by all loaders of a rank.

    The trainer alone schedules: it chooses the batch, the process and the slot. A process that dies or raises is replaced
    and its batches are requested again, which gives the same batches. A batch that raises in more than ``max_restarts``
    processes is an error of its loader. One that ends more than that many is an error of all loaders, and so are more than
    that many processes in a row that make no batch. There is no thread here: replies are read while the trainer waits for a
    batch, and by `tend`.
    """

    def __init__(
        self, source: SamplerSource | LocalPartition, options: SamplingOptions, pin: PinMemory | None = None
    ) -> None:
        self._options = options
        source = source if isinstance(source, SamplerSource) else SamplerSource.of(source)
        threads = batches_at_once(source, options.num_workers, options.concurrency)
        # Guards pool, slots and runs. The trainer's thread holds it while it requests and waits; `tend`, on another thread,
        # only if it is free. Reentrant: `on_failure` closes this producer from within a wait.
        self._lock = threading.RLock()
        in_flight = InFlight.of(
            options,
            options.num_workers * options.concurrency,
            f"num_workers {options.num_workers} x concurrency {options.concurrency}",
        )
        super().__init__(in_flight, turn=self._lock)
        self._slots = SlotPool(SharedSlot, 0, pin)
        self._abandoned = 0  # tasks of ended runs whose slots a sampler may still write
        self._closed = False
        self._failure: SamplerError | None = None
        self._pool = SamplerPool(source, options.num_workers, threads, options.timeout_s, _TrainerPolicy(self))

    @property
    def fresh_slots(self) -> int:
        return self._slots.fresh_slots

    @property
    def restarts(self) -> int:
        return self._pool.restarts

    @property
    def traffic(self) -> Traffic:
        """No traffic: sampler processes report theirs with each batch."""
        return Traffic()

    @property
    def pids(self) -> list[int]:
        """Process ids of the samplers."""
        return [p.pid for p in self._pool.processes]

    def addresses(self) -> list[str]:
        """Returns the address at which each process serves its parts; waits until all do. A restarted process keeps its
        address."""
        if not self._pool.wait_open(self._options.timeout_s):
            raise SamplerError(
                f"the sampler processes did not start within sampling.timeout_s = {self._options.timeout_s} s. "
                "Raise it if loading the partition takes longer."
            )
        return self._pool.addresses

    def join(self, owners: Sequence[OwnerAddresses]) -> None:
        """Sends all processes the owners of the parts that they do not map."""
        with self._lock:  # or a process that `tend` starts meanwhile is sent them twice, or not at all
            self._pool.join(owners)

    def keep(self, handle: Mapping[str, Any]) -> None:
        """Sends all processes the handle of the remote cache."""
        with self._lock:  # as in `join`
            self._pool.keep(handle)

    def tend(self) -> None:
        """Replaces samplers that died, unless the trainer's thread is in this object and does so itself. For another thread:
        other ranks depend on these samplers while this trainer is in a collective call and waits for these ranks."""
        if not self._lock.acquire(blocking=False):  # not waited for: the trainer may hold it for a whole batch
            return
        try:
            if not self._closed:
                for done, header in self._pool.poll(0.0):
                    self._note(done, header)
        except SamplerError as error:
            self._failure = error  # raised to the trainer at its next batch
        finally:
            self._lock.release()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._pool.close()
            self._runs.clear()
            self._ended.clear()
            self._slots.close()

    # -- scheduling

    def _expect(self, allowed: int, others: list[LoaderRun[BatchTask]]) -> None:
        # those in flight of this rank, the batch in training, and the one before it, which the loop may still reference
        self._slots.limit = allowed + sum(max(LEAST, len(each.tasks)) for each in others) + 2

    def _ask(self, run: LoaderRun[BatchTask], request: BatchRequest) -> BatchTask | None:
        """Requests a batch. Returns None if all slots are in use, except for the batch that training needs next, which always
        gets memory."""
        slot = self._slots.take(run.largest)
        patience = _SamplerPatience(self._options.timeout_s)
        while slot is None and not run.tasks and self._abandoned:
            self._read_replies(patience)  # first wait for the slots of ended runs to come back
            slot = self._slots.take(run.largest)
        if slot is None and run.tasks:
            return None
        chosen = slot or self._slots.take_fresh()
        assert isinstance(chosen, SharedSlot)
        task = BatchTask(run.id, run.config, request, chosen, once=not self._slots.owns(chosen))
        self._pool.submit(task)
        return task

    def _wait(self, run: LoaderRun[BatchTask], task: BatchTask) -> BatchTask:
        patience = _SamplerPatience(self._options.timeout_s)
        while task.reply is None:
            self._read_replies(patience, task)
        if isinstance(failed := task.reply.get(_FAILED), SamplerError):
            raise failed
        return task

    def _read_replies(self, patience: _SamplerPatience, task: BatchTask | None = None) -> None:
        """Handles replies of samplers. Waits at most `STEP_S` for a reply or the end of a process."""
        left_s = patience.left_s()
        if left_s <= 0:
            waiting = [p for p in self._pool.processes if task is None or task in p.tasks.values()]
            names = ", ".join(p.name for p in waiting) or "sampler processes that are being restarted"
            expected = "a reply" if task is None else f"batch {task.request.number}"
            raise SamplerError(
                f"{names}: no answer with {expected} within sampling.timeout_s = {self._options.timeout_s} s. Raise it if "
                "batches take that long; lower num_neighbors or batch_size if they are too large."
            )
        for done, header in self._pool.poll(min(left_s, STEP_S)):
            self._note(done, header)

    def _note(self, task: BatchTask, header: dict[str, Any]) -> None:
        if task.run in self._runs:
            task.reply = header
        else:
            self._forget(task)

    def _forget(self, task: BatchTask) -> None:
        self._abandoned -= 1
        self._slots.give_back(task.slot)

    def on_failure(self, failure: Failure) -> list[BatchTask]:
        """Returns the tasks of a failed process that are to be made again.

        A batch that raises too often becomes an error of its own loader when that loader needs it; other loaders go on, as they
        do where the trainer samples. Raises `SamplerError`, for all loaders, if it is processes that fail, and not a batch.
        """
        # Counted per batch, and per row of processes that make no batch, and not in total: a job of a week survives a death
        # a day.
        for task in failure.tasks if failure.offending is None else [failure.offending]:
            task.failures += 1
        most = self._options.max_restarts
        failures = max([failure.in_vain, *(task.failures for task in failure.tasks)])
        if failure.final or (failure.offending is None and failures > most):
            self._failure = _error(failure, None if failure.final else failures)
            self.close()
            raise self._failure
        again = []
        for task in failure.tasks:
            if task.run not in self._runs:
                self._forget(task)
            elif task is failure.offending and task.failures > most:
                task.reply = {"nbytes": 0, _FAILED: _error(failure, task.failures)}
            else:
                again.append(task)
        return again

    def _nbytes(self, made: BatchTask) -> int:
        return int(_reply(made)["nbytes"])

    def _deliver(self, made: BatchTask) -> Sample:
        reply = _reply(made)
        made.slot.attach()
        memory = self._slots.lend(made.slot, reply["nbytes"])
        layout = own_layout(reply["layout"])
        counters = Counters.from_list(reply["counters"])
        return Sample(made.request.number, {p.name: p.view(memory) for p in layout}, counters)

    def _drop(self, run: LoaderRun[BatchTask]) -> None:
        """Frees the batches of an ended run. Those that samplers still make are dropped when they arrive: until then the
        samplers write to their slots."""
        for task in run.tasks:
            if task.reply is None:
                self._abandoned += 1
            else:
                self._slots.give_back(task.slot)
        self._pool.drop(run.id)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise SamplerError("the loader's context is closed; open a new one.")


def _error(failure: Failure, failures: int | None) -> SamplerError:
    """Makes the error of a failure. failures: their number, if it is the reason why no more processes are started; else None."""
    limit = "" if failures is None else f" after {failures - 1} restarts (sampling.max_restarts)"
    return SamplerError(str(replace(failure, message=failure.message + limit)))


def _reply(task: BatchTask) -> dict[str, Any]:
    assert task.reply is not None
    return task.reply


class _TrainerPolicy:
    """Calls the producer's `on_failure` by a weak reference: the pool must not keep the producer alive, whose finalizer ends
    the processes."""

    def __init__(self, producer: SubprocessProducer) -> None:
        self._producer = weakref.ref(producer)

    def __call__(self, failure: Failure) -> list[BatchTask]:
        producer = self._producer()
        assert producer is not None
        return producer.on_failure(failure)
