"""The ranks that train together, as one of them sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Exchange = Callable[[str], list[str]]  # gives every rank the texts of all ranks, in rank order; a collective call
GatherCounts = Callable[[int], list[int]]  # the same for one number of each rank


def alone(text: str) -> list[str]:
    """The `Exchange` of a process that shares nothing with others."""
    return [text]


@dataclass(frozen=True)
class Ranks:
    """This process among the ranks that train together. Whoever has to agree with the other ranks is given this object.

    rank, world_size: the number of this process, and how many there are.
    exchange: gives every rank the texts of all ranks. By default a rank hears of itself alone, and shares no memory with
    the other ranks of its host.
    gather_counts: gives every rank the number of each rank; None where ranks need not agree on numbers.
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
