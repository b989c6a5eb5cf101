"""Picks of several owners put together on a device, as the host does it row by row."""

import numpy as np
import pytest
import torch

from glt_lightning.kernels import Piece
from glt_lightning.kernels.cuda.merge import RemoteSplit, merge


def piece_of(rows, counts, rng, with_edge, spare):
    """Random picks with room for ``spare`` entries more, in which there is anything."""
    total = int(counts.sum())
    neighbors, edges = (rng.integers(0, 1000, total + spare) for _ in range(2))
    anything = rng.integers(-(2**60), 2**60, spare)
    row = np.concatenate([np.repeat(np.arange(len(rows)), counts), anything])
    tensors = [torch.from_numpy(a) for a in (rows, counts, neighbors, row, edges)]
    return Piece(*tensors[:4], tensors[4] if with_edge else None)


def row_by_row(num_rows, pieces):
    """(neighbor, row, edge) of each entry."""
    of_row = [[] for _ in range(num_rows)]
    for piece in pieces:
        entries = iter(range(len(piece.neighbors)))
        for row, count in zip(piece.rows.tolist(), piece.counts.tolist(), strict=True):
            for _ in range(count):
                e = next(entries)
                edge = None if piece.edges is None else int(piece.edges[e])
                of_row[row].append((int(piece.neighbors[e]), row, edge))
    return of_row


@pytest.mark.parametrize("seed", range(40))
def test_picks_come_in_the_order_of_the_frontier(seed):
    rng = np.random.default_rng(seed)
    num_rows, pieces = int(rng.integers(0, 30)), int(rng.integers(1, 4))
    with_edge, of = bool(rng.integers(2)), rng.integers(0, pieces + 1, num_rows)  # some rows are of no piece
    made = []
    for p in range(pieces):
        rows = rng.permutation(np.flatnonzero(of == p))
        spare = int(rng.integers(0, 9)) if len(rows) else 0
        made.append(piece_of(rows, rng.integers(0, 6, len(rows)), rng, with_edge, spare))
    merged, expected = merge(num_rows, made), row_by_row(num_rows, made)
    total = int(merged.total)
    assert merged.offsets.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
    assert len(merged.neighbors) == sum(len(piece.neighbors) for piece in made) >= total
    edges = [None] * total if merged.edges is None else merged.edges[:total].tolist()
    found = list(zip(merged.neighbors[:total].tolist(), merged.row[:total].tolist(), edges, strict=True))
    assert found == [entry for row in expected for entry in row]
    assert (merged.edges is not None) == with_edge


@pytest.mark.parametrize("seed", range(20))
def test_remote_nodes_first(seed):
    rng = np.random.default_rng(seed)
    parts = int(rng.integers(1, 6))
    bounds = np.concatenate([[50], 50 + np.sort(rng.integers(0, 100, parts - 1)), [150]])  # some parts have none
    elsewhere = rng.integers(0, 2, parts).astype(bool)
    split = RemoteSplit(torch.from_numpy(bounds[1:-1]), torch.from_numpy(elsewhere))
    gids = rng.integers(50, 150, int(rng.integers(0, 40)))
    given = int(rng.integers(0, len(gids) + 1))
    foreign = [any(elsewhere[p] and bounds[p] <= gid < bounds[p + 1] for p in range(parts)) for gid in gids[:given]]
    gids[given:] = rng.integers(-(2**60), 2**60, len(gids) - given)  # anything
    order, number = split(torch.from_numpy(gids), torch.tensor(given))
    assert number.tolist() == [sum(foreign)]
    expected = [*np.flatnonzero(foreign), *np.flatnonzero(~np.array(foreign, dtype=bool)), *range(given, len(gids))]
    assert order.tolist() == expected
