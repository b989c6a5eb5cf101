"""Exchange of the gradients of rows among ranks: each gradient is sent to the rank that applies it."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist

from glt_lightning.base import DataError, PeerLostError, long_work
from glt_lightning.kernels import RowSums
from glt_lightning.tensors.saved import WEIGHT, RowsToSave, SavedRows
from glt_lightning.tensors.scratch import pieces
from glt_lightning.tensors.space import Homes, RowSpace
from glt_lightning.tensors.table import SharedTable
from glt_lightning.tensors.tables import SharedTables, TableSpec


class Exchange(Protocol):
    """Collective calls of the ranks that train. size: number of ranks."""

    size: int

    def send(self, sums: RowSums, target: np.ndarray) -> list[RowSums]:
        """Sends each row to the rank ``target`` int [n]. Returns the rows that each rank has sent to this one, in rank order."""

    def gather(self, numbers: np.ndarray) -> np.ndarray:
        """Returns float64 [ranks, k] on every rank, from float64 [k] of each."""

    def barrier(self) -> None:
        """Waits for all ranks."""

    def close(self) -> None:
        """Releases the process group. Safe to call twice."""


class Alone:
    """The `Exchange` of one rank."""

    size = 1

    def send(self, sums: RowSums, target: np.ndarray) -> list[RowSums]:
        return [sums]

    def gather(self, numbers: np.ndarray) -> np.ndarray:
        return numbers[None]

    def barrier(self) -> None:
        """Returns at once: no other rank exists."""

    def close(self) -> None:
        """Does nothing: no group was made."""


class OverGloo:
    """The `Exchange` of several ranks, over a gloo group of its own: the default one may be NCCL's, and calls of DDP are in
    flight there. All ranks make it at the same time.

    timeout: of each call; None: torch's default.
    """

    def __init__(self, timeout: timedelta | None = None) -> None:
        self._group = dist.new_group(backend="gloo", timeout=timeout)
        self.size = dist.get_world_size(self._group)

    def send(self, sums: RowSums, target: np.ndarray) -> list[RowSums]:
        order = np.argsort(target, kind="stable")
        mine = np.bincount(target, minlength=self.size)
        theirs = self._all_to_all(torch.from_numpy(mine), [1] * self.size, [1] * self.size)
        into, out = mine.tolist(), theirs.tolist()
        # int64 both, so one collective call sends them
        heads = torch.from_numpy(np.stack([sums.rows[order], sums.counts[order]], axis=1))
        found_heads = self._all_to_all(heads, into, out).numpy()
        found = self._all_to_all(torch.from_numpy(sums.pick(order).sums), into, out).numpy()
        ends = np.cumsum(out)
        return [
            RowSums(
                *(np.ascontiguousarray(each[end - n : end]) for each in (found_heads[:, 0], found, found_heads[:, 1]))
            )
            for n, end in zip(out, ends.tolist(), strict=True)
        ]

    def _all_to_all(self, given: torch.Tensor, into: list[int], out: list[int]) -> torch.Tensor:
        found = torch.empty((sum(out), *given.shape[1:]), dtype=given.dtype)
        with _other_ranks():
            dist.all_to_all_single(found, given, out, into, group=self._group)
        return found

    def gather(self, numbers: np.ndarray) -> np.ndarray:
        mine = torch.from_numpy(np.ascontiguousarray(numbers, np.float64))
        found = [torch.empty_like(mine) for _ in range(self.size)]
        with _other_ranks():
            dist.all_gather(found, mine, group=self._group)
        return torch.stack(found).numpy()

    def barrier(self) -> None:
        self.gather(np.zeros(1))  # gloo's own barrier has no deadline of its group

    def close(self) -> None:
        group, self._group = self._group, None
        if group is not None and dist.is_initialized():
            dist.destroy_process_group(group)


@contextmanager
def _other_ranks() -> Iterator[None]:
    """Turns an error of gloo into a `PeerLostError`, which points at the error of the failed rank."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLostError(
            f"the exchange of the gradients of rows failed: another rank has ended, or did not take part in time ({error}). Its "
            "own error says why; every rank takes part in every step."
        ) from error


