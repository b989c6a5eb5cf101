"""Answers a request for neighbours in a bounded reply: counts first, then the memory, then the picks.

A reply has as many picks as fit, and their total number; the caller requests the rest. So a node of ten million neighbours
costs an owner the memory of one reply at a time, and the caller the memory of the result.

What a request takes is known from the degrees of its rows before the work begins: the memory is reserved (`Caller.working`), rows
beyond `MOST_SCANNED` entries are left for the next request, and between pieces of that many the owner looks whether its caller is
still there. Until then a request is its body alone: ids are copied and counted after that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.data.row_draws import RowDraws
from glt_lightning.errors import DataError, PeerLostError
from glt_lightning.ops.excluded import ExcludedEdges, ExcludedEntries, is_excluded
from glt_lightning.ops.graph import GraphView
from glt_lightning.ops.induce import Among, induce
from glt_lightning.ops.picker_draw import PickerDraw
from glt_lightning.ops.sample import RowDraw
from glt_lightning.ops.trees import Trees, is_tree
from glt_lightning.options import DrawOptions
from glt_lightning.sampler.source import MOST_PAIRS
from glt_lightning.sampler.walk_question import MOST_WALKS, STEP_BYTES, STEPS_AT_ONCE, WalkQuestion
from glt_lightning.transport.base import Caller
from glt_lightning.transport.message import Message, lay_out, layout_entries, pack, unpack

# Entries that are read one after the other between two looks at the caller: about a second's work by LABOR, less by others.
MOST_SCANNED = 1 << 26
_MOST_SEEN = 2 << 30  # bytes in which a picker sees the rows of a request
_EDGES_AT_ONCE = 1 << 20  # of an answer of `induce`, unless a row has more
_EDGE_BYTES = 32  # of memory for each on the way: as found by the op, twice, and of the wire's dtype
_PICKER_BYTES = 64  # of memory for each entry that a picker sees: positions, edge rows, times, what it may return
_COUNT_BYTES = 48  # of memory for each row: its id, its count and its degree, and their running sums
_ROWS_AT_ONCE = 1 << 16  # whose degrees are read before memory is reserved: 3 MiB
_AT_ONCE = 1 << 18  # picks between the op's int64 and the wire's int32: 2 MiB, which stay in the cache


@dataclass(frozen=True)
class Expansion:
    """A checked request. fanouts: [R].  rows: node type -> int32 or int64 [F].  first: number of picks that the caller has
    already.  excluded: edges that are not there.  trees: of the rows, in a disjoint batch."""

    key: int
    hop: int
    fanouts: Sequence[int]
    rows: Mapping[int, np.ndarray]
    first: int = 0
    excluded: ExcludedEdges | None = None
    trees: Trees | None = None

    def answer(self, rows: RowDraws, wire: np.dtype, most_bytes: int, caller: Caller) -> Message:
        """The reply, at most ``most_bytes``. Raises `DataError` if the counts alone take more, or a picker would see more than
        `_MOST_SEEN` bytes, `PeerLostError` if the caller leaves meanwhile, and as `RowDraw.picks`."""
        view, columns = rows.view, rows.draw.columns
        asked = [
            (r, fanout, self.rows[t])
            for r, (fanout, t) in enumerate(zip(self.fanouts, view.dst_types.tolist(), strict=True))
            if fanout and t in self.rows
        ]
        num_counts = sum(len(ids) for _, _, ids in asked)
        require_counts(num_counts, most_bytes)
        entries, picks = _most_picks(view, asked, rows.draw.replace)
        seen = entries * _PICKER_BYTES if rows.pickable is not None else 0
        if seen > _MOST_SEEN:
            raise DataError(
                f"expand: the picker would see all {entries:,} neighbours of the {num_counts:,} rows of a request; at most "
                f"{_MOST_SEEN // _PICKER_BYTES:,} are allowed. Use a smaller batch_size, or smaller num_neighbors of the hops "
                "before this one; if a single row has more, leave out sampling.picker."
            )
        reply = min(most_bytes, picks * wire.itemsize * len(columns))
        with caller.working(seen + _COUNT_BYTES * num_counts + reply):
            return self._answer(rows, asked, num_counts, wire, most_bytes, caller)

    def _answer(
        self,
        rows: RowDraws,
        asked: Sequence[tuple[int, int, np.ndarray]],
        num_counts: int,
        wire: np.dtype,
        most_bytes: int,
        caller: Caller,
    ) -> Message:
        view, columns = rows.view, rows.draw.columns
        asked = [(r, fanout, ids.astype(np.int64)) for r, fanout, ids in asked]
        scanned = {r: view.degrees(r, gids) for r, _, gids in asked} if _reads_rows(rows) else {}
        without = _find(self.excluded, view, caller) or {}
        draws = [rows.of(r, gids, fanout, self.key, self.hop, without.get(r), self.trees) for r, fanout, gids in asked]
        counts = [draw.count() for draw in draws]
        ends = np.cumsum([0, *(c.sum() for c in counts)])
        total = int(ends[-1])
        if not 0 <= self.first <= total:
            raise DataError(f"expand: first: expected at most {total}, the number of picks; got {self.first}.")
        left = most_bytes - (0 if self.first else num_counts * wire.itemsize)
        last = min(total, self.first + max(1, left // (wire.itemsize * len(columns))))
        begins = np.clip(self.first, ends[:-1], ends[1:]) - ends[:-1]
        sizes = np.clip(last, ends[:-1], ends[1:]) - ends[:-1] - begins
        shapes: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        for draw, size in zip(draws, sizes.tolist(), strict=True):
            if not self.first:
                shapes[f"{draw.edge_type}/counts"] = (wire, (len(draw.gids),))
            for name in columns:
                shapes[f"{draw.edge_type}/{name}"] = (wire, (size,))
        layout, nbytes = lay_out(shapes)
        body = np.zeros(
            nbytes, dtype=np.uint8
        )  # zeros: the padding between arrays must not leak older contents of this memory
        arrays = {place.name: place.view(body) for place in layout}
        for draw, count, begin in zip(draws, counts, begins.tolist(), strict=True):
            if not self.first:
                arrays[f"{draw.edge_type}/counts"][...] = count
            ends_of = _ends_of_work(count, scanned.get(draw.edge_type))
            neighbors, edge_rows = (arrays.get(f"{draw.edge_type}/{name}") for name in ("neighbors", "edge_rows"))
            assert neighbors is not None
            _fill(draw, count, begin, neighbors, edge_rows, ends_of, caller)
        return Message({"arrays": layout_entries(layout), "total": total}, body)


def _most_picks(view: GraphView, asked: Sequence[tuple[int, int, np.ndarray]], replace: bool) -> tuple[int, int]:
    """(number of entries of all rows, most picks of them) by the degrees of the rows. asked: (edge type, fan-out, ids)."""
    entries = picks = 0
    for r, fanout, ids in asked:
        for at in range(0, len(ids), _ROWS_AT_ONCE):
            degrees = view.degrees(r, ids[at : at + _ROWS_AT_ONCE])
            entries += (some := int(degrees.sum()))
            if fanout < 0:
                picks += some
            else:
                picks += fanout * int(np.count_nonzero(degrees)) if replace else int(np.minimum(degrees, fanout).sum())
    return entries, picks


def require_counts(num_rows: int, most_bytes: int) -> None:
    """Raises `DataError` for more rows than a reply has counts for."""
    if num_rows * 8 > most_bytes:
        raise DataError(
            f"expand: the counts of {num_rows} rows take {num_rows * 8} bytes, more than a reply of this process may "
            f"have ({most_bytes}). Use a smaller batch_size, or raise cluster.limits.reply_size here."
        )


def read_arrays(
    arrays: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], ExcludedEdges | None, Trees | None]:
    """(the rows of each node type by its name, `Expansion.excluded`, `Expansion.trees`) of a request. Raises `DataError`."""
    excluded, trees = ExcludedEdges.from_arrays(arrays), Trees.from_arrays(arrays)
    _require_few("expand", excluded)
    return {name: ids for name, ids in arrays.items() if not is_excluded(name) and not is_tree(name)}, excluded, trees


def _require_few(what: str, excluded: ExcludedEdges | None) -> None:
    if excluded is not None and excluded.num_pairs > MOST_PAIRS:  # each may scan the longest row
        raise DataError(
            f"{what}: a request may have at most {MOST_PAIRS} excluded edges, got {excluded.num_pairs}. Use a smaller "
            "batch_size."
        )


def as_ids(array: np.ndarray | None) -> np.ndarray:
    """int64 [n]. Raises `DataError` unless they are int32 or int64 [n]."""
    return require_ids(array).astype(np.int64)


def require_ids(array: np.ndarray | None) -> np.ndarray:
    """As `as_ids`, as they are."""
    if array is None or array.ndim != 1 or array.dtype not in (np.int32, np.int64):
        got = "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
        raise DataError(f"ids: expected int32 or int64 [n], got {got}.")
    return array


def within_work(view: GraphView, edge_type: int, gids: np.ndarray) -> np.ndarray:
    """int64 [n]: the degrees of the first rows, as many as have `MOST_SCANNED` entries together, and at least one."""
    found = view.degrees(edge_type, gids)
    return found[: max(1, int(np.searchsorted(np.cumsum(found), MOST_SCANNED, side="right")))]


def _reads_rows(rows: RowDraws) -> bool:
    """Whether draws read rows from end to end."""
    return rows.pickable is not None or rows.draw.labor


def _ends_of_work(counts: np.ndarray, scanned: np.ndarray | None) -> np.ndarray:
    """int64 [n]: numbers of picks after which an owner looks at its caller, since drawing them reads so many entries."""
    if scanned is None or not len(scanned):
        return np.zeros(0, np.int64)
    piece = np.cumsum(scanned) // MOST_SCANNED
    last = np.flatnonzero(piece[1:] != piece[:-1])
    found: np.ndarray = np.cumsum(counts)[last]
    return found


def _fill(
    draw: RowDraw | PickerDraw,
    counts: np.ndarray,
    first: int,
    neighbors: np.ndarray,
    edge_rows: np.ndarray | None,
    ends: np.ndarray,
    caller: Caller,
) -> None:
    """Writes the picks from ``first`` on into arrays of the wire's dtype. ends: as of `_ends_of_work`."""
    chunk = np.empty(min(_AT_ONCE, len(neighbors)), dtype=np.int64)
    rows = None if edge_rows is None else np.empty_like(chunk)
    at = 0
    while at < len(neighbors):
        require_caller(caller)
        following = int(np.searchsorted(ends, first + at, side="right"))
        end = len(neighbors) if following == len(ends) else int(ends[following]) - first
        n = min(_AT_ONCE, len(neighbors) - at, end - at)
        draw.pick(counts, first + at, chunk[:n], None if rows is None else rows[:n])
        neighbors[at : at + n] = chunk[:n]
        if edge_rows is not None and rows is not None:
            edge_rows[at : at + n] = rows[:n]
        at += n


