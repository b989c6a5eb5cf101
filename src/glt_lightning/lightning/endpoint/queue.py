"""The requests of an endpoint: sampled in threads, collected to batches."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from glt_lightning.base import DeployOptions, FullError
from glt_lightning.lightning.endpoint.question import Question, QuestionError
from glt_lightning.lightning.endpoint.served_graph import AskedRows

_log = logging.getLogger(__name__)
_STEP_S = 0.25  # a signal that another thread got is noticed after this time


@dataclass(eq=False)
class Request:
    """A request in work. body, content_type: as it came.  future: gets the answer, or the error.  begin: when it came, by the
    clock of `time.perf_counter`."""

    body: bytes
    content_type: str
    question: Question
    future: Future[Any] = field(default_factory=Future)
    begin: float = field(default_factory=time.perf_counter)
    rows: AskedRows | None = None

    def fail(self, error: BaseException) -> None:
        """Answers with an error, unless who asked is gone."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)

    def answer(self, answer: Any) -> None:
        """Answers, unless who asked is gone."""
        with suppress(InvalidStateError):
            self.future.set_result(answer)


class RequestQueue:
    """Takes requests from any thread and gives them out as batches, each of requests that one batch of the model can have.

    sample: samples a request.  threads: how many do it at once.  is_quick: whether it is fast for a request. Then the thread of
    the model does it, as long as there is nothing else for it: waking another one and being woken takes 0.15 ms.
    """

    def __init__(
        self,
        sample: Callable[[Question], AskedRows],
        options: DeployOptions,
        threads: int = 2,
        is_quick: Callable[[Question], bool] = lambda question: False,
    ) -> None:
        self._sample, self._options, self._is_quick = sample, options, is_quick
        self._idle = False  # whether the thread of the model waits, and has got nothing
        self._given: Request | None = None  # to the thread of the model, which samples it
        self._threads = ThreadPoolExecutor(threads, "sample")
        self._ready: deque[Request] = deque()
        self._condition = threading.Condition()
        # By their futures: one that referred to its request would be a cycle, and keep the sample until garbage is collected.
        self._in_work: dict[Future[Any], Request] = {}
        self._closed = False

    @property
    def waiting(self) -> int:
        """Number of requests in work."""
        return len(self._in_work)

    @property
    def closed(self) -> bool:
        return self._closed

    def put(self, request: Request) -> None:
        """Takes a request. Raises `FullError` if too many are in work, or the endpoint stops."""
        with self._condition:
            if self._closed:
                raise FullError("the endpoint is stopping. Ask another one, or later.")
            if len(self._in_work) >= self._options.max_waiting:
                raise FullError(
                    f"{len(self._in_work)} requests are in work, as many as are taken (endpoint.max_waiting). Ask again later."
                )
            self._in_work[request.future] = request
            if self._idle and self._is_quick(request.question):
                self._idle, self._given = False, request
                self._condition.notify()
            else:
                self._threads.submit(self._prepare, request)
        request.future.add_done_callback(self._done)

    def _done(self, future: Future[Any]) -> None:
        with self._condition:
            self._in_work.pop(future, None)
            self._condition.notify()

    def _prepare(self, request: Request) -> None:
        if request.future.done():  # who asked is gone
            return
        try:
            request.rows = self._sample(request.question)
        except Exception as error:
            if not isinstance(error, QuestionError):
                _log.exception("a request failed")
            request.fail(error)
            return
        with self._condition:
            self._ready.append(request)
            self._condition.notify()

    def batches(self) -> Iterator[list[Request]]:
        """Yields batches until `close` was called and all requests are answered."""
        while True:
            with self._condition:
                while not self._ready and self._given is None:
                    if self._closed and not self._in_work:
                        return
                    self._idle = True
                    self._condition.wait(_STEP_S)
                self._idle = False
                given, self._given = self._given, None
            if given is not None:
                self._prepare(given)
            self._wait_for_more()
            with self._condition:
                batch = self._take()
            if batch:
                yield batch

    def _wait_for_more(self) -> None:
        until = time.monotonic() + self._options.batch_wait_s
        while (left := until - time.monotonic()) > 0 and not self._closed:
            time.sleep(min(left, _STEP_S))

    def _take(self) -> list[Request]:
        """Takes the first request that waits, and those that can be in its batch."""
        batch: list[Request] = []
        others: deque[Request] = deque()
        count = 0
        while self._ready:
            request = self._ready.popleft()
            rows = request.rows
            if rows is None or rows.asked is None or request.future.done():
                continue
            if batch and (count + len(rows.rows) > self._options.max_batch or not _fit(batch[0], request)):
                others.append(request)
                continue
            batch.append(request)
            count += len(rows.rows)
        self._ready = others
        return batch

    def close(self) -> None:
        """Takes no more requests; those in work are answered. Safe to call twice, and in a signal handler's thread."""
        self._closed = True

    def abandon(self, error: BaseException) -> None:
        """Ends the threads, and fails all requests that have no answer. Safe to call twice."""
        with self._condition:  # after this, `put` hands nothing to the threads
            self._closed = True
        self._threads.shutdown(wait=True, cancel_futures=True)
        with self._condition:
            left = list(self._in_work.values())
        for request in left:
            request.fail(error)


def _fit(first: Request, other: Request) -> bool:
    a, b = first.rows, other.rows
    assert a is not None
    assert b is not None
    assert a.asked is not None
    assert b.asked is not None
    return (a.of_type, a.is_pairs) == (b.of_type, b.is_pairs) and a.asked.config == b.asked.config
