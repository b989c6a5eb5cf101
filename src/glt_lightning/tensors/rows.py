"""The rows of an embedding once it is attached to a graph: its table, and the states of its optimizer."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from glt_lightning.base import DataError, long_work
from glt_lightning.kernels import RowSums
from glt_lightning.tensors.saved import WEIGHT, RowsToSave, SavedRows
from glt_lightning.tensors.scratch import pieces
from glt_lightning.tensors.space import Homes, RowSpace
from glt_lightning.tensors.table import SharedTable
from glt_lightning.tensors.tables import SharedTables, TableSpec
from glt_lightning.workers import on_all_or_none

_log = logging.getLogger(__name__)
_AT_ONCE = 1 << 16  # rows


class Held:
    """A table and the states of its optimizer, until nobody refers to this object: they outlive the graph, so that a module
    can be tested after its fit.

    ids: the user's ids of the rows: servers that know them may be gone when a checkpoint is saved.
    graph: hash of the partition.  token: the same on all ranks that have this table.
    """

    def __init__(self, table: SharedTable, ids: SharedTable, graph: str, token: str) -> None:
        self.table, self.ids, self.graph, self.token = table, ids, graph, token
        self.states: dict[str, SharedTable] = {}

    def lies_as(self, homes: Homes) -> bool:
        """Whether each row lies on the same host and has the same applier under ``homes``."""
        mine = self.table.homes
        return (mine.host_of_part, mine.host_of_rank) == (homes.host_of_part, homes.host_of_rank)

    def all(self) -> list[SharedTable]:
        """In an order that is the same on all ranks."""
        return [self.table, self.ids, *self.states.values()]

    def close(self) -> None:
        for each in self.all():
            each.close()


@dataclass(frozen=True, eq=False)
class EmbeddingRows:
    """What an embedding has once it is attached to a graph."""

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
        """int64 [N]: the row of each user id."""
        rows = np.arange(self.space.num_rows)
        found = np.empty_like(rows)
        found[self.held.ids.read(rows)] = rows
        return found

    def home_of(self, rows: np.ndarray) -> np.ndarray:
        """int32 [n]: the rank that applies the updates of each row."""
        return self.tables.homes.appliers(self.space, rows)

    def renew_states(self, row_shapes: Mapping[str, tuple[np.dtype, tuple[int, ...]]]) -> dict[str, SharedTable]:
        """Zeros for the states of a new optimizer, in place of those of an earlier one. A collective call."""
        while self.states:
            self.states.popitem()[1].close()
        for state, (dtype, shape) in row_shapes.items():
            spec = TableSpec(self.space, dtype, shape, name=f"{self.name}/{state}", storage=self.storage)
            self.states[state] = self.tables.create(spec)
        return self.states

    def pieces_of(self, gradients: RowSums) -> Iterator[RowSums]:
        """Gradients of rows of this host, which are asked for if they are on disk: then some at a time."""
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
        """Reads saved arrays, once per host. A collective call; an error is one on all ranks."""

        def read() -> None:
            if self.tables.homes.is_first:
                for name, table in arrays.items():
                    self._load(saved, name, table, strict)

        on_all_or_none(self.tables.ranks, read, lambda _: None)

    def _load(self, saved: SavedRows, name: str, table: SharedTable, strict: bool) -> None:
        """The rows of this host, which lie in ``own`` of all tables in the same order."""
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
