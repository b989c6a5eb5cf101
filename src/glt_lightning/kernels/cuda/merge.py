"""Separates local and remote rows on a device, and stitches their picks together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """Picks for some rows of a frontier. All tensors are int64, on the device.

    rows: [n] positions in the frontier; None: the whole frontier.  counts: [n].  neighbors: [capacity], row after row, of which
    the sum of the counts is valid; 0 without rows.  row: [capacity], for each entry its number among ``rows``.  edges:
    [capacity], values that are carried along, or None.  offsets: [n + 1], the sums of the counts so far, if known.
    """

    rows: Tensor | None
    counts: Tensor
    neighbors: Tensor
    row: Tensor
    edges: Tensor | None = None
    offsets: Tensor | None = None

    @property
    def begins(self) -> Tensor:
        """The position of each row's first entry, and the number of entries, [n + 1]."""
        return _offsets(self.counts) if self.offsets is None else self.offsets


@dataclass(frozen=True)
class Merged:
    """Picks in the order of the frontier. offsets: int64 [F + 1], the position of each row's first entry, and the total.

    neighbors, row (position in the frontier), edges: int64 [capacity], of which the first ``total`` are written.
    """

    offsets: Tensor
    neighbors: Tensor
    row: Tensor
    edges: Tensor | None

    @property
    def total(self) -> Tensor:
        """Number of all entries, int64 [1]."""
        return self.offsets[-1:]


def merge(num_rows: int, pieces: Sequence[Piece]) -> Merged:
    """Merges picks of different rows in the order of the frontier, in which `kernels.routing.BatchBuilder` adds them. Does not
    wait for the device.

    Rows of no piece have no picks.
    """
    first = pieces[0]
    if first.rows is None:
        return Merged(first.begins, first.neighbors, first.row, first.edges)
    counts = first.counts.new_zeros(num_rows)
    placed = [(piece.rows, piece) for piece in pieces if piece.rows is not None]
    for rows, piece in placed:
        counts.index_copy_(0, rows, piece.counts)
    offsets = _offsets(counts)
    room = sum(len(piece.neighbors) for piece in pieces)
    # one more place: for entries behind those that a piece has
    neighbors, row = (counts.new_empty(room + 1) for _ in range(2))
    edges = None if first.edges is None else counts.new_empty(room + 1)
    for rows, piece in placed:
        entry = torch.arange(len(piece.neighbors), device=counts.device)
        own = piece.begins
        number = piece.row.clamp(0, max(0, len(rows) - 1))  # there is anything behind the last entry
        shift = offsets.index_select(0, rows) - own[:-1]
        to = torch.where(entry < own[-1], entry + shift.index_select(0, number), room)
        neighbors.index_copy_(0, to, piece.neighbors)
        row.index_copy_(0, to, rows.index_select(0, number))
        if edges is not None and piece.edges is not None:
            edges.index_copy_(0, to, piece.edges)
    return Merged(offsets, neighbors[:room], row[:room], None if edges is None else edges[:room])


def _offsets(counts: Tensor) -> Tensor:
    out = counts.new_zeros(len(counts) + 1)
    torch.cumsum(counts, 0, out=out[1:])
    return out


class RemoteSplit:
    """Finds the nodes of one type, or edges of one edge type, that lie in remote parts.

    inner_bounds: int64 [P - 1], first gid (or edge row) of each part but the first.  is_remote: bool [P].
    """

    def __init__(self, inner_bounds: Tensor, is_remote: Tensor) -> None:
        self._inner_bounds, self._is_remote = inner_bounds, is_remote

    def __call__(self, gids: Tensor, count: Tensor | int) -> tuple[Tensor, Tensor]:
        """Sorts the positions of ``gids`` (int64 [n], of which the first ``count`` are valid): remote nodes, local nodes, then
        invalid ones, each in order. Returns the positions, and the number of remote nodes, int64 [1]. Does not wait."""
        given = torch.arange(len(gids), device=gids.device) < count
        part = torch.searchsorted(self._inner_bounds, gids, right=True)
        remote = self._is_remote.index_select(0, part) & given
        kind = given.to(torch.uint8) + remote
        return torch.argsort(kind, descending=True, stable=True), remote.sum().reshape(1)
