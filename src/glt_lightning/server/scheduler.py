"""The one thread of a graph server that decides: whose batch is made next, by whom, and what becomes of it."""

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

from glt_lightning.channel.slots import SharedSlot, SlotPool
from glt_lightning.errors import DataError, FullError, PeerError, SamplerError
from glt_lightning.options import ClusterOptions
from glt_lightning.producer.in_flight import memory_for_batches
from glt_lightning.producer.pool import Failure, SamplerPool
from glt_lightning.producer.process import BatchTask, batches_at_once
from glt_lightning.producer.samplers import SamplerSource
from glt_lightning.server.mailbox import Mailbox
from glt_lightning.server.question import Question
from glt_lightning.server.sessions import ClientStream, Finished, Hold, Job, Key, Session, Sessions
from glt_lightning.transport.message import MOST_BODY, WireError, encode_header

_log = logging.getLogger(__name__)

_PAUSE_S = 0.5  # between looks at leases and samplers
_HOPELESS = {"DataError", "PartitionError", "PeerLostError", "RefusedError"}  # a second attempt changes nothing
_LEAST_PATIENCE_S = 10.0  # with a sampler
_STILL_S = 5.0  # between looks at samplers, which are half a second apart unless this process stands still
_FEW_ARRAYS = 200  # of a batch, that certainly fit into a header
_MOST_TEXT = 5000  # characters of an error or traceback
_CLOSE_S = 5.0

T = TypeVar("T")


