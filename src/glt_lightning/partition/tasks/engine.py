"""Where tasks run: the engines that ``partition.engine`` names, each as an executor of `concurrent.futures`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from glt_lightning.base import OptionError, PartitionError, PartitionOptions
from glt_lightning.graph import usable_cores
from glt_lightning.partition.build.stored_graph import StoredGraph
from glt_lightning.partition.sources.base import rows_bytes
from glt_lightning.partition.tasks.array import ArrayExecutor, array_size
from glt_lightning.partition.tasks.job import Job
from glt_lightning.partition.tasks.processes import ProcessExecutor
from glt_lightning.partition.tasks.run import Tasks

_WORTH_A_PROCESS = 256 << 20  # bytes of input and output: about a second of work, and a process takes 0.2 s to start
_ANSWER_S = 60  # until a cluster answers, and has a worker
_RETRIES = 2  # of a task whose worker is lost
_LOCAL = "local"  # partition.address: an engine that runs on this host for the time being

Opened = tuple[Executor | None, int]  # where tasks run (None: in this process), and how many at a time


@contextmanager
def run_tasks(graph: StoredGraph, folder: Path, key: str, wide_ids: bool) -> Iterator[Tasks]:
    """Opens the engine of the options for one run.

    folder: of the run.  key: a text that changes with the user's data and options, so that a later run can go on.
    """
    with open_engine(graph.options, _bytes_of(graph), folder) as (executor, width):
        yield Tasks(_job(graph, folder, width, wide_ids, executor is not None), key, executor)


def open_engine(options: PartitionOptions, nbytes: int, folder: Path) -> AbstractContextManager[Opened]:
    """Opens the engine of the options. nbytes: that are read and written, about.  folder: of the run."""
    return _ENGINES[options.engine](options, nbytes, folder)


def task_memory(options: PartitionOptions, width: int) -> int:
    """Returns the working memory of one task."""
    # On one host the processes share the memory that the options allow; elsewhere each worker has as much.
    share = width if options.engine == "processes" else 1
    return max(1 << 20, options.memory_bytes // share)


def planned_job(graph: StoredGraph, folder: Path) -> Job:
    """Returns the job that `run_tasks` would make, without a cluster: where its size is not given, as for one worker."""
    options, width = graph.options, planned_width(graph.options, _bytes_of(graph))
    return _job(graph, folder, width, False, options.engine != "processes" or width > 1)


def planned_width(options: PartitionOptions, nbytes: int) -> int:
    """Returns how many tasks would run at a time, as far as that is known without a cluster. nbytes: as of `open_engine`."""
    if options.engine == "processes":
        return _process_count(options, nbytes)
    return options.processes or (array_size() if options.engine == "array" else None) or 1


def _job(graph: StoredGraph, folder: Path, width: int, wide_ids: bool, shared: bool) -> Job:
    return Job(graph, folder, task_memory(graph.options, width), wide_ids, width, shared)


@contextmanager
def _processes(options: PartitionOptions, nbytes: int, folder: Path) -> Iterator[Opened]:
    count = _process_count(options, nbytes)
    if count == 1:
        yield None, 1
        return
    with ProcessExecutor(count) as executor:
        yield executor, count


def _process_count(options: PartitionOptions, nbytes: int) -> int:
    return options.processes or max(1, min(usable_cores(), nbytes // _WORTH_A_PROCESS))


def _bytes_of(graph: StoredGraph) -> int:
    """Bytes that are read and written, about."""
    edges = (24 * graph.edges[own.source].num_edges for own in graph.stored_types)
    attrs = [graph.source.edge_attrs(own.source) for own in graph.stored_types]
    attrs += [graph.source.node_attrs(node_type) for node_type in graph.num_nodes]
    return sum(edges) + sum(rows_bytes(rows) for each in attrs for rows in each.values())


@contextmanager
def _array(options: PartitionOptions, nbytes: int, folder: Path) -> Iterator[Opened]:
    count = options.processes or array_size()
    if count is None:
        raise OptionError("partition.engine: array: the environment does not tell the size. Set partition.processes.")
    yield ArrayExecutor(folder), count


@contextmanager
def _dask(options: PartitionOptions, nbytes: int, folder: Path) -> Iterator[Opened]:
    distributed = _module("distributed", "dask")
    where: dict[str, Any] = {"address": options.address}
    if options.address == _LOCAL:
        where = {"n_workers": options.processes or usable_cores(), "threads_per_worker": 1, "dashboard_address": None}
    try:
        client = distributed.Client(timeout=_ANSWER_S, **where)
    except (OSError, ValueError) as error:  # TimeoutError is an OSError
        raise _no_answer("Dask scheduler", options.address, error) from None
    with client:
        try:
            client.wait_for_workers(1, timeout=_ANSWER_S)
        except TimeoutError:
            raise PartitionError(
                f"partition.address: {options.address}: the scheduler has no worker. Start some."
            ) from None
        yield client.get_executor(retries=_RETRIES, pure=False), options.processes or sum(client.nthreads().values())


@contextmanager
def _ray(options: PartitionOptions, nbytes: int, folder: Path) -> Iterator[Opened]:
    ray, begun = _module("ray", "ray"), False
    if not ray.is_initialized():
        begun = True
        local = options.address == _LOCAL
        try:
            ray.init(None if local else options.address, **({"num_cpus": options.processes} if local else {}))
        except (OSError, ValueError, RuntimeError) as error:
            raise _no_answer("Ray cluster", options.address, error) from None
    try:
        yield _RayExecutor(ray), options.processes or int(ray.cluster_resources().get("CPU", 1))
    finally:
        if begun:
            ray.shutdown()


class _RayExecutor(Executor):
    def __init__(self, ray: ModuleType) -> None:
        self._remote = ray.remote

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = self._remote(max_retries=_RETRIES)(fn).remote(*args, **kwargs).future()
        return future


@contextmanager
def _spark(options: PartitionOptions, nbytes: int, folder: Path) -> Iterator[Opened]:
    sessions = _module("pyspark.sql", "spark").SparkSession
    builder, own = sessions.builder, sessions.getActiveSession() is None
    if options.address is not None:
        workers = options.processes or usable_cores()
        builder = builder.master(f"local[{workers}]" if options.address == _LOCAL else options.address)
    if options.address == _LOCAL:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else it takes the first python3 of PATH
    session = builder.getOrCreate()
    width = options.processes or session.sparkContext.defaultParallelism
    try:
        with _SparkExecutor(session.sparkContext, width) as executor:
            yield executor, width
    finally:
        if own:
            session.stop()


class _SparkExecutor(ThreadPoolExecutor):
    """Runs each call as a job of one task, each from a thread of its own."""

    def __init__(self, context: Any, width: int) -> None:
        super().__init__(width, "glt-spark")
        self._context = context

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        def job() -> Any:
            return self._context.parallelize([args], 1).map(lambda given: fn(*given)).collect()[0]

        return super().submit(job)


def _no_answer(what: str, address: str | None, error: Exception) -> OptionError:
    why = str(error).strip().partition("\n")[0] or type(error).__name__
    return OptionError(f"partition.address: {address}: no {what} answered: {why}")


def _module(name: str, engine: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise OptionError(
            f"partition.engine: {engine}: {error}. Install it: pip install 'glt-lightning[{engine}]'."
        ) from None


_ENGINES: dict[str, Callable[[PartitionOptions, int, Path], AbstractContextManager[Opened]]] = {
    "processes": _processes,
    "array": _array,
    "dask": _dask,
    "ray": _ray,
    "spark": _spark,
}
