"""Starts child processes that the kernel kills when this one ends."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future

from glt_lightning.kernels import child


class _Order:
    """A process to start. started: the process, or the error of starting it."""

    def __init__(self, argv: list[str], fd: int, environment: Mapping[str, str] | None) -> None:
        self._argv, self._fd, self._environment = argv, fd, environment
        self.started: Future[subprocess.Popen[bytes]] = Future()

    def serve(self) -> None:
        try:
            self.started.set_result(
                subprocess.Popen(self._argv, pass_fds=[self._fd], stdin=subprocess.DEVNULL, env=self._environment)
            )
        except BaseException as error:
            self.started.set_exception(error)


class Starter:
    """Starts child processes, all from one thread. Close it when they have ended.

    The kernel kills a child when its parent ends (`kernels.child`), where the parent is the thread that started the child.
    That thread must last as long as the children; a thread of the user's, or one that only replaces a process, may not.
    """

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._closed = False
        self._lock = threading.RLock()  # an order put behind the None that ends the thread would never be answered
        self._thread = threading.Thread(target=_serve, args=(self._orders,), name="glt-starter", daemon=True)
        self._thread.start()

    def start(
        self, module: str, sock: socket.socket, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts a process that runs ``main(fd)`` of a module, with ``sock`` as that file descriptor. Raises `OSError`."""
        fd = sock.fileno()
        # -P: or files beside `kernels.child` would be imported in place of standard library modules of the same name
        argv = [sys.executable, "-P", child.__file__, str(os.getpid()), json.dumps(sys.path), module, str(fd)]
        order = _Order(argv, fd, environment)
        with self._lock:
            if self._closed:
                raise OSError("the pool of sampler processes is closed")
            self._orders.put(order)
        return order.started.result()

    def close(self) -> None:
        """Ends the thread; with it the kernel ends children that still run. Safe to call twice."""
        with self._lock:
            self._closed = True
            self._orders.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()


def _serve(orders: queue.SimpleQueue[_Order | None]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, child.OF_A_JOB)  # inherited by children, until they ignore these signals
    while (order := orders.get()) is not None:
        order.serve()
        del order  # its reference to the process, whose owner waits for the end
