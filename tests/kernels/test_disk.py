"""Rows of files: the same bytes wherever they lie, errors that name the file, nothing left open."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.base import DataError, PartitionError
from glt_lightning.kernels import DiskFile, DiskRead, ReadSlots, Shards, TieredShards
from glt_lightning.kernels.disk import DiskRows

PAGE = 4096


def write(path: Path, rows: np.ndarray, begin: int) -> DiskFile:
    path.write_bytes(b"\xee" * begin + rows.tobytes())
    return DiskFile(path)


def tiered(folder: Path, rows: list[np.ndarray], kept: list[int], start: int = 0, begin: int = PAGE) -> TieredShards:
    """Parts of which the first rows, as many as ``kept`` says, are in memory."""
    shards, files, bounds = [], [], [start]
    for number, (part, first) in enumerate(zip(rows, kept, strict=True)):
        file = write(folder / f"{number}.npy", part, begin)
        shards += [np.ascontiguousarray(part[:first]), None]
        files += [None, (file, begin + part[:first].nbytes)]
        bounds += [bounds[-1] + first, bounds[-1] + len(part)]
    row_bytes = rows[0].itemsize * int(np.prod(rows[0].shape[1:], dtype=np.int64))
    ends = np.array(bounds)
    return TieredShards(shards, DiskRows(ends, files, row_bytes, ReadSlots(4)), bounds=ends)


@pytest.fixture(params=[True, False], ids=["direct", "buffered"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With direct reads, and as on a file system that has none."""
    if not request.param:
        refuse_direct_reads(monkeypatch)
    return request.param


def refuse_direct_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    open_ = os.open

    def refuses(path: object, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return open_(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuses)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize(
    ("dtype", "row_shape"),
    [
        (np.int64, ()),  # many to a page
        (np.float32, (3,)),
        (np.uint8, (1000,)),  # some straddle two pages
        (np.float32, (1024,)),  # exactly a page
        (np.float32, (1025,)),
        (np.float64, (3, 700)),  # several pages
        (np.float32, (0,)),  # nothing at all
    ],
)
@pytest.mark.parametrize("begin", [PAGE, 128])
def test_equal_to_memory(tmp_path: Path, dtype: type, row_shape: tuple[int, ...], begin: int) -> None:
    rng = np.random.default_rng(len(row_shape) + begin)
    rows = [rng.integers(0, 200, (n, *row_shape)).astype(dtype) for n in (90, 0, 61, 200)]
    for kept in ([0, 0, 0, 0], [45, 0, 1, 100], [90, 0, 61, 199], [90, 0, 61, 200]):
        shards, whole = tiered(tmp_path, rows, kept, start=1000, begin=begin), Shards(rows, start=1000)
        for ids in (
            1000 + rng.integers(0, 351, 500),  # repeated, in any order
            1000 + np.arange(351),
            1000 + np.array([350, 0, 151, 150, 89, 90]),
            np.empty(0, dtype=np.int64),
        ):
            assert np.array_equal(shards.gather(ids, threads=2), whole.gather(ids))


@pytest.mark.usefixtures("_way")
def test_what_was_read_is_told(tmp_path: Path) -> None:
    rows = np.arange(40 * 1024, dtype=np.float32).reshape(40, 1024)  # a page each
    shards = tiered(tmp_path, [rows], [10])
    told: list[DiskRead] = []
    shards.gather(np.array([3, 9]), on_disk=told.append)
    assert not told
    shards.gather(np.array([12, 3, 12, 39]), on_disk=told.append)
    (read,) = told
    assert (read.rows, read.places, read.row_bytes, read.page_bytes) == (2, 3, PAGE, 2 * PAGE)
    assert read.seconds > 0


def test_pages_close_by_are_read_at_once(tmp_path: Path) -> None:
    rows = np.arange(60 * 1024, dtype=np.float32).reshape(60, 1024)
    shards = tiered(tmp_path, [rows], [0])
    told: list[DiskRead] = []
    shards.gather(np.array([2, 0, 50]), on_disk=told.append)
    assert told[0].page_bytes == 4 * PAGE  # 0 to 2, with the page between, and 50


@pytest.mark.usefixtures("_way")
def test_further_shards(tmp_path: Path) -> None:
    """Answers of owners and rows of caches stand behind the graph's, as for any shards."""
    rows = [np.arange(n * 7, dtype=np.float32).reshape(n, 7) for n in (50, 30)]
    more = np.full((5, 7), -1, dtype=np.float32)
    shards = tiered(tmp_path, rows, [20, 0]).extended([(80, more)], 90).extended([(90, more - 1)], 100)
    ids = np.array([90, 3, 80, 79, 84, 20])
    assert np.array_equal(shards.gather(ids)[:, 0], [-2, 21, -1, 29 * 7, -1, 140])
    assert shards.extended([], 100) is shards
    for bad in (-1, 100, 101):
        with pytest.raises(DataError, match=f"id {bad} at position 1"):
            shards.gather(np.array([79, bad, 78]))


def test_many_threads_at_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 200, (2000, 33)).astype(np.float32) for _ in range(3)]
    shards, whole = tiered(tmp_path, rows, [100, 0, 1000]), Shards(rows)
    wrong = []

    def ask(seed: int) -> None:
        ids = np.random.default_rng(seed).integers(0, 6000, 3000)
        if not np.array_equal(shards.gather(ids), whole.gather(ids)):
            wrong.append(seed)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_slots_are_shared() -> None:
    slots = ReadSlots(4)
    order = []

    def wait() -> None:
        with slots.taken(3) as count:
            order.append(count)

    with slots.taken(9) as count:
        assert count == 4
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.05)
        assert not order
    thread.join()
    assert order == [3]
    with slots.taken(3) as first, slots.taken(3) as second:
        assert (first, second) == (3, 1)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("size", [PAGE + 40 * 400 - 1, 2 * PAGE, 2 * PAGE + 7, PAGE, 0])
