"""The edges of a loader, to tell whether drawn pairs are among them: they need not be stored in the graph."""

from __future__ import annotations

import numpy as np

from glt_lightning.base import OptionError
from glt_lightning.kernels import mix64

_BITS_PER_EDGE = 16  # of the filter: of 16 drawn pairs that are no edges, one is searched for


class OwnEdges:
    """A set of pairs of the user's ids.

    src, dst: int64 [S], below the numbers of nodes ``counts`` (of sources, of destinations). Pairs are kept as sorted 64-bit
    keys, and before the search among these a filter of hashed bits answers for most pairs: a search in 10 M keys misses the
    caches of a CPU about 20 times, the filter once.

    Raises `OptionError` for node types whose pairs do not fit 64 bits.
    """

    def __init__(self, src: np.ndarray, dst: np.ndarray, counts: tuple[int, int], where: str) -> None:
        if counts[0] * counts[1] >= 1 << 64:
            raise OptionError(
                f"{where}: neg_sampling.strict: {counts[0]} x {counts[1]} pairs of nodes do not fit 64 bits. Set it to false."
            )
        self._num_dst = np.uint64(counts[1])
        self._keys = np.unique(self._key(src, dst))
        self._shift = np.uint64(64 - max(3, (_BITS_PER_EDGE * len(self._keys)).bit_length()))
        flags = np.zeros(1 << (64 - int(self._shift)), dtype=bool)
        flags[mix64(self._keys) >> self._shift] = True
        self._filter = np.packbits(flags, bitorder="little")

    def _key(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        return src.astype(np.uint64) * self._num_dst + dst.astype(np.uint64)

    def contains(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """int64 [n]: the positions in ``src`` and ``dst``, int64 arrays [m], of pairs that are in the set; ascending."""
        keys = self._key(src, dst)
        bits = mix64(keys) >> self._shift
        likely = self._filter[bits >> np.uint64(3)] >> (bits & np.uint64(7)).astype(np.uint8) & 1
        some = np.flatnonzero(likely)
        if not len(some):
            return some
        at = np.minimum(np.searchsorted(self._keys, keys[some]), len(self._keys) - 1)
        found: np.ndarray = some[self._keys[at] == keys[some]]
        return found
