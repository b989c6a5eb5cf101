"""No C++ exception leaves the native libraries: each entry point has the guard, and what is thrown becomes an error."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.base import MAX_FANOUT, DrawOptions, NativeError, OptionError, parse_fanouts
from glt_lightning.kernels import KHopOp
from tests.helpers.graphs import TypedGraph, cut
from tests.helpers.rows import sample_rows

CUDA = Path(__file__).parents[2] / "cuda"
# They return no status, and do nothing that throws.
NO_STATUS = {"glt_abi_version", "glt_rank_words", "glt_cuda_error_text", "glt_disk_try"}


def declared() -> set[str]:
    headers = "".join(path.read_text() for path in sorted((CUDA / "include" / "glt").glob("*.h")))
    return set(re.findall(r"^GLT_API [^;(]*?\b(glt_\w+)\(", headers, re.MULTILINE))


def unguarded(source: str) -> set[str]:
    """Names of the entry points that a source defines without a guard."""
    starts = list(re.finditer(r"^[\w ]+\*? ?\b(glt_\w+)\([^;{}]*\)( try)? \{", source, re.MULTILINE))
    ends = [m.start() for m in starts[1:]] + [len(source)]
    bad = set()
    for start, end in zip(starts, ends, strict=True):
        body = source[start.start() : end]
        if not start[2] or not re.search(r"^\}\nGLT_CATCH\((detail|nullptr)\)$", body, re.MULTILINE):
            bad.add(start[1])
    return bad


def test_every_entry_point_is_guarded() -> None:
    sources = {path: path.read_text() for path in sorted([*CUDA.glob("*.cpp"), *CUDA.glob("*.cu")])}
    text = "".join(sources.values())
    names = declared()
    assert len(names) > 40
    missing = {name for name in names if not re.search(rf"^[\w ]+\*? ?{name}\(", text, re.MULTILINE)}
    assert not missing, f"declared, but this test finds no definition: {missing}"
    assert {name for source in sources.values() for name in unguarded(source)} <= NO_STATUS
    planted = re.sub(r"(glt_gather\([^{]*\)) try \{", r"\1 {", sources[CUDA / "gather.cpp"])
    assert unguarded(planted) == {"glt_gather"}


CHILD = """
import json, resource, sys
import numpy as np
from glt_lightning.base import NativeError
from glt_lightning.kernels.native import NativeMemoryError
from glt_lightning.kernels.disk import DiskRows
from glt_lightning.kernels import Router
from glt_lightning.kernels import RowDraw
from tests.helpers.graphs import TypedGraph, cut

pieces = cut(TypedGraph.random(np.random.default_rng(0)), 1, np.random.default_rng(0))
gids = np.zeros(3_000_000, dtype=np.int64)
draw = RowDraw(pieces.view, 0, gids, 2, 0, 0)
counts = draw.count()
out = np.empty(int(counts.sum()), dtype=np.int64)
many = np.zeros(1 << 16, dtype=np.int64)
owners = np.zeros(1, dtype=np.int32)
first = np.zeros(1, dtype=np.int64)

def route():
    from glt_lightning.kernels.native import (check, library)
    detail, one = np.zeros(4, dtype=np.int64), np.zeros(2, dtype=np.int64)
    status = library().glt_route(one.ctypes.data, 1, one.ctypes.data, owners.ctypes.data, 1, 2**31 - 1, one.ctypes.data,
                                 None, 8, owners.ctypes.data, one.ctypes.data, one.ctypes.data, one.ctypes.data,
                                 detail.ctypes.data)
    check(status, detail, "route")

used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), used + (4 << 20)))
found = {}
for name, call in {
    "pick": lambda: draw.pick(counts, 0, out),
    "threads": lambda: RowDraw(pieces.view, 0, many, 2, 0, 0).pick(counts[: len(many)], 0, out[: len(many)], threads=8),
    "route": route,
}.items():
    try:
        call()
        found[name] = "nothing"
    except NativeError as error:
        found[name] = [type(error).__name__, isinstance(error, MemoryError), str(error)]
resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), used + (4 << 20)))
print(json.dumps(found))
"""


def test_want_of_memory_is_an_error() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=60, cwd=CUDA.parent)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for name in ("pick", "route"):
        kind, is_memory, text = found[name]
        assert (kind, is_memory) == ("NativeMemoryError", True)
        assert "out of memory" in text
    assert found["threads"][0] in ("NativeError", "NativeMemoryError")  # a thread's stack is memory, too


@pytest.mark.parametrize("fanout", [MAX_FANOUT + 1, 2**27, 2**31 - 1, -2])
def test_fan_outs_are_bounded(fanout: int) -> None:
    pieces = cut(TypedGraph.random(np.random.default_rng(0)), 1, np.random.default_rng(0))
    with pytest.raises(OptionError, match=f"1 to {MAX_FANOUT}"):
        parse_fanouts([fanout])
    with pytest.raises(NativeError, match="status 4"):
        KHopOp(pieces.view, [[fanout]], DrawOptions(replace=True))({0: pieces.gid_of[0][:1]}, 0)
    with pytest.raises(NativeError, match="status 4"):
        sample_rows(pieces.view, 0, pieces.gid_of[0][:1], fanout, batch_key=0, hop=0, replace=True)
