"""The graph server: sampler processes that make batches for any number of clients, which come and go."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, TimeoutError as LateError
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.channel.slots import SharedSlot, SlotPool
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.errors import DataError, PeerError, SamplerError
from glt_lightning.options import ClusterOptions
from glt_lightning.producer.handover import HandoverDesk
from glt_lightning.producer.mailbox import Mailbox
from glt_lightning.producer.pool import Failure, SamplerPool
from glt_lightning.producer.process import Task, batches_at_once
from glt_lightning.producer.question import read_integer, read_question
from glt_lightning.producer.samplers import SamplerSource
from glt_lightning.producer.sessions import Finished, Hold, Job, Key, Session, SessionLostError, Sessions, Talk
from glt_lightning.transport.base import Caller, CallHandler, Service, Transport
from glt_lightning.transport.message import MOST_BODY, Message, WireError, encode_header

_log = logging.getLogger(__name__)

_PAUSE_S = 0.5  # between looks at leases, and at whether the reader of a stream is still there
_MOST_FAILURES = 10  # of one batch, whatever a client asks for
_HOPELESS = {"DataError", "PartitionError", "PeerLostError", "RefusedError"}  # a second attempt changes nothing
_LEAST_PATIENCE_S = 10.0  # with a sampler
_MOST_ID = 100  # characters
_MOST_SESSIONS = 1024
_FEW_ARRAYS = 200  # of a batch, that certainly fit into a header
_MOST_TEXT = 5000  # characters of an error or traceback
_MOST_SHOWN = 100  # clients in a status, which must fit into a header
_CLOSE_S = 5.0


class GraphServer:
    """Listens at ``address`` from the moment it is made, with its samplers ready. Close it.

    Clients open a session, ask for batches (`make`) and take them from a stream (`batches`) in whatever order they are
    finished; docs/wire-format.md has the messages. A question carries all that its batch depends on, so the server knows
    nothing of epochs, and one that is started again gives the same batches.

    One thread owns samplers and sessions; handlers post to it.

    Args:
        partition: The mapped parts.
        options: Sampler processes, buffer, deadlines.
        transport: How it is reached.
        address: Where to listen, ``host:port``; port 0 picks one.
        rank: Its number among the servers.
        source: What its samplers open; by default all that ``partition`` maps.
        services: Further calls that it answers.
        greet: Answers a peer's introduction, or raises `RefusedError`.

    Raises `SamplerError` if the samplers do not start, `OptionError` for an address that cannot be used.
    """

    def __init__(
        self,
        partition: LocalPartition,
        options: ClusterOptions,
        transport: Transport,
        address: str,
        *,
        greet: Callable[[Mapping[str, Any]], dict[str, Any]],
        rank: int = 0,
        source: SamplerSource | None = None,
        services: Mapping[str, CallHandler] | None = None,
    ) -> None:
        self._partition, self._options, self._rank = partition, options, rank
        self._begun_s = time.monotonic()
        self._mailbox = Mailbox()
        self._sessions = Sessions(options.buffer_bytes)
        self._slots = SlotPool(SharedSlot, limit=1 << 30)  # what bounds them are the clients' buffers
        self._closing = False
        self._failure: BaseException | None = None
        source = SamplerSource.of(partition) if source is None else source
        threads = batches_at_once(source, options.num_workers, options.concurrency)
        self._most_tasks = options.num_workers * options.concurrency
        self._serving = False
        self._handover: HandoverDesk | None = None
        self._pool = SamplerPool(
            source, options.num_workers, threads, options.deadlines.start_s, _Judge(self), lasting=True
        )
        try:
            if not self._pool.wait_open(options.deadlines.start_s):
                raise SamplerError(
                    "the server's sampler processes did not start within cluster.deadlines.start_s = "
                    f"{options.deadlines.start_s:g} s."
                )
            self._serving = True
            calls = {
                **(services or {}),
                "open": self._open,
                "make": self._make,
                "drop": self._drop,
                "renew": self._renew,
                "close": self._close_session,
                "status": self._tell_status,
            }
            self._handover = HandoverDesk(self._begin, self._taken, self._retire, options.deadlines.call_s)
            self._server = transport.serve(address, Service(greet, calls, {"batches": self._batches}))
        except BaseException:
            self._end()
            raise
        self.address = self._server.address
        self._thread = threading.Thread(target=self._run, name="glt-graph-server", daemon=True)
        self._thread.start()

    def status(self) -> dict[str, Any]:
        """What it holds and does, as JSON can say it. Raises `PeerError` if it does not work any more."""
        return self._do(self._status)

    def close(self) -> None:
        """Ends all sessions, the samplers and every connection. Safe to call twice."""
        if self._closing:
            return
        # Connections go first: for clients this server is away, and they wait for the next one.
        self._mailbox.post(self._end_talks)
        self._server.close()
        if self._handover is not None:
            self._handover.close()
        self._closing = True
        self._mailbox.post(lambda: None)
        self._thread.join(_CLOSE_S)
        self._end()

    def _end(self) -> None:
        if self._handover is not None:
            self._handover.close()
        self._pool.close()
        self._slots.close()
        self._mailbox.close()

    # -- operations, on the transport's threads

    def _open(self, message: Message, caller: Caller) -> Message:
        id_ = message.header.get("session")
        if not isinstance(id_, str) or not 16 <= len(id_) <= _MOST_ID:
            raise DataError(f"session: expected an id of 16 to {_MOST_ID} characters, got {id_!r:.50}.")
        failures = min(_MOST_FAILURES, read_integer(message.header, "max_restarts", 0, 1 << 31))
        patience_s = message.header.get("timeout_s")
        if not isinstance(patience_s, (int, float)) or not patience_s > 0:
            raise DataError(f"timeout_s: expected seconds > 0, got {patience_s!r:.50}.")
        lease_s = self._options.deadlines.lease_s
        job = f"{caller.hello.get('job', '')!s:.200}"
        session = Session(id_, caller.name, job, lease_s, patience_s, failures)

        def add() -> None:
            if len(self._sessions) >= _MOST_SESSIONS:
                raise PeerError(f"this server has {_MOST_SESSIONS} clients and takes no more.")
            self._sessions.add(session)

        self._do(add)
        assert self._handover is not None
        return Message({"lease_s": lease_s, "handover": self._handover.offer(message.header.get("place"))})

    def _make(self, message: Message, _caller: Caller) -> Message:
        question = read_question(message, self._partition.manifest)
        talk = read_integer(message.header, "talk", 1, 2**62)

        def ask() -> None:
            session = self._sessions.find(message.header["session"])
            if session.change_talk(talk):  # else the client has asked again since
                self._sessions.ask(session, question)

        self._do(ask)
        return Message({})

    def _drop(self, message: Message, _caller: Caller) -> Message:
        run = read_integer(message.header, "run", 0, 2**62)

        def drop() -> None:
            self._abandon(self._sessions.find(message.header.get("session")).forget_run(run))

        self._do(drop)
        return Message({})

    def _renew(self, message: Message, _caller: Caller) -> Message:
        self._do(lambda: self._sessions.find(message.header.get("session")))
        return Message({})

    def _close_session(self, message: Message, _caller: Caller) -> Message:
        self._do(lambda: self._end_session(self._sessions.find(message.header.get("session"))))
        return Message({})

    def _tell_status(self, _message: Message, _caller: Caller) -> Message:
        return Message(self.status())

    def _batches(self, message: Message, caller: Caller) -> Iterator[Message]:
        session, talk = self._begin(message.header.get("session"), read_integer(message.header, "talk", 1, 2**62))
        while talk is not None and not caller.is_gone():
            found = talk.take(_PAUSE_S)
            if session.ended:
                raise SessionLostError("the session has ended: the client was silent for longer than its lease.")
            if talk.ended:
                return
            while found:
                # nothing here may keep the memory while the transport has it
                yield _as_message(found)
                session.heard()

    def _begin(self, id_: Any, number: int) -> tuple[Session, Talk | None]:
        """A session and its talk of this number; None if there is a later one."""

        def begin() -> tuple[Session, Talk | None]:
            session = self._sessions.find(id_)
            return session, session.talk if session.change_talk(number) else None

        found: tuple[Session, Talk | None] = self._do(begin)
        return found

    def _taken(self, item: Finished) -> None:
        """A batch is handed over: from now on the client's buffer has room for another one."""
        if item.hold is not None:
            self._mailbox.post(item.hold.let_go)

    def _retire(self, slots: list[SharedSlot]) -> None:
        def retire() -> None:
            for slot in slots:
                self._slots.retire(slot)
                self._pool.forget(slot.index)

        self._mailbox.post(retire)

    def _do(self, call: Callable[[], Any]) -> Any:
        """Has the scheduler make a call; returns or raises what comes of it."""
        future: Future[Any] = Future()

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

    # -- the scheduler's thread

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
        now = time.monotonic()
        for process in self._pool.processes:
            if process.tasks:
                patience_s = min(_job(task).session.patience_s for task in process.tasks.values()) / 2
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
                session.talk.put(_no_batch(question.key, f"the server has no memory for it: {error}"))
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
            item = self._finished(job, nbytes, header["layout"])
        except (DataError, OSError, WireError) as error:
            self._slots.give_back(job.slot)
            item = _no_batch(job.question.key, f"this batch has {nbytes} bytes: {error}")
        job.session.talk.put(item)

    def _finished(self, job: Job, nbytes: int, layout: list[Any]) -> Finished:
        """A batch in its slot, which is free again when nobody views the memory any more."""
        if nbytes > MOST_BODY:
            raise DataError(f"at most {MOST_BODY} can be sent. Use a smaller batch_size or num_neighbors.")
        header = {"run": job.question.run, "number": job.request.number, "arrays": layout}
        if len(layout) > _FEW_ARRAYS:
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

    def _end_talks(self) -> None:
        for session in self._sessions:
            session.talk.end()

    def _end_session(self, session: Session) -> None:
        self._abandon(self._sessions.remove(session))
        for slot in self._slots.trim(self._most_tasks):
            self._pool.forget(slot.index)
            if self._handover is not None:
                self._handover.forget(slot.index)

    def _abandon(self, jobs: Iterable[Job]) -> None:
        for run in {job.run for job in jobs}:
            self._pool.drop(run)

    def judge(self, failure: Failure) -> list[Task]:
        """A process failed. What it had is made again, unless it failed too often.

        Where one of several batches may be what ended the process, each is made again by a process that has no other:
        then it is clear which one it is, and the batches of other clients do not fail with it.
        """
        if not self._serving:
            raise SamplerError(str(failure))
        _log.warning("%s", failure.said)
        jobs = [_job(task) for task in failure.tasks]
        clear = failure.culprit is not None or failure.final or len(jobs) == 1
        for job in jobs:
            job.alone = job.alone or not clear
            job.failures += clear
        hopeless = failure.kind in _HOPELESS
        again: list[Task] = []
        for job in jobs:
            if job.wanted and job.failures <= job.session.most_failures and not hopeless:
                again.append(job)
                continue
            self._slots.give_back(job.slot)
            if job.wanted:
                del job.session.making[job.question.key]
                job.session.talk.put(_no_batch(job.question.key, failure.said, failure.traceback))
        return again

    # -- status

    def _status(self) -> dict[str, Any]:
        manifest, processes = self._partition.manifest, self._pool.processes
        clients = [session.status() for session in self._sessions]
        rate = sum(client["batches_per_s"] for client in clients)
        pids = [process.pid for process in processes]
        return {
            "rank": self._rank,
            "address": self.address,
            "graph": manifest.options_hash,
            "partition": str(self._partition.directory),
            "parts": list(self._partition.parts),
            "num_parts": manifest.num_parts,
            "uptime_s": round(time.monotonic() - self._begun_s, 3),
            "num_clients": len(clients),
            "clients": clients[:_MOST_SHOWN],
            "samplers": {"pids": pids, "restarts": self._pool.restarts},
            "memory": {"server_bytes": _rss(os.getpid()), "sampler_bytes": [_rss(pid) for pid in pids]},
            "batches_per_s": round(rate, 2),
        }


def _job(task: Task) -> Job:
    assert isinstance(task, Job)
    return task


def _no_batch(key: Key, error: str, traceback: str = "") -> Finished:
    header = {"run": key[0], "number": key[1], "error": error[:_MOST_TEXT], "traceback": traceback[-_MOST_TEXT:]}
    return Finished(key, header)


def _as_message(found: list[Finished]) -> Message:
    item = found.pop()
    return Message(item.header, item.memory)


def _rss(pid: int) -> int:
    """Resident bytes of a process; 0 if it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


class _Judge:
    """Asks the server, without keeping it alive."""

    def __init__(self, server: GraphServer) -> None:
        self._server = weakref.ref(server)

    def __call__(self, failure: Failure) -> list[Task]:
        server = self._server()
        assert server is not None
        return server.judge(failure)
