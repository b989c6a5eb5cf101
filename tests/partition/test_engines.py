"""The folder is the same, whoever runs the tasks; a process that dies costs its task, and a run that dies is continued."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from glt_lightning.base import DataError, OptionError, PartitionError, PartitionOptions
from glt_lightning.partition import partition_graph
from glt_lightning.partition.tasks import array as array_module, engine as engine_module, run as run_module
from glt_lightning.partition.tasks.processes import ProcessExecutor
from glt_lightning.partition.tasks.table import TASKS
from tests.helpers import Run, started
from tests.helpers.family import settle
from tests.helpers.partition_truth import read_folder, single
from tests.partition.test_same_bytes import DIGESTS, OF_THE_MACHINE, PORTABLE, in_files, large, partitioned

TIMEOUT_S = 120
EXPECTED: dict[str, str] = json.loads(DIGESTS.read_text())
# Between them, every task: rows that are picked and rows that are dealt, edges that are merged and edges that are not.
EVERY_TASK = "large, undirected"
LITTLE = 3 << 20

# Partitions the graph of a case; each process that runs a task of a name says so, and stops.
STOPS = """
    import os, sys, time
    from pathlib import Path
    from glt_lightning.partition.tasks import table
    name, flag = sys.argv[1:3]
    task = table.TASKS[name]
    def stop(*args, **kwargs):
        if not Path(flag).exists():
            Path(flag).write_text(str(os.getpid()))
            time.sleep(600)
        return task(*args, **kwargs)
    table.TASKS[name] = stop
"""
PARTITION = """
    from tests.partition.test_same_bytes import large
    from glt_lightning.base import PartitionOptions
    from glt_lightning.partition import partition_graph
    options = PartitionOptions(num_parts=3, processes=int(sys.argv[3]), memory_bytes=3 << 20)
    partition_graph(large(Path()), "made/p", options, undirected=True, progress=False)
"""


@pytest.mark.parametrize("name", PORTABLE)
def test_one_process(tmp_path: Path, name: str) -> None:
    assert partitioned(tmp_path / "a", PORTABLE[name]) == EXPECTED[name]


@pytest.mark.diagonal(most=2)
@pytest.mark.parametrize("name", ["typed, undirected", "times of nodes", "edges to predict", "file, CSC", EVERY_TASK])
def test_two_processes(tmp_path: Path, name: str) -> None:
    found = [partitioned(tmp_path / f"{m}", PORTABLE[name], processes=2, memory_bytes=m) for m in (1 << 20, 1 << 30)]
    assert found == [EXPECTED[name]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("name", PORTABLE)
def test_three_processes_with_little_memory(tmp_path: Path, name: str) -> None:
    assert partitioned(tmp_path / "a", PORTABLE[name], processes=3, memory_bytes=LITTLE) == EXPECTED[name]


@pytest.mark.diagonal(most=2)
@pytest.mark.parametrize("name", OF_THE_MACHINE)
def test_what_depends_on_the_machine_is_equal_on_one(tmp_path: Path, name: str) -> None:
    one, two = (partitioned(tmp_path / f"{n}", OF_THE_MACHINE[name], processes=n) for n in (1, 2))
    assert one == two


@pytest.mark.parametrize("name", ["typed, undirected", EVERY_TASK])
def test_several_threads_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As workers of Dask have by default."""

    @contextmanager
    def threads(*_: object) -> Iterator[tuple[ThreadPoolExecutor, int]]:
        with ThreadPoolExecutor(4) as executor:
            yield executor, 4

    monkeypatch.setitem(engine_module._ENGINES, "dask", threads)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for turn in range(3):
            options = {"engine": "dask", "address": "local", "memory_bytes": 1 << 20}
            assert partitioned(tmp_path / str(turn), PORTABLE[name], **options) == EXPECTED[name]
    finally:
        sys.setswitchinterval(interval)


def test_every_task_is_run_by_these_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = set()
    for name, task in TASKS.items():
        monkeypatch.setitem(TASKS, name, lambda *a, _n=name, _t=task, **k: (ran.add(_n), _t(*a, **k))[1])
    partition_graph(in_files("rows")(tmp_path), tmp_path / "p", PartitionOptions(memory_bytes=LITTLE), undirected=True)
    partition_graph(large(tmp_path), tmp_path / "q", PartitionOptions(memory_bytes=LITTLE))
    made: dict[str, Any] = {}
    exec(SYMMETRIC, made)
    options = PartitionOptions(num_parts=2, algorithm="streaming")
    partition_graph(made["symmetric"](large(tmp_path)), tmp_path / "s", options)
    assert ran == set(TASKS)


