"""Child processes of an agent, and their descendants."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from glt_lightning.kernels import terminate_with

_READ = 1 << 16
_LONGEST_LINE = 1 << 16  # bytes of output; a longer line is passed on in pieces


class Child:
    """A process in a group of its own, whose output is one pipe. The kernel sends it SIGTERM when the agent ends in any way.

    Raises `OSError` if it cannot be started.
    """

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str], cwd: str, given: str | None) -> None:
        self.name, self.status = name, None  # type: str, int | None
        self.open = True  # False at the end of its output
        self.reported = False  # True once its end has been reported
        self._rest = b""
        with contextlib.ExitStack() as stack:
            stdin = subprocess.DEVNULL
            if given is not None:  # a file in memory: a pipe might be full before the process reads
                stdin = os.memfd_create(f"glt-input-{name}", os.MFD_CLOEXEC)
                stack.callback(os.close, stdin)
                with os.fdopen(os.dup(stdin), "wb") as file:
                    file.write(given.encode())
                os.lseek(stdin, 0, os.SEEK_SET)
            self._popen = subprocess.Popen(
                argv,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=cwd,
                process_group=0,
                preexec_fn=partial(terminate_with, os.getpid()),
            )
        self.pid = self._popen.pid
        assert self._popen.stdout is not None
        self.pipe = self._popen.stdout.fileno()
        os.set_blocking(self.pipe, False)

    def read(self) -> str | None:
        """Reads whole lines of the output; None if nothing can be read now. Sets ``open`` to False at its end."""
        try:
            data = os.read(self.pipe, _READ)
        except BlockingIOError:
            return None
        if not data:
            self.open = False
        self._rest += data
        end = self._rest.rfind(b"\n") + 1
        if not data or (end == 0 and len(self._rest) > _LONGEST_LINE):
            end = len(self._rest)
        ready, self._rest = self._rest[:end], self._rest[end:]
        return ready.decode("utf-8", "replace")

    def rest(self) -> str:
        """Returns the last line, if it has no line end."""
        ready, self._rest = self._rest, b""
        return ready.decode("utf-8", "replace")

    def reaped(self, status: int) -> None:
        """Records the end of the process. status: as `os.waitpid` returns it."""
        self._popen.returncode = os.waitstatus_to_exitcode(status)
        self.status = exit_status(self._popen.returncode)

    def terminate(self) -> None:
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGTERM)

    def close(self) -> None:
        assert self._popen.stdout is not None
        self._popen.stdout.close()


def exit_status(code: int) -> int:
    """The status that a shell reports for a process that ended with ``code``, which is negative for a signal."""
    return 128 - code if code < 0 else code


def reap() -> list[tuple[int, int]]:
    """Reaps all children that have ended, adopted ones too. Returns pairs (process id, status of `os.waitpid`)."""
    found = []
    with contextlib.suppress(ChildProcessError):
        while (one := os.waitpid(-1, os.WNOHANG))[0]:
            found.append(one)
    return found


def descendants(root: int) -> list[int]:
    """Process ids of all descendants of ``root``, without zombies."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The name of the program stands in brackets and may contain anything.
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    below.setdefault(int(parent), []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        children = below.get(todo.pop(), [])
        found += children
        todo += children
    return found


def kill_all(root: int) -> bool:
    """Kills all processes below ``root``. Returns whether there were any."""
    found = descendants(root)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(found)