class Scheduler:
    """Owns sampler processes, batch memory and the sessions of clients. All that is done with them is done by its thread;
    the public methods ask it, from any other thread. Close it.

    on_gone: told of each slot that will not be used again and that no client has.
    clock: the monotonic clock, or that of a test.
    Raises `SamplerError` if the samplers do not start.
    """

    def __init__(
        self,
        source: SamplerSource,
        options: ClusterOptions,
        on_gone: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options, self._on_gone = options, on_gone
        self._clock, self._looked_s = clock, clock()
        self._most_tasks = options.num_workers * options.concurrency
        self._sessions = _sessions(options)
        self._slots = SlotPool(SharedSlot, limit=1 << 30)  # what bounds them are the clients' buffers
        self._closing = self._serving = False
        self._failure: BaseException | None = None
        threads, start_s = batches_at_once(source, options.num_workers, options.concurrency), options.deadlines.start_s
        self._pool = SamplerPool(source, options.num_workers, threads, start_s, _ServerPolicy(self), lasting=True)
        self._mailbox = Mailbox()
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
        """Begins a session, unless there is one with this id. Raises `FullError` where there are too many, and none of them
        is idle."""
        most = self._options.limits.sessions

        def add() -> None:
            if session.id not in self._sessions and len(self._sessions) >= most:
                idle = self._sessions.greediest(session.host)
                if idle is None:
                    raise FullError(f"this server has {most} clients (cluster.limits.sessions) and takes no more")
                _log.warning("%s: its idle session ends, to make room for %s", idle.client, session.client)
                self._end_session(idle)
            self._sessions.add(session)

        self._do(add)

    def ask(self, id_: Any, stream: int, question: Question) -> None:
        """Takes a question, unless the client has begun a later stream: then it has asked again."""

        def ask() -> None:
            session = self._sessions.find(id_)
            if session.change_stream(stream):
                self._sessions.ask(session, question)

        self._do(ask)

    def drop(self, id_: Any, run: int) -> None:
        """Forgets what is asked of a run."""
        self._do(lambda: self._abandon(self._sessions.find(id_).forget_run(run)))

    def renew(self, id_: Any) -> None:
        """The client of a session lives."""
        self._do(lambda: self._sessions.find(id_))

    def end(self, id_: Any) -> None:
        """Ends a session."""
        self._do(lambda: self._end_session(self._sessions.find(id_)))

    def begin_stream(self, id_: Any, number: int) -> tuple[Session, ClientStream | None]:
        """A session and its stream of this number; None if there is a later one."""

        def begin() -> tuple[Session, ClientStream | None]:
            session = self._sessions.find(id_)
            return session, session.stream if session.change_stream(number) else None

        return self._do(begin)

    def end_streams(self) -> None:
        """Ends what streams take from, but not the sessions. Does not wait for it."""

        def end() -> None:
            for session in self._sessions:
                session.stream.end()

        self._mailbox.post(end)

    def keep(self, handle: Mapping[str, Any]) -> None:
        """Batches may take rows from this cache from now on. Does not wait for it."""
        self._mailbox.post(lambda: self._pool.keep(handle))

    def taken(self, item: Finished) -> None:
        """A batch is handed over: the client's buffer has room for another one. Does not wait for it."""
        if item.hold is not None:
            self._mailbox.post(item.hold.let_go)

    def retire(self, slots: list[SharedSlot]) -> None:
        """Slots that must not be written any more, because a client that has left may read them. Does not wait for it."""

        def retire() -> None:
            for slot in slots:
                self._slots.retire(slot)
                self._pool.forget(slot.index)

        self._mailbox.post(retire)

    def status(self) -> dict[str, Any]:
        """Its clients and samplers."""

        def tell() -> dict[str, Any]:
            pids = [process.pid for process in self._pool.processes]
            return {
                "clients": [session.status() for session in self._sessions],
                "samplers": {"pids": pids, "restarts": self._pool.restarts},
            }

        return self._do(tell)

    def close(self) -> None:
        """Ends all sessions and samplers. Safe to call twice."""
        if not self._closing:
            self._closing = True
            self._mailbox.post(lambda: None)
            self._thread.join(_CLOSE_S)
            self._end()

    def _end(self) -> None:
        self._pool.close()
        self._slots.close()
        self._mailbox.close()

    def _do(self, call: Callable[[], T]) -> T:
        """Has the thread make a call; returns or raises what comes of it."""
        future: Future[T] = Future()

        def letter() -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        if self._failure is not None:
            raise PeerError(f"the server has failed: {self._failure}") from self._failure
        if not self._mailbox.post(letter):
            raise PeerError("the server is closing.")
        patience_s = self._options.deadlines.call_s
        try:
            return future.result(patience_s)
        except LateError:
            raise PeerError(f"the server was too busy for {patience_s:g} s.") from None

    # -- its thread

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        except BaseException as error:  # our own bug: it must not look like a slow server
            self._failure = error
            raise
        finally:
            for session in self._sessions:
                self._end_session(session)
            self._mailbox.close()
            self._mailbox.read()  # whoever waits for an answer gets one

    def _turn(self) -> None:
        self._mailbox.read()
        for session in self._sessions.silent():
            _log.warning("%s was silent for %g s: its session ends", session.client, session.lease_s)
            self._end_session(session)
        self._look_after_samplers()
        self._issue()
        for task, header in self._pool.poll(_PAUSE_S, self._mailbox.fileno()):
            self._finish(_job(task), header)

    def _look_after_samplers(self) -> None:
        """Replaces samplers that are stuck: well before their clients give up, so that others can make the batches."""
        now, before = self._clock(), self._looked_s
        self._looked_s = now
        for process in self._pool.processes:
            if now - before > _STILL_S:  # this process itself stood still, and has not read what they said
                process.heard_s = now
            if process.tasks:
                patience_s = min(_job(task).session.patience_s for task in process.tasks.values()) / 2
                if not self._pool.is_open(process):  # it still imports and maps, which has a limit of its own
                    patience_s = max(patience_s, self._options.deadlines.start_s)
                if now - process.heard_s > max(_LEAST_PATIENCE_S, patience_s):
                    self._pool.replace(process, f"said nothing for {now - process.heard_s:.0f} s")

    def _issue(self) -> None:
        """Gives the samplers as much as they may have in hand."""
        while self._pool.num_tasks < self._most_tasks:
            chosen = self._sessions.next()
            if chosen is None:
                return
            session, question = chosen
            try:
                slot = self._slots.take()
            except OSError as error:
                session.stream.put(_no_batch(question.key, f"the server has no memory for it: {error}"))
                continue
            self._pool.submit(self._sessions.job_of(session, question, slot))

    def _finish(self, job: Job, header: dict[str, Any]) -> None:
        nbytes = header.get("nbytes", 0)  # none if the sampler has dropped it
        self._sessions.settle(job, nbytes)
        if not job.wanted:
            self._slots.give_back(job.slot)
            return
        del job.session.making[job.question.key]
        try:
            item = self._finished(job, nbytes, header)
        except (DataError, OSError, WireError) as error:
            self._slots.give_back(job.slot)
            item = _no_batch(job.question.key, f"this batch has {nbytes} bytes: {error}")
        job.session.stream.put(item)

    def _finished(self, job: Job, nbytes: int, reply: dict[str, Any]) -> Finished:
        """A batch in its slot, which is free again when nobody views the memory any more."""
        if nbytes > MOST_BODY:
            raise DataError(f"at most {MOST_BODY} can be sent. Use a smaller batch_size or num_neighbors.")
        header = {
            "run": job.question.run,
            "number": job.request.number,
            "arrays": reply["layout"],
            "counters": reply["counters"],
        }
        if len(reply["layout"]) > _FEW_ARRAYS:
            encode_header(header)
        job.slot.attach()
        job.session.count(nbytes)
        buffer = job.slot.buffer(nbytes)
        hold = Hold(job.session, nbytes)
        released = partial(self._mailbox.post, partial(self._release, hold, job.slot))
        weakref.finalize(buffer, released).atexit = False
        memory = np.frombuffer(buffer, dtype=np.uint8)
        return Finished(job.question.key, header, memory, job.slot, hold)

    def _release(self, hold: Hold, slot: SharedSlot) -> None:
        """The transport, or the client, has let go of a batch."""
        hold.let_go()
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
        """A process failed. What it had is made again, unless it failed too often.

        Where one of several batches may be what ended the process, each is made again by a process that has no other:
        then it is clear which one it is, and the batches of other clients do not fail with it.
        """
        if not self._serving:
            raise SamplerError(str(failure))
        _log.warning("%s", failure.said)
        jobs = [_job(task) for task in failure.tasks]
        clear = failure.offending is not None or failure.final or len(jobs) == 1
        for job in jobs:
            job.alone = job.alone or not clear
            job.failures += clear
        hopeless = failure.kind in _HOPELESS
        again: list[BatchTask] = []
        for job in jobs:
            if job.wanted and job.failures <= job.session.most_failures and not hopeless:
                again.append(job)
                continue
            self._slots.give_back(job.slot)
            if job.wanted:
                del job.session.making[job.question.key]
                job.session.stream.put(_no_batch(job.question.key, failure.said, failure.traceback))
        return again


def _sessions(options: ClusterOptions) -> Sessions:
    if options.channel_size != "auto":
        assert options.channel_bytes is not None, "the options refuse a server without a limit"
        return Sessions(options.channel_bytes)
    shared = memory_for_batches()
    _log.info("cluster.channel_size: auto, %s MB of finished batches for all clients together.", f"{shared / 1e6:,.0f}")
    return Sessions(shared, shared=True)


def _job(task: BatchTask) -> Job:
    assert isinstance(task, Job)
    return task


def _no_batch(key: Key, error: str, traceback: str = "") -> Finished:
    header = {"run": key[0], "number": key[1], "error": error[:_MOST_TEXT], "traceback": traceback[-_MOST_TEXT:]}
    return Finished(key, header)


class _ServerPolicy:
    """Asks the scheduler, without keeping it alive."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = weakref.ref(scheduler)

    def __call__(self, failure: Failure) -> list[BatchTask]:
        scheduler = self._scheduler()
        assert scheduler is not None
        return scheduler.on_failure(failure)
