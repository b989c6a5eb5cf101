"""The edges among some nodes, in the mapped parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.kernels.graph import GraphView
from glt_lightning.kernels.native import BAD_ARG, GROW, I32, I64, P, Signatures, bind, call, check
from glt_lightning.kernels.ranked_set import RankedSet
from glt_lightning.kernels.routing import Picks

_SIGNATURES: Signatures = {
    "glt_induce": [P, I32, P, I64, P, I64, I64, I64, I32, I64, P, P, P, P, P],
}
_library = bind(_SIGNATURES)

NO_LIMIT = 2**62
_ENTRY_BYTES = 12  # of an edge that is found, in memory
_BITS_AT_ONCE = 1 << 20
_ROOM = 1 << 20  # edges for which memory is taken at once


@dataclass(frozen=True)
class Among:
    """A query for the edges of one edge type from ``members`` to ``rows``.

    rows: integer [n] gids of destination nodes.  members: int64 [M] gids of source nodes, ascending, each once.
    first, count: the range of gids of the source type.  limit: rows with more entries are refused; None: no limit.
    """

    edge_type: int
    rows: np.ndarray
    members: np.ndarray
    first: int
    count: int
    limit: int | None = None

    @classmethod
    def of(cls, graph: GraphView, edge_type: int, rows: np.ndarray, members: np.ndarray, limit: int | None) -> Among:
        source = int(graph.src_types[edge_type])
        first, end = int(graph.type_offsets[source]), int(graph.bounds[(source + 1) * graph.num_parts])
        return cls(edge_type, rows, members, first, end - first, limit)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Encodes the query: ``rows``, and ``members`` as gids of the same dtype or, if that is smaller, as a ``bitmap`` over the
        source type."""
        if self.count // 8 >= self.rows.itemsize * len(self.members):
            return {"rows": self.rows, "members": self.members.astype(self.rows.dtype)}
        bits = np.zeros(self.count, dtype=np.bool_)
        bits[self.members - self.first] = True
        return {"rows": self.rows, "bitmap": np.packbits(bits)}

    @classmethod
    def bytes_of(cls, graph: GraphView, edge_type: int, arrays: Mapping[str, np.ndarray]) -> int:
        """Returns the bytes of memory that `from_arrays` takes, and `find` for the members."""
        none = np.empty(0, dtype=np.int64)
        count = cls.of(graph, edge_type, none, none, None).count
        bitmap = arrays.get("bitmap", none)
        fits = bitmap.dtype == np.uint8 and bitmap.shape == (-(-count // 8),)
        members = _count_bits(bitmap, count) if fits else arrays.get("members", none).size
        return 8 * (members + arrays.get("rows", none).size) + count // 6

    @classmethod
    def from_arrays(
        cls, graph: GraphView, edge_type: int, arrays: Mapping[str, np.ndarray], limit: int | None
    ) -> Among:
        """Decodes a query: the inverse of `to_arrays`. Raises `DataError` for anything else."""
        if set(arrays) not in ({"rows", "members"}, {"rows", "bitmap"}):
            raise DataError(f"induce: expected the arrays rows, and members or bitmap; got {sorted(arrays)!r:.200}.")
        none = np.empty(0, dtype=np.int64)
        among = cls.of(graph, edge_type, arrays["rows"], none, limit)
        members, nbytes = arrays.get("members", none), -(-among.count // 8)
        if "bitmap" in arrays:
            bitmap = arrays["bitmap"]
            if bitmap.dtype != np.uint8 or bitmap.shape != (nbytes,):
                raise DataError(
                    f"induce: bitmap: expected uint8 [{nbytes}], a bit for each node of the source type; got {bitmap.dtype} "
                    f"{list(bitmap.shape)}."
                )
            members = _members_of(bitmap, among.first, among.count)
        for name, ids in (("rows", among.rows), ("members", members)):
            if ids.dtype not in (np.int32, np.int64) or ids.ndim != 1:
                raise DataError(f"induce: {name}: expected int32 or int64 [n], got {ids.dtype} {list(ids.shape)}.")
        return replace(among, rows=among.rows.astype(np.int64), members=members.astype(np.int64))

    def find_first(
        self,
        graph: GraphView,
        *,
        threads: int = 1,
        most: int = _ROOM,
        require_room: Callable[[int], None] = lambda nbytes: None,
    ) -> Picks:
        """Finds the edges of the first rows: as many rows as have at most ``most`` edges, and at least one.

        require_room: called with the bytes of the edges before the memory for a first row with more than ``most`` is taken; it
        may raise. Working memory is up to twice that of the edges.

        Returns for these rows the numbers of their edges, and for each edge, in the order of rows and positions, the position of
        its source in ``members`` as ``neighbors`` (int32), and its edge row (int64). Leaves out edges of weight 0.

        Raises `DataError` for ids that the graph does not have or whose part is not mapped, and for a row beyond ``limit``;
        `PartitionError` for a damaged row.
        """
        rows = np.ascontiguousarray(self.rows, dtype=np.int64)
        words = np.empty(RankedSet.words_for(self.count), dtype=np.uint64)
        members = RankedSet.build(self.members, self.first, self.count, words)
        limit = NO_LIMIT if self.limit is None else self.limit
        counts, done, status = np.empty(len(rows), np.int64), np.zeros(2, np.int64), GROW
        while status == GROW:
            ranks, edge_rows = np.empty(most, np.int32), np.empty(most, np.int64)
            asked, room = (graph.address, self.edge_type, rows, len(rows), *members.arguments, limit), (threads, most)
            status, detail = call(_library().glt_induce, *asked, *room, counts, ranks, edge_rows, done)
            most = int(detail[2])
            if status == GROW:
                require_room(most * _ENTRY_BYTES)
        if status == BAD_ARG:
            refuse_row(int(detail[1]), int(detail[2]), self.edge_type, limit)
        check(status, detail, "induce")
        num_rows, num_edges = done.tolist()
        return Picks(counts[:num_rows], ranks[:num_edges], edge_rows[:num_edges])

    def find(
        self, graph: GraphView, *, threads: int = 1, require_room: Callable[[int], None] = lambda nbytes: None
    ) -> Picks:
        """Finds the edges of all rows, as `find_first`."""
        pieces: list[Picks] = []
        done = found = 0
        while not pieces or done < len(self.rows):
            rest, most = replace(self, rows=self.rows[done:]), max(_ROOM, found)
            require_more = partial(_require_more, require_room, found * _ENTRY_BYTES)
            require_more(most * _ENTRY_BYTES)
            pieces.append(rest.find_first(graph, threads=threads, most=most, require_room=require_more))
            done, found = done + len(pieces[-1].counts), found + len(pieces[-1].neighbors)
        return Picks.joined(pieces)


def _members_of(bitmap: np.ndarray, first: int, count: int) -> np.ndarray:
    """Decodes the gids of a bitmap, int64 [M], without working memory beyond them."""
    members, end = np.empty(_count_bits(bitmap, count), dtype=np.int64), 0
    for start in range(0, len(bitmap), _BITS_AT_ONCE // 8):
        some = first + 8 * start + np.flatnonzero(_some_bits(bitmap, start, count))
        members[end : end + len(some)] = some
        end += len(some)
    return members


def _count_bits(bitmap: np.ndarray, count: int) -> int:
    starts = range(0, len(bitmap), _BITS_AT_ONCE // 8)
    return sum(int(_some_bits(bitmap, start, count).sum(dtype=np.int64)) for start in starts)


def _some_bits(bitmap: np.ndarray, start: int, count: int) -> np.ndarray:
    return np.unpackbits(bitmap[start : start + _BITS_AT_ONCE // 8], count=min(_BITS_AT_ONCE, count - 8 * start))


def refuse_row(gid: int, entries: int, edge_type: int, limit: int | None) -> NoReturn:
    """Raises `DataError` for a row beyond ``Among.limit``."""
    raise DataError(
        f"induced_limit: node {gid} (its number in the partition) has {entries} edges of edge type {edge_type}, more than "
        f"{limit}. Raise induced_limit, or leave it out: its row is then read."
    )


def _require_more(require_room: Callable[[int], None], before: int, nbytes: int) -> None:
    require_room(before + nbytes)
