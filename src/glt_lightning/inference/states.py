"""Outputs of a layer: of the rows of this host, and of those remote rows that its next layer reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from glt_lightning.graph import Shapes, SharedArrays
from glt_lightning.kernels import Shards
from glt_lightning.tensors import SharedTable, SharedTables, on_scratch
from glt_lightning.workers import once_per_host

_PIECE_BYTES = 64 << 20  # of remote rows that are asked for at once
_HALO = "halo"


@dataclass(eq=False)
class LayerRows:
    """A table of outputs, as layers read it.

    halo: int64 [n], ascending: remote rows that this host reads.  fetched: their values, shared by the ranks of the host.
    """

    table: SharedTable
    halo: np.ndarray
    fetched: SharedArrays | None = None
    _shards: Shards = field(init=False)

    def __post_init__(self) -> None:
        self._own = len(self.table.own)
        remote = [] if self.fetched is None else [self.fetched.arrays[_HALO]]
        self._shards = Shards([self.table.own, *remote])

    def read(self, rows: np.ndarray, threads: int = 1) -> np.ndarray:
        """Values of rows of this host and of its halo."""
        return self._shards.gather(self.places(rows), threads=threads)

    def sum(self, rows: np.ndarray, edges: np.ndarray, count: int, *, mean: bool, threads: int = 1) -> np.ndarray:
        """float32 [count, ...]: sums, or means, of the rows of the sources of each node's edges. edges: int64 [2, E], positions
        in rows; destinations ascend and are below ``count``."""
        src, dst = (np.ascontiguousarray(end, dtype=np.int32) for end in edges)
        out = np.empty((count, *self.table.row_shape), dtype=np.float32)
        return self._shards.gather_sum(self.places(rows), src, dst, out, mean=mean, threads=threads)

    def places(self, rows: np.ndarray) -> np.ndarray:
        """int64 [n]: where rows lie: in the memory of this host, or behind it in the halo."""
        if not len(self.halo):
            return self.table.position(rows)
        at = np.searchsorted(self.halo, rows)
        remote = self.halo[np.minimum(at, len(self.halo) - 1)] == rows
        places = at + self._own
        places[~remote] = self.table.position(rows[~remote])
        return places

    def close(self) -> None:
        """This rank lets go of the rows. Safe to call twice."""
        del self._shards
        self._shards = Shards([np.empty((0, 1), dtype=np.float32)])
        self.table.close()
        if self.fetched is not None:
            self.fetched.close()
            self.fetched = None


@dataclass
class HaloTraffic:
    """What has been fetched from other hosts. rows, nbytes: by layer and node type; of this rank, which fetches for its host."""

    rows: dict[tuple[int, str], int] = field(default_factory=dict)
    nbytes: dict[tuple[int, str], int] = field(default_factory=dict)


def fetch_halo(
    tables: SharedTables,
    table: SharedTable,
    halo: np.ndarray,
    on_disk: bool,
    beat: Callable[[str], object],
) -> tuple[LayerRows, int]:
    """(the table with the remote rows that this host reads, how many of them this rank has fetched). Each of them crosses the
    network once, in the order of rows. A collective call.

    on_disk: their values lie in a file without a name, not in memory.  beat: hears of each piece.
    Raises `PeerError`, on all ranks, where another host does not answer.
    """
    if tables.homes.num_hosts == 1:
        return LayerRows(table, halo), 0
    made: list[SharedArrays] = []

    def make(_sharing: int) -> str:
        shapes: Shapes = {_HALO: (table.dtype, (len(halo), *table.row_shape))}
        memory = on_scratch(shapes, {}, tables.options) if on_disk else SharedArrays.create(shapes, {})
        made.append(memory)
        at_once = max(1, _PIECE_BYTES // max(1, table.dtype.itemsize * int(np.prod(table.row_shape))))
        for begin in range(0, len(halo), at_once):
            piece = slice(begin, begin + at_once)
            memory.arrays[_HALO][piece] = table.read(halo[piece])
            beat("fetching remote rows")
        memory.finish()
        return memory.path

    try:
        path = once_per_host(tables.ranks, [each.part for each in table.own_parts], make)
        fetched = made[0] if made else SharedArrays.open(path)
        return LayerRows(table, halo, fetched), len(halo) if made else 0
    except BaseException:
        for memory in made:
            memory.close()
        raise


def halo_of(needed: np.ndarray, bounds: np.ndarray, own_parts: Sequence[int]) -> np.ndarray:
    """int64 [n], ascending: rows that are needed and lie in parts of other hosts. needed: bool [N].  bounds: int64 [P + 1]."""
    needed = needed.astype(np.bool_, copy=True)
    for part in own_parts:
        needed[bounds[part] : bounds[part + 1]] = False
    return np.flatnonzero(needed)
