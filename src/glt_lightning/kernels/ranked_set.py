"""A set of ids with the rank of each member, in little more than one bit per id of the range."""

from __future__ import annotations

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.kernels.native import BAD_ID, I64, P, Signatures, bind, call, check

_SIGNATURES: Signatures = {
    "glt_rank_words": [I64],
    "glt_rank_build": [P, I64, I64, I64, P, P],
    "glt_rank_find": [P, I64, I64, P, I64, P],
}
_library = bind(_SIGNATURES, {"glt_rank_words": I64})


class RankedSet:
    """A set of ids from ``first`` to ``first + num_ids``; 32 bytes hold 192 ids of the range (1.33 bits each).

    words: uint64 [`words_for`], aligned to 32 bytes, from `build`.
    """

    def __init__(self, words: np.ndarray, first: int, num_ids: int) -> None:
        self._words, self._first, self._num_ids = words, first, num_ids

    @property
    def arguments(self) -> tuple[np.ndarray, int, int]:
        """Its words, its first id and the number of ids, for native calls."""
        return self._words, self._first, self._num_ids

    @staticmethod
    def words_for(num_ids: int) -> int:
        return int(_library().glt_rank_words(num_ids))

    @classmethod
    def build(cls, members: np.ndarray, first: int, num_ids: int, words: np.ndarray) -> RankedSet:
        """Builds a set into ``words``. members: int64 [n], ascending, each once. Raises `DataError` for others."""
        members = np.ascontiguousarray(members, dtype=np.int64)
        status, detail = call(_library().glt_rank_build, members, len(members), first, num_ids, words)
        if status == BAD_ID:
            raise DataError(
                f"members: expected ascending ids from {first} to {first + num_ids - 1}, each once; got {detail[1]} at "
                f"position {detail[0]}."
            )
        check(status, detail, "rank")
        return cls(words, first, num_ids)

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Returns int32 [n]: the rank of each of ``ids`` (int64 [n]), the number of members below it; -1 for an id that is no
        member."""
        rank = np.empty(len(ids), dtype=np.int32)
        _library().glt_rank_find(
            self._words.ctypes.data, self._first, self._num_ids, ids.ctypes.data, len(ids), rank.ctypes.data
        )
        return rank
