"""One table: the rows of this host in memory that all its ranks map."""

from __future__ import annotations

import fcntl
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import DataError, PeerError
from glt_lightning.graph import SharedArrays
from glt_lightning.kernels import Shards
from glt_lightning.tensors.adding import add_rows
from glt_lightning.tensors.home import RemoteHome, RemoteHomes
from glt_lightning.tensors.scratch import AT_ONCE, ON_DISK, Pages, pieces
from glt_lightning.tensors.space import Homes, RowSpace
from glt_lightning.tensors.values import ValueType

ROWS, WRITERS = "rows", "writers"
_AT_ONCE = 1 << 20  # rows that a count reads at once


@dataclass
class Conflict:
    """A row that two ranks wrote to between two barriers."""

    name: str
    row: int
    ranks: tuple[int, int]


@dataclass
class WriteEpoch:
    """The number of barriers so far, and the first conflict since the last one."""

    number: int = 0
    conflict: Conflict | None = None


@dataclass(eq=False)
class SharedTable:
    """A table of rows of a `RowSpace`, made by `SharedTables.create`. Reads take no lock: a read during a write of the same row
    may see parts of the old and of the new value.

    id: by which other hosts ask for the table.  remote: their shard servers; None: all rows lie on this host.
    memory: the rows of this host, as all its ranks map them.  wait_s: seconds that a write waits for another writer.
    epoch: shared by the tables of the job.  on_close: called with the name.

    Attributes:
        own: [rows of this host, *row_shape], parts in order, writable. Code that stores to it directly takes no lock, so it may
            only store to rows that no other process writes to.
        own_parts: Positions of the parts in ``own``.
    """

    name: str
    space: RowSpace
    kind: ValueType
    row_shape: tuple[int, ...]
    homes: Homes
    memory: SharedArrays
    wait_s: float
    epoch: WriteEpoch = field(default_factory=WriteEpoch)
    id: str = ""
    remote: RemoteHomes | None = None
    on_close: Callable[[str], object] = lambda name: None

    def __post_init__(self) -> None:
        self.own: np.ndarray = self.memory.arrays[ROWS]
        self._writers: np.ndarray | None = self.memory.arrays.get(WRITERS)
        self.own_parts = self.homes.own_parts(self.space)
        self._lock = WriteLock(self.memory.fileno(), self.name, self.wait_s)
        shards: list[np.ndarray | None] = [None] * self.space.num_parts
        self._begin = np.full(self.space.num_parts, -1, dtype=np.int64)
        for each in self.own_parts:
            shards[each.part] = self.own[each.begin : each.begin + each.count]
            self._begin[each.part] = each.begin
        # with more hosts than parts a host has none
        self._shards = Shards(
            shards if self.own_parts else [self.own], bounds=self.space.bounds if self.own_parts else None
        )
        self.pages = Pages(self.memory, self.own) if self.on_disk else None
        self.is_open = True
        self.serve(self.id, self.remote, self.epoch)
        self._release = weakref.finalize(self, self.memory.close)  # also when the table is forgotten

    def serve(self, id_: str, remote: RemoteHomes | None, epoch: WriteEpoch) -> None:
        """Registers the table at this host's shard server, if this rank runs it."""
        self.id, self.remote, self.epoch = id_, remote, epoch
        if remote is not None and remote.served is not None:
            remote.served.add(id_, self)

    @property
    def on_disk(self) -> bool:
        """True if the rows lie in a file. The page cache then keeps those that were used last in memory."""
        return bool(self.memory.meta[ON_DISK])

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the stored values; uint16 for bfloat16."""
        return self.kind.dtype

    @property
    def num_rows(self) -> int:
        """Number of rows on all hosts."""
        return self.space.num_rows

    @property
    def nbytes(self) -> int:
        """Bytes of the rows of this host."""
        return self.memory.nbytes

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Returns a copy [n, *row_shape] of rows int64 [n], in their order. Raises `DataError` for a row that does not exist,
        `PeerError` if another host does not answer."""
        self._check_open()
        if self.remote is None:
            try:
                return self._gather(rows)
            except DataError:
                self.space.parts_of(rows)  # raises with the range of rows, which the kernel's error lacks
                raise
        return self.read_later(rows)()

    def read_later(self, rows: np.ndarray) -> Callable[[], np.ndarray]:
        """Asks other hosts, and the disk, for rows int64 [n]. Returns a function that waits for them, copies those of this host,
        and raises as `read`. Raises `DataError` at once for a row that does not exist."""
        self._check_open()
        waits, here = [], np.empty(0, np.int64)
        for host, at in self._by_host(rows):
            if host == self.homes.host:
                here = at
            else:
                assert self.remote is not None
                waits.append((at, self.remote[host].rows(self.id, rows[at], self.dtype, self.row_shape)))
        if self.pages is not None:
            self.ask(self.position(rows[here[:AT_ONCE]]))

        def wait() -> np.ndarray:
            self._check_open()
            found = np.empty((len(rows), *self.row_shape), self.dtype)
            found[here] = self._gather(rows[here])
            for at, answer in waits:
                found[at] = answer()
            return found

        return wait

    def _gather(self, rows: np.ndarray) -> np.ndarray:
        if self.pages is None or not len(rows):
            return self._shards.gather(rows)
        found, at = np.empty((len(rows), *self.row_shape), self.dtype), self.position(rows)
        for piece in pieces(len(rows), lambda piece: self.ask(at[piece])):
            found[piece] = self._shards.gather(rows[piece])
        return found

    def ask(self, positions: np.ndarray) -> None:
        """Announces that rows at ``positions`` of ``own`` are read or written next, so that the disk begins to read them. Without
        effect for a table in memory."""
        if self.pages is not None:
            self.pages.ask(positions)

    def write(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Sets rows int64 [n] to values [n, *row_shape]; a row that comes twice gets the last value. When this returns, every
        rank reads the values. Raises `DataError` for rows that do not exist, `PeerError` if another writer holds the lock too
        long or another host does not answer."""
        self._send("set", rows, values)

    def add(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Adds values [n, *row_shape] to rows int64 [n], in their order. Raises as `write`."""
        if self.kind.name == "bool":
            raise DataError(f"tensor {self.name!r}: rows of bool cannot be added to. Set them, or use uint8.")
        self._send("add", rows, values)

    def fill(self, value: np.ndarray) -> None:
        """Sets all rows to a value [*row_shape]. Raises as `write`."""
        self._check_open()
        self.apply("fill", None, value, self.homes.rank, self.epoch.number)
        for home in self._others():
            home.put(self.id, "fill", None, value, self.epoch.number)

    def count_nonzero(self) -> int:
        """Number of values on all hosts that are not zero. Raises `PeerError` if another host does not answer."""
        return self.count_own() + sum(home.count_nonzero(self.id) for home in self._others())

    def count_own(self) -> int:
        """Number of values in the rows of this host that are not zero."""
        self._check_open()
        pieces = range(0, len(self.own), _AT_ONCE)
        return sum(self.kind.count_nonzero(self.own[begin : begin + _AT_ONCE]) for begin in pieces)

    def apply(self, how: str, rows: np.ndarray | None, values: np.ndarray, rank: int, epoch: int) -> None:
        """Carries out a write to rows of this host. rows: None for ``fill``.  rank, epoch: of the writer."""
        at: Any = slice(None) if rows is None else self.position(rows)
        if rows is not None:
            self.ask(at)  # before the lock: other writers need not wait for the disk
        with self._lock.held():
            self._note(rows, at, rank, epoch)
            if how != "add":
                self.own[at] = values
            elif self.kind.is_bfloat16:
                self._add_rounded(at, values)
            else:
                add_rows(self.own, at, values)

    def _send(self, how: str, rows: np.ndarray, values: np.ndarray) -> None:
        self._check_open()
        if values.dtype != self.dtype or values.shape != (len(rows), *self.row_shape):
            raise DataError(
                f"tensor {self.name!r}: expected {self.kind.name} values {[len(rows), *self.row_shape]}, got {values.dtype} "
                f"{list(values.shape)}."
            )
        number = self.epoch.number
        if self.remote is None:
            return self.apply(how, rows, values, self.homes.rank, number)
        for host, at in self._by_host(rows):
            if host == self.homes.host:
                self.apply(how, rows[at], values[at], self.homes.rank, number)
            else:
                self.remote[host].put(self.id, how, rows[at], values[at], number)

    def _by_host(self, rows: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """(host, positions of its rows)."""
        hosts = self.homes.hosts_of(self.space, rows)
        return [(int(host), np.flatnonzero(hosts == host)) for host in np.unique(hosts)]

    def _others(self) -> list[RemoteHome]:
        return [] if self.remote is None else self.remote.all()

    def home_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns int32 [n]: the rank that applies updates of each row."""
        return self.homes.appliers(self.space, rows)

    def position(self, rows: np.ndarray) -> np.ndarray:
        """Returns int64 [n]: where rows of this host lie in ``own``. Raises `DataError` for rows of another host."""
        parts = self.space.parts_of(rows)
        begin = self._begin[parts]
        if len(missing := np.flatnonzero(begin < 0)):
            raise DataError(f"tensor {self.name!r}: row {rows[missing[0]]} lies on another host.")
        return np.asarray(begin + rows - self.space.bounds[parts])

    def close(self) -> None:
        """Closes this rank's view of the table. Its memory is freed when all ranks of the host have closed theirs; its name can
        be used again. Safe to call twice."""
        if self.is_open:
            self.is_open = False
            if self.remote is not None and self.remote.served is not None:
                self.remote.served.remove(self.id)
            self._release()
            # everything that refers to the memory, which stays mapped as long as an array does
            del self._shards, self.own, self._writers, self.pages, self.memory
            self.on_close(self.name)

    def _check_open(self) -> None:
        if not self.is_open:
            raise DataError(f"tensor {self.name!r} is closed. Create it again.")

    def _add_rounded(self, at: np.ndarray, values: np.ndarray) -> None:
        """Adds one occurrence of each row after the other, rounding after each, as `numpy.add.at` does for other dtypes."""
        left = np.arange(len(at))
        while len(left):
            _, first = np.unique(at[left], return_index=True)
            now = left[first]
            self.own[at[now]] = self.kind.sums(self.own[at[now]], values[now])
            left = np.delete(left, first)

    def _note(self, rows: np.ndarray | None, at: Any, rank: int, epoch: int) -> None:
        """Records the writer of each row, to find rows that two ranks write to between barriers. The lock is held."""
        writers = self._writers
        if writers is None:
            return
        # A writer is recorded as base + 1 + rank, which grows with the epoch: entries of earlier epochs need no clearing
        base, last = epoch * len(self.homes.host_of_rank), writers[at]
        others = np.flatnonzero((last > base) & (last != base + 1 + rank))
        if len(others) and self.epoch.conflict is None:
            first = int(others[0])
            row = self._row_at(first) if rows is None else int(rows[first])
            self.epoch.conflict = Conflict(self.name, row, (int(last[first]) - base - 1, rank))
        writers[at] = base + 1 + rank

    def _row_at(self, position: int) -> int:
        part = next(each for each in self.own_parts if position < each.begin + each.count)
        return part.first + position - part.begin


# The lock of a table's writers, held by one thread of one process of the host at a time.


_FIRST_S, _MOST_S = 20e-6, 5e-3  # between attempts; a write of 1,000 rows of 64 floats holds the lock for about 50 us


class WriteLock:
    """A lock on the memory of a table: ``flock`` on its descriptor, which the kernel frees when its holder dies.

    fd: opened by this process alone, since processes that share an open file share its locks.
    wait_s: seconds to wait for another writer.
    """

    def __init__(self, fd: int, name: str, wait_s: float) -> None:
        self._fd, self._name, self._wait_s = fd, name, wait_s
        self._threads = threading.Lock()  # ``flock`` excludes processes, not threads that share a descriptor

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds the lock. Raises `PeerError`, with the pid of the holder, after ``wait_s``."""
        if not self._threads.acquire(timeout=self._wait_s):
            raise PeerError(self._late(f"another thread of this process (pid {os.getpid()})"))
        try:
            self._lock()
            try:
                yield
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def _lock(self) -> None:
        end_s, pause_s = time.monotonic() + self._wait_s, _FIRST_S
        while True:
            try:
                return fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a blocking call has no deadline
            except BlockingIOError:
                if time.monotonic() > end_s:
                    raise PeerError(self._late(_holder(self._fd))) from None
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _MOST_S)

    def _late(self, who: str) -> str:
        return (
            f"tensor {self._name!r}: {who} has been writing to it for more than {self._wait_s:g} s "
            "(cluster.deadlines.call_s). Is that process stopped?"
        )


def _holder(fd: int) -> str:
    """Names the process that holds the ``flock`` of a file, for an error."""
    inode = os.fstat(fd).st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode):
            return f"pid {fields[4]}"
    return "another process"