def require_caller(caller: Caller) -> None:
    """Raises `PeerLostError` if nobody waits for the answer any more."""
    if caller.is_gone():
        raise PeerLostError("the caller has left")


def _find(excluded: ExcludedEdges | None, view: GraphView, caller: Caller) -> Mapping[int, ExcludedEntries] | None:
    """As `ExcludedEdges.find`. Raises `PeerLostError` if the caller leaves meanwhile."""
    return None if excluded is None else excluded.find(view, MOST_SCANNED, partial(require_caller, caller))


def answer_among(
    view: GraphView,
    edge_type: int,
    arrays: dict[str, np.ndarray],
    limit: int | None,
    wire: np.dtype,
    most_bytes: int,
    most_rows: int,
    caller: Caller,
) -> Message:
    """The reply to a request for the edges among some nodes: of its first rows, as many as fit, and at least one. Raises
    `DataError` for a row that does not fit, and as `induce`."""
    size, rows = wire.itemsize, arrays.get("rows", np.empty(0, wire))
    arrays = arrays | {"rows": rows[: max(1, min(most_rows, most_bytes // (2 * size)))]} if rows.ndim == 1 else arrays
    scanned = within_work(view, edge_type, as_ids(arrays.get("rows")))
    fit = max(1, (most_bytes - size * len(scanned)) // (2 * size))
    most = max(1, min(int(scanned.sum()), max(_EDGES_AT_ONCE, int(scanned[:1].sum())), fit))

    def refuse(nbytes: int) -> None:
        raise DataError(
            f"induce: node {arrays['rows'][0]} (its number in the partition) has edges among these nodes that take about "
            f"{nbytes} bytes, more than a reply of this process may have ({most_bytes}). Set induced_limit, use a smaller "
            "batch_size, or raise cluster.limits.reply_size here."
        )

    with caller.working(most * _EDGE_BYTES + Among.bytes_of(view, edge_type, arrays)):
        among = Among.from_arrays(view, edge_type, arrays, limit)
        among = replace(among, rows=among.rows[: len(scanned)])
        found = induce(view, among, most=most, require_room=refuse)
        columns = {"counts": found.counts, "members": found.neighbors, "edge_rows": found.edge_rows}
        entries, body = pack({name: array.astype(wire) for name, array in columns.items() if array is not None})
        return Message({"arrays": entries}, body)


def answer_walks(
    message: Message, partition: LocalPartition, wire: np.dtype, most_bytes: int, caller: Caller
) -> Message:
    """The reply to a request for walks: of the first ones, or of the first roots, as many as fit. Raises `DataError` for what is
    no such request, and where one root does not fit."""
    view = partition.weighted(weights := DrawOptions.from_wire(message.header).weights)
    question = WalkQuestion.from_message(message.header, unpack(message), weights)
    _require_few("walk", question.excluded)
    rule, size = question.rule, wire.itemsize
    rule.require(view.src_types.tolist(), view.dst_types.tolist())
    each = (question.walks * (rule.length + 1) + 1) * size
    if each > most_bytes:
        raise DataError(
            f"walk: {question.walks} walks of {rule.length} steps take {each} bytes, more than a reply of this process may have "
            f"({most_bytes}). Use fewer or shorter walks, or raise cluster.limits.reply_size here."
        )
    steps = question.walks * rule.length
    most = max(1, min(most_bytes // each, MOST_WALKS // question.walks, STEPS_AT_ONCE // steps, len(question)))
    with caller.working(most * steps * STEP_BYTES):
        found = question.piece(0, most).answer(view, excluded=_find(question.excluded, view, caller))
        columns = {"counts": found.counts, "nodes": found.nodes, "user_ids": found.user_ids}
        entries, body = pack({name: array.astype(wire) for name, array in columns.items() if array is not None})
        return Message({"arrays": entries}, body)
