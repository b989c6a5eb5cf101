"""How a process begins that `producer.child` starts: before anything else, it ties its life to its parent's.

This file is run by its path, and imports the standard library alone until then.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # prctl.h


def end_with(parent: int) -> None:
    """The kernel kills this process when the thread that started it ends: also a process that is stopped, or that holds the
    GIL in native code, and so does not see that its socket has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before
        os._exit(1)


def wake_with_parent() -> None:
    """This process goes on when its parent ends, should it be stopped then, and so can end by itself."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)


def main() -> None:
    """Arguments: process id of the parent, its module path as JSON, a module with ``main(fd)``, a file descriptor."""
    end_with(int(sys.argv[1]))
    sys.path[:] = json.loads(sys.argv[2])  # finds the package however the parent found it
    importlib.import_module(sys.argv[3]).main(int(sys.argv[4]))


if __name__ == "__main__":
    main()
