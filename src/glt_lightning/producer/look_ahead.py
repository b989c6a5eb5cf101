"""Batches are asked for ahead of training, and delivered in the order of the plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

from glt_lightning.producer.in_flight import InFlight
from glt_lightning.sampler.request import BatchRequest, SamplerConfig
from glt_lightning.sampler.sample import Sample

Task = TypeVar("Task")  # a batch that was asked for
Made = TypeVar("Made")  # the same when it has been made


@dataclass(eq=False)
class LoaderRun(Generic[Task]):
    """One iteration of a loader: its batches that were asked for and not yet delivered, in plan order."""

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
        """The next request was asked for, as ``task``."""
        self._next = None
        self.tasks.append(task)


class LookAhead(ABC, Generic[Task, Made]):
    """The `Producer.stream` of producers that ask somebody else for batches: a process, a server, a thread. A producer says how
    one batch is asked for (`_ask`), waited for (`_wait`) and turned into a `Sample` (`_deliver`).

    in_flight: how many batches may be asked for at once.  in_use: batches that count among those while training has them: 1
    where they take the memory of a device.  turn: held while batches are asked for and waited for.
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
        """As `Producer.stream`."""
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
                    self._top_up(run, self._in_use)  # others work on while training does
                    box = [self._deliver(made)]
                    del made
                yield box.pop()  # nothing here holds the batch while training has it
        finally:
            # Not more: an abandoned iterator is closed wherever the garbage collector finds it, also between the two
            # halves of a message.
            self._ended.append(run)
            self._leave(run)

    def _top_up(self, run: LoaderRun[Task], in_use: int = 0) -> None:
        """Asks for batches up to the run's allowance."""
        while self._ended:
            ended = self._ended.popleft()
            self._runs.pop(ended.id, None)
            self._drop(ended)
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
        """Raises `SamplerError` if batches are not made any more."""

    @abstractmethod
    def _ask(self, run: LoaderRun[Task], request: BatchRequest) -> Task | None:
        """Asks for a batch. None: there is no memory for another one now. There must be for the first."""

    @abstractmethod
    def _wait(self, run: LoaderRun[Task], task: Task) -> Made:
        """Waits until a batch has been made. Raises `SamplerError` where it cannot be, or takes too long."""

    @abstractmethod
    def _nbytes(self, made: Made) -> int:
        """What a batch takes of the budget; 0 where there is none."""

    @abstractmethod
    def _deliver(self, made: Made) -> Sample:
        """The batch for training."""

    def _expect(self, allowed: int, others: list[LoaderRun[Task]]) -> None:
        """So many batches of a run may be in flight, beside those of the ``others``."""

    def _leave(self, run: LoaderRun[Task]) -> None:
        """A run has ended. From any thread, also while this one holds a lock: takes none."""

    def _drop(self, run: LoaderRun[Task]) -> None:
        """The same later, when it is this object's turn."""
