"""A sampler process, as seen by the trainer or server that owns it; and the detection of lost or stopped processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from glt_lightning.base import PeerError, PeerLostError, SamplerError
from glt_lightning.graph import usable_cores
from glt_lightning.sampling import BatchRequest, SamplerConfig
from glt_lightning.workers.cluster.owner import OwnerAddresses
from glt_lightning.workers.producer.child import Starter
from glt_lightning.workers.producer.request_codec import write_config, write_request
from glt_lightning.workers.producer.samplers import SamplerSource
from glt_lightning.workers.slots import ClosedError, SharedSlot, send
from glt_lightning.workers.transport.message import Message
from glt_lightning.workers.transport.peer import Peer

LEAVE_S = 2.0  # for a sampler to end after its socket was closed; a healthy one takes milliseconds
_EXIT_S = 10.0  # for a process to end after SIGKILL: one that waits for a disk ends only when the disk answers


def batches_at_once(source: SamplerSource, num_workers: int, concurrency: int) -> int:
    """Returns the number of batches that one process makes at once. If all rows are in memory, more batches than cores would
    only take memory and delay the next batch; if some rows are remote or on disk, other batches go on while one waits."""
    if source.waits:
        return concurrency
    return min(concurrency, max(1, usable_cores() // num_workers))


def exit_reason(process: subprocess.Popen[bytes], wait_s: float) -> str:
    """Describes how a child ended, after its socket was closed. Waits ``wait_s`` for its end."""
    try:
        code = process.wait(wait_s)
    except subprocess.TimeoutExpired:
        return "closed its connection"
    if code < 0:
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


@dataclass(eq=False)
class BatchTask:
    """A requested batch: the slot to write it to and, later, the sampler's reply."""

    run: int
    config: SamplerConfig
    request: BatchRequest
    slot: SharedSlot
    once: bool  # the slot is one-off memory
    reply: dict[str, Any] | None = None
    alone: bool = False  # to be made by a process without other tasks, because it may have ended another process
    failures: int = 0  # processes that failed because of it

    @property
    def key(self) -> tuple[int, int]:
        return self.run, self.request.number


