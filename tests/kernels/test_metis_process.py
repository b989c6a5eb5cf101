"""METIS's own process: it works as a call would, ends with whom it works for, and leaves nothing (the leak police looks)."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from glt_lightning.base import NativeError, PartitionError
from glt_lightning.kernels import MetisGraph, metis_parts
from glt_lightning.kernels.metis import child as metis_child, library as metis
from tests.helpers import run_script, started
from tests.helpers.adjacency import Adjacency, random_adjacency
from tests.helpers.family import settle
from tests.helpers.metis import metis_at_work, stop_metis

NODES = 30_000  # about 0.5 s of METIS

FOREVER = """
    import numpy as np
    from glt_lightning.kernels import metis_parts
    from tests.helpers.adjacency import random_adjacency

    rows = random_adjacency(30_000, 300_000)
    while True:
        metis_parts(*rows, 8, weights=np.ones((30_000, 1), np.int64))
"""

SHORT_OF_MEMORY = """
    import resource
    import numpy as np
    from glt_lightning.base import PartitionError
    from glt_lightning.kernels import MetisGraph
    from tests.helpers.adjacency import random_adjacency

    indptr, neighbors = random_adjacency(30_000, 900_000)
    with MetisGraph(np.ones((30_000, 1), np.int64), len(neighbors)) as graph:
        graph.indptr[:], graph.neighbors[:] = indptr, neighbors
        resource.setrlimit(resource.RLIMIT_DATA, (100 << 20, resource.RLIM_INFINITY))
        try:
            graph.cut(8)
        except PartitionError as error:
            print(error)
"""

ENV = {"PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parents[2])])}


@pytest.fixture(scope="module")
def rows() -> Adjacency:
    return random_adjacency(NODES, 10 * NODES)


def cut(rows: Adjacency) -> np.ndarray:
    return metis_parts(*rows, 8, weights=np.ones((len(rows[0]) - 1, 1), np.int64))


@pytest.fixture
def on_sight() -> Iterator:
    """``on_sight(act)``: calls ``act(child)``, once, with a child of ours in which METIS works and has been stopped."""
    threads = []

    def start(act) -> None:
        thread = threading.Thread(target=lambda: act(stop_metis(psutil.Process().children, 10)))
        thread.start()
        threads.append(thread)

    yield start
    for thread in threads:
        thread.join(10)


def test_parts_are_those_of_a_call(rows) -> None:
    weights = np.stack([np.ones(NODES, np.int64), np.arange(NODES) % 3], axis=1)
    edge_weights = np.minimum(rows[1], 5) + 1
    parts = np.zeros(NODES, np.int64)
    arrays = {"indptr": rows[0], "neighbors": rows[1], "weights": weights, "edge_weights": edge_weights, "parts": parts}
    call = {"nodes": NODES, "columns": 2, "parts": 8, "permille": 30, "seed": 5}
    with MetisGraph(weights, len(rows[1])) as graph:
        library = graph._library
    assert metis_child.part_graph(str(library), {name: a.ctypes.data for name, a in arrays.items()}, call) == 1
    made = metis_parts(*rows, 8, weights=weights, edge_weights=edge_weights, imbalance=0.03, seed=5)
    np.testing.assert_array_equal(made, parts)
    assert np.bincount(made).min() > 0


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_ends_it(rows, on_sight, number: signal.Signals, raised: type[BaseException]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    stopped = []

    def act(child: psutil.Process) -> None:
        stopped.append(child.pid)
        os.kill(os.getpid(), number)

    on_sight(act)
    try:
        with pytest.raises(raised):
            while True:
                cut(rows)
        assert not psutil.pid_exists(stopped[0])
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [
        (signal.SIGKILL, PartitionError, "killed by SIGKILL, most likely .* memory ran out.*algorithm: streaming"),
        (signal.SIGSEGV, NativeError, "METIS: its process was killed by SIGSEGV"),
    ],
)
def test_its_death_is_told(rows, on_sight, number: signal.Signals, kind: type[Exception], text: str) -> None:
    def act(child: psutil.Process) -> None:
        child.send_signal(number)
        with suppress(psutil.NoSuchProcess):
            child.resume()

    on_sight(act)
    with pytest.raises(kind, match=text) as told:
        while True:
            cut(rows)
    assert "\n" not in str(told.value)


def test_it_dies_with_its_parent() -> None:
    with started([sys.executable, "-c", "if True:" + FOREVER], env=ENV) as run:
        metis_at_work(run.family, 30)
        run.popen.kill()
        run.popen.wait(10)
        assert settle(run.family, 10) == []
        assert run.output == ""


def test_memory_runs_out() -> None:
    assert "METIS ran out of memory on 30,000 nodes" in run_script(SHORT_OF_MEMORY, env=ENV).stdout


@pytest.mark.parametrize("request_", ["", '{"parent": 1}'])
def test_without_a_parent_nothing_is_done(request_: str) -> None:
    """The parent was interrupted before it asked, or has ended since."""
    ended = subprocess.run([sys.executable, metis_child.__file__], input=request_, text=True, capture_output=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "")


def test_what_metis_prints_is_not_heard(rows, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NativeError, match="METIS failed with status -2"):
        metis_parts(*rows, 0, weights=np.ones((NODES, 1), np.int64))
    assert capfd.readouterr() == ("", "")


def test_an_error_of_the_child_is_told(rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metis, "_library", lambda: Path("/no/such/library.so"))
    with pytest.raises(NativeError, match=r"ended with exit code 1 \(OSError: /no/such/library.so") as told:
        cut(rows)
    assert "\n" not in str(told.value)


def test_it_needs_the_standard_library_alone() -> None:
    """What starts in 20 ms, without torch or numpy, and wherever the package lies."""
    nodes = ast.walk(ast.parse(Path(metis_child.__file__).read_text()))
    names = {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
    nodes = ast.walk(ast.parse(Path(metis_child.__file__).read_text()))
    names |= {n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module}
    assert names <= sys.stdlib_module_names | {"__future__"}


def test_limits_of_shared_memory_are_told() -> None:
    code = """
        import resource
        import numpy as np
        from glt_lightning.base import PartitionError
        from glt_lightning.kernels import MetisGraph

        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        try:
            MetisGraph(np.ones((100, 1), np.int64), 1000)
        except PartitionError as error:
            print(error)
    """
    assert "METIS: 10,408 bytes of shared memory could not be allocated: [Errno 27]" in run_script(code, env=ENV).stdout
