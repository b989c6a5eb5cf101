"""Each row of the user's files is read once in each step that needs it, by all tasks together, in whichever process they run."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glt_lightning.base import PartitionOptions
from glt_lightning.partition import partition_graph
from glt_lightning.partition.sources.files import NpyFile
from glt_lightning.partition.sources.folder import FolderSource
from glt_lightning.partition.tasks import engine
from glt_lightning.partition.tasks.table import TASKS
from tests.partition.test_same_bytes import in_files

FIRST = "first process"


class Mapped(np.ndarray):
    """A map of a file that says which rows are taken."""

    told: Callable[[Any], None] | None = None

    def __getitem__(self, index: Any) -> Any:
        if self.told is not None and isinstance(index, np.ndarray):
            self.told(index)
        return self.view(np.ndarray)[index]

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is np.take and self.told is not None:
            self.told(args[1])
        plain = [each.view(np.ndarray) if isinstance(each, Mapped) else each for each in args]
        return func(*plain, **kwargs)


class Reads:
    """How often each element of each file was read, by the task that read it."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], np.ndarray] = {}
        self._lock, self._task = threading.Lock(), threading.local()

    def add(self, file: NpyFile, index: Any) -> None:
        key = (getattr(self._task, "name", FIRST), file.path.name)
        with self._lock:
            counts = self.found.setdefault(key, np.zeros(file.shape, np.int32))
            if isinstance(index, np.ndarray):
                np.add.at(counts, index, 1)
            else:
                counts[index] += 1

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        for name, task in TASKS.items():
            patch.setitem(TASKS, name, self._named(name, task))
        get, blocks, mapped = NpyFile.__getitem__, NpyFile.blocks, NpyFile.mapped

        def getitem(file: NpyFile, index: Any) -> np.ndarray:
            if isinstance(index, slice):
                self.add(file, index)
            return get(file, index)

        def read_blocks(file: NpyFile, size: int, begin: int, end: int, row: int | None = None) -> Iterator[np.ndarray]:
            self.add(file, slice(begin, end) if row is None else (row, slice(begin, end)))
            return blocks(file, size, begin, end, row)

        def as_map(file: NpyFile) -> np.ndarray:
            found = mapped(file).view(Mapped)
            found.told = lambda index: self.add(file, index)
            return found

        patch.setattr(NpyFile, "__getitem__", getitem)
        patch.setattr(NpyFile, "blocks", read_blocks)
        patch.setattr(NpyFile, "mapped", as_map)

    def _named(self, name: str, task: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            self._task.name = name
            try:
                return task(*args, **kwargs)
            finally:
                del self._task.name

        return run


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Counts what the threads of an engine read: each of them opens the data by its description, as a worker does."""

    @contextmanager
    def threads(*_: object) -> Iterator[tuple[ThreadPoolExecutor, int]]:
        with ThreadPoolExecutor(3) as executor:
            yield executor, 3

    monkeypatch.setitem(engine._ENGINES, "dask", threads)
    monkeypatch.setattr("glt_lightning.partition.build.steps._MOST_EDGES", 30_000)
    found = Reads()
    found.watch(monkeypatch)
    return found


@pytest.mark.parametrize(("layout", "memory_bytes"), [("rows", 1 << 20), ("pairs", 1 << 30), ("csc", 1 << 20)])
def test_once_in_each_step(tmp_path: Path, reads: Reads, layout: str, memory_bytes: int) -> None:
    in_files(layout)(tmp_path)
    rng = np.random.default_rng(0)
    np.save(tmp_path / "graph" / "edge_weight.npy", rng.random(250_000, np.float32))
    np.save(tmp_path / "graph" / "time.npy", rng.integers(0, 9, 5000))
    options = {"engine": "dask", "address": "local", "memory_bytes": memory_bytes}
    options |= {"weights": ["edge_weight"], "time_attr": "time"}
    partition_graph(FolderSource(tmp_path / "graph"), tmp_path / "p", PartitionOptions(num_parts=3, **options))
    by_file = defaultdict(set)
    for (task, name), counts in reads.found.items():
        if task == FIRST:
            continue  # splits, and times that every host has
        by_file[name].add(task)
        # neighbours of several rows may have one source, whose time is looked up for each
        if (task, name) == ("sort_edges", "time.npy"):
            continue
        assert counts.min() == 1, (task, name)
        # pointers where one range of edges ends are those where the next one begins
        assert counts.max() == 1 or name == "indptr.npy", (task, name)
        assert counts.sum() <= counts.size * 1.05, (task, name)
    edges = {"count_piece", "deal_edges"}
    expected = dict.fromkeys(["indptr.npy", "indices.npy"] if layout == "csc" else ["edge_index.npy"], edges)
    nodes = {"take_rows"} if memory_bytes > 1 << 25 else {"deal_rows"}
    expected |= {"x.npy": nodes | {"check_piece"}, "time.npy": {"take_rows", "check_piece", "sort_edges"}}
    expected |= {"edge_weight.npy": {"check_piece", "sort_edges"}, "edge_kind.npy": {"sort_edges"}}
    assert {name: by_file[name] for name in expected} == expected
