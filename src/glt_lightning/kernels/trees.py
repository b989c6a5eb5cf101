"""The trees of a disjoint batch: in each tree nodes have numbers and draws of their own."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from ctypes import c_int32, c_int64, c_void_p
from dataclasses import dataclass, field, replace

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.kernels.native import pointer, pointers

_TREE = "tree/"
_TIMES = ("until", "since")


class TreesStruct(ctypes.Structure):
    """``glt_trees`` of ``glt/api.h``."""

    _fields_ = [
        ("num_trees", c_int64),
        ("of", c_void_p),
        ("since", c_void_p),
        ("until", c_void_p),
        ("last", c_int32),
        ("reserved", c_int32),
    ]
    keep: object = None  # the arrays behind the pointers


@dataclass(frozen=True)
class Trees:
    """The tree of each seed, or of each row of a frontier. A node is expanded once in each tree, with draws of its own in each.

    of: node type -> int32 [S], the trees of its seeds; several seeds may share a tree. Empty: every seed has its own, over all
    node types in their order (`for_seeds`).  until, since: int64 [number of trees], the bounds of a tree: of entries with
    times, those with since <= time <= until are drawn. None: no such bound.

    Raises:
        DataError: For arrays of another type, or bounds of different lengths.

    Example:
        >>> trees = Trees(until=np.array([7, 9, 9])).for_seeds({0: np.array([4]), 2: np.array([4, 5])})
        >>> trees.of[2], trees.num_trees
        (array([1, 2], dtype=int32), 3)
    """

    of: Mapping[int, np.ndarray] = field(default_factory=dict)
    until: np.ndarray | None = None
    since: np.ndarray | None = None

    def __post_init__(self) -> None:
        bounds = {name: getattr(self, name) for name in _TIMES if getattr(self, name) is not None}
        for name, array in {f"{_TREE}{t}": tree for t, tree in self.of.items()}.items():
            if array.ndim != 1 or array.dtype != np.int32 or array.min(initial=0) < 0:
                raise DataError(f"{name}: expected int32 [S], numbers of trees from 0; got {_shape(array)}.")
        for name, array in bounds.items():
            if array.ndim != 1 or array.dtype != np.int64:
                raise DataError(f"{name}: expected int64 [number of trees], got {_shape(array)}.")
        if len({len(array) for array in bounds.values()}) > 1:
            raise DataError(
                f"until, since: expected one of each for every tree, got {[len(a) for a in bounds.values()]}."
            )

    @property
    def num_trees(self) -> int:
        for bound in (self.until, self.since):
            if bound is not None:
                return len(bound)
        return 1 + max((int(tree.max(initial=-1)) for tree in self.of.values()), default=-1)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.to_arrays().values())

    def for_seeds(self, seeds: Mapping[int, np.ndarray]) -> Trees:
        """Returns the trees for these seeds, by node type; if ``of`` is empty, one for each. Raises `DataError` if trees and
        seeds do not fit."""
        counts = {t: len(seeds[t]) for t in sorted(seeds) if len(seeds[t])}
        trees = self
        if not self.of:
            ends = np.cumsum([0, *counts.values()]).tolist()
            each = zip(counts, ends[:-1], ends[1:], strict=True)
            trees = self.of_rows({t: np.arange(begin, end, dtype=np.int32) for t, begin, end in each})
        given = {t: len(trees.of[t]) for t in sorted(trees.of) if len(trees.of[t])}
        if given != counts:
            raise DataError(f"trees: expected one for each seed, by node type {counts}; got {given}.")
        most = 1 + max((int(tree.max(initial=-1)) for tree in trees.of.values()), default=-1)
        if trees.num_trees < most or (not self.of and trees.num_trees > most):
            raise DataError(f"until, since: expected one for each of {most} trees, got {trees.num_trees}.")
        return trees

    def of_rows(self, of: Mapping[int, np.ndarray]) -> Trees:
        """Returns the same trees for other rows."""
        return replace(self, of=of)

    def struct(self, rows: Sequence[np.ndarray | None], last: bool = False) -> TreesStruct:
        """Makes the struct for a native call. rows: the arrays to which ``glt_trees.of`` points."""
        given = [None if array is None else np.ascontiguousarray(array) for array in (*rows, self.since, self.until)]
        table = pointers(given[:-2])
        struct = TreesStruct(self.num_trees, table.ctypes.data, pointer(given[-2]), pointer(given[-1]), last)
        struct.keep = (table, given)
        return struct

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Encodes the trees for a message: the inverse of `from_arrays`."""
        bounds = {name: getattr(self, name) for name in _TIMES if getattr(self, name) is not None}
        return {f"{_TREE}{t}": tree for t, tree in self.of.items()} | bounds

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Trees | None:
        """Decodes the arrays of a message that belong to trees (`is_array`); None if there are none. Raises `DataError`."""
        found = {name: np.ascontiguousarray(array) for name, array in arrays.items() if cls.is_array(name)}
        of = {}
        for name in found.keys() - set(_TIMES):
            if not re.fullmatch(r"0|[1-9][0-9]{0,8}", number := name.removeprefix(_TREE)):
                raise DataError(f"{name:.50}: expected tree/<node type>.")
            of[int(number)] = found[name]
        return cls({t: of[t] for t in sorted(of)}, found.get("until"), found.get("since")) if found else None

    @staticmethod
    def is_array(name: str) -> bool:
        """Tells whether an array of a message belongs to trees, by its name."""
        return name.startswith(_TREE) or name in _TIMES


def _shape(array: np.ndarray) -> str:
    return f"{array.dtype} {list(array.shape)}"
