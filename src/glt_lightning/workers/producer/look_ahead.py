"""Requests batches ahead of training, and delivers them in the order of the plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

from glt_lightning.sampling import BatchRequest, Sample, SamplerConfig
from glt_lightning.workers.producer.base import InFlight

Task = TypeVar("Task")  # a requested batch
Made = TypeVar("Made")  # the same when it is finished


@dataclass(eq=False)
class LoaderRun(Generic[Task]):
    """One iteration of a loader: its batches in flight, in plan order."""

    id: int
    config: SamplerConfig
    requests: Iterator[BatchRequest]
    tasks: deque[Task] = field(default_factory=deque)
    largest: int = 0  # bytes of its largest batch so far
    _next: BatchRequest | None = None

    def peek(self) -> BatchRequest | None:
        """The next request; None after the last one."""
        if self._next is None:
            self._next = next(self.requests, None)
        return self._next

    def asked(self, task: Task) -> None:
        """Notes that the request of `peek` was sent, as ``task``."""
        self._next = None
        self.tasks.append(task)


class LookAhead(ABC, Generic[Task, Made]):
    """The `Producer.stream` of producers whose batches are made by a process, a server or a thread. A subclass defines how
    one batch is requested (`_ask`), waited for (`_wait`) and turned into a `Sample` (`_deliver`).

    in_flight: the limit of batches in flight.  in_use: number of batches in training that count among them: 1 if batches
    take the memory of a device, else 0.  turn: a lock that is held while batches are requested and waited for, and not
    while a batch is in training.
    """

    def __init__(
        self, in_flight: InFlight, *, in_use: int = 0, turn: AbstractContextManager[object] | None = None
    ) -> None:
        self._in_flight, self._in_use, self._turn = in_flight, in_use, turn or nullcontext()
        self._sizes: dict[SamplerConfig, int] = {}  # bytes of the largest batch so far, for the runs to come
        self._runs: dict[int, LoaderRun[Task]] = {}
        self._ended: deque[LoaderRun[Task]] = deque()
        self._run_ids = count(1)

    def stream(self, config: SamplerConfig, requests: Iterator[BatchRequest]) -> Iterator[Sample]:
        """Yields one `Sample` per request, as `Producer.stream`."""
        run: LoaderRun[Task] = LoaderRun(next(self._run_ids), config, requests, largest=self._sizes.get(config, 0))
        with self._turn:
            self._check_open()
            self._runs[run.id] = run
        try:
            while True:
                with self._turn:
                    self._check_open()
                    self._top_up(run)
                    if not run.tasks:
                        return
                    made = self._wait(run, run.tasks[0])
                    run.tasks.popleft()
                    self._note_size(run, self._nbytes(made))
                    held = [self._deliver(made)]  # before `_top_up`: if that raises, the batch's memory is given back
                    del made
                    self._top_up(run, self._in_use)  # the next batches are made while this one is in training
                yield held.pop()  # no variable here references the batch while training has it
        finally:
            # Only queue it: the garbage collector closes an abandoned iterator at any point, also while this thread holds
            # the lock or is in the middle of a message to a sampler. The next `_top_up` drops it.
            self._ended.append(run)
            self._leave(run)

    def _top_up(self, run: LoaderRun[Task], in_use: int = 0) -> None:
        """Requests batches up to the run's limit."""
        while self._ended:
            ended = self._ended.popleft()
            self._runs.pop(ended.id, None)
            self._drop(ended)
        # `list` first: another loader's stream may begin on another thread while this one iterates over the runs.
        others = [each for each in list(self._runs.values()) if each is not run]
        allowed = self._in_flight.allowed(run.largest, sum(len(each.tasks) * each.largest for each in others))
        self._expect(allowed, others)
        while len(run.tasks) < allowed - in_use and (request := run.peek()) is not None:
            task = self._ask(run, request)
            if task is None:
                return
            run.asked(task)

    def _note_size(self, run: LoaderRun[Task], nbytes: int) -> None:
        if nbytes:
            self._sizes[run.config] = max(nbytes, self._sizes.get(run.config, 0))
            run.largest = self._sizes[run.config]
            self._in_flight.log_once(run.largest)

    @abstractmethod
    def _check_open(self) -> None:
        """Raises `SamplerError` if the producer is closed or has failed."""

    @abstractmethod
    def _ask(self, run: LoaderRun[Task], request: BatchRequest) -> Task | None:
        """Requests a batch. Returns None if there is no memory for another one now; for the first of a run there must be."""

    @abstractmethod
    def _wait(self, run: LoaderRun[Task], task: Task) -> Made:
        """Waits for a batch. Raises `SamplerError` if it cannot be made, or not in time."""

    @abstractmethod
    def _nbytes(self, made: Made) -> int:
        """Returns the bytes of a batch that count against the budget; 0 if there is no budget."""

    @abstractmethod
    def _deliver(self, made: Made) -> Sample:
        """Returns the batch for training."""

    def _expect(self, allowed: int, others: list[LoaderRun[Task]]) -> None:
        """Prepares for requests: ``allowed`` batches of a run may be in flight, besides the batches of ``others``."""

    def _leave(self, run: LoaderRun[Task]) -> None:
        """Notes that a run ends. Called from any thread and possibly by a finalizer, so it must take no lock."""

    def _drop(self, run: LoaderRun[Task]) -> None:
        """Frees the batches of an ended run. Called after `_leave`, with the lock held."""