def child(code: str, folder: Path, *args: str) -> Run:
    env = {"PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parents[2])])}
    return started([sys.executable, "-c", code, *args], env=env, cwd=folder)


def wait_for(flag: Path, run: Run) -> int:
    deadline = time.monotonic() + TIMEOUT_S
    while not flag.exists() or not flag.read_text():
        assert run.popen.poll() is None, run.output
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(flag.read_text())


@pytest.fixture
def expected(tmp_path: Path) -> dict[str, bytes]:
    partition_graph(large(tmp_path), tmp_path / "whole", PartitionOptions(num_parts=3), undirected=True)
    return content(tmp_path / "whole")


def content(folder: Path) -> dict[str, bytes]:
    read_folder(folder)
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# In the first process, between the tasks of an assignment by `streaming` and hotness by `vip`.
STEPS = {
    "sorted for a check": "topology.GraphTopology._is_symmetric",
    "assigned": "builder.rank_nodes",
    "ranked": "builder.number_nodes",
    "numbered": "builder.plan_buckets",
    "removed": "builder.write_nodes",
    "written": "builder.manifest_head",
}
STOPS_BETWEEN = """
    import os, sys, time
    from pathlib import Path
    from glt_lightning.partition.build import builder, topology
    from tests.partition.test_same_bytes import large
    from glt_lightning.base import PartitionOptions
    from glt_lightning.partition import partition_graph
    step, flag = sys.argv[1:3]
    def stop(*args, **kwargs):
        Path(flag).write_text(str(os.getpid()))
        time.sleep(600)
    exec(f"{step} = stop")
    options = PartitionOptions(num_parts=3, algorithm="streaming")
    partition_graph(symmetric(large(Path())), "made/p", options, progress=False)
"""
SYMMETRIC = """
def symmetric(source):
    import numpy as np
    from glt_lightning.base import EDGE
    index = source.edge_index[EDGE][:, :20_000]
    source.edge_index[EDGE] = np.unique(np.concatenate([index, index[::-1]], axis=1), axis=1)
    return source
"""


@pytest.mark.diagonal(most=2)
@pytest.mark.parametrize("step", STEPS)
def test_a_run_killed_between_tasks_is_continued(tmp_path: Path, step: str) -> None:
    made: dict[str, Any] = {}
    exec(SYMMETRIC, made)
    options, flag = PartitionOptions(num_parts=3, algorithm="streaming"), tmp_path / "flag"
    partition_graph(made["symmetric"](large(tmp_path)), tmp_path / "whole", options)
    with child(SYMMETRIC + textwrap.dedent(STOPS_BETWEEN), tmp_path, STEPS[step], str(flag)) as run:
        wait_for(flag, run)
        run.popen.kill()
        run.wait(TIMEOUT_S)
    partition_graph(made["symmetric"](large(tmp_path)), tmp_path / "made/p", options)
    assert content(tmp_path / "made/p") == content(tmp_path / "whole")
    assert [p.name for p in (tmp_path / "made").iterdir()] == ["p"]


@pytest.mark.diagonal(most=2)
@pytest.mark.parametrize("name", ["count_piece", "deal_edges", "sort_edges", "place_edges", "take_rows", "hash_chunks"])
def test_a_killed_run_is_continued(tmp_path: Path, expected: dict[str, bytes], name: str) -> None:
    flag = tmp_path / "flag"
    with child(textwrap.dedent(STOPS + PARTITION), tmp_path, name, str(flag), "1") as run:
        wait_for(flag, run)
        run.popen.kill()
        run.wait(TIMEOUT_S)
    (left,) = (tmp_path / "made").glob(".p.tmp-run_*")
    before = {p.name: p.stat().st_ino for p in (left / "ledger").iterdir()}
    again: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for task_name, task in TASKS.items():
            patch.setitem(TASKS, task_name, lambda *a, _n=task_name, _t=task, **k: (again.append(_n), _t(*a, **k))[1])
        options = PartitionOptions(num_parts=3, processes=1, memory_bytes=LITTLE)
        partition_graph(large(tmp_path), tmp_path / "made/p", options, undirected=True)
    assert content(tmp_path / "made/p") == expected
    assert [p.name for p in (tmp_path / "made").iterdir()] == ["p"]
    assert name in again
    earlier = {"count_piece": [], "deal_edges": ["count_piece"], "sort_edges": ["count_piece", "deal_edges"]}
    assert not set(again) & set(earlier.get(name, ["count_piece"])), (before, again)


def test_another_graph_does_not_continue_it(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    with child(textwrap.dedent(STOPS + PARTITION), tmp_path, "sort_edges", str(flag), "1") as run:
        wait_for(flag, run)
        run.popen.kill()
        run.wait(TIMEOUT_S)
    partition_graph(single([(0, 1)], 3), tmp_path / "made/p", PartitionOptions(num_parts=3))
    assert [p.name for p in (tmp_path / "made").iterdir()] == ["p"]
    assert read_folder(tmp_path / "made/p")["part0/nodes/0/n_id.npy"].size == 1


# In the processes that run tasks: the first that is asked for a task of the name is killed by itself.
DIES = """
import os, signal
from pathlib import Path
from glt_lightning.partition.tasks import table
name, flag, times = os.environ["DIES"].split(":")
task = table.TASKS[name]
def die(*args, **kwargs):
    for n in range(int(times)):
        try:
            os.close(os.open(f"{flag}{n}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        os.kill(os.getpid(), getattr(signal, os.environ.get("SIGNAL", "SIGKILL")))
    return task(*args, **kwargs)
table.TASKS[name] = die
"""


@pytest.fixture
def dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets processes die in a task; returns a function of its name and how many do."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "deadly.py").write_text(DIES)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr("glt_lightning.partition.tasks.processes._MODULE", "deadly_worker")
    (tmp_path / "site" / "deadly_worker.py").write_text(
        "import deadly\nfrom glt_lightning.partition.tasks.processes import main\n"
    )
    return lambda name, times: monkeypatch.setenv("DIES", f"{name}:{tmp_path / 'died'}:{times}")


@pytest.mark.diagonal(most=2)
@pytest.mark.parametrize(
    "name",
    [name for name in TASKS if name not in ("deal_rows", "place_rows", "check_piece", "compare_directions")],
)
def test_a_process_that_is_killed_costs_its_task(
    tmp_path: Path, expected: dict[str, bytes], dies: Any, name: str
) -> None:
    dies(name, 1)
    options = PartitionOptions(num_parts=3, processes=2, memory_bytes=2 * LITTLE)
    partition_graph(large(tmp_path), tmp_path / "made/p", options, undirected=True)
    assert (tmp_path / "died0").exists()
    assert content(tmp_path / "made/p") == expected
    assert [p.name for p in (tmp_path / "made").iterdir()] == ["p"]


def test_a_process_that_is_stopped_costs_its_task(
    tmp_path: Path, expected: dict[str, bytes], dies: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody continues it."""
    monkeypatch.setenv("SIGNAL", "SIGSTOP")
    monkeypatch.setattr("glt_lightning.partition.tasks.processes._STOPPED_S", 0.2)
    monkeypatch.setattr("glt_lightning.partition.tasks.processes._POLL_S", 0.05)
    dies("sort_edges", 1)
    options = PartitionOptions(num_parts=3, processes=2, memory_bytes=2 * LITTLE)
    partition_graph(large(tmp_path), tmp_path / "made/p", options, undirected=True)
    assert (tmp_path / "died0").exists()
    assert content(tmp_path / "made/p") == expected


def test_a_task_that_always_dies_ends_the_run(tmp_path: Path, dies: Any) -> None:
    dies("sort_edges", 100)
    with pytest.raises(PartitionError, match=r"sort_edges: its process was killed by SIGKILL.*memory.*, 3 times"):
        partition_graph(large(tmp_path), tmp_path / "made/p", PartitionOptions(num_parts=3, processes=2))
    assert [*(tmp_path / "made").iterdir()] == []


# The processes that are to run tasks say that they have one, and never end.
SLEEPS = """
    import os, sys
    from pathlib import Path
    from glt_lightning.partition.tasks import processes
    processes._MODULE = "sleepy"
    Path("sleepy.py").write_text(
        "import os, socket, time\\nfrom pathlib import Path\\n"
        "def main(fd):\\n    socket.socket(fileno=fd).recv(1)\\n"
        "    Path('flag').write_text(str(os.getpid()))\\n    time.sleep(600)"
    )
    sys.path.insert(0, os.getcwd())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_processes_end_with_the_first_one(tmp_path: Path, number: int) -> None:
    with child(textwrap.dedent(SLEEPS + PARTITION), tmp_path, "", "", "2") as run:
        wait_for(tmp_path / "flag", run)
        run.popen.send_signal(number)
        run.wait(TIMEOUT_S)
        assert settle(run.family, 10) == []
    left = [p.name for p in (tmp_path / "made").iterdir() if p.is_dir()]
    assert len(left) == (number != signal.SIGINT), left  # what a run leaves that was killed, the next one continues


@pytest.mark.parametrize("processes", [1, 2])
def test_bad_data_ends_in_the_same_line(tmp_path: Path, processes: int) -> None:
    source = single([(0, 1), (1, 2), (3, 9)], 5)
    with pytest.raises(DataError, match="column 2 has destination 9, but node type 'node' has 5 nodes"):
        partition_graph(source, tmp_path / "p", PartitionOptions(processes=processes))
    assert [*tmp_path.iterdir()] == []


def test_bad_data_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    perform = run_module._perform
    monkeypatch.setattr(run_module, "_perform", lambda *args: (calls.append(args), perform(*args))[1])
    with pytest.raises(DataError):
        partition_graph(single([(9, 9)], 5), tmp_path / "p", PartitionOptions())
    assert len(calls) == 1


def test_a_file_that_shrinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = in_files("rows")(tmp_path)
    edge_index = tmp_path / "graph" / "edge_index.npy"
    task = TASKS["deal_edges"]

    def shrunk(*args: Any, **kwargs: Any) -> Any:
        os.truncate(edge_index, edge_index.stat().st_size // 2)
        return task(*args, **kwargs)

    monkeypatch.setitem(TASKS, "deal_edges", shrunk)
    with pytest.raises(DataError, match=r"edge_index\.npy: the file is truncated"):
        partition_graph(source, tmp_path / "p", PartitionOptions())
    assert not (tmp_path / "p").exists()


def test_a_folder_that_workers_do_not_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that sees another folder of this name does nothing."""
    other = ThreadPoolExecutor(1)
    with other, pytest.raises(PartitionError, match=r"host \S+ does not see this folder.*\(partition.dir; for"):
        answer = other.submit(
            run_module.run_task, str(tmp_path), "nonce", str(tmp_path / "x"), "hash_chunks", {}
        ).result()
        raise PartitionError(answer["error"][1])
    assert not (tmp_path / "x").exists()


def test_an_array_whose_first_process_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others do not wait for it."""
    source, options = single([(9, 9)], 5), PartitionOptions(engine="array", processes=2)
    with ThreadPoolExecutor(1) as other:
        monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
        helper = other.submit(partition_graph, source, tmp_path / "p", options, timeout_s=TIMEOUT_S)
        while not helper.running():
            time.sleep(0.01)
        time.sleep(0.2)
        monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
        slow = TASKS["count_piece"]
        monkeypatch.setitem(TASKS, "count_piece", lambda *a, **k: (time.sleep(0.5), slow(*a, **k))[1])
        with pytest.raises(DataError, match="column 0 has source 9"):
            partition_graph(source, tmp_path / "p", options)
        with pytest.raises(PartitionError, match="process 0 has ended before the partition was finished"):
            helper.result(TIMEOUT_S)


def test_a_process_of_an_array_that_dies_with_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Process 0 does what another one has taken and never finishes."""
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
    monkeypatch.setattr("glt_lightning.partition.tasks.array._PATIENCE_S", 0.1)
    taken = array_module._taken
    first: list[str] = []

    def dead(calls: Path, call: str) -> bool:
        if len(first) < 3 and call not in first:
            first.append(call)
            assert taken(calls, call)  # by a process that is gone
            return False
        return taken(calls, call)

    monkeypatch.setattr(array_module, "_taken", dead)
    options = PartitionOptions(num_parts=3, engine="array", processes=2, memory_bytes=LITTLE)
    partition_graph(large(tmp_path), tmp_path / "p", options)
    assert len(first) == 3
    partition_graph(large(tmp_path), tmp_path / "q", PartitionOptions(num_parts=3))
    assert content(tmp_path / "p") == content(tmp_path / "q")


def test_the_pool_runs_tasks_alone() -> None:
    with ProcessExecutor(1) as pool, pytest.raises(AssertionError):
        pool.submit(os.getpid)


@pytest.mark.parametrize("engine", ["dask", "ray", "spark"])
def test_an_engine_that_is_not_installed(tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("distributed", "ray", "pyspark.sql"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(OptionError, match=rf"partition.engine: {engine}: .* pip install 'glt-lightning\[{engine}\]'"):
        partition_graph(single([(0, 1)], 2), tmp_path / "p", PartitionOptions(engine=engine))  # type: ignore[arg-type]


# In a process of its own: each engine leaves threads, processes and variables behind in the one that it was used in.
CLUSTER = """
    import json, subprocess, sys, time
    from pathlib import Path
    import pytest
    from glt_lightning.base import DataError, PartitionOptions
    from glt_lightning.partition import partition_graph
    from tests.helpers.partition_truth import single
    from tests.partition.sources.test_tables_tasks import DIGESTS, converted, saved
    from tests.partition.test_same_bytes import large

    def cluster():
        # processes as the command line of Dask starts them; they leave no names in /dev/shm, as those of its LocalCluster do
        processes = [started(["dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", "dask.json"])]
        while not Path("dask.json").exists():
            assert processes[0].poll() is None
            time.sleep(0.05)
        worker = ["dask_worker", "--scheduler-file", "dask.json", "--no-nanny", "--nthreads", "1"]
        processes += [started(worker), started(worker)]
        return json.loads(Path("dask.json").read_text())["address"], processes

    def started(words):
        return subprocess.Popen([sys.executable, "-m", f"distributed.cli.{words[0]}", *words[1:], "--no-dashboard"])

    def partition(address):
        options = {"engine": sys.argv[1], "address": address, "processes": 2, "memory_bytes": 3 << 20}
        partition_graph(large(Path()), "p", PartitionOptions(num_parts=3, **options), undirected=True)
        with pytest.raises(DataError, match="column 0 has source 9"):
            partition_graph(single([(9, 9)], 5), "q", PartitionOptions(**options))
        assert converted(saved(Path("."), "parquet"), Path("root"), **options) == DIGESTS["parquet"]

    if __name__ == "__main__":
        address, processes = cluster() if sys.argv[1] == "dask" else ("local", [])
        try:
            partition(address)
        finally:
            for process in processes:
                process.terminate()
                process.wait()
        print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["dask", "ray", "spark"])
def test_a_cluster_on_this_host(tmp_path: Path, engine: str, expected: dict[str, bytes]) -> None:
    if find_spec({"dask": "distributed", "ray": "ray", "spark": "pyspark"}[engine]) is None:
        pytest.skip(f"needs {engine}")
    (tmp_path / "script.py").write_text(textwrap.dedent(CLUSTER))
    env = {"PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parents[2])])}
    with started([sys.executable, "script.py", engine], env=env, cwd=tmp_path) as run:
        assert run.wait(2 * TIMEOUT_S) == 0, run.output
        assert "done" in run.output
        assert settle(run.family, 30) == []
    assert content(tmp_path / "p") == expected
    assert not (tmp_path / "q").exists()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["dask", "ray"])
@pytest.mark.parametrize("name", ["deal_edges", "sort_edges"])
def test_a_worker_of_a_cluster_that_is_killed_costs_its_task(
    tmp_path: Path, engine: str, name: str, expected: dict[str, bytes]
) -> None:
    if find_spec({"dask": "distributed", "ray": "ray"}[engine]) is None:
        pytest.skip(f"needs {engine}")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(DIES)  # each Python process that the engine starts runs it
    (tmp_path / "script.py").write_text(textwrap.dedent(CLUSTER))
    path = os.pathsep.join([str(tmp_path / "site"), *sys.path, str(Path(__file__).parents[2])])
    env = {"PYTHONPATH": path, "DIES": f"{name}:{tmp_path / 'died'}:1"}
    with started([sys.executable, "script.py", engine], env=env, cwd=tmp_path) as run:
        assert run.wait(2 * TIMEOUT_S) == 0, run.output
    assert (tmp_path / "died0").exists()
    assert content(tmp_path / "p") == expected
