"""Records on their way from tasks that deal them out to tasks that sort them: one file a task, sorted by bucket.

A task writes **runs**: as many records as fit in its memory, bucket after bucket. With the runs goes a table of where each
bucket begins in each run. A reader takes consecutive buckets, which are one range of each run. So M tasks and R readers need M
files, and no reader reads what another one needs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.graph import read_npy_header
from glt_lightning.kernels import CHANGED, copy_runs
from glt_lightning.partition.arrays import ArrayWriter, write_at
from glt_lightning.partition.folder import disk_full_speaks
from glt_lightning.partition.sources.files import read_exactly


class Runs(NamedTuple):
    """The runs that one task wrote. table: int64 [runs, B + 1], the first record of each bucket in the file."""

    path: Path
    table: np.ndarray


class RunWriter:
    """Writes records of ``width`` bytes as runs. Use it in a ``with`` block; `runs` is then complete."""

    def __init__(self, path: Path, width: int, buckets: int) -> None:
        self._path, self._width, self._buckets = path, width, buckets
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._count = 0
        self._table: list[np.ndarray] = []

    def add(self, records: np.ndarray, sizes: np.ndarray) -> None:
        """Appends a run. records: an array in the order of their buckets.  sizes: int64 [B], records of each bucket."""
        data = memoryview(np.ascontiguousarray(records).reshape(-1).view(np.uint8))
        write_at(self._fd, data, self._count * self._width, self._path.parent)
        self._table.append(self._count + np.concatenate([[0], np.cumsum(sizes)]))
        self._count = int(self._table[-1][-1])

    def deal(self, records: np.ndarray, bucket: np.ndarray) -> np.ndarray:
        """Appends records as a run. bucket: integers [n], the bucket of each; within one they keep their order.

        Returns int64 [B], the number of records of each bucket.
        """
        sizes = np.bincount(bucket, minlength=self._buckets)
        self.add(records[np.argsort(bucket, kind="stable")], sizes)
        return sizes

    @property
    def runs(self) -> Runs:
        return Runs(self._path, np.array(self._table, np.int64).reshape(-1, self._buckets + 1))

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._fd)


@contextmanager
def finished_runs(path: Path, width: int, buckets: int) -> Iterator[RunWriter]:
    """Yields a `RunWriter` of a file that gets its name when the block succeeds, and its table the same name with ``.npy``: the
    file last, so that it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with RunWriter(unfinished(path), width, buckets) as writer:
        yield writer
    save_array(path.with_name(f"{path.name}.npy"), writer.runs.table)
    os.replace(writer.runs.path, path)


def load_runs(path: Path) -> Runs:
    return Runs(path, load_array(path.with_name(f"{path.name}.npy")))


def read_buckets(
    runs: Sequence[Runs], low: int, high: int, width: int, memory: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Reads the buckets [low, high). Within a bucket, records are in the order of the runs. memory: uint8, large enough, to read
    to: what is new has to be cleared by the kernel.

    Returns (uint8, bucket after bucket; int64 [high - low + 1], the first record of each). Raises `DataError` for a file that is
    shorter than its table says.
    """
    tables = [np.array(each.table[:, low : high + 1]) for each in runs if len(each.table)]
    sizes = sum((np.diff(t, axis=1).sum(axis=0) for t in tables), start=np.zeros(high - low, np.int64))
    first = np.concatenate([[0], np.cumsum(sizes)])
    size = int(first[-1]) * width
    out = np.empty(size, np.uint8) if memory is None else memory[:size]
    placed, cursor = out.reshape(-1, width), first[:-1].copy()
    several = high - low != 1  # then what is read of a run does not lie together
    longest = max((int((t[:, -1] - t[:, 0]).max()) for t in tables), default=0) if several else 0
    read = np.empty((longest, width), np.uint8)
    for each, table in zip((r for r in runs if len(r.table)), tables, strict=True):
        with open(each.path, "rb", buffering=0) as stream:
            for run in table:
                sizes = np.diff(run)
                records = read[: sizes.sum()] if several else placed[cursor[0] : cursor[0] + sizes[0]]
                try:
                    read_exactly(stream.fileno(), records, int(run[0]) * width)
                except EOFError:
                    raise DataError(CHANGED) from None
                if several:
                    copy_runs(records, run[:-1] - run[0], sizes, placed, cursor)
                cursor += sizes
    return out, first


def unfinished(path: Path) -> Path:
    """Returns a name beside ``path`` for a file that gets that name when it is whole. It has the name of the process, since
    another one may do the same task."""
    return path.with_name(f"{path.name}.{os.uname().nodename}.{os.getpid()}")


def save_array(path: Path, values: np.ndarray) -> None:
    """Writes an ``.npy`` file whole, or not at all. Raises `PartitionError` if the disk is full."""
    half = unfinished(path)
    with ArrayWriter(path.parent, half.name, values.dtype, values.shape[1:], hashed=False) as writer:
        writer.write(values)
    os.replace(half, path)


def load_array(path: Path) -> np.ndarray:
    """Maps an ``.npy`` file. Several threads may do so at once: the workers of some engines have more than one."""
    with open(path, "rb") as stream:
        shape, _, dtype = read_npy_header(stream)
        if 0 in shape:  # numpy before 2 maps nothing at the end of a file
            return np.empty(shape, dtype)
        return np.memmap(stream, dtype, "r", stream.tell(), shape)


def save_text(path: Path, text: str) -> None:
    """Writes a file whole, or not at all. Raises `PartitionError` if the disk is full."""
    with disk_full_speaks(path.parent, len(text)):
        unfinished(path).write_text(text)
        os.replace(unfinished(path), path)


def cut(count: int, at_most: int) -> list[tuple[int, int]]:
    """Splits ``count`` things into ranges of equal size, the fewest of at most ``at_most`` each."""
    pieces = max(1, -(-count // max(1, at_most)))
    return list(pairwise(count * i // pieces for i in range(pieces + 1)))
