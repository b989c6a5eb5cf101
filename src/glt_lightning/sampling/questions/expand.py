"""The question for neighbours of rows, answered in a bounded reply: counts first, then the memory, then the picks.

A reply has as many picks as fit, and their total number; the caller requests the rest. So a node of ten million
neighbours costs an owner the memory of one reply at a time, and the caller the memory of the result.

The memory for a request is known from the degrees of its rows before the work begins. Between pieces of `MOST_SCANNED`
entries the owner checks that its caller is still there.

**expand** samples the neighbours of rows.

The request:

* ``key``, ``hop``: batch key (below 2^64) and hop (0 to 15) of the draws
* ``fanouts``: one integer per edge type, at most 65536: 0 leaves it out, -1 takes all
* ``replace``, ``with_edge``: booleans: draws are with replacement; the reply has edge rows
* ``timed``, optional boolean: entries with times are drawn between the bounds of their tree; ``last``: the latest of
  them
* ``labor``, optional boolean: rows are drawn by LABOR
* ``picker``, optional: a user's picker draws: an object of texts, ``class_path``, ``arguments`` (JSON), ``version`` and
  ``probe``, a hash of its picks from made-up rows. All must be equal to those of the owner's own picker; nothing is
  imported. Picks of a row are then in the picker's order
* ``first``, optional: number of picks that the caller has already
* array ``"<t>"``: ids [F] of destination nodes of type *t*
* array ``"tree/<t>"``, in a disjoint batch: int32 [F], the trees of these nodes; a node may come once for each tree
* arrays ``since``, ``until``, with ``timed``: int64 [number of trees], the bounds of each tree, both included
* array ``"excluded/<r>"``, optional: edges to leave out: ids [2, X] of destinations, which the owner has, and sources,
  ascending in this order, each pair once; at most 65,536 in a request

The reply, for each edge type *r* that was expanded:

* ``total``: picks of all rows of all edge types
* array ``"<r>/counts"``: [F], picks of each row; only with ``first`` 0
* array ``"<r>/neighbors"``: ids [n]
* array ``"<r>/edge_rows"``: [n], with ``with_edge``

All picks are in one order: edge types ascending, rows as in the request, a row's picks ascending. A reply has the picks
from ``first`` on that fit into the owner's ``cluster.limits.reply_size``, at least one; the caller repeats the request
with the number of its picks until it has ``total``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np

from glt_lightning.base import MAX_FANOUT, DataError, DrawOptions, GLTError, read_integer
from glt_lightning.graph import RowDraws
from glt_lightning.kernels import ExcludedEdges, GraphView, PickerDraw, Picks, Route, RowDraw, Trees
from glt_lightning.sampling.source import (
    Arrays,
    InconsistentReplyError,
    OwnedParts,
    OwnerQuestion,
    Received,
    Reply,
    Work,
    ends_of_work,
    find_excluded,
    require_few,
    require_ids,
)

_MOST_SEEN = 2 << 30  # bytes of the rows of a request that a picker gets
_PICKER_BYTES = 64  # of memory for each entry that a picker gets: positions, edge rows, times, and its results
_COUNT_BYTES = 48  # of memory for each row: its id, its count and its degree, and their running sums
_ROWS_AT_ONCE = 1 << 16  # rows whose degrees are read at once, before memory is reserved: 3 MiB
# picks that are narrowed at once from the op's int64 to the wire's int32: 2 MiB stay in the CPU's cache
_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class Expand(OwnerQuestion[Mapping[int, Picks]]):
    """Frontier rows of one hop, all of one owner. The answer has the picks of each edge type.

    key: 64-bit key of the batch.  fanouts: [R], -1 all, 0 none.  rows: node type -> gids in frontier order.
    require_room: called with the bytes of the answer before memory is taken for more than one reply; it may raise.
    excluded: edges of these rows to leave out.  trees: the trees of these rows, in a disjoint batch.
    first: number of picks that the caller has already.
    """

    op: ClassVar[str] = "expand"

    key: int
    hop: int
    fanouts: tuple[int, ...]
    draw: DrawOptions
    rows: Mapping[int, np.ndarray]
    require_room: Callable[[int], None] = lambda nbytes: None
    excluded: ExcludedEdges | None = None
    trees: Trees | None = None
    first: int = 0

    def of_owner(
        self, owner: int, routes: Mapping[int, Route], excluded: ExcludedEdges | None, view: GraphView
    ) -> Expand | None:
        """Returns the question for the rows of one owner; None if it has none. routes: the routes of the frontier, by node type;
        ``trees`` has the trees of the whole frontier.  excluded: edges in the rows of this owner."""
        wanted = {t for t, fanout in zip(view.dst_types.tolist(), self.fanouts, strict=True) if fanout}
        rows = {t: ids for t in wanted if len(ids := routes[t].of(owner))}
        if not rows:
            return None
        trees = trees_of(self.trees, owner, {t: routes[t] for t in rows})
        return replace(self, rows=rows, excluded=excluded, trees=trees)

    def to_wire(self) -> tuple[dict[str, Any], Arrays]:
        header = {"key": self.key, "hop": self.hop, "fanouts": list(self.fanouts), **self.draw.to_wire()}
        header |= {"first": self.first} if self.first else {}
        arrays = {str(t): ids for t, ids in self.rows.items()}
        for further in (self.excluded, self.trees):
            arrays |= {} if further is None else further.to_arrays()
        return header, arrays

    def conversation(self) -> Generator[Self, Received, Mapping[int, Picks]]:
        """Receives picks in one reply, or in several if the answer exceeds the owner's limit of a reply."""
        try:
            return (yield from self._stitched((yield self)))
        except GLTError:
            raise
        except (KeyError, ValueError) as error:
            raise InconsistentReplyError(f"a request for neighbours is inconsistent: {error!r:.200}.") from None

    def _stitched(self, reply: Received) -> Generator[Self, Received, Mapping[int, Picks]]:
        piece, total = reply.arrays, reply.header["total"]
        edge_types = sorted({int(name.partition("/")[0]) for name in piece})
        counts = {r: piece[f"{r}/counts"] for r in edge_types}
        got = _num_picks(piece)
        if got == total:
            return {r: Picks(counts[r], piece[f"{r}/neighbors"], piece.get(f"{r}/edge_rows")) for r in edge_types}
        sizes = {r: int(counts[r].sum(dtype=np.int64)) for r in edge_types}
        if sum(sizes.values()) != total or any(counts[r].min(initial=0) < 0 for r in edge_types):
            raise ValueError(f"the counts add up to {sum(sizes.values())} picks, the total is {total!r}")
        lists = [name for name in piece if not name.endswith("/counts")]
        self.require_room(total * sum(piece[name].itemsize for name in lists if name.startswith(f"{edge_types[0]}/")))
        whole = {name: np.empty(sizes[int(name.partition("/")[0])], dtype=piece[name].dtype) for name in lists}
        ends = dict.fromkeys(lists, 0)
        while True:
            for name, end in ends.items():
                ends[name] = end + len(piece[name])
                whole[name][end : ends[name]] = piece[name]  # a ValueError if it is longer than its counts
            if got == total:
                break
            piece = (yield replace(self, first=got)).arrays
            if not _num_picks(piece):
                raise ValueError(f"no picks after {got} of {total}")
            got += _num_picks(piece)
        if any(end != len(whole[name]) for name, end in ends.items()):
            raise ValueError(f"lists have {ends} picks, counts say {sizes}")
        return {r: Picks(counts[r], whole[f"{r}/neighbors"], whole.get(f"{r}/edge_rows")) for r in edge_types}

    @classmethod
    def work(cls, header: Mapping[str, Any], arrays: Arrays, parts: OwnedParts) -> Work:
        """Checks a request; its reply has all counts, and the picks from ``first`` on that fit. The work raises as
        `RowDraw.picks`."""
        draw = DrawOptions.from_wire(header)
        draws = parts.draws.of(draw)
        view = draws.view
        fanouts = _integers(header, "fanouts", view.num_edge_types, -1, MAX_FANOUT)
        key, hop = read_integer(header, "key", 0, 2**64 - 1), read_integer(header, "hop", 0, 15)
        excluded, trees = ExcludedEdges.from_arrays(arrays), Trees.from_arrays(arrays)
        require_few("expand", excluded)
        named = {
            name: ids for name, ids in arrays.items() if not ExcludedEdges.is_array(name) and not Trees.is_array(name)
        }
        rows = {_index(name, view.num_types): require_ids(ids) for name, ids in named.items()}
        first = read_integer({"first": 0} | dict(header), "first", 0, 2**62)
        asked = cls(key, hop, fanouts, draw, rows, excluded=excluded, trees=trees, first=first)
        return _Expansion(asked, draws, parts.wire, parts.most_bytes).work()


