"""Owners of other parts that count what a batch asks of them: the rows, the requests and the bytes of messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.data.manifest import edge_path, node_path
from glt_lightning.data.row_draws import row_draws
from glt_lightning.ops.has_edges import has_edges
from glt_lightning.ops.induce import Among
from glt_lightning.ops.merge import Picks
from glt_lightning.ops.row_bytes import row_bytes
from glt_lightning.options import DrawOptions
from glt_lightning.report.caches import RemoteRanking
from glt_lightning.sampler.source import (
    MOST_PAIRS,
    AskedRows,
    Expand,
    Gathered,
    HasEdges,
    Induced,
    Picked,
    Walked,
    wire_dtype,
)
from glt_lightning.sampler.walk_question import WalkQuestion

_ALIGN = 64  # of arrays in a message


@dataclass
class Asked:
    """Of one batch: rows of attributes by kind, requests, and bytes of bodies there and back."""

    node_rows: int = 0
    edge_rows: int = 0
    requests: int = 0
    bytes_out: int = 0
    bytes_in: int = 0

    def add(self, requests: int, bytes_out: int, bytes_in: int) -> None:
        self.requests += requests
        self.bytes_out += bytes_out
        self.bytes_in += bytes_in

    def __add__(self, other: Asked) -> Asked:
        return Asked(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


class CountingOwners:
    """`sampler.source.RemoteRows` of the host of one part, where each part has a host of its own.

    They answer from the mapped files, so that a batch is sampled as over the network, and count what `cluster.remote_rows`
    would send (docs/wire-format.md): an answer in several replies counts as one, except questions with more than `MOST_PAIRS`
    pairs. Attributes are counted, not read.

    draw: how neighbours are drawn.  caches: by which rankings, and with what share of the nodes, rows of nodes are cached in
    further counts of the same batches.
    """

    def __init__(
        self, partition: LocalPartition, draw: DrawOptions, part: int, caches: Sequence[tuple[RemoteRanking, float]]
    ) -> None:
        self._partition, self._caches, self._draws = partition, caches, row_draws(partition, draw)
        self.num_owners = partition.manifest.num_parts
        self.owner_of_part = np.arange(self.num_owners, dtype=np.int32) + 1
        self.owner_of_part[part], self.owner_of_part[part + 1 :] = 0, self.owner_of_part[part + 1 :] - 1
        self._wire = wire_dtype(partition.manifest)
        self.begin()

    def begin(self) -> None:
        """Forgets the batch before."""
        self._same, self._gathered = Asked(), [Asked() for _ in range(1 + len(self._caches))]

    @property
    def asked(self) -> list[Asked]:
        """What the batch asked for without a cache, and with each of them."""
        return [self._same + each for each in self._gathered]

    def expand(self, owner: int, request: Expand) -> Picked:
        rows = {t: ids.astype(np.int64) for t, ids in request.rows.items()}
        view = self._draws.view
        excluded = {} if request.excluded is None else request.excluded.find(view)
        found: dict[int, Picks] = {}
        for r, (fanout, t) in enumerate(zip(request.fanouts, view.dst_types.tolist(), strict=True)):
            if fanout and t in rows:
                draw = self._draws.of(r, rows[t], fanout, request.key, request.hop, excluded.get(r), request.trees)
                counts, neighbors, edge_rows = draw.picks(request.require_room)
                edge_rows = None if edge_rows is None else edge_rows.astype(self._wire)
                found[r] = Picks(counts.astype(self._wire), neighbors.astype(self._wire), edge_rows)
        sent = [*request.rows.values()]
        for further in (request.excluded, request.trees):
            sent += [] if further is None else further.to_arrays().values()
        reply = [array for picks in found.values() for array in (picks.counts, picks.neighbors, picks.edge_rows)]
        self._same.add(1, _size(sent), _size(reply))
        return lambda: found

    def gather(self, owner: int, request: Sequence[AskedRows]) -> Gathered:
        for number, asked in enumerate(self._gathered):
            left = [(rows, self._left(rows, number)) for rows in request]
            sent, reply = 0, 0
            for rows, count in left:
                if rows.kind == "node":
                    asked.node_rows += count
                else:
                    asked.edge_rows += count
                sent += _aligned(count * rows.ids.itemsize)
                reply += sum(_aligned(count * self._width(rows, name)) for name in rows.names)
            if sent:
                asked.add(1, sent, reply)
        return _never

    def _left(self, rows: AskedRows, number: int) -> int:
        """How many of the rows are not cached."""
        if number == 0 or rows.kind != "node":
            return len(rows.ids)
        ranking, ratio = self._caches[number - 1]
        return int(np.count_nonzero(~ranking.cached(rows.type, rows.ids, ratio)))

    def _width(self, rows: AskedRows, name: str) -> int:
        path = node_path(0, rows.type, name) if rows.kind == "node" else edge_path(0, rows.type, name)
        entry = self._partition.manifest.arrays[path]
        return row_bytes(entry.dtype, entry.shape[1:])

    def has_edges(
        self, owner: int, edge_type: int, dst: np.ndarray, src: np.ndarray, weights: Sequence[str | None] = ()
    ) -> HasEdges:
        view = self._partition.weighted(tuple(weights))
        found = has_edges(view, edge_type, dst.astype(np.int64), src.astype(np.int64))
        for begin in range(0, len(dst), MOST_PAIRS):
            some = slice(begin, begin + MOST_PAIRS)
            self._same.add(1, _size([dst[some], src[some]]), _size([found[some]]))
        return lambda: found

    def induce(self, owner: int, among: Among, weights: Sequence[str | None]) -> Induced:
        raise AssertionError("predicted batches have the edges that were sampled alone")

    def walk(self, owner: int, question: WalkQuestion) -> Walked:
        raise AssertionError("predicted batches are not made of walks")


def _never() -> Sequence[Mapping[str, np.ndarray]]:
    raise AssertionError("attributes of a predicted batch are not read")


def _size(arrays: Iterable[np.ndarray | None]) -> int:
    """Bytes of the body of a message."""
    return sum(_aligned(array.nbytes) for array in arrays if array is not None)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
