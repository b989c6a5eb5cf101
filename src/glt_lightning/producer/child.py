"""Starts processes that end when this one does, whatever they are doing then."""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from glt_lightning.ops import child

_Start = Callable[[], "subprocess.Popen[bytes]"]


class Starter:
    """Starts child processes, all from one thread. Close it when they have ended.

    The kernel kills a child when its parent ends (`ops.child`), and takes the thread that started it for the parent. So that
    thread must last as long as the children, which a thread of the user's, or one that only replaces a process, may not.
    """

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[tuple[_Start, Future[subprocess.Popen[bytes]]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_serve, args=(self._orders,), name="glt-starter", daemon=True)
        self._thread.start()

    def start(
        self, module: str, sock: socket.socket, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """A process that runs ``main(fd)`` of a module, with ``sock`` as that file descriptor. Raises `OSError`."""
        fd = sock.fileno()
        # -P: files beside that of `ops.child` must not pass for modules of the standard library
        argv = [sys.executable, "-P", child.__file__, str(os.getpid()), json.dumps(sys.path), module, str(fd)]
        started: Future[subprocess.Popen[bytes]] = Future()
        start = lambda: subprocess.Popen(argv, pass_fds=[fd], stdin=subprocess.DEVNULL, env=environment)  # noqa: E731
        self._orders.put((start, started))
        return started.result()

    def close(self) -> None:
        """Ends the thread, and with it what still runs. Safe to call twice."""
        self._orders.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()


def _serve(orders: queue.SimpleQueue[tuple[_Start, Future[subprocess.Popen[bytes]]] | None]) -> None:
    while (order := orders.get()) is not None:
        start, started = order
        try:
            started.set_result(start())
        except BaseException as error:
            started.set_exception(error)
