"""The hash of all keyed draws, over arrays. The native twin is ``cuda/random.h``, the reference is in ``tests/reference``."""

from __future__ import annotations

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


def mix64(values: np.ndarray) -> np.ndarray:
    """Applies the finaliser of SplitMix64, a bijection, to uint64 [n]."""
    z = values.astype(np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def keyed(key: int | np.uint64 | np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Returns uint64: 64 random bits for each of ``numbers``, integers from 0, by a key: the streams of a key's draws, or the
    draws of streams. key, numbers: broadcast."""
    return mix64(np.asarray(key, np.uint64) + (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN))


def hop_key(batch_key: int, hop: int, type_key: int) -> int:
    """Returns the key of the draws of a hop along an edge type."""
    first = np.array([batch_key & _MASK, hop + 1], dtype=np.uint64)
    return int(mix64(mix64(first[:1] ^ mix64(first[1:])) ^ np.uint64(type_key))[0])


def row_streams(
    batch_key: int, hop: int, edge_type_key: int, user_ids: np.ndarray, trees: np.ndarray | None = None
) -> np.ndarray:
    """Returns uint64 [F]: the stream of draws of each row. trees: int [F], the trees of the rows in a disjoint batch."""
    key = np.array([hop_key(batch_key, hop, edge_type_key)], dtype=np.uint64)
    if trees is not None:
        key = mix64(key ^ mix64(trees.astype(np.uint64) + np.uint64(1)))
    return mix64(key + user_ids.astype(np.int64).view(np.uint64) * np.uint64(GOLDEN))


def draw(streams: np.ndarray, i: int, n: np.ndarray) -> np.ndarray:
    """Returns int64 [F]: the i-th draw of each stream, uniform in [0, n): the high half of the product of 64 random bits and n <
    2^31."""
    bits = mix64(streams + np.uint64((i + 1) * GOLDEN & _MASK))
    n = n.astype(np.uint64)
    found: np.ndarray = ((bits >> _HALF) * n + ((bits & _LOW) * n >> _HALF)) >> _HALF
    return found.view(np.int64)
