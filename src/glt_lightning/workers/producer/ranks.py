"""A rank and its means to agree with the other ranks of its job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Exchange = Callable[[str], list[str]]  # gives every rank the texts of all ranks, in rank order; a collective call
GatherCounts = Callable[[int], list[int]]  # the same for one number of each rank


def alone(text: str) -> list[str]:
    """The `Exchange` of a process without peers."""
    return [text]


@dataclass(frozen=True)
class Ranks:
    """The rank of this process and its collective calls. Components that have to agree with other ranks take this object.

    rank, world_size: the number of this process, and the number of ranks.
    exchange: returns the texts of all ranks on every rank. By default only the own text, so that nothing is shared with
    other ranks of the host.
    gather_counts: returns the numbers of all ranks on every rank; None if ranks need not agree on numbers.
    name: of this rank, for messages; no other rank has it. "": ``rank N``.

    >>> Ranks(rank=1, world_size=4).name
    'rank 1'
    """

    rank: int = 0
    world_size: int = 1
    exchange: Exchange = alone
    gather_counts: GatherCounts | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", f"rank {self.rank}")
