"""Each native op of assignment in plain torch, as `tests.reference.ops`."""

from __future__ import annotations

import torch
from torch import Tensor


def propagate_labels(
    indptr: Tensor,
    neighbors: Tensor,
    first: int,
    labels: Tensor,
    weights: Tensor,
    loads: Tensor,
    capacity: Tensor,
    *,
    everywhere: bool,
) -> int:
    """One pass of label propagation over the rows of the nodes from ``first`` on; returns how many nodes moved.

    A node takes the label most frequent among its neighbours of those with room; a tie goes to its own, then to the first
    in its row. It leaves a label that is over its capacity for any with room, with ``everywhere`` also for the lightest
    of all in the first constraint. Only constraints in which the node weighs something count.

    labels: int [N], -1 for none; weights: int [N, C]; loads: int [L, C]; capacity: int [C]. Changes labels and loads.
    """
    moved = 0
    for node, row in enumerate(neighbors.split(torch.diff(indptr).tolist()), first):
        own, weight = int(labels[node]), weights[node]
        room = ((loads + weight <= capacity) | (weight == 0)).all(dim=1)
        stays = own >= 0 and not bool(((loads[own] > capacity) & (weight > 0)).any())
        count: dict[int, int] = {own: 0} if stays else {}
        for label in labels[row].tolist():
            if (stays and label == own) or (label >= 0 and label != own and room[label]):
                count[label] = count.get(label, 0) + 1
        best = max(count, key=lambda label: count[label], default=-1)
        if best < 0 and everywhere:
            allowed = [label for label in room.nonzero().flatten().tolist() if label != own]
            best = min(allowed, key=lambda label: loads[label, 0], default=-1)
        if best >= 0 and best != own:
            if own >= 0:
                loads[own] -= weight
            loads[best] += weight
            labels[node] = best
            moved += 1
    return moved


def count_pairs(indptr: Tensor, neighbors: Tensor, labels: Tensor, most: int) -> tuple[dict[tuple[int, int], int], int]:
    """Number of entries with a greater neighbour by the two labels, if they differ, the lower one first: of the ``most`` pairs
    with the most entries, at a tie those of lower labels. Returns (them, ordered by the labels; the entries of the others)."""
    rows = torch.repeat_interleave(torch.arange(len(indptr) - 1), torch.diff(indptr))
    ends = torch.stack([labels[rows], labels[neighbors]], dim=1)[neighbors > rows].sort(dim=1).values
    found, counts = ends[ends[:, 0] < ends[:, 1]].unique(dim=0, return_counts=True)
    pairs = sorted(zip(map(tuple, found.tolist()), counts.tolist(), strict=True), key=lambda each: (-each[1], each[0]))
    return dict(sorted(pairs[:most])), sum(count for _, count in pairs[most:])


def spread_rows(indptr: Tensor, neighbors: Tensor, values: Tensor, out: Tensor) -> Tensor:
    """``out`` plus, for each entry of the rows, the row's values at the neighbour. int64 [rows, K] and [N, K]."""
    return out.index_add(0, neighbors, values.repeat_interleave(torch.diff(indptr), dim=0))
