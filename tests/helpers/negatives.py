"""Negatives as their definition says, one at a time and with Python's integers."""

from __future__ import annotations

import hashlib

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def plain_mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def plain_role_key(batch_key: int, role: str) -> int:
    name = int.from_bytes(hashlib.blake2b(role.encode(), digest_size=8).digest(), "little")
    return plain_mix(batch_key ^ plain_mix(name))


def plain_stream(key: int, number: int) -> int:
    return plain_mix((key + (number + 1) * _GOLDEN) & _MASK)


def plain_draw(stream: int, i: int, n: int) -> int:
    return plain_mix((stream + (i + 1) * _GOLDEN) & _MASK) * n >> 64


def plain_trial(key: int, number: int, trial: int, num_src, num_dst) -> tuple[int, int]:
    """(source, destination) of a trial. num_src, num_dst: how many nodes, or a list of integer weights."""
    stream = plain_stream(plain_role_key(key, "negative"), number)
    pair = []
    for draw, among in ((2 * trial + 1, num_src), (2 * trial, num_dst)):
        if isinstance(among, int):
            pair.append(plain_draw(stream, draw, among))
            continue
        left, node = plain_draw(stream, draw, sum(among)), 0
        while left >= among[node]:
            left, node = left - among[node], node + 1
        pair.append(node)
    return pair[0], pair[1]


def plain_negatives(key, count, num_src, num_dst, edges, *, sources=None, strict=True, loops=False):
    """The (source, destination) of each negative, or None where no trial gives one. edges: a set of pairs.  sources: of each
    negative; None: drawn.  loops: whether a pair of equal ids may be one, for one node type; True for two."""
    found = []
    for number in range(count):
        pairs = [plain_trial(key, number, trial, num_src, num_dst) for trial in range(32 if strict else 1)]
        if sources is not None:
            pairs = [(sources[number], v) for _, v in pairs]
        good = [(u, v) for u, v in pairs if not strict or ((u, v) not in edges and (loops or u != v))]
        found.append(good[0] if good else None)
    return found
