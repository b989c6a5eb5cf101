"""Random walks in plain Python, one at a time. Slow, short and normative: the kernel must give exactly these results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

_GOLDEN, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1
_RESTARTS = 1 << 31

# Of each node the edges into it in canonical order: (source, weight, 1 where all weigh the same).
Rows = Mapping[int, Sequence[tuple[int, int]]]


def walk_stream(key: int, uid: int, walk: int, tree: int | None = None) -> int:
    """The stream of draws of a walk of a root. key: of the hop.  uid: the root's user id.  tree: the root's, where batches are
    disjoint."""
    for part in ([] if tree is None else [tree]) + [walk]:
        key = _mix(key ^ _mix(part + 1))
    return _mix(key + uid * _GOLDEN)


def random_walk(
    metapath: Sequence[Rows], root: int, stream: int, length: int, restart: int = 0, ends: bool = False
) -> list[int]:
    """Where each of ``length`` steps leads, by user id; -1 behind the end. Step j goes to the source of one of the edges of
    ``metapath[j % len(metapath)]`` into the node, by draw j. restart, ends: as of `ops.walks.WalkRule`."""
    at, trace = root, [-1] * length
    for step in range(length):
        if step and step % len(metapath) == 0 and _bits(stream, _RESTARTS + step) >> 32 < restart:
            if ends:
                break
            at = root
        row = metapath[step % len(metapath)][at]
        mass = _bits(stream, step) * sum(weight for _, weight in row) >> 64
        for source, weight in row:
            if mass < weight:
                at = trace[step] = source
                break
            mass -= weight
        else:
            break
    return trace


def most_visited(traces: Sequence[Sequence[int]], every: int, most: int, root: int | None) -> list[tuple[int, int]]:
    """(node, visits) of the nodes that the walks of a root visit most often at the ends of every ``every`` steps; of equally many
    the first visited first. most: -1, all.  root: is not counted; None: it is."""
    visits = Counter(node for trace in traces for node in trace[every - 1 :: every] if node >= 0 and node != root)
    return visits.most_common(None if most < 0 else most)  # equal ones in the order in which they were first counted


def _bits(stream: int, number: int) -> int:
    return _mix(stream + (number + 1) * _GOLDEN)


def _mix(value: int) -> int:
    z = value & _MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)
