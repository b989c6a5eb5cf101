"""Random walks over the stored rows of mapped parts, and the nodes that they visit most."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import c_int32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glt_lightning.base import MAX_FANOUT, DataError
from glt_lightning.kernels.excluded import ExcludedEntries, excluded_structs
from glt_lightning.kernels.graph import GraphView
from glt_lightning.kernels.mix import keyed
from glt_lightning.kernels.native import BAD_ARG, I32, I64, U64, P, Signatures, bind, call, check, pointer
from glt_lightning.kernels.routing import Picks

_SIGNATURES: Signatures = {
    "glt_walk_streams": [P, P, I64, I32, U64, P, P],
    "glt_walk": [P, P, P, P, P, P, I64, I32, P, P, P, P],
    "glt_count_visits": [P, I64, I32, I32, I32, P, I64, I32, P, P, P, P],
}
_library = bind(_SIGNATURES)

_RESTARTS = 1 << 31  # the first draw of those that decide on restarts; `kRestart` of cuda/walk.cpp
_CERTAIN = 1 << 32


class RuleStruct(ctypes.Structure):
    """``glt_walk_rule`` of ``glt/api.h``."""

    _fields_ = [
        ("edge_types", c_void_p),
        ("num_types", c_int32),
        ("length", c_int32),
        ("restart", c_uint64),
        ("ends", c_int32),
        ("reserved", c_int32),
    ]


@dataclass(frozen=True, kw_only=True)
class WalkRule:
    """The rule of walks. A step leads from a node to the source of one of the edges into it; at a node without edges, the walk
    ends.

    edge_types: the metapath, by index: step j goes along ``edge_types[j % len(edge_types)]``.  length: steps of a walk.
    restart: of 2^32, the probability that a walk returns to its root before a step that begins the metapath anew, except for
    the first step.  ends: the walk ends there instead.

    Raises `DataError` for numbers that no walk has.

    Example:
        >>> WalkRule(edge_types=(0,), length=4, restart=WalkRule.threshold(0.5))
        WalkRule(edge_types=(0,), length=4, restart=2147483648, ends=False)
    """

    # steps of all walks of one root: their results take as much memory as a row with the largest fan-out
    MOST_STEPS: ClassVar[int] = MAX_FANOUT

    edge_types: tuple[int, ...]
    length: int
    restart: int = 0
    ends: bool = False

    def __post_init__(self) -> None:
        types = all(type(r) is int and r >= 0 for r in self.edge_types)
        numbers = type(self.length) is int and type(self.restart) is int and type(self.ends) is bool
        if not self.edge_types or not types or not numbers or not 1 <= self.length <= self.MOST_STEPS:
            raise DataError(f"walk: expected edge types, and a length of 1 to {self.MOST_STEPS} steps; got {self}.")
        if not 0 <= self.restart <= _CERTAIN:
            raise DataError(f"walk: restart: expected 0 to {_CERTAIN}, got {self.restart}.")

    @staticmethod
    def threshold(probability: float) -> int:
        """Returns ``restart`` for a probability."""
        return int(probability * _CERTAIN)

    def require(self, src_types: Sequence[int], dst_types: Sequence[int]) -> None:
        """Raises `DataError` unless the graph has the edge types, and each continues at the node type to which the one before
        leads."""
        outside = [r for r in self.edge_types if r >= len(src_types)]
        if outside:
            raise DataError(f"walk: expected edge types 0 to {len(src_types) - 1}, got {outside[0]}.")
        following = self.edge_types[1:] + (self.edge_types[:1] if self.length > len(self.edge_types) else ())
        for r, then in zip(self.edge_types, following, strict=False):
            if src_types[r] != dst_types[then]:
                raise DataError(
                    f"walk: edge type {r} leads to nodes of type {src_types[r]}, and edge type {then} goes on from type "
                    f"{dst_types[then]}."
                )

    def restarts(self, streams: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Returns bool [n]: True for walks that restart before their next step. streams: uint64 [n].  step: int32 [n]."""
        begins = (step > 0) & (step % len(self.edge_types) == 0)
        bits = keyed(streams, step.astype(np.uint64) + np.uint64(_RESTARTS))
        found: np.ndarray = begins & (bits >> np.uint64(32) < np.uint64(self.restart))
        return found