@dataclass(frozen=True)
class _Expansion:
    """A checked request, and the work for it. most_bytes: limit of the reply."""

    asked: Expand
    draws: RowDraws
    wire: np.dtype
    most_bytes: int

    def work(self) -> Work:
        """Returns the work. Raises `DataError` if the counts alone exceed a reply, or the rows for a picker exceed
        `_MOST_SEEN` bytes."""
        view, draw, asked = self.draws.view, self.draws.draw, self.asked
        rows = [
            (r, fanout, asked.rows[t])
            for r, (fanout, t) in enumerate(zip(asked.fanouts, view.dst_types.tolist(), strict=True))
            if fanout and t in asked.rows
        ]
        num_counts = sum(len(ids) for _, _, ids in rows)
        if num_counts * 8 > self.most_bytes:
            raise DataError(
                f"expand: the counts of {num_counts} rows take {num_counts * 8} bytes, more than a reply of this process may "
                f"have ({self.most_bytes}). Use a smaller batch_size, or raise cluster.limits.reply_size here."
            )
        entries, picks = _most_picks(view, rows, draw.replace)
        seen = entries * _PICKER_BYTES if self.draws.pickable is not None else 0
        if seen > _MOST_SEEN:
            raise DataError(
                f"expand: the picker would see all {entries:,} neighbours of the {num_counts:,} rows of a request; at most "
                f"{_MOST_SEEN // _PICKER_BYTES:,} are allowed. Use a smaller batch_size, or smaller num_neighbors of the hops "
                "before this one; if a single row has more, leave out sampling.picker."
            )
        nbytes = min(self.most_bytes, picks * self.wire.itemsize * len(draw.columns))
        return Work(seen + _COUNT_BYTES * num_counts + nbytes, partial(self._reply, rows))

    def _reply(self, rows: Sequence[tuple[int, int, np.ndarray]], look: Callable[[], None]) -> Reply:
        """Counts the picks of all rows, and returns the reply that draws those which fit. rows: (edge type, fan-out, ids)."""
        view, columns, asked, item = self.draws.view, self.draws.draw.columns, self.asked, self.wire.itemsize
        given = [(r, fanout, ids.astype(np.int64)) for r, fanout, ids in rows]
        whole_rows = self.draws.pickable is not None or self.draws.draw.labor  # drawing reads them from end to end
        scanned = {r: view.degrees(r, gids) for r, _, gids in given} if whole_rows else {}
        without = find_excluded(asked.excluded, view, look) or {}
        draws = [
            self.draws.of(r, gids, fanout, asked.key, asked.hop, without.get(r), asked.trees)
            for r, fanout, gids in given
        ]
        counts = [draw.count() for draw in draws]
        ends = np.cumsum([0, *(c.sum() for c in counts)])
        total, first = int(ends[-1]), asked.first
        if not 0 <= first <= total:
            raise DataError(f"expand: first: expected at most {total}, the number of picks; got {first}.")
        left = self.most_bytes - (0 if first else sum(map(len, counts)) * item)
        last = min(total, first + max(1, left // (item * len(columns))))
        begins = np.clip(first, ends[:-1], ends[1:]) - ends[:-1]
        sizes = np.clip(last, ends[:-1], ends[1:]) - ends[:-1] - begins
        shapes: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        for draw, size in zip(draws, sizes.tolist(), strict=True):
            if not first:
                shapes[f"{draw.edge_type}/counts"] = (self.wire, (len(draw.gids),))
            for name in columns:
                shapes[f"{draw.edge_type}/{name}"] = (self.wire, (size,))

        def write(out: Arrays) -> None:
            for draw, count, begin in zip(draws, counts, begins.tolist(), strict=True):
                r = draw.edge_type
                if not first:
                    out[f"{r}/counts"][...] = count
                pauses = ends_of_work(count, scanned.get(r))
                _fill(draw, count, begin, out[f"{r}/neighbors"], out.get(f"{r}/edge_rows"), pauses, look)

        return Reply(shapes, write, {"total": total})


def trees_of(trees: Trees | None, owner: int, routes: Mapping[int, Route]) -> Trees | None:
    """Returns the trees of the rows that an owner has. routes: those of the frontier, by node type; the last owner may be the
    cache."""
    if trees is None:
        return None
    return trees.of_rows({t: trees.of[t][route.owner == owner] for t, route in routes.items()})


def _num_picks(piece: Arrays) -> int:
    return sum(len(array) for name, array in piece.items() if name.endswith("/neighbors"))


def _most_picks(view: GraphView, asked: Sequence[tuple[int, int, np.ndarray]], replace: bool) -> tuple[int, int]:
    """Returns the number of entries of all rows, and the largest possible number of picks from them, by the degrees of the
    rows. asked: (edge type, fan-out, ids)."""
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


def _fill(
    draw: RowDraw | PickerDraw,
    counts: np.ndarray,
    first: int,
    neighbors: np.ndarray,
    edge_rows: np.ndarray | None,
    ends: np.ndarray,
    look: Callable[[], None],
) -> None:
    """Writes the picks from ``first`` on into arrays of the wire's dtype. ends: the result of `ends_of_work`."""
    chunk = np.empty(min(_AT_ONCE, len(neighbors)), dtype=np.int64)
    rows = None if edge_rows is None else np.empty_like(chunk)
    at = 0
    while at < len(neighbors):
        look()
        following = int(np.searchsorted(ends, first + at, side="right"))
        end = len(neighbors) if following == len(ends) else int(ends[following]) - first
        n = min(_AT_ONCE, len(neighbors) - at, end - at)
        draw.pick(counts, first + at, chunk[:n], None if rows is None else rows[:n])
        neighbors[at : at + n] = chunk[:n]
        if edge_rows is not None and rows is not None:
            edge_rows[at : at + n] = rows[:n]
        at += n


def _index(name: str, count: int) -> int:
    if not name.isdecimal() or int(name) >= count:
        raise DataError(f"rows: expected arrays named by node types 0 to {count - 1}, got {name!r:.50}.")
    return int(name)


def _integers(header: Mapping[str, Any], name: str, count: int, least: int, most: int) -> tuple[int, ...]:
    values = header.get(name)
    if not isinstance(values, list) or len(values) != count:
        raise DataError(f"{name}: expected {count} integers, got {values!r:.100}.")
    return tuple(read_integer({name: value}, name, least, most) for value in values)
