"""A graph server in a child process of the trainer: the trainer's side."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from glt_lightning.base import PeerError
from glt_lightning.workers.producer.child import Starter
from glt_lightning.workers.producer.process import exit_reason
from glt_lightning.workers.server.hosted import ServerPlan
from glt_lightning.workers.slots import ClosedError, receive, send

_LEAVE_S = 5.0  # for the child to close its sockets and end its samplers, before it is killed


class ServerProcess:
    """Starts a graph server as a child process, and starts it again, at the same address, when it dies. Close it.

    The child ends when the socket to it does, and is killed when its trainer ends.

    Args:
        plan: The options of the server.
        max_restarts: How many times in a row the server is started again. A server that ran for longer than
            ``plan.cluster.deadlines.reconnect_s`` begins a new row, so that a job of a week survives a restart a day.
        on_failure: Called with the reason when no further restart is allowed, on the thread that watches the child.
        clock: The monotonic clock, or that of a test.

    Raises `PeerError` if the server does not start within ``plan.cluster.deadlines.start_s``.
    """

    def __init__(
        self,
        plan: ServerPlan,
        max_restarts: int,
        on_failure: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._in_a_row = clock, 0
        self._plan, self._max_restarts, self._on_failure = plan, max_restarts, on_failure
        # Guards _closed and the choice of a new socket: without it, `close` could shut the old socket down while a restart
        # makes the next one, and wait for a child that nobody ends.
        self._lock = threading.Lock()
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._starter = Starter()
        try:
            self.address = self._start(plan)
        except BaseException:
            self._stop()
            self._starter.close()
            raise
        self._plan = replace(plan, address=self.address)
        self._ready_s = clock()
        self._thread = threading.Thread(target=self._watch, name="glt-graph-server", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def close(self) -> None:
        """Ends the server and waits for its end. Safe to call twice."""
        with self._lock:
            self._closed = True
            if self._sock is not None:
                with suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._stop()
        self._starter.close()

    def _start(self, plan: ServerPlan) -> str:
        """Starts the child and returns its address."""
        sock, theirs = socket.socketpair()
        with self._lock, theirs:
            if self._closed:
                sock.close()
                raise PeerError("the graph server of this run was not started again, because the run is ending.")
            self._sock = sock
            sock.settimeout(plan.cluster.deadlines.start_s)
            self._process = self._starter.start("glt_lightning.workers.server.child", theirs)
        try:
            send(sock, plan.to_json())
            answer, _, _ = receive(sock)
        except TimeoutError:
            limit_s = plan.cluster.deadlines.start_s
            raise PeerError(
                f"the graph server of this run was not ready after {limit_s:g} s. If loading the partition takes longer, "
                "raise cluster.deadlines.start_s."
            ) from None
        except ClosedError:
            raise PeerError(f"the graph server of this run {self._exit_reason()} while it started.") from None
        if "error" in answer:
            raise PeerError(f"the graph server of this run cannot start: {answer['error']}")
        sock.settimeout(None)
        return str(answer["address"])

    def _watch(self) -> None:
        """Waits for the child's end, and replaces it."""
        while True:
            assert self._sock is not None
            with suppress(ClosedError, OSError):
                receive(self._sock)  # the child sends nothing after its address, so this returns when it ends
            if self._closed:
                return
            end = f"the graph server of this run (pid {self.pid}) {self._exit_reason()}"
            self._stop()
            try:
                self._restart(end)
            except Exception as error:  # every reason must reach the trainer, or it would wait for batches
                if not self._closed:
                    self._on_failure(str(error))
                return

    def _restart(self, end: str) -> None:
        if self._clock() - self._ready_s > self._plan.cluster.deadlines.reconnect_s:
            self._in_a_row = 0
        while True:
            if self._in_a_row == self._max_restarts:
                raise PeerError(
                    f"{end}, after {self._in_a_row} restarts in a row, the limit of sampling.max_restarts. Look for the cause "
                    "in the log of the server above (out of memory?), or raise sampling.max_restarts."
                )
            self._in_a_row += 1
            print(f"[graph server] {end}; restarting it.", file=sys.stderr, flush=True)
            try:
                self._start(self._plan)
                self._ready_s = self._clock()
                return
            except PeerError as error:  # a child that dies while it starts counts as one more in the row
                if self._closed:
                    raise
                self._stop()
                end = str(error).removesuffix(".")

    def _exit_reason(self) -> str:
        assert self._process is not None
        return exit_reason(self._process, _LEAVE_S)

    def _stop(self) -> None:
        """Closes the socket, waits for the child's end, and kills it if it does not come."""
        if self._sock is not None:
            self._sock.close()
        if self._process is not None:
            try:
                self._process.wait(_LEAVE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(_LEAVE_S)
