"""Groups ids by their owners, for requests, and computes the position of each id's answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.kernels.native import BAD_ID, call, check, library


@dataclass(frozen=True)
class Route:
    """The owners of n ids. If some are cached, the cache counts as one more owner, after the last.

    owner: int32 [n].  grouped: int32 or int64 [n], the ids owner after owner, in their order; those of owner o are
    ``grouped[begin[o]:begin[o + 1]]``; of the cache, the ranks in it.  place: int64 [n], the id itself where owner 0 has
    it, else ``first[o]`` plus the position in its group, or plus the rank in the cache.
    """

    owner: np.ndarray
    grouped: np.ndarray
    begin: list[int]
    place: np.ndarray
    first: np.ndarray

    def of(self, owner: int) -> np.ndarray:
        """The ids of one owner, in their order."""
        return self.grouped[self.begin[owner] : self.begin[owner + 1]]


class Router:
    """Finds the owners of ids.

    bounds: int64 [P + 1], first id of each part.  owner_of_part: int32 [P], 0 for parts that are mapped here.
    wire: dtype of grouped ids, int32 or int64.
    """

    def __init__(self, bounds: np.ndarray, owner_of_part: np.ndarray, num_owners: int, wire: np.dtype) -> None:
        self.bounds = np.ascontiguousarray(bounds, dtype=np.int64)
        self._owner_of_part = np.ascontiguousarray(owner_of_part, dtype=np.int32)
        self.num_owners, self._wire = num_owners, np.dtype(wire)

    def __call__(self, ids: np.ndarray, first: np.ndarray, cached: np.ndarray | None = None) -> Route:
        """ids: int64 [n].  first: int64 [O], where each owner's answers begin.  cached: int32 [n], the rank in a cache of
        those that are in it, -1 for other ids; then ``first`` has one entry more, where the rows of the cache begin.

        Raises `DataError` for an id outside the graph.
        """
        n, owners = len(ids), self.num_owners + (cached is not None)
        owner, begin = np.empty(n, dtype=np.int32), np.empty(owners + 1, dtype=np.int64)
        grouped, place = np.empty(n, dtype=self._wire), np.empty(n, dtype=np.int64)
        status, detail = call(
            library().glt_route,
            ids,
            n,
            self.bounds,
            self._owner_of_part,
            len(self._owner_of_part),
            owners,
            first,
            cached,
            self._wire.itemsize,
            owner,
            begin,
            grouped,
            place,
        )
        if status == BAD_ID:
            raise DataError(f"id {detail[1]} at position {detail[0]} is not in the graph.")
        check(status, detail, "route")
        return Route(owner, grouped, begin.tolist(), place, first)
