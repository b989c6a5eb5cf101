"""The question for the edges among some nodes.

**induce** returns the edges among some nodes. The request has ``edge_type`` (an index), the array ``rows``, gids of
destination nodes in the owner's parts, and the sources: the array ``members``, their gids in ascending order, or, if
that is smaller, ``bitmap`` uint8 [ceil(N / 8)], a bit for each of the N nodes of the source type in the order of their
gids, the first node the highest bit of its byte. ``weights`` is as in ``expand``; edges of weight 0 are left out.
``limit``, optional, is the most entries that a row may have; a longer one is an error. The reply has ``counts``, the
number of edges of each row, and for each edge, row after row in stored order, ``members``, the position of its source
among the members, and ``edge_rows``. An owner answers the first rows, at least one, as many as fit into
``cluster.limits.reply_size``, at most 65536, with 2^26 entries together and 2^20 edges among the members, unless the
first alone has more; the caller asks for the others again. A row whose edges do not fit into a reply is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from glt_lightning.base import DataError, DrawOptions, read_integer
from glt_lightning.graph import TopologyCache
from glt_lightning.kernels import Among, Drawn, GraphView, Picks
from glt_lightning.sampling.source import (
    MOST_PAIRS,
    Arrays,
    InconsistentReplyError,
    OwnedParts,
    Received,
    Reply,
    RowsQuestion,
    Work,
    require_ids,
    weights_header,
    within_work,
)

_EDGES_AT_ONCE = 1 << 20  # of an answer, unless a row has more
_EDGE_BYTES = 32  # of working memory for each edge: as found by the op, twice, and of the wire's dtype
_EMPTY = np.empty(0, dtype=np.int64)
_NONE = Picks(_EMPTY, _EMPTY, _EMPTY)


@dataclass(frozen=True)
class Induce(RowsQuestion[Picks]):
    """Asks for the edges of ``among.rows`` whose sources are members. In the answer neighbours are positions in
    ``among.members``."""

    op: ClassVar[str] = "induce"

    among: Among
    weights: tuple[str | None, ...] = ()

    def to_wire(self) -> tuple[dict[str, Any], Arrays]:
        header: dict[str, Any] = {"edge_type": self.among.edge_type}
        header |= {} if self.among.limit is None else {"limit": self.among.limit}
        return header | weights_header(self.weights), self.among.to_arrays()

    def conversation(self) -> Generator[Self, Received, Picks]:
        """Receives the edges of the first rows, and asks for the rest after that."""
        pieces, done, rows = [], 0, self.among.rows
        while True:
            reply = yield replace(self, among=replace(self.among, rows=rows[done : done + MOST_PAIRS]))
            pieces.append(self._edges_of(reply.arrays, len(rows) - done))
            done += len(pieces[-1].counts)
            if done == len(rows):
                return Picks.joined(pieces)

    def _edges_of(self, reply: Arrays, rows: int) -> Picks:
        """Returns the edges in a reply. rows: the most rows that it may have. Raises `InconsistentReplyError`."""
        counts, found, edge_rows = (reply.get(name, np.empty(0)) for name in ("counts", "members", "edge_rows"))
        flat = all(a.ndim == 1 and a.dtype in (np.int32, np.int64) for a in (counts, found, edge_rows))
        whole = flat and 0 < len(counts) <= min(rows, MOST_PAIRS) and counts.min() >= 0
        if not whole or not counts.sum(dtype=np.int64) == len(found) == len(edge_rows):
            raise InconsistentReplyError(f"a question for the edges of {rows} nodes is inconsistent.")
        if len(found) and not 0 <= found.min() <= found.max() < len(self.among.members):
            raise InconsistentReplyError("a question for edges among nodes names others.")
        return Picks(counts, found, edge_rows)

    @classmethod
    def work(cls, header: Mapping[str, Any], arrays: Arrays, parts: OwnedParts) -> Work:
        """Checks a request; its reply has the first rows, at least one: as many as fit, no more than `MOST_PAIRS`, and with no
        more entries than `within_work`."""
        view = parts.partition.weighted(DrawOptions.from_wire(header).weights)
        edge_type = read_integer(header, "edge_type", 0, view.num_edge_types - 1)
        limit = read_integer(header, "limit", 0, 2**62) if "limit" in header else None
        size, most_bytes = parts.wire.itemsize, parts.most_bytes
        rows = require_ids(arrays.get("rows"))[: max(1, min(MOST_PAIRS, most_bytes // (2 * size)))]
        given = dict(arrays) | {"rows": rows}
        scanned = within_work(view, edge_type, rows)
        fit = max(1, (most_bytes - size * len(scanned)) // (2 * size))
        most = max(1, min(int(scanned.sum()), max(_EDGES_AT_ONCE, int(scanned[:1].sum())), fit))

        def refuse(nbytes: int) -> None:
            raise DataError(
                f"induce: node {rows[0]} (its number in the partition) has edges among these nodes that take about "
                f"{nbytes} bytes, more than a reply of this process may have ({most_bytes}). Set induced_limit, use a smaller "
                "batch_size, or raise cluster.limits.reply_size here."
            )

        def reply(look: Callable[[], None]) -> Reply:
            among = Among.from_arrays(view, edge_type, given, limit)
            first = replace(among, rows=among.rows[: len(scanned)])
            found = first.find_first(view, most=most, require_room=refuse)
            columns = {"counts": found.counts, "members": found.neighbors, "edge_rows": found.edge_rows}
            return Reply.of(columns, parts.wire)

        return Work(most * _EDGE_BYTES + Among.bytes_of(view, edge_type, given), reply)

    def rows(self, view: GraphView) -> tuple[int, np.ndarray]:
        return int(view.dst_types[self.among.edge_type]), self.among.rows

    def of_rows(self, ids: np.ndarray, which: np.ndarray) -> Self:
        return replace(self, among=replace(self.among, rows=ids))

    def answer(
        self, view: GraphView, threads: int = 1, require_room: Callable[[int], None] = lambda nbytes: None
    ) -> Picks:
        return self.among.find(view, threads=threads, require_room=require_room)

    def answer_cached(self, lists: TopologyCache) -> Picks:
        return lists.induce(self.among, self.weights)

    def stitch(self, owner: np.ndarray, answers: Sequence[Picks | None]) -> Picks:
        return Drawn([_NONE if each is None else each for each in answers], owner).stitched()
