"""The placement of parts: which process maps which parts of a graph."""

from __future__ import annotations


def placed_parts(slot: int, slots: int, num_parts: int) -> tuple[int, ...]:
    """The parts of one of ``slots`` hosts, ranks or servers: every ``slots``-th one from ``slot`` on; with more slots
    than parts, several slots have the same part.

    >>> [placed_parts(slot, 2, 3) for slot in range(2)]
    [(0, 2), (1,)]
    >>> [placed_parts(slot, 3, 2) for slot in range(3)]
    [(0,), (1,), (0,)]
    """
    return (slot % num_parts,) if slots > num_parts else tuple(range(slot, num_parts, slots))
