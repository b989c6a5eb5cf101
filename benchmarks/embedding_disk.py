"""A `DistEmbedding` on disk with a quarter of its memory: what a step takes beyond the time in memory, and what the disk gives.

    python benchmarks/embedding_disk.py [--rows 2000000] [--width 64] [--share 0.25] [--batch 20000] [--rounds 3] [--scratch DIR]

Whole steps of Adagrad: lookup of distinct uniform rows, backward pass with a given gradient, optimizer. The process joins a
memory control group of its own (needs root), whose limit is lowered, when the tables are there, to what the process takes
besides them plus ``--share`` of their bytes; with a share of 1 there is no limit. Of every round one line,
with the time per step in memory and on disk, the 4 KiB pages that a step touches, and the time in which plain threads read and
write as many random pages of a file of that size, past the page cache, at the best of several depths. ``over_bound`` is

    (step on disk - step in memory) / (pages touched * seconds per page read and written).
"""

from __future__ import annotations

import argparse
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from embedding import graph_of, stepping
from measure import report

from glt_lightning import DistEmbedding, SparseAdagrad

PAGE = 4096
DEPTHS = (1, 4, 16, 32, 64)
GROUPS = ("/sys/fs/cgroup/memory", "/sys/fs/cgroup")  # of versions 1 and 2


class Group:
    """A memory control group of this process."""

    def __init__(self) -> None:
        root = Path(next(each for each in GROUPS if (Path(each) / "cgroup.procs").exists()))
        self.before, self.folder = root, root / f"glt-bench-{os.getpid()}"
        self.first = root.name == "memory"
        self.folder.mkdir()
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def own_bytes(self) -> int:
        """Without the page cache."""
        stat = dict(line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
        return int(stat["total_rss" if self.first else "anon"])

    def shared_bytes(self) -> int:
        """Shared memory that is in no file."""
        stat = dict(line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
        return int(stat["total_shmem" if self.first else "shmem"])

    def limit(self, nbytes: int) -> None:
        (self.folder / ("memory.limit_in_bytes" if self.first else "memory.max")).write_text(str(nbytes))

    def close(self) -> None:
        (self.before / "cgroup.procs").write_text(str(os.getpid()))
        self.folder.rmdir()


@contextmanager
def joined(share: float) -> Iterator[Group | None]:
    group = Group() if share < 1 else None
    try:
        yield group
    finally:
        if group is not None:
            group.close()


def page_seconds(file: Path, pages: int, depth: int, seed: int, seconds: float) -> float:
    """Seconds per random page that is read and written back, by ``depth`` threads."""
    fd = os.open(file, os.O_RDWR | os.O_DIRECT)
    end = time.perf_counter() + seconds

    def work(number: int) -> int:
        rng, buffer, done = np.random.default_rng([seed, number]), mmap.mmap(-1, PAGE), 0
        while time.perf_counter() < end:
            for page in rng.integers(0, pages, 64).tolist():
                os.preadv(fd, [buffer], page * PAGE)
                os.pwritev(fd, [buffer], page * PAGE)
                done += 1
        return done

    begin = time.perf_counter()
    with ThreadPoolExecutor(depth) as pool:
        done = sum(pool.map(work, range(depth)))
    os.close(fd)
    return (time.perf_counter() - begin) / done


def touched(tables: list[Any], rows: np.ndarray) -> int:
    """Pages of a step: those of the rows in each table."""
    count = 0
    for table in tables:
        first = table.position(rows) * (table.own.nbytes // len(table.own))
        last = first + table.own.nbytes // len(table.own) - 1
        count += len(np.unique(np.concatenate([first // PAGE, last // PAGE])))
    return count


def made_steps(graph: Any, args: argparse.Namespace) -> tuple[dict[str, Callable[[torch.Tensor], object]], list[Any]]:
    """A step in memory and one on disk, and the tables of the latter."""
    gradient, steps, tables = torch.randn(args.batch, args.width), {}, []
    for storage in ("memory", "disk"):
        embedding = DistEmbedding(args.width, storage=storage)
        embedding.attach(graph)
        optimizer = SparseAdagrad([embedding], lr=0.01)
        optimizer.prepare()
        steps[storage] = stepping(embedding, optimizer, gradient)
        tables = [embedding.rows.table, *embedding.rows.states.values()]
    return steps, tables


def filled(file: Path, nbytes: int) -> Path:
    with file.open("wb") as out:
        for _ in range(0, nbytes, 1 << 20):
            out.write(np.random.default_rng(0).bytes(1 << 20))
        os.fsync(out.fileno())
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("rows", 2_000_000), ("width", 64), ("batch", 20_000), ("rounds", 3), ("steps", 10)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement of the disk")
    parser.add_argument("--scratch", default=None)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder, joined(args.share) as group:
        graph = graph_of(args.rows, Path(folder))
        steps, tables = made_steps(graph, args)
        nbytes = sum(table.own.nbytes for table in tables)
        file = filled(Path(folder, "pages"), nbytes)
        if group is not None:  # the tables in memory are shared memory, which counts as page cache
            group.limit(group.own_bytes() + nbytes + int(nbytes * args.share) + (64 << 20))
        for number in range(args.rounds + 1):
            seconds, pages = dict.fromkeys(steps, 0.0), 0
            bound = min(page_seconds(file, max(1, nbytes // PAGE), depth, number, args.seconds) for depth in DEPTHS)
            for _ in range(args.steps):
                rows = rng.choice(args.rows, args.batch, replace=False)
                pages += touched(tables, rows)
                for storage, step in steps.items():
                    begin = time.perf_counter()
                    step(torch.from_numpy(rows))
                    seconds[storage] += time.perf_counter() - begin
            if number:  # the first fills the page cache
                extra = (seconds["disk"] - seconds["memory"]) / args.steps
                report(
                    bench="embedding_disk",
                    table_mb=nbytes / 1e6,
                    memory_mb=nbytes * args.share / 1e6,
                    in_memory_ms=seconds["memory"] / args.steps * 1e3,
                    on_disk_ms=seconds["disk"] / args.steps * 1e3,
                    pages=pages // args.steps,
                    page_us=bound * 1e6,
                    bound_ms=pages / args.steps * bound * 1e3,
                    over_bound=extra / (pages / args.steps * bound),
                )


if __name__ == "__main__":
    main()
