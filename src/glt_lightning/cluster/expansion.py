"""Answers a request for neighbours in a bounded reply: counts first, then the memory, then the picks.

A reply has as many picks as fit, and their total number; the caller requests the rest. So a node of ten million neighbours
costs an owner the memory of one reply at a time, and the caller the memory of the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.data.row_draws import RowDraws
from glt_lightning.errors import DataError
from glt_lightning.ops.excluded import ExcludedEdges, is_excluded
from glt_lightning.ops.graph import GraphView
from glt_lightning.ops.induce import Among, induce
from glt_lightning.ops.picker_draw import PickerDraw
from glt_lightning.ops.sample import RowDraw
from glt_lightning.ops.trees import Trees, is_tree
from glt_lightning.options import DrawOptions
from glt_lightning.sampler.source import MOST_PAIRS
from glt_lightning.sampler.walk_question import MOST_WALKS, WalkQuestion
from glt_lightning.transport.message import Message, lay_out, layout_entries, pack, unpack

_AT_ONCE = 1 << 18  # picks between the op's int64 and the wire's int32: 2 MiB, which stay in the cache


@dataclass(frozen=True)
class Expansion:
    """A checked request. fanouts: [R].  rows: node type -> int64 [F].  first: number of picks that the caller has already.
    excluded: edges that are not there.  trees: of the rows, in a disjoint batch."""

    key: int
    hop: int
    fanouts: Sequence[int]
    rows: Mapping[int, np.ndarray]
    first: int = 0
    excluded: ExcludedEdges | None = None
    trees: Trees | None = None

    def answer(self, rows: RowDraws, wire: np.dtype, most_bytes: int) -> Message:
        """The reply, at most ``most_bytes``. Raises `DataError` if the counts alone take more, and as `RowDraw.picks`."""
        view, columns = rows.view, rows.draw.columns
        asked = [
            (r, fanout, self.rows[t])
            for r, (fanout, t) in enumerate(zip(self.fanouts, view.dst_types.tolist(), strict=True))
            if fanout and t in self.rows
        ]
        num_counts = sum(len(gids) for _, _, gids in asked)
        if num_counts * 8 > most_bytes:
            raise DataError(
                f"expand: the counts of {num_counts} rows take {num_counts * 8} bytes, more than a reply of this process may "
                f"have ({most_bytes}). Use a smaller batch_size, or raise cluster.limits.reply_size here."
            )
        without = {} if self.excluded is None else self.excluded.find(view)
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
            _fill(draw, count, begin, arrays[f"{draw.edge_type}/neighbors"], arrays.get(f"{draw.edge_type}/edge_rows"))
        return Message({"arrays": layout_entries(layout), "total": total}, body)


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


def _fill(
    draw: RowDraw | PickerDraw, counts: np.ndarray, first: int, neighbors: np.ndarray, edge_rows: np.ndarray | None
) -> None:
    """Writes the picks from ``first`` on into arrays of the wire's dtype."""
    chunk = np.empty(min(_AT_ONCE, len(neighbors)), dtype=np.int64)
    rows = None if edge_rows is None else np.empty_like(chunk)
    for at in range(0, len(neighbors), _AT_ONCE):
        n = min(_AT_ONCE, len(neighbors) - at)
        draw.pick(counts, first + at, chunk[:n], None if rows is None else rows[:n])
        neighbors[at : at + n] = chunk[:n]
        if edge_rows is not None and rows is not None:
            edge_rows[at : at + n] = rows[:n]


def answer_among(
    view: GraphView,
    edge_type: int,
    arrays: Mapping[str, np.ndarray],
    limit: int | None,
    wire: np.dtype,
    most_bytes: int,
    most_rows: int,
) -> Message:
    """The reply to a request for the edges among some nodes: of its first rows, as many as fit, and at least one."""
    among, size = Among.from_arrays(view, edge_type, arrays, limit), wire.itemsize
    rows = among.rows[: max(1, min(most_rows, most_bytes // (2 * size)))]
    found = induce(view, replace(among, rows=rows), most=max(1, (most_bytes - size * len(rows)) // (2 * size)))
    columns = {"counts": found.counts, "members": found.neighbors, "edge_rows": found.edge_rows}
    entries, body = pack({name: array.astype(wire) for name, array in columns.items() if array is not None})
    return Message({"arrays": entries}, body)


def answer_walks(message: Message, partition: LocalPartition, wire: np.dtype, most_bytes: int) -> Message:
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
    found = question.piece(0, max(1, min(most_bytes // each, MOST_WALKS // question.walks))).answer(view)
    columns = {"counts": found.counts, "nodes": found.nodes, "user_ids": found.user_ids}
    entries, body = pack({name: array.astype(wire) for name, array in columns.items() if array is not None})
    return Message({"arrays": entries}, body)