def open_exchange(timeout: timedelta | None = None) -> Exchange:
    """Opens the `Exchange` over the ranks of torch's process group, or that of one rank alone. A collective call."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return Alone()
    return OverGloo(timeout)


# The rows of an embedding once it is attached to a graph: its table, and the states of its optimizer.


_log = logging.getLogger(__name__)
_AT_ONCE = 1 << 16  # rows


class Held:
    """A table and the states of its optimizer. They live as long as this object, and so outlive the graph: a module can be
    tested after its fit.

    ids: the user's ids of the rows, kept here since the servers that know them may be gone when a checkpoint is saved.
    graph: hash of the partition, with its version.  base: identity of the partition.  token: the same on all ranks that have this
    table.
    """

    def __init__(self, table: SharedTable, ids: SharedTable, graph: str, base: str, token: str) -> None:
        self.table, self.ids, self.graph, self.base, self.token = table, ids, graph, base, token
        self.states: dict[str, SharedTable] = {}

    def lies_as(self, homes: Homes) -> bool:
        """Tells whether each row lies on the same host and has the same applier under ``homes``."""
        mine = self.table.homes
        return (mine.host_of_part, mine.host_of_rank) == (homes.host_of_part, homes.host_of_rank)

    def all(self) -> list[SharedTable]:
        """All tables, in an order that is the same on all ranks."""
        return [self.table, self.ids, *self.states.values()]

    def close(self) -> None:
        for each in self.all():
            each.close()


@dataclass(frozen=True, eq=False)
class EmbeddingRows:
    """The table and the optimizer states of an embedding that is attached to a graph."""

    name: str
    tables: SharedTables
    space: RowSpace
    held: Held
    storage: str | None = None

    @property
    def table(self) -> SharedTable:
        return self.held.table

    @property
    def states(self) -> dict[str, SharedTable]:
        return self.held.states

    def order(self) -> np.ndarray:
        """Returns int64 [N]: the row of each user id."""
        rows = np.arange(self.space.num_rows)
        found = np.empty_like(rows)
        found[self.held.ids.read(rows)] = rows
        return found

    def home_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns int32 [n]: the rank that applies the updates of each row."""
        return self.tables.homes.appliers(self.space, rows)

    def renew_states(self, row_shapes: Mapping[str, tuple[np.dtype, tuple[int, ...]]]) -> dict[str, SharedTable]:
        """Replaces the states of an earlier optimizer by zeros for a new one. A collective call."""
        while self.states:
            self.states.popitem()[1].close()
        for state, (dtype, shape) in row_shapes.items():
            spec = TableSpec(self.space, dtype, shape, name=f"{self.name}/{state}", storage=self.storage)
            self.states[state] = self.tables.create(spec)
        return self.states

    def pieces_of(self, gradients: RowSums) -> Iterator[RowSums]:
        """Yields the gradients of rows of this host: all at once, or, of tables on disk, a piece at a time, so that the disk
        reads the rows of the next piece meanwhile."""
        tables = [self.table, *self.states.values()]
        if not any(table.on_disk for table in tables):
            yield gradients
            return

        def ask(piece: slice) -> None:
            for table in tables:
                table.ask(gradients.rows[piece])

        for piece in pieces(len(gradients.rows), ask):
            yield gradients.pick(piece)

    def to_save(self, optimizer: str | None) -> RowsToSave:
        arrays = {WEIGHT: self.table, **(self.states if optimizer else {})}
        shaped = {
            name: (each.dtype, (self.space.num_rows, *each.row_shape), each.read) for name, each in arrays.items()
        }
        return RowsToSave(self.name, self.space.label, optimizer, shaped, self.order())

    def load(self, saved: SavedRows, arrays: Mapping[str, SharedTable], *, strict: bool = True) -> None:
        """Reads saved arrays, on the first rank of each host. A collective call; an error of one rank is raised on all."""

        def read() -> None:
            if self.tables.homes.is_first:
                for name, table in arrays.items():
                    self._load(saved, name, table, strict)

        self.tables.ranks.all_or_none(read, lambda _: None)

    def _load(self, saved: SavedRows, name: str, table: SharedTable, strict: bool) -> None:
        """Reads one array for the rows of this host. These lie in ``own`` of all tables in the same order."""
        values, ids = saved.open(self.name, name, table.row_shape, table.dtype), self.held.ids.own
        if len(values) != self.space.num_rows and strict:
            raise DataError(
                f"{saved.folder}: embedding {self.name!r} has {len(values)} rows; the graph has {self.space.num_rows} nodes of "
                f"type {self.space.label!r}. Load it with strict_loading=False to take those whose ids both have."
            )
        with long_work(_log, f"embedding {self.name!r}: {name} loaded", len(ids)) as advance:
            for begin in range(0, len(ids), _AT_ONCE):
                mine = ids[begin : begin + _AT_ONCE]
                saved_too = np.flatnonzero(mine < len(values))
                table.own[begin + saved_too] = values[mine[saved_too]]
                advance(len(mine))


# The norm of a gradient whose rows lie on several ranks: the same bits however the rows are spread and ordered.


_LEAST = 2.0**-1074  # the smallest float64 above 0


def norms(squares: Sequence[np.ndarray], exchange: Exchange) -> list[float]:
    """Returns the norm of the gradient of each table; inf or nan where one of its values is. A collective call.

    squares: for each table, float64 [n] of `RowSums.squares`, of the rows that this rank applies.
    """
    mine = np.array([[each.max(initial=0.0), len(each)] for each in squares], np.float64)
    everyone = exchange.gather(mine.reshape(-1)).reshape(exchange.size, -1, 2)
    tops, numbers = everyone[:, :, 0].max(axis=0), everyone[:, :, 1].sum(axis=0)
    pieces = [_pieces(each, top, int(n)) for each, top, n in zip(squares, tops, numbers, strict=True)]
    sums = exchange.gather(np.array(pieces, np.float64).reshape(-1)).reshape(exchange.size, -1, 2).sum(axis=0)
    return [
        math.sqrt(coarse + fine) if math.isfinite(top) else float(top)
        for top, (coarse, fine) in zip(tops.tolist(), sums.tolist(), strict=True)
    ]


def _pieces(squares: np.ndarray, top: float, number: int) -> tuple[float, float]:
    """Returns a coarse and a fine sum of the squares, each exact, so that no order or spread over ranks changes a bit.

    top, number: the largest square, and how many there are, over all ranks. Squares are rounded to a grid that is coarse enough
    for the sum of ``number`` of them to fit into the 52 bits of a float64; the rests are summed on a finer grid.
    """
    if not math.isfinite(top) or top == 0.0:
        return 0.0, 0.0
    exponent, bits = math.frexp(top)[1], number.bit_length()
    found, rest = [], squares
    for _ in range(2):
        exponent += bits - 52
        grid = max(math.ldexp(1.0, exponent), _LEAST)
        piece = np.rint(rest / grid) * grid
        rest = rest - piece
        found.append(float(piece.sum()))
    return found[0], found[1]
