"""Ranks by fork from a process that has imported torch and Lightning: that costs five seconds of a core, a rank.

A rank is forked before the mother has any thread, and gets an environment, a session and a network of its own, so that it
is a process like another; its samplers and servers are started as ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.helpers import Run
from tests.helpers.family import MARK, settle
from tests.lightning.test_two_ranks import WITH_TESTS

_ANSWER_S = 120.0  # to import torch on a busy machine
_MOST_BYTES = 1 << 18
_CLONE_NEWNET = 0x40000000
_numbers = itertools.count()


class Zygote:
    """The mother, seen from the test. Made by `open_zygote`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def ask(self, **question: Any) -> Any:
        self._sock.send(json.dumps(question).encode())
        return json.loads(self._sock.recv(_MOST_BYTES))

    @contextlib.contextmanager
    def fork(
        self, argument: str, *, env: Mapping[str, str], cwd: Path, log: Path, network: str | None
    ) -> Iterator[Run]:
        """A process that runs `tests.faults.program` with an argument. network: a network namespace, by name."""
        mark = f"{os.environ[MARK]}forked{next(_numbers)}."
        place = {"cwd": str(cwd), "log": str(log), "network": network}
        log.touch()
        pid = self.ask(argument=argument, env=dict(env) | {MARK: mark}, **place)
        run = _ForkedRun(_Child(self, pid), mark, log)
        try:
            yield run
        finally:
            run.close()


class _Child:
    """As much of `subprocess.Popen` as `Run` needs, for a child of the mother."""

    def __init__(self, zygote: Zygote, pid: int) -> None:
        self._zygote, self.pid, self.args = zygote, pid, "a forked rank"
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._zygote.ask(poll=self.pid)
        return self.returncode

    def wait(self, timeout: float) -> int:
        if settle(lambda: [self] if self.poll() is None else [], timeout):
            raise subprocess.TimeoutExpired(self.args, timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _ForkedRun(Run):
    def family(self) -> list[psutil.Process]:
        """As ever; the rank itself still shows the environment of its mother."""
        forked = [psutil.Process(self.popen.pid)] if self.popen.poll() is None else []
        return [*forked, *super().family()]


@contextlib.contextmanager
def open_zygote() -> Iterator[Zygote]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(_ANSWER_S)
    env = os.environ | WITH_TESTS | {"OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    argv = [sys.executable, "-m", "tests.faults.zygote", str(theirs.fileno())]
    with theirs:
        mother = subprocess.Popen(argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=env)
    try:
        with ours:
            yield Zygote(ours)
    finally:
        mother.wait(10)  # it ends when the socket does


# In the mother


def _serve(sock: socket.socket) -> str | None:
    """Forks as it is asked to. Returns in each child, with its argument, and with None in the mother, at the end."""
    while question := sock.recv(_MOST_BYTES):
        asked = json.loads(question)
        if "poll" in asked:
            pid, status = os.waitpid(asked["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                sock.close()
                _settle_in(asked)
                return str(asked["argument"])
        sock.send(json.dumps(answer).encode())
    return None


def _settle_in(asked: dict[str, Any]) -> None:
    os.setsid()
    os.environ.update(asked["env"])
    tempfile.tempdir = None  # looked up while torch was imported; TMPDIR is another one now
    os.chdir(asked["cwd"])
    log = os.open(asked["log"], os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    if asked["network"] is not None:
        with Path("/run/netns", asked["network"]).open() as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")


def main() -> None:
    from tests.faults import program

    argument = _serve(socket.socket(fileno=int(sys.argv[1])))
    if argument is not None:
        sys.argv = ["program.py", argument]
        program.main()


if __name__ == "__main__":
    main()
