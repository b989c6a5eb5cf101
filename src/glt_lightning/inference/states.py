"""Outputs of a layer, of this host's rows and of the remote rows that the next layer reads; and how ranks wait for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from glt_lightning.base import PeerError
from glt_lightning.graph import Shapes, SharedArrays
from glt_lightning.kernels import Shards
from glt_lightning.tensors import SharedTable, SharedTables

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
        """Copies the values of rows int64 [n] of this host or its halo."""
        return self._shards.gather(self.places(rows), threads=threads)

    def sum(self, rows: np.ndarray, edges: np.ndarray, count: int, *, mean: bool, threads: int = 1) -> np.ndarray:
        """Returns float32 [count, ...]: sums, or means, of the rows of the sources of each node's edges. edges: int64 [2, E],
        positions in rows; destinations ascend and are below ``count``."""
        src, dst = (np.ascontiguousarray(end, dtype=np.int32) for end in edges)
        out = np.empty((count, *self.table.row_shape), dtype=np.float32)
        return self._shards.gather_sum(self.places(rows), src, dst, out, mean=mean, threads=threads)

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Returns int64 [n]: the positions of rows in the memory of this host, with the halo behind it."""
        if not len(self.halo):
            return self.table.position(rows)
        at = np.searchsorted(self.halo, rows)
        remote = self.halo[np.minimum(at, len(self.halo) - 1)] == rows
        places = at + self._own
        places[~remote] = self.table.position(rows[~remote])
        return places

    def close(self) -> None:
        """Closes this rank's view of the rows. Safe to call twice."""
        del self._shards
        self._shards = Shards([np.empty((0, 1), dtype=np.float32)])
        self.table.close()
        if self.fetched is not None:
            self.fetched.close()
            self.fetched = None


@dataclass
class HaloTraffic:
    """Counts of rows and bytes that this rank has fetched from other hosts, for all ranks of its host; by layer and node type."""

    rows: dict[tuple[int, str], int] = field(default_factory=dict)
    nbytes: dict[tuple[int, str], int] = field(default_factory=dict)


