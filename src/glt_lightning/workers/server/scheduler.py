"""The scheduling thread of a graph server: which batch is made next, by which sampler, and where the result goes."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, TimeoutError as LateError
from functools import partial
from typing import Any, TypeVar

import numpy as np

from glt_lightning.base import DataError, FullError, PeerError, SamplerError, ServingOptions
from glt_lightning.workers.producer.base import memory_for_batches
from glt_lightning.workers.producer.pool import Failure, SamplerPool
from glt_lightning.workers.producer.process import BatchTask, batches_at_once
from glt_lightning.workers.producer.samplers import SamplerSource
from glt_lightning.workers.server.callback_queue import CallbackQueue
from glt_lightning.workers.server.question import Question
from glt_lightning.workers.server.sessions import ClientStream, Finished, Job, Key, Reservation, Session, Sessions
from glt_lightning.workers.slots import SharedSlot, SlotPool
from glt_lightning.workers.transport.message import MOST_BODY, WireError, encode_header

_log = logging.getLogger(__name__)

_PAUSE_S = 0.5  # between checks of leases and samplers, which expire without an event
_HOPELESS = {"DataError", "PartitionError", "PeerLostError", "RefusedError"}  # another attempt would fail as well
_LEAST_PATIENCE_S = 10.0  # silence of a sampler before it is replaced, whatever short timeout a client has
_STILL_S = 5.0  # samplers are checked every half second; a longer gap means that this process itself was stopped
_FEW_ARRAYS = 200  # the layout of so many arrays certainly fits into a header; only longer ones are encoded to see
_MOST_TEXT = 5000  # characters of an error or traceback
_CLOSE_S = 5.0  # for the thread to finish its turn

T = TypeVar("T")


class Scheduler:
    """Owns sampler processes, batch memory and the sessions of clients. Only its thread touches them, so they need no locks;
    the public methods may be called from any other thread and hand their work to that thread. Close it.

    on_gone: called with each slot that will not be used again and that no client has mapped.
    clock: the monotonic clock, or that of a test.
    Raises `SamplerError` if the samplers do not start.
    """

    def __init__(
        self,
        source: SamplerSource,
        options: ServingOptions,
        on_gone: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options, self._on_gone = options, on_gone
        self._clock, self._looked_s = clock, clock()
        # By the options and not by `batches_at_once`: with fewer threads than this, a sampler has its next batch queued and
        # does not wait for this thread between two batches.
        self._most_tasks = options.num_workers * options.concurrency
        self._sessions = _sessions(options)
        self._slots = SlotPool(SharedSlot, limit=1 << 30)  # no limit here: the clients' buffers bound them
        self._closing = self._serving = False
        self._failure: BaseException | None = None
        threads, start_s = batches_at_once(source, options.num_workers, options.concurrency), options.deadlines.start_s
        self._pool = SamplerPool(source, options.num_workers, threads, start_s, _ServerPolicy(self), resilient=True)
        self._callbacks = CallbackQueue()
        try:
            if not self._pool.wait_open(start_s):
                raise SamplerError(
                    f"the server's sampler processes did not start within cluster.deadlines.start_s = {start_s:g} s."
                )
        except BaseException:
            self._end()
            raise
        self._serving = True
        self._thread = threading.Thread(target=self._run, name="glt-graph-server", daemon=True)
        self._thread.start()

    # -- for other threads

    def open(self, session: Session) -> None:
        """Begins a session, unless there is one with this id; ends an idle one if there are too many. Raises `FullError` if
        none is idle."""
        most = self._options.limits.sessions

        def add() -> None:
            if session.id not in self._sessions and len(self._sessions) >= most:
                idle = self._sessions.greediest(session.host)
                if idle is None:
                    raise FullError(
                        f"this server has {most} clients, the limit of cluster.limits.streams, and none is idle. "
                        "Close some, or raise it"
                    )
                _log.warning(
                    "ending the idle session of %s for the new client %s: cluster.limits.streams is reached",
                    idle.client,
                    session.client,
                )
                self._end_session(idle)
            self._sessions.add(session)

        self._do(add)

    def ask(self, id_: Any, stream: int, question: Question) -> None:
        """Takes a question, unless the client has begun a later stream: then it sends the question again for that one."""

        def ask() -> None:
            session = self._sessions.find(id_)
            if session.change_stream(stream):
                self._sessions.ask(session, question)

        self._do(ask)

    def drop(self, id_: Any, run: int) -> None:
        """Drops the questions of a run."""
        self._do(lambda: self._abandon(self._sessions.find(id_).forget_run(run)))

    def renew(self, id_: Any) -> None:
        """Renews the lease of a session."""
        self._do(lambda: self._sessions.find(id_))

    def end(self, id_: Any) -> None:
        """Ends a session."""
        self._do(lambda: self._end_session(self._sessions.find(id_)))

    def begin_stream(self, id_: Any, number: int) -> tuple[Session, ClientStream | None]:
        """Returns a session and its stream with this number, and ends the stream before it. The stream is None if the client has
        begun a later one."""

        def begin() -> tuple[Session, ClientStream | None]:
            session = self._sessions.find(id_)
            return session, session.stream if session.change_stream(number) else None

        return self._do(begin)

    def end_streams(self) -> None:
        """Ends the streams of all sessions, but not the sessions. Does not wait for that."""

        def end() -> None:
            for session in self._sessions:
                session.stream.end()

        self._callbacks.post(end)

    def keep(self, handle: Mapping[str, Any]) -> None:
        """Lets samplers read rows from the remote cache of this handle from now on. Does not wait for that."""
        self._callbacks.post(lambda: self._pool.keep(handle))

    def taken(self, item: Finished) -> None:
        """Releases the bytes of a handed-over batch from the client's buffer. Does not wait for that."""
        if item.reservation is not None:
            self._callbacks.post(item.reservation.release)

    def retire(self, slots: list[SharedSlot]) -> None:
        """Retires slots that must not be written again, because a client that has left may still read them. Does not wait for
        that."""

        def retire() -> None:
            for slot in slots:
                self._slots.retire(slot)
                self._pool.forget(slot.index)

        self._callbacks.post(retire)

    def status(self) -> dict[str, Any]:
        """Describes clients and samplers as JSON values."""

        def read() -> dict[str, Any]:
            pids = [process.pid for process in self._pool.processes]
            return {
                "clients": [session.status() for session in self._sessions],
                "samplers": {"pids": pids, "restarts": self._pool.restarts},
            }

        return self._do(read)

    def close(self) -> None:
        """Ends all sessions and samplers. Safe to call twice."""
        if not self._closing:
            self._closing = True
            self._callbacks.post(lambda: None)
            self._thread.join(_CLOSE_S)
            self._end()

    def _end(self) -> None:
        self._pool.close()
        self._slots.close()
        self._callbacks.close()

    def _do(self, call: Callable[[], T]) -> T:
        """Makes the scheduler's thread run a call; returns its result or raises its error. Waits at most ``call_s``."""
        future: Future[T] = Future()

        def callback() -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        if self._failure is not None:
            raise PeerError(f"the server has failed: {self._failure}. Restart it") from self._failure
        if not self._callbacks.post(callback):
            raise PeerError("the server is shutting down.")
        patience_s = self._options.deadlines.call_s
        try:
            return future.result(patience_s)
        except LateError:
            raise PeerError(
                f"the server's scheduler did not answer for {patience_s:g} s (cluster.deadlines.call_s): its host is overloaded."
            ) from None

    # -- its thread

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        except BaseException as error:  # a bug of ours: reported to every client, or it would look like a slow server
            self._failure = error
            raise
        finally:
            for session in self._sessions:
                self._end_session(session)
            # In this order: after `close` nothing can be queued, so `run` answers the last of the threads in `_do`, which
            # would else wait for their whole deadline.
            self._callbacks.close()
            self._callbacks.run()

    def _turn(self) -> None:
        self._callbacks.run()
        for session in self._sessions.silent():
            _log.warning(
                "ending the session of %s: nothing was heard of it for %g s (cluster.deadlines.lease_s)",
                session.client,
                session.lease_s,
            )
            self._end_session(session)
        self._look_after_samplers()
        self._issue()
        for task, header in self._pool.poll(_PAUSE_S, self._callbacks.fileno()):
            self._finish(_job(task), header)

    def _look_after_samplers(self) -> None:
        """Replaces samplers that are stuck, after half of their clients' timeout, so that another sampler can still make the
        batches in time."""
        now, before = self._clock(), self._looked_s
        self._looked_s = now
        for process in self._pool.processes:
            if now - before > _STILL_S:  # this process itself was stopped, and has not read their replies yet
                process.heard_s = now
            if process.tasks:
                patience_s = min(_job(task).session.patience_s for task in process.tasks.values()) / 2
                if not self._pool.is_open(process):  # still starting (imports, mapping), which has its own limit
                    patience_s = max(patience_s, self._options.deadlines.start_s)
                if now - process.heard_s > max(_LEAST_PATIENCE_S, patience_s):
                    self._pool.replace(process, f"sent no reply for {now - process.heard_s:.0f} s")

    def _issue(self) -> None:
        """Submits jobs until the samplers have ``_most_tasks`` in flight. Not more: a job at a sampler cannot be overtaken by
        one of a client that has had less."""
        while self._pool.num_tasks < self._most_tasks:
            chosen = self._sessions.next()
            if chosen is None:
                return
            session, question = chosen
            try:  # a new slot takes a file descriptor, and a host may have none left
                slot = self._slots.take(session.largest)
            except OSError as error:
                session.stream.put(
                    _no_batch(
                        question.key,
                        f"the server has no memory for this batch: {error}. Lower sampling.channel_size of the server",
                    )
                )
                continue
            self._pool.submit(self._sessions.job_of(session, question, slot))

    def _finish(self, job: Job, header: dict[str, Any]) -> None:
        nbytes = header.get("nbytes", 0)  # missing if the sampler has dropped the batch
        self._sessions.settle(job, nbytes)
        if not job.wanted:
            self._slots.give_back(job.slot)
            return
        del job.session.making[job.question.key]
        try:
            item = self._finished(job, nbytes, header)
        except (DataError, OSError, WireError) as error:
            self._slots.give_back(job.slot)
            item = _no_batch(job.question.key, f"this batch of {nbytes} bytes cannot be sent: {error}")
        job.session.stream.put(item)

    def _finished(self, job: Job, nbytes: int, reply: dict[str, Any]) -> Finished:
        """Wraps a batch in its slot for the client. The slot is free again when the last view of the memory is gone."""
        if nbytes > MOST_BODY:
            raise DataError(f"one message carries at most {MOST_BODY}. Use a smaller batch_size or num_neighbors.")
        header = {
            "run": job.question.run,
            "number": job.request.number,
            "arrays": reply["layout"],
            "counters": reply["counters"],
        }
        if len(reply["layout"]) > _FEW_ARRAYS:
            # raises here, where the client gets an error for this batch, and not in the transport
            encode_header(header)
        job.slot.attach()
        job.session.count(nbytes)
        buffer = job.slot.buffer()
        reservation = Reservation(job.session, nbytes)
        # The finalizer runs on whichever thread drops the last view, so it only queues the release for this thread.
        released = partial(self._callbacks.post, partial(self._release, reservation, job.slot))
        weakref.finalize(buffer, released).atexit = False
        memory = np.frombuffer(buffer, np.uint8, nbytes)
        return Finished(job.question.key, header, memory, job.slot, reservation)

    def _release(self, reservation: Reservation, slot: SharedSlot) -> None:
        """Frees the slot of a batch that the transport, or the client, has released."""
        reservation.release()
        self._slots.give_back(slot)

    def _end_session(self, session: Session) -> None:
        self._abandon(self._sessions.remove(session))
        for slot in self._slots.trim(self._most_tasks):
            self._pool.forget(slot.index)
            self._on_gone(slot.index)

    def _abandon(self, jobs: Iterable[Job]) -> None:
        for run in {job.run for job in jobs}:
            self._pool.drop(run)

    def on_failure(self, failure: Failure) -> list[BatchTask]:
        """Handles the failure of a sampler process. Returns its batches that are to be made again: those that have not failed
        too often.

        If any one of several batches may have ended the process, each is made again alone, by a process without other
        batches: that shows which one it is, and batches of other clients do not fail because of it.
        """
        if not self._serving:  # still in the constructor: the server must not start with samplers that cannot
            raise SamplerError(str(failure))
        _log.warning("%s", failure.message)
        jobs = [_job(task) for task in failure.tasks]
        clear = failure.offending is not None or failure.final or len(jobs) == 1
        for job in jobs:
            job.alone = job.alone or not clear
            job.failures += clear  # only where it is clear which batch is at fault
        hopeless = failure.kind in _HOPELESS
        again: list[BatchTask] = []
        for job in jobs:
            if job.wanted and job.failures <= job.session.most_failures and not hopeless:
                again.append(job)
                continue
            self._sessions.settle(job, 0)
            self._slots.give_back(job.slot)
            if job.wanted:
                del job.session.making[job.question.key]
                job.session.stream.put(_no_batch(job.question.key, failure.message, failure.traceback))
        return again


def _sessions(options: ServingOptions) -> Sessions:
    if options.channel_size != "auto":
        assert options.channel_bytes is not None, "a server has a limit"
        return Sessions(options.channel_bytes)
    shared = memory_for_batches()
    _log.info(
        "sampling.channel_size: auto, %s MB of finished batches for all clients together.", f"{shared / 1e6:,.0f}"
    )
    return Sessions(shared, shared=True)


def _job(task: BatchTask) -> Job:
    assert isinstance(task, Job)
    return task


def _no_batch(key: Key, error: str, traceback: str = "") -> Finished:
    header = {"run": key[0], "number": key[1], "error": error[:_MOST_TEXT], "traceback": traceback[-_MOST_TEXT:]}
    return Finished(key, header)


class _ServerPolicy:
    """Calls the scheduler's `on_failure` by a weak reference: the pool must not keep the scheduler alive."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = weakref.ref(scheduler)

    def __call__(self, failure: Failure) -> list[BatchTask]:
        scheduler = self._scheduler()
        assert scheduler is not None
        return scheduler.on_failure(failure)