class Walks:
    """The state of some walks.

    Attributes:
        roots, at: int64 [n], the first and the current node of each; -1: the walk has ended.
        streams: uint64 [n], the streams of their draws.
        step: int32 [n], the number of steps that each has taken; ``length``: it has ended.
        trace: int64 [n, length], the node of each step; -1 behind the end of a walk.
    """

    def __init__(
        self, rule: WalkRule, roots: np.ndarray, streams: np.ndarray, at: np.ndarray, step: np.ndarray
    ) -> None:
        self.rule, self.roots, self.streams = rule, roots, streams
        self.at, self.step = at, step
        self.trace = np.full((len(roots), rule.length), -1, dtype=np.int64)

    @classmethod
    def begin(
        cls, rule: WalkRule, roots: np.ndarray, uids: np.ndarray, walks: int, key: int, trees: np.ndarray | None = None
    ) -> Walks:
        """Begins ``walks`` walks at each root. roots: int64 [n].  uids: int64 [n], the user's ids of the roots, by which draws
        are keyed.  key: 64 bits, as `kernels.mix.hop_key`.  trees: int32 [n], the trees of the roots in a disjoint batch."""
        streams = np.empty(len(uids) * walks, dtype=np.uint64)
        arguments = (np.ascontiguousarray(uids), trees, len(uids), walks, key, streams)
        status, detail = call(_library().glt_walk_streams, *arguments)
        check(status, detail, "walk")
        at = np.repeat(roots, walks)
        return cls(rule, at.copy(), streams, at, np.zeros(len(at), dtype=np.int32))

    def __len__(self) -> int:
        return len(self.roots)

    def under_way(self, which: np.ndarray) -> np.ndarray:
        """Returns the walks among ``which`` that have steps to take."""
        left: np.ndarray = which[self.step[which] < self.rule.length]
        return left

    def restart(self, which: np.ndarray) -> None:
        """Returns walks that restart before their next step to their roots, or ends them."""
        if not self.rule.restart:
            return
        back = which[self.rule.restarts(self.streams[which], self.step[which])]
        if self.rule.ends:
            self.at[back], self.step[back] = -1, self.rule.length
        else:
            self.at[back] = self.roots[back]

    def advance(
        self,
        view: GraphView,
        which: np.ndarray | None = None,
        threads: int = 1,
        excluded: Mapping[int, ExcludedEntries] | None = None,
    ) -> None:
        """Takes walks further, until they end or stand at a node whose row is not mapped. which: int64 [m]; None: all.
        excluded: by edge type, entries that walks do not go along, as if they were not stored.

        Raises `DataError` for nodes that the graph does not have, or from which the metapath does not continue;
        `PartitionError` for a damaged row.
        """
        rule = self.rule
        edge_types = np.array(rule.edge_types, dtype=np.int32)
        struct = RuleStruct(edge_types.ctypes.data, len(edge_types), rule.length, rule.restart, rule.ends)
        n = len(self.roots) if which is None else len(which)
        without = excluded_structs(excluded, view.num_edge_types)
        arguments = (self.roots, self.streams, pointer(which), n, threads, self.at, self.step, self.trace)
        status, detail = call(_library().glt_walk, view.address, ctypes.addressof(struct), without, *arguments)
        if status == BAD_ARG:
            raise DataError(f"walk: expected edge types 0 to {view.num_edge_types - 1}, got {rule.edge_types}.")
        check(status, detail, "walk")

    def visits(self, walks: int, every: int, most: int, roots: np.ndarray | None = None, threads: int = 1) -> Picks:
        """Finds the nodes that the walks of each root visit most often, counted after every ``every`` steps: most visits first,
        at a tie the node visited first.

        walks: number of walks of each root.  most: nodes of a root; -1: all.  roots: int64 [n], which do not count as
        visits of their own walks; None: they do. Returns the numbers of visits as ``edge_rows``.
        """
        n, length = len(self) // walks, self.rule.length
        found = max(1, walks * (length // every))
        most = found if most < 0 else min(most, found)
        counts, (ids, visits) = np.empty(n, dtype=np.int64), np.empty((2, n, most), dtype=np.int64)
        arguments = (self.trace, n, walks, length, every, pointer(roots), most, threads, counts, ids, visits)
        status, detail = call(_library().glt_count_visits, *arguments)
        check(status, detail, "walk")
        kept = np.arange(most) < counts[:, None]
        return Picks(counts, ids[kept], visits[kept])
