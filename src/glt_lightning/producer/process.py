"""One sampler process, seen from the trainer."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from glt_lightning.channel.slots import SharedSlot
from glt_lightning.channel.wire import ClosedError, send
from glt_lightning.cluster.member import OwnerAddresses
from glt_lightning.errors import SamplerError
from glt_lightning.producer.child import Starter
from glt_lightning.producer.request_codec import write_config, write_request
from glt_lightning.producer.samplers import SamplerSource
from glt_lightning.sampler.request import BatchRequest, SamplerConfig

LEAVE_S = 2.0  # to leave after a hang-up; a healthy sampler takes milliseconds
_EXIT_S = 10.0  # to be gone after a kill


def batches_at_once(source: SamplerSource, num_workers: int, concurrency: int) -> int:
    """Batches that one process makes at once. Where all rows are in memory, more than there are cores for would only cost
    memory and delay the batch that is due; where some are not, the others go on while one waits for them."""
    if source.waits:
        return concurrency
    return min(concurrency, max(1, (os.cpu_count() or 1) // num_workers))


def exit_reason(process: subprocess.Popen[bytes], wait_s: float) -> str:
    """How a child ended, after its socket did."""
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
    """One batch asked for: where it shall be written and, later, what the sampler said."""

    run: int
    config: SamplerConfig
    request: BatchRequest
    slot: SharedSlot
    once: bool  # the slot is one-off memory
    reply: dict[str, Any] | None = None
    alone: bool = False  # to be made by a process that has nothing else, because it may be what ended another one
    failures: int = 0  # processes that failed while they had it

    @property
    def key(self) -> tuple[int, int]:
        return self.run, self.request.number


class SamplerProcess:
    """A child process and the socket to it. The child ends when the socket does, and is killed when its trainer ends."""

    def __init__(self, index: int, source: SamplerSource, threads: int, timeout_s: float, starter: Starter) -> None:
        self.index = index
        self.tasks: dict[tuple[int, int], BatchTask] = {}
        self._configs: dict[SamplerConfig, int] = {}
        self._known_slots: set[int] = set()
        self.heard_s = time.monotonic()  # when anything last came from it while it had a task
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(timeout_s)
        # numpy's BLAS threads would cost each sampler start-up time and memory for nothing
        env = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        try:
            self._process = starter.start("glt_lightning.producer.worker", theirs, env)
        except OSError as error:
            self.sock.close()
            raise SamplerError(f"cannot start sampler process {index}: {error}.") from error
        finally:
            theirs.close()
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
        """Asks for one batch. Raises `ClosedError` if the process is gone; the task stays in ``tasks`` then, too."""
        if not self.tasks:
            self.heard_s = time.monotonic()
        self.tasks[task.key] = task
        slot = task.slot
        header, body = write_request(task.request)
        header |= {"op": "make", "run": task.run, "slot": slot.index, "once": task.once}
        if task.config not in self._configs:
            self._configs[task.config] = len(self._configs)
            header["config"] = write_config(task.config)
        header["config_id"] = self._configs[task.config]
        fds = [] if slot.index in self._known_slots else [slot.fd]
        if not task.once:
            self._known_slots.add(slot.index)
        send(self.sock, header, body.data, fds)

    def join(self, owners: Sequence[OwnerAddresses]) -> None:
        """Tells the process who has the parts that it does not map."""
        with suppress(ClosedError, TimeoutError):
            send(self.sock, {"op": "join", "holders": [owner.to_json() for owner in owners]})

    def keep(self, handle: Mapping[str, Any]) -> None:
        """Tells the process of the cache that its batches may take rows from."""
        with suppress(ClosedError, TimeoutError):
            send(self.sock, {"op": "keep", "handle": handle})

    def drop(self, run: int) -> None:
        """Tells the process that queued batches of a run are no longer wanted."""
        with suppress(ClosedError, TimeoutError):
            send(self.sock, {"op": "drop", "run": run})

    def forget(self, slot: int) -> None:
        """Tells the process that nothing will be written into a slot any more."""
        if slot in self._known_slots:
            self._known_slots.remove(slot)
            with suppress(ClosedError, TimeoutError):
                send(self.sock, {"op": "forget", "slot": slot})

    def exit_reason(self) -> str:
        """How the process ended, after its socket did."""
        return exit_reason(self._process, LEAVE_S)

    def kill(self) -> None:
        """Ends the process now: it writes to no slot any more when this returns."""
        self._process.kill()
        self.stop()

    def hang_up(self) -> None:
        self.sock.close()

    def stop(self, leave_s: float = LEAVE_S) -> None:
        """Waits so long for the end after a hang-up or a kill, and kills where that does not come."""
        self.sock.close()
        try:
            self._process.wait(leave_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            try:
                self._process.wait(_EXIT_S)
            except subprocess.TimeoutExpired:
                raise SamplerError(f"{self.name} does not end, not even when killed.") from None