class SamplerProcess:
    """A child process and the socket to it. The child ends when the socket is closed, and is killed when its parent ends."""

    def __init__(self, index: int, source: SamplerSource, threads: int, timeout_s: float, starter: Starter) -> None:
        self.index = index
        self.tasks: dict[tuple[int, int], BatchTask] = {}
        self._configs: dict[SamplerConfig, int] = {}
        self._known_slots: set[int] = set()
        self.heard_s = time.monotonic()  # when its last message arrived, or its first task was sent
        try:
            self.sock, self._process = _SPARE.pop() if _SPARE else _start(starter)
        except OSError as error:
            raise SamplerError(
                f"cannot start sampler process {index}: {error}. Check the limits of processes and memory of this host."
            ) from error
        self.sock.settimeout(timeout_s)
        with suppress(ClosedError):  # its death is noticed at the first read
            send(self.sock, {"op": "open", "index": index, "source": source.to_json(), "threads": threads})

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def name(self) -> str:
        return f"sampler process {self.index} (pid {self.pid})"

    def fileno(self) -> int:
        return self.sock.fileno()

    def submit(self, task: BatchTask) -> None:
        """Requests one batch. Raises `ClosedError` if the process is gone; the task is in ``tasks`` then as well, so that it is
        among the tasks of the failure."""
        if not self.tasks:
            self.heard_s = time.monotonic()  # an idle process sends nothing: its silence counts from its first task
        self.tasks[task.key] = task
        slot = task.slot
        header, body = write_request(task.request)
        header |= {"op": "make", "run": task.run, "slot": slot.index, "once": task.once}
        if task.config not in self._configs:
            self._configs[task.config] = len(self._configs)
            header["config"] = write_config(task.config)
        header["config_id"] = self._configs[task.config]
        # The process keeps the descriptor of a slot that comes again, so it is sent once.
        fds = [] if slot.index in self._known_slots else [slot.fd]
        if not task.once:
            self._known_slots.add(slot.index)
        send(self.sock, header, body.data, fds)

    def join(self, owners: Sequence[OwnerAddresses]) -> None:
        """Sends the owners of the parts that the process does not map."""
        with suppress(ClosedError, TimeoutError):
            send(self.sock, {"op": "join", "holders": [owner.to_json() for owner in owners]})

    def keep(self, handle: Mapping[str, Any]) -> None:
        """Sends the handle of the remote cache."""
        with suppress(ClosedError, TimeoutError):
            send(self.sock, {"op": "keep", "handle": handle})

    def drop(self, run: int) -> None:
        """Drops queued batches of a run."""
        with suppress(ClosedError, TimeoutError):
            send(self.sock, {"op": "drop", "run": run})

    def forget(self, slot: int) -> None:
        """Closes a slot in the process."""
        if slot in self._known_slots:
            self._known_slots.remove(slot)
            with suppress(ClosedError, TimeoutError):
                send(self.sock, {"op": "forget", "slot": slot})

    def exit_reason(self) -> str:
        """Describes how the process ended, after its socket was closed."""
        return exit_reason(self._process, LEAVE_S)

    def kill(self) -> None:
        """Ends the process now: when this returns, it writes to no slot any more."""
        self._process.kill()
        self.stop()

    def hang_up(self) -> None:
        self.sock.close()

    def stop(self, leave_s: float = LEAVE_S) -> None:
        """Closes the socket, waits ``leave_s`` for the end of the process, and kills it if that does not come."""
        self.sock.close()
        try:
            self._process.wait(leave_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            try:
                self._process.wait(_EXIT_S)
            except subprocess.TimeoutExpired:
                raise SamplerError(
                    f"{self.name} did not end {_EXIT_S:g} s after SIGKILL; it probably waits for a disk or network file system."
                ) from None


def _start(starter: Starter) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Starts a process that waits for the graph that it shall open. Raises `OSError`."""
    mine, theirs = socket.socketpair()
    # numpy's BLAS threads would cost each sampler start-up time and memory for nothing
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    try:
        return mine, starter.start("glt_lightning.workers.producer.worker", theirs, env)
    except OSError:
        mine.close()
        raise
    finally:
        theirs.close()


_SPARE: list[tuple[socket.socket, subprocess.Popen[bytes]]] = []  # which nobody has a graph for yet
os.register_at_fork(after_in_child=_SPARE.clear)  # they are the parent's


@contextmanager
def spare_samplers(number: int) -> Iterator[None]:
    """Starts sampler processes, beside other work, before it is known which graph they will open. The first that this process
    needs inside of the ``with`` block are these; those that it did not need are ended after it."""
    starter, started = Starter(), []
    try:
        with suppress(OSError):  # a sampler that is needed and cannot start is an error then
            for _ in range(number):
                started.append(_start(starter))
                _SPARE.append(started[-1])
        yield
    finally:
        left = [each for each in started if each in _SPARE]
        for spare in left:
            _SPARE.remove(spare)
            spare[0].close()
            spare[1].kill()
        starter.close()
        for _, process in left:
            process.wait(_EXIT_S)


# Notices that a process of another host is lost or stopped while this one is blocked, for instance in a collective call.


# Called on the watch's thread with the reason of a loss, and an event that is set when the watch is closed.
OnLoss = Callable[[str, threading.Event], None]


def end_by_deadline(name: str, timeout_s: float, option: str) -> OnLoss:
    """Returns an `OnLoss` that prints the loss of another rank, and ends this process ``timeout_s`` later: it may be in a
    collective call that waits for that rank for ever.

    name: this process, in messages.  option: the option that sets ``timeout_s``, in messages.
    """

    def end(reason: str, left: threading.Event) -> None:
        _say(f"error: {reason} {name} cannot go on.")
        if not left.wait(timeout_s):
            _say(f"error: {name} is stuck and ends after {timeout_s:g} s ({option}).")
            os._exit(1)

    return end


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class OwnerWatch:
    """Calls the operation ``here`` of each peer every ``every_s`` seconds, and ``on_loss`` for the first peer that is lost:
    one that does not answer for ``reconnect_s``, or whose sampler processes answer, but report for ``silence_s`` that the
    process they work for is stopped. Close it."""

    def __init__(self, peers: Sequence[Peer], every_s: float, silence_s: float, on_loss: OnLoss) -> None:
        self._peers, self._every_s, self._silence_s, self._on_loss = peers, every_s, silence_s, on_loss
        # Rounds in a row in which each was stopped. Not seconds: while this process was stopped itself, time passed unobserved.
        self._stopped = [0] * len(peers)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="glt-owner-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the watch. Close the peers first: that ends a call in flight. Safe to call twice."""
        self._closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def stop(self) -> None:
        """Ignores losses from now on: peers end in turn when a job ends. Does not wait."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(self._every_s):
            for number, peer in enumerate(self._peers):
                try:
                    self._look(number, peer.ask("here").result())
                except PeerError as error:
                    if not self._closed.is_set():
                        self._on_loss(str(error), self._closed)
                    return

    def _look(self, number: int, answer: Message) -> None:
        """Raises `PeerLostError` for a peer that was stopped for ``silence_s``."""
        pid = answer.header.get("stopped")
        self._stopped[number] = 0 if pid is None else self._stopped[number] + 1
        stopped_s = (self._stopped[number] - 1) * self._every_s
        if stopped_s >= self._silence_s:
            raise PeerLostError(
                f"{self._peers[number].name}: its process {pid!r:.20} has been stopped by SIGSTOP or a debugger for "
                f"{stopped_s:.0f} s. To keep a rank in a debugger, raise cluster.peer_silence_s."
            )


# Notices that this process itself was stopped, so that deadlines of other processes do not count that time.


STEP_S = 5.0  # the longest single wait between two calls of `happened`
_LATE_S = 5.0  # a wait that ends later than this was a stop, and not a busy machine


class StandStill:
    """Notices that this process was stopped (a terminal's Ctrl-Z, a scheduler that suspends jobs). Then the processes that it
    waits for were probably stopped, too, and messages that they sent before are not read yet.

    clock: the monotonic clock, or that of a test.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._looked_s = clock, clock()

    def happened(self) -> bool:
        """Tells whether this process was stopped since the last call. To be called after each wait of at most `STEP_S`."""
        before, self._looked_s = self._looked_s, self._clock()
        return self._looked_s - before > STEP_S + _LATE_S
