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


def count_pairs(indptr: Tensor, neighbors: Tensor, first: int, labels: Tensor) -> dict[tuple[int, int], int]:
    """Number of entries by (label of the row's node, greater label of the neighbour), ordered by the labels."""
    rows = torch.repeat_interleave(torch.arange(first, first + len(indptr) - 1), torch.diff(indptr))
    pairs = torch.stack([labels[rows], labels[neighbors]], dim=1)
    found, counts = pairs[pairs[:, 0] < pairs[:, 1]].unique(dim=0, return_counts=True)
    return {(low, high): n for (low, high), n in zip(found.tolist(), counts.tolist(), strict=True)}


def count_pairs_within(
    indptr: Tensor, neighbors: Tensor, first: int, labels: Tensor, limit: int
) -> tuple[dict[tuple[int, int], int], int]:
    """`count_pairs` in a table of ``limit`` pairs, and the number of edges that it has dropped.

    Before a pair for which there is no room, all but ``limit // 2`` pairs are dropped: those with the fewest edges, and at a tie
    those of higher labels.
    """
    table: dict[tuple[int, int], int] = {}
    forgotten = 0
    for node, row in enumerate(neighbors.split(torch.diff(indptr).tolist()), first):
        for other in labels[row].tolist():
            pair = (int(labels[node]), other)
            if pair[0] >= pair[1]:
                continue
            if pair not in table and len(table) == limit:
                order = sorted(table, key=lambda each: (-table[each], each))
                forgotten += sum(table.pop(each) for each in order[limit // 2 :])
            table[pair] = table.get(pair, 0) + 1
    return table, forgotten


def spread_rows(indptr: Tensor, neighbors: Tensor, values: Tensor, out: Tensor) -> Tensor:
    """``out`` plus, for each entry of the rows, the row's values at the neighbour. int64 [rows, K] and [N, K]."""
    return out.index_add(0, neighbors, values.repeat_interleave(torch.diff(indptr), dim=0))