def test_cut_off_while_in_use(tmp_path: Path, size: int) -> None:
    shards = tiered(tmp_path, [np.zeros((40, 100), np.float32)] * 2, [0, 3])
    os.truncate(tmp_path / "1.npy", size)
    assert shards.gather(np.arange(40)).shape == (40, 100)
    with pytest.raises(PartitionError, match=rf"1\.npy: damaged: it was truncated to {size:,} bytes while in use"):
        shards.gather(np.arange(80))


def test_unreadable(tmp_path: Path) -> None:
    file = write(tmp_path / "x.npy", np.zeros((40, 100), np.float32), PAGE)
    shards = TieredShards(
        [np.empty((0, 100), np.float32), None],
        DiskRows(np.array([0, 0, 40]), [None, (file, PAGE)], 400, ReadSlots()),
        bounds=np.array([0, 0, 40]),
    )
    write_only = os.open(tmp_path / "x.npy", os.O_WRONLY)
    os.dup2(write_only, file.fd)
    os.close(write_only)
    with pytest.raises(PartitionError, match=r"x\.npy: read failed at byte 4,096 \(Bad file descriptor\)"):
        shards.gather(np.arange(40))


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(PartitionError, match=r"x\.npy: this file of .* cannot be opened \(No such file or directory\)"):
        DiskFile(tmp_path / "x.npy")


def test_replaced_while_in_use(tmp_path: Path) -> None:
    """The file that was opened is read, whatever has its name now."""
    rows = np.arange(4000, dtype=np.float32).reshape(40, 100)
    shards = tiered(tmp_path, [rows], [0])
    (tmp_path / "other").write_bytes(b"x")
    os.replace(tmp_path / "other", tmp_path / "0.npy")
    assert np.array_equal(shards.gather(np.arange(40)), rows)


def test_files_are_closed(tmp_path: Path) -> None:
    gc.collect()  # what other tests have left
    before = len(os.listdir("/proc/self/fd"))
    shards = tiered(tmp_path, [np.zeros((40, 100), np.float32)] * 3, [0, 0, 0]).extended(
        [(200, np.ones((1, 100), "f4"))], 201
    )
    assert len(os.listdir("/proc/self/fd")) == before + 3
    shards.gather(np.arange(120))
    del shards
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.usefixtures("_way")
def test_the_page_cache_stays_empty(tmp_path: Path) -> None:
    shards = tiered(tmp_path, [np.zeros((2000, 1024), np.float32)], [0])
    with open(tmp_path / "0.npy", "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    shards.gather(np.arange(0, 2000, 7))
    assert pages_in_cache(tmp_path / "0.npy") == 0


def pages_in_cache(path: Path) -> int:
    mapped = np.memmap(path, np.uint8, mode="r")
    cached = np.zeros(-(-len(mapped) // PAGE), dtype=np.uint8)
    status = ctypes.CDLL(None, use_errno=True).mincore(
        ctypes.c_void_p(mapped.ctypes.data), ctypes.c_size_t(len(mapped)), ctypes.c_void_p(cached.ctypes.data)
    )
    assert status == 0, os.strerror(ctypes.get_errno())
    return int((cached & 1).sum())
