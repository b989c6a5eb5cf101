"""The first steps of a process that `workers.producer.child` starts: it makes sure that it ends with its parent.

This file is run by its path, and until then imports only the standard library, so that nothing can fail before.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # prctl.h
_PR_SET_CHILD_SUBREAPER = 36
OF_A_JOB = (signal.SIGINT, signal.SIGTERM)  # terminals and schedulers send them to all processes of a job
_LIBC = ctypes.CDLL(None)  # loaded here, not between fork and exec


def end_with(parent: int) -> None:
    """Lets the kernel kill this process when the thread that started it ends. A process that is stopped, or that holds the
    GIL in native code, could not notice that its socket was closed."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before prctl took effect
        os._exit(1)


def wake_with_parent() -> None:
    """Lets the kernel continue this process, if it is stopped, when its parent ends, so that it can end by itself."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)


def terminate_with(parent: int) -> None:
    """Lets the kernel send this process SIGTERM when its parent ends, for a process that has to end others first. Runs between
    fork and exec, so it imports nothing."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the parent of each descendant whose own parent ends."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def main() -> None:
    """Runs ``main(fd)`` of a module. Arguments: process id of the parent, its module path as JSON, the module, the file
    descriptor."""
    end_with(int(sys.argv[1]))
    for number in OF_A_JOB:
        signal.signal(number, signal.SIG_IGN)  # the parent ends this process, after the batches that it still needs
    signal.pthread_sigmask(signal.SIG_UNBLOCK, OF_A_JOB)
    sys.path[:] = json.loads(sys.argv[2])  # finds the package however the parent found it
    importlib.import_module(sys.argv[3]).main(int(sys.argv[4]))


if __name__ == "__main__":
    main()
