"""One sampler process: the side of the trainer or server that owns it."""

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

from glt_lightning.base import SamplerError
from glt_lightning.graph import usable_cores
from glt_lightning.sampling import BatchRequest, SamplerConfig
from glt_lightning.workers.cluster.owner_server import OwnerAddresses
from glt_lightning.workers.producer.child import Starter
from glt_lightning.workers.producer.request_codec import write_config, write_request
from glt_lightning.workers.producer.samplers import SamplerSource
from glt_lightning.workers.slots import SharedSlot
from glt_lightning.workers.wire import ClosedError, send

LEAVE_S = 2.0  # for a sampler to end after its socket was closed; a healthy one takes milliseconds
_EXIT_S = 10.0  # to end after SIGKILL: one that waits for a disk ends only when the disk answers


def batches_at_once(source: SamplerSource, num_workers: int, concurrency: int) -> int:
    """Number of batches that one process makes at once. If all rows are in memory, more batches than cores would only cost
    memory and delay the next batch; if some are remote or on disk, other batches go on while one waits."""
    if source.waits:
        return concurrency
    return min(concurrency, max(1, usable_cores() // num_workers))


def exit_reason(process: subprocess.Popen[bytes], wait_s: float) -> str:
    """A description of how a child ended, after its socket was closed."""
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
    """One requested batch: the slot to write it to and, later, the sampler's reply."""

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
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(timeout_s)
        # numpy's BLAS threads would cost each sampler start-up time and memory for nothing
        env = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        try:
            self._process = starter.start("glt_lightning.workers.producer.worker", theirs, env)
        except OSError as error:
            self.sock.close()
            raise SamplerError(
                f"cannot start sampler process {index}: {error}. Check the limits of processes and memory of this host."
            ) from error
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
        """Requests one batch. Raises `ClosedError` if the process is gone; the task stays in ``tasks`` then as well, so that it
        is among those of the failure."""
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
        """A description of how the process ended, after its socket was closed."""
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
