"""An executor whose processes end with this one, and that outlives each of them.

`concurrent.futures.ProcessPoolExecutor` would import the user's script in each process, leave processes behind when this one is
killed, and break as a whole when one of them is.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from glt_lightning.kernels import child

_MODULE = __name__  # of the `main` of a process
_POLL_S = 1.0
_STOPPED_S = 30.0  # until a process that was stopped (SIGSTOP), which nobody may ever continue, is given up


class WorkerLost(Exception):
    """The process that ran a task has ended before the task."""


class ProcessExecutor(Executor):
    """Runs `tasks.run.run_task`, and nothing else, in ``processes`` processes. They are started when there is work for them.

    Each belongs to a thread of this process, which passes it one call after the other as JSON.
    """

    def __init__(self, processes: int) -> None:
        self._threads = ThreadPoolExecutor(processes, "glt-partition")
        self._own = threading.local()
        self._workers: list[_Worker] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        assert fn.__name__ == "run_task"
        assert not kwargs
        return self._threads.submit(self._ask, args)

    def _ask(self, args: tuple[Any, ...]) -> Any:
        worker: _Worker | None = getattr(self._own, "worker", None)
        if worker is None:
            # started by this thread, which lives as long as it: the kernel kills a child when the thread that started it ends
            worker = self._own.worker = _Worker()
            self._workers.append(worker)
        try:
            return worker.ask(args)
        except WorkerLost:
            self._own.worker = None
            raise

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the processes, whatever they do."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.end()
        self._threads.shutdown(wait=wait)


class _Worker:
    """A process that runs tasks."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        # -P: or files beside `kernels.child` would be imported in place of standard library modules of the same name
        own = [str(os.getpid()), json.dumps(sys.path), _MODULE, str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", child.__file__, *own],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C goes to the first process, which ends this one
            )
        self._socket, self._stream = ours, ours.makefile("rwb")

    def ask(self, args: tuple[Any, ...]) -> Any:
        try:
            self._stream.write(json.dumps(args).encode() + b"\n")
            self._stream.flush()
            self._wait()
            line = self._stream.readline()
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            code = self._process.wait()
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            reason = ", most likely because memory ran out" if code == -signal.SIGKILL else ""
            raise WorkerLost(f"its process {how}{reason}")
        answer = json.loads(line)
        if "raised" in answer:
            raise RuntimeError(f"a task of the partitioner failed:\n{answer['raised']}")
        return answer

    def _wait(self) -> None:
        """Waits until the process answers or ends. Raises `WorkerLost`, and ends it, if it stays stopped."""
        stopped_s, last = 0.0, time.monotonic()
        while not wait([self._socket], _POLL_S):
            now = time.monotonic()
            stopped_s, last = (stopped_s + now - last if self._is_stopped() else 0.0), now
            if stopped_s > _STOPPED_S:
                self._process.kill()
                raise WorkerLost(f"its process was stopped for {_STOPPED_S:.0f} s")

    def _is_stopped(self) -> bool:
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_bytes()
        except OSError:
            return False
        return stat.rpartition(b")")[2].split()[0] == b"T"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._stream.close()
        self._socket.close()


def main(fd: int) -> None:
    """Runs the calls that come over a socket, until it is closed."""
    from glt_lightning.partition.tasks.run import run_task

    with socket.socket(fileno=fd) as connection, connection.makefile("rwb") as stream:
        for line in stream:
            try:
                answer = run_task(*json.loads(line))
            except Exception:
                answer = {"raised": traceback.format_exc()}
            stream.write(json.dumps(answer).encode() + b"\n")
            stream.flush()
