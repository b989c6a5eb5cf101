"""One table: the rows of this host in memory that all its ranks map."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glt_lightning.data.shared_arrays import SharedArrays
from glt_lightning.errors import DataError
from glt_lightning.ops.gather import Shards
from glt_lightning.tensors.lock import WriteLock
from glt_lightning.tensors.space import Homes, RowSpace
from glt_lightning.tensors.values import ValueType

ROWS, WRITERS = "rows", "writers"
_AT_ONCE = 1 << 20  # rows that a count reads at once


@dataclass(frozen=True, eq=False)
class OwnPart:
    """A part whose rows lie on this host: those from ``first`` on, and where they lie in `SharedTable.own`."""

    part: int
    first: int
    begin: int
    count: int


@dataclass
class Conflict:
    """A row that two ranks wrote to between two barriers."""

    name: str
    row: int
    ranks: tuple[int, int]


@dataclass
class WriteEpoch:
    """Which barrier was the last, and the first conflict since then."""

    number: int = 0
    conflict: Conflict | None = None


@dataclass(eq=False)
class SharedTable:
    """A table of rows of a `RowSpace`, made by `SharedTables.create`. Reads take no lock: one at the same time as a write of
    the same row may see parts of both.

    memory: the rows of this host, as all its ranks map them.  epoch: of the tables of the job.  checked: writers are noted.

    Attributes:
        own: [rows of this host, *row_shape], parts in order, writable. Who stores to it directly does so without the lock, on
            rows that no other process writes to.
        own_parts: Where the parts lie in ``own``.
    """

    name: str
    space: RowSpace
    kind: ValueType
    row_shape: tuple[int, ...]
    homes: Homes
    memory: SharedArrays
    wait_s: float
    epoch: WriteEpoch = field(default_factory=WriteEpoch)
    persistent: bool = False
    on_close: Callable[[str], object] = lambda name: None

    def __post_init__(self) -> None:
        self.own: np.ndarray = self.memory.arrays[ROWS]
        self._writers: np.ndarray | None = self.memory.arrays.get(WRITERS)
        self.own_parts = own_parts(self.space, self.homes)
        self._lock = WriteLock(self.memory.fileno(), self.name, self.wait_s)
        shards: list[np.ndarray | None] = [None] * self.space.num_parts
        self._begin = np.full(self.space.num_parts, -1, dtype=np.int64)
        for each in self.own_parts:
            shards[each.part] = self.own[each.begin : each.begin + each.count]
            self._begin[each.part] = each.begin
        self._shards = Shards(shards, bounds=self.space.bounds)
        self.is_open = True
        self._release = weakref.finalize(self, self.memory.close)  # also when the table is forgotten

    @property
    def dtype(self) -> np.dtype:
        """Of what is stored."""
        return self.kind.dtype

    @property
    def num_rows(self) -> int:
        """Of all hosts."""
        return self.space.num_rows

    @property
    def nbytes(self) -> int:
        """Of this host."""
        return self.memory.nbytes

    def read(self, rows: np.ndarray) -> np.ndarray:
        """A copy of rows int64 [n], as [n, *row_shape], in their order. Raises `DataError` for a row that there is not."""
        self._check_open()
        try:
            return self._shards.gather(rows)
        except DataError:
            self.space.parts_of(rows)  # says which rows there are
            raise

    def write(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Sets rows int64 [n] to values [n, *row_shape]; of a row that comes twice the last value stays. When this returns, every
        rank reads the values. Raises `DataError` for rows that there are not, `PeerError` where another writer does not end."""
        at = self._positions_of(rows, values)
        with self._lock.held():
            self._note(rows, at)
            self.own[at] = values

    def add(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Adds values [n, *row_shape] to rows int64 [n], in their order. Raises as `write`."""
        if self.kind.name == "bool":
            raise DataError(f"tensor {self.name!r}: rows of bool cannot be added to. Set them, or use uint8.")
        at = self._positions_of(rows, values)
        with self._lock.held():
            self._note(rows, at)
            if self.kind.is_bfloat16:
                self._add_rounded(at, values)
            else:
                np.add.at(self.own, at, values)

    def fill(self, value: np.ndarray) -> None:
        """Sets the rows of this host to a value, [] or [*row_shape]."""
        self._check_open()
        with self._lock.held():
            self._note(None, slice(None))
            self.own[...] = value

    def count_nonzero(self) -> int:
        """Of the rows of this host."""
        self._check_open()
        pieces = range(0, len(self.own), _AT_ONCE)
        return sum(self.kind.count_nonzero(self.own[begin : begin + _AT_ONCE]) for begin in pieces)

    def home_of(self, rows: np.ndarray) -> np.ndarray:
        """int32 [n]: the rank that applies updates of each row."""
        return self.homes.appliers(self.space, rows)

    def position(self, rows: np.ndarray) -> np.ndarray:
        """int64 [n]: where rows of this host lie in ``own``. Raises `DataError` for rows of another host."""
        parts = self.space.parts_of(rows)
        begin = self._begin[parts]
        if len(elsewhere := np.flatnonzero(begin < 0)):
            raise DataError(f"tensor {self.name!r}: row {rows[elsewhere[0]]} lies on another host.")
        return np.asarray(begin + rows - self.space.bounds[parts])

    def close(self) -> None:
        """This rank lets go of the table; its memory is freed when all ranks have, and its name can be used again. Safe to call
        twice."""
        if self.is_open:
            self.is_open = False
            self._release()
            del self._shards, self.own, self._writers, self.memory  # all that views the memory
            self.on_close(self.name)

    def _check_open(self) -> None:
        if not self.is_open:
            raise DataError(f"tensor {self.name!r} is closed. Create it again.")

    def _positions_of(self, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        self._check_open()
        if values.dtype != self.dtype or values.shape != (len(rows), *self.row_shape):
            raise DataError(
                f"tensor {self.name!r}: expected {self.kind.name} values {[len(rows), *self.row_shape]}, got {values.dtype} "
                f"{list(values.shape)}."
            )
        return self.position(rows)

    def _add_rounded(self, at: np.ndarray, values: np.ndarray) -> None:
        """One occurrence of each row after the other, each rounded, as the other types do."""
        left = np.arange(len(at))
        while len(left):
            _, first = np.unique(at[left], return_index=True)
            now = left[first]
            self.own[at[now]] = self.kind.sums(self.own[at[now]], values[now])
            left = np.delete(left, first)

    def _note(self, rows: np.ndarray | None, at: Any) -> None:
        """Notes who writes, to find rows that two ranks write to between barriers. The lock is held."""
        writers = self._writers
        if writers is None:
            return
        rank, last = self.homes.rank, writers[at]
        mine = self.epoch.number * len(self.homes.host_of_rank) + rank + 1
        others = np.flatnonzero((last > mine - rank - 1) & (last != mine))
        if len(others) and self.epoch.conflict is None:
            other = int(last[others[0]] - (mine - rank))
            row = int(self._row_at(int(others[0])) if rows is None else rows[others[0]])
            self.epoch.conflict = Conflict(self.name, row, (other, rank))
        writers[at] = mine

    def _row_at(self, position: int) -> int:
        part = next(each for each in self.own_parts if position < each.begin + each.count)
        return part.first + position - part.begin


def own_parts(space: RowSpace, homes: Homes) -> list[OwnPart]:
    """The parts of this rank's host, and where they lie in its memory."""
    found, begin = [], 0
    for part in homes.parts_at(homes.host):
        first, end = int(space.bounds[part]), int(space.bounds[part + 1])
        found.append(OwnPart(part, first, begin, end - first))
        begin += end - first
    return found