def fetch_halo(
    tables: SharedTables,
    table: SharedTable,
    halo: np.ndarray,
    on_disk: bool,
    beat: Callable[[str], object],
) -> tuple[LayerRows, int]:
    """Fetches the remote rows that this host reads. Returns the table with these rows, and how many this rank has fetched. Each
    row crosses the network once per host, in the order of rows. A collective call.

    on_disk: their values lie in a file without a name, not in memory.  beat: called with text for each piece.
    Raises `PeerError`, on all ranks, if another host does not answer.
    """
    if tables.homes.num_hosts == 1:
        return LayerRows(table, halo), 0
    made: list[SharedArrays] = []

    def make(_sharing: int) -> str:
        shapes: Shapes = {_HALO: (table.dtype, (len(halo), *table.row_shape))}
        memory = tables.zeros(shapes, {}, on_disk)
        made.append(memory)
        at_once = max(1, _PIECE_BYTES // max(1, table.dtype.itemsize * int(np.prod(table.row_shape))))
        for begin in range(0, len(halo), at_once):
            piece = slice(begin, begin + at_once)
            memory.arrays[_HALO][piece] = table.read(halo[piece])
            beat("fetching remote rows")
        memory.finish()
        return memory.path

    try:
        path = tables.ranks.once_per_host([each.part for each in table.own_parts], make)
        fetched = made[0] if made else SharedArrays.open(path)
        return LayerRows(table, halo, fetched), len(halo) if made else 0
    except BaseException:
        for memory in made:
            memory.close()
        raise


def halo_of(needed: np.ndarray, bounds: np.ndarray, own_parts: Sequence[int]) -> np.ndarray:
    """Returns int64 [n], ascending: rows that are needed and lie in parts of other hosts. needed: bool [N].  bounds: int64 [P +
    1]."""
    needed = needed.astype(np.bool_, copy=True)
    for part in own_parts:
        needed[bounds[part] : bounds[part + 1]] = False
    return np.flatnonzero(needed)


# Synchronisation between layers. Ranks poll a key-value store: collective calls would time out where parts are skewed.


_LOOK_S = (0.002, 0.1)  # first and longest pause between two polls
_BEAT_S = 1.0  # least time between two heartbeats: each is a request to rank 0


class Board(Protocol):
    """A key-value store, such as those of torch. Keys are unknown until they are set."""

    def set(self, key: str, value: str) -> object: ...

    def get(self, key: str) -> bytes: ...

    def check(self, keys: list[str]) -> bool: ...

    def delete_key(self, key: str) -> object: ...


class Marks:
    """Exchanges texts among ranks in rounds. A rank waits for another as long as that one shows progress.

    board: the store, the same for all ranks, and used by this run alone; None for one rank.
    wait_s: seconds without progress of another rank after which `exchange` raises `PeerError`, which names it.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        board: Board | None,
        wait_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        assert board is not None or world_size == 1
        self.rank, self.world_size, self.wait_s = rank, world_size, wait_s
        self._board, self._clock, self._sleep = board, clock, sleep
        self._round, self._beats, self._beaten = 0, 0, float("-inf")
        self._doing = "starting"

    def exchange(self, text: str) -> list[str]:
        """Returns the texts of all ranks, in rank order. A collective call."""
        if self._board is None:
            return [text]
        number, self._round = self._round, self._round + 1
        try:
            self._board.set(f"{number}/{self.rank}", text)
            found = [text if rank == self.rank else self._read(number, rank) for rank in range(self.world_size)]
            if number:  # all ranks have set their keys of this round, so they have read all keys of the round before
                self._board.delete_key(f"{number - 1}/{self.rank}")
        except RuntimeError as error:
            if isinstance(error, PeerError):
                raise
            raise PeerError(
                f"rank 0, whose process keeps what the ranks tell each other, does not answer any more ({error}). Its own "
                "messages, and those of the other ranks, say why; then run again."
            ) from error
        return found

    def beat(self, doing: str) -> None:
        """Shows the other ranks that this one makes progress: when it does something else, and at most once a second."""
        now, before, self._doing = self._clock(), self._doing, doing
        if self._board is None or (doing == before and now - self._beaten < _BEAT_S):
            return
        self._beaten, self._beats = now, self._beats + 1
        try:
            self._board.set(f"beat/{self.rank}", f"{self._beats} {doing}")
        except RuntimeError:
            return  # the next `exchange` raises it

    def _read(self, number: int, rank: int) -> str:
        board, key, beat = self._board, f"{number}/{rank}", f"beat/{rank}"
        assert board is not None
        pause, seen, since = _LOOK_S[0], b"", self._clock()
        while not board.check([key]):
            found = board.get(beat) if board.check([beat]) else b""
            now = self._clock()
            if found != seen:
                seen, since = found, now
            elif now - since > self.wait_s:
                doing = seen.decode(errors="replace").partition(" ")[2] or "starting"
                raise PeerError(
                    f"rank {rank} has made no progress for {self.wait_s:g} s, last while {doing}; rank {self.rank} waits for it "
                    f"after {self._doing}. See the messages of rank {rank}; if it only is slow, lower layerwise.batch_size."
                )
            self.beat(self._doing)  # a third rank may wait for this one, and must not take it for stopped
            self._sleep(pause)
            pause = min(2 * pause, _LOOK_S[1])
        return board.get(key).decode()


# Which rows are computed together, and by which rank of a host.


def cut(degrees: np.ndarray, batch_size: int, most_edges: int) -> np.ndarray:
    """Cuts rows into ranges, int64 [C, 2], of at most ``batch_size`` rows and ``most_edges`` edges; a row with more edges is a
    range of its own.

    degrees: int64 [N], edges into each row.

    >>> cut(np.array([1, 1, 9, 1, 1, 1]), 2, 5).tolist()
    [[0, 2], [2, 3], [3, 5], [5, 6]]
    """
    ends = np.cumsum(degrees)
    found, begin = [], 0
    while begin < len(degrees):
        before = ends[begin - 1] if begin else 0
        by_edges = int(np.searchsorted(ends, before + most_edges, side="right"))
        end = max(begin + 1, min(begin + batch_size, by_edges, len(degrees)))
        found.append((begin, end))
        begin = end
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def chunks_of(parts: Sequence[tuple[int, np.ndarray]], batch_size: int, most_edges: int) -> np.ndarray:
    """Returns int64 [C, 2]: the chunks of all parts of a host. parts: (first row, degrees) of each. No chunk has rows of two
    parts, so that chunks do not depend on which parts a host has."""
    pieces = [first + cut(degrees, batch_size, most_edges) for first, degrees in parts]
    return np.concatenate([np.empty((0, 2), dtype=np.int64), *pieces])


def share_of(chunks: np.ndarray, turn: int, ranks: int) -> np.ndarray:
    """Returns the chunks of local rank ``turn`` of ``ranks``: every ``ranks``-th one, since rows lie hottest first and a
    contiguous share would give one rank most of the work."""
    return np.ascontiguousarray(chunks[turn::ranks])
