"""The process in which METIS runs. `kernels.metis.process` starts this file and sends the call as JSON to its stdin.

It imports only the standard library, so it starts in about 20 ms and does not depend on how the package is installed.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import sys
from contextlib import suppress
from ctypes import byref, c_int64, c_void_p
from typing import Any

_PR_SET_PDEATHSIG = 1  # prctl.h
_SEED, _UFACTOR, _NUM_OPTIONS = 8, 16, 40  # METIS_OPTION_SEED, METIS_OPTION_UFACTOR, METIS_NOPTIONS of metis.h


def part_graph(library: str, addresses: dict[str, int | None], call: dict[str, int]) -> int:
    """Calls METIS and returns its status.

    addresses: those of the int64 arrays indptr [N + 1], neighbors [E], weights [N, C], edge_weights [E] or None, parts [N].
    call: nodes N, columns C, parts, permille of imbalance, seed.
    """
    lib = ctypes.CDLL(library)
    for name, arguments in (("METIS_SetDefaultOptions", 1), ("METIS_PartGraphKway", 13)):
        getattr(lib, name).argtypes, getattr(lib, name).restype = [c_void_p] * arguments, ctypes.c_int
    options = (c_int64 * _NUM_OPTIONS)()
    lib.METIS_SetDefaultOptions(options)
    options[_SEED], options[_UFACTOR] = call["seed"], call["permille"]
    status: int = lib.METIS_PartGraphKway(
        byref(c_int64(call["nodes"])),
        byref(c_int64(call["columns"])),
        *(addresses[name] for name in ("indptr", "neighbors", "weights")),
        None,
        addresses["edge_weights"],
        byref(c_int64(call["parts"])),
        None,
        None,
        options,
        byref(c_int64(0)),
        addresses["parts"],
    )
    return status


def _end_with(parent: int) -> None:
    """Lets the kernel kill this process when its parent ends, for whatever reason."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before prctl took effect
        sys.exit(1)


def _go_first() -> None:
    """Makes the kernel choose this process when memory runs out, so that its parent lives and can report it."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def main() -> None:
    request: dict[str, Any] = json.loads(sys.stdin.read() or sys.exit(1))  # nothing: the parent was interrupted
    _end_with(request["parent"])
    _go_first()
    answer = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # METIS prints to stdout, which the parent does not read
    memory = mmap.mmap(request["fd"], request["bytes"])
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    addresses = {name: None if at is None else begin + at for name, at in request["offsets"].items()}
    os.write(answer, b"%d" % part_graph(request["library"], addresses, request["call"]))


if __name__ == "__main__":
    main()
