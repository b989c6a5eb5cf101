"""Edges that a batch is sampled without."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from ctypes import c_int64, c_void_p
from dataclasses import dataclass

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.kernels.graph import GraphView
from glt_lightning.kernels.native import GROW, I32, I64, P, Signatures, bind, call, check

_SIGNATURES: Signatures = {
    "glt_find_excluded": [P, I32, P, P, I64, P, P, P, I64, P, P],
}
_library = bind(_SIGNATURES)

Pairs = tuple[np.ndarray, np.ndarray]
_EXCLUDED = "excluded/"
_ALL = 1 << 62


@dataclass(frozen=True)
class ExcludedEdges:
    """Edges that a batch is sampled without, as if the graph did not have them, with all their parallel copies.

    pairs: edge type -> (dst, src), integer gids [X], ascending by (dst, src), each pair once; `of` sorts them. A pair that is
    no stored edge changes nothing.

    Raises:
        DataError: For pairs in another order or of another shape.

    Example:
        >>> excluded = ExcludedEdges.of({0: (np.array([5, 2, 5]), np.array([1, 9, 1]))})  # edges 1 -> 5 and 9 -> 2
        >>> excluded.pairs[0]
        (array([2, 5]), array([9, 1]))
    """

    pairs: Mapping[int, Pairs]

    def __post_init__(self) -> None:
        for r, (dst, src) in self.pairs.items():
            whole = all(ids.ndim == 1 and ids.dtype.kind in "iu" and len(ids) == len(dst) for ids in (dst, src))
            if not whole or not _ascend(dst, src):
                raise DataError(
                    f"excluded: edge type {r}: expected two arrays [X] of gids, ascending by (dst, src) and each pair once; got "
                    f"{dst.dtype} {list(dst.shape)} and {src.dtype} {list(src.shape)}. ExcludedEdges.of sorts them."
                )

    @classmethod
    def of(cls, pairs: Mapping[int, Pairs]) -> ExcludedEdges:
        """Makes excluded edges from pairs in any order, which may repeat."""
        return cls({r: _sorted(np.asarray(dst), np.asarray(src)) for r, (dst, src) in pairs.items()})

    @property
    def nbytes(self) -> int:
        return sum(ids.nbytes for pair in self.pairs.values() for ids in pair)

    @property
    def num_pairs(self) -> int:
        return sum(len(dst) for dst, _ in self.pairs.values())

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Encodes the edges for a message: ``excluded/<edge type>`` -> [2, X]. The inverse of `from_arrays`."""
        return {f"{_EXCLUDED}{r}": np.stack(pair) for r, pair in self.pairs.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> ExcludedEdges | None:
        """Decodes the arrays of a message that are excluded edges (`is_array`); None if there are none. Raises `DataError`."""
        pairs = {}
        for name, array in arrays.items():
            if cls.is_array(name):
                number = name.removeprefix(_EXCLUDED)
                known = re.fullmatch(r"0|[1-9][0-9]{0,8}", number) and array.ndim == 2 and len(array) == 2
                if not known or array.dtype not in (np.int32, np.int64):
                    raise DataError(
                        f"{name}: expected excluded/<edge type> with int32 or int64 [2, X], dst and src; got {array.dtype} "
                        f"{list(array.shape)}."
                    )
                pairs[int(number)] = array[0], array[1]
        return cls(pairs) if pairs else None

    @staticmethod
    def is_array(name: str) -> bool:
        """Tells whether an array of a message has excluded edges, by its name."""
        return name.startswith(_EXCLUDED)

    def without_seeds(self, seeds: Mapping[int, np.ndarray], graph: GraphView) -> ExcludedEdges | None:
        """Returns the edges that do not lead to seeds; None if there are none. Raises as `GraphView.require_pairs`."""
        left = {}
        for r, (dst, src) in self.pairs.items():
            graph.require_pairs(r, dst, src, "excluded")
            rest = np.isin(dst, seeds.get(int(graph.dst_types[r]), ()), invert=True)
            if rest.any():
                left[r] = dst[rest], src[rest]
        return ExcludedEdges(left) if left else None

    def of_types(self, edge_types: Collection[int]) -> ExcludedEdges | None:
        """Returns the edges of some types alone; None if there are none."""
        kept = {r: pair for r, pair in self.pairs.items() if r in edge_types and len(pair[0])}
        return ExcludedEdges(kept) if kept else None

    def find(
        self, graph: GraphView, most: int = _ALL, look: Callable[[], None] = lambda: None
    ) -> dict[int, ExcludedEntries]:
        """Finds the entries of the edges in the rows, by edge type. All dst are local. Raises as `ExcludedEntries.find`.

        look: called before each piece of about ``most`` entries that are compared; it may raise to end the work.
        """
        found = {}
        for r, (dst, src) in self.pairs.items():
            if len(dst):
                pieces = []
                for begin, end in _pieces(graph, r, dst, most):
                    look()
                    pieces.append(ExcludedEntries.find(graph, r, dst[begin:end], src[begin:end]))
                found[r] = ExcludedEntries.joined(pieces)
        return found


class ExcludedStruct(ctypes.Structure):
    """``glt_excluded`` of ``glt/api.h``."""

    _fields_ = [("num_rows", c_int64), ("gids", c_void_p), ("begin", c_void_p), ("positions", c_void_p)]


@dataclass(frozen=True)
class ExcludedEntries:
    """The excluded entries of rows of one edge type. gids: int64 [G], the nodes whose rows have some, ascending.  begin: int64
    [G + 1], the first position of each.  positions: int32 [begin[G]] in the row, ascending."""

    gids: np.ndarray
    begin: np.ndarray
    positions: np.ndarray

    @classmethod
    def find(cls, graph: GraphView, edge_type: int, dst: np.ndarray, src: np.ndarray) -> ExcludedEntries:
        """Finds all parallel copies of the edges ``src[i]`` to ``dst[i]``, which ascend by (dst, src), each pair once.

        Reads the row of each dst.

        Raises `DataError` for ids that `GraphView.require_pairs` refuses, or whose part is not mapped; `PartitionError` for a
        damaged row.
        """
        graph.require_pairs(edge_type, dst, src, "excluded")
        dst, src = (np.ascontiguousarray(ids, dtype=np.int64) for ids in (dst, src))
        n = len(dst)
        gids, begin, num_rows = np.empty(n, np.int64), np.empty(n + 1, np.int64), np.zeros(1, np.int64)
        room, status = 2 * n, GROW
        while status == GROW:
            positions = np.empty(room, np.int32)
            asked, found = (graph.address, edge_type, dst, src, n), (gids, begin, positions, room, num_rows)
            status, detail = call(_library().glt_find_excluded, *asked, *found)
            room = int(detail[2])  # where there are many parallel edges
        check(status, detail, "excluded")
        rows = int(num_rows[0])
        return cls(gids[:rows], begin[: rows + 1], positions[: begin[rows]])

    @classmethod
    def joined(cls, pieces: Sequence[ExcludedEntries]) -> ExcludedEntries:
        """Joins the entries of several pieces, which have different rows, in ascending order."""
        if len(pieces) == 1:
            return pieces[0]
        counts = np.concatenate([np.diff(each.begin) for each in pieces])
        gids, positions = (np.concatenate([getattr(each, name) for each in pieces]) for name in ("gids", "positions"))
        return cls(gids, np.append(np.int64(0), np.cumsum(counts)), positions)

    @property
    def struct(self) -> ExcludedStruct:
        """The native description, valid as long as this object."""
        return ExcludedStruct(len(self.gids), *(a.ctypes.data for a in (self.gids, self.begin, self.positions)))


def excluded_structs(
    excluded: Mapping[int, ExcludedEntries] | None, num_edge_types: int
) -> ctypes.Array[ExcludedStruct] | None:
    """Makes a table of all edge types for native calls, valid as long as ``excluded``; None if nothing is excluded."""
    if not excluded:
        return None
    table = (ExcludedStruct * num_edge_types)()
    for r, entries in excluded.items():
        table[r] = entries.struct
    return table


def _pieces(graph: GraphView, edge_type: int, dst: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Yields (begin, end) of pairs, in ascending order, whose rows have about ``most`` entries; the pairs of a row stay
    together."""
    if most == _ALL or not 0 <= edge_type < graph.num_edge_types:  # the latter will be refused
        yield 0, len(dst)
        return
    firsts = np.append(0, np.flatnonzero(dst[1:] != dst[:-1]) + 1)
    piece = np.cumsum(graph.degrees(edge_type, dst))[firsts] // most
    cuts = firsts[1:][piece[1:] != piece[:-1]].tolist()
    yield from zip([0, *cuts], [*cuts, len(dst)], strict=True)


def _ascend(dst: np.ndarray, src: np.ndarray) -> bool:
    more, same = dst[1:] > dst[:-1], dst[1:] == dst[:-1]
    return bool((more | (same & (src[1:] > src[:-1]))).all())


def _sorted(dst: np.ndarray, src: np.ndarray) -> Pairs:
    if dst.shape != src.shape or dst.ndim != 1:
        return dst, src  # to be refused
    order = np.lexsort((src, dst))
    dst, src = dst[order], src[order]
    first = np.ones(len(dst), dtype=np.bool_)
    first[1:] = (dst[1:] != dst[:-1]) | (src[1:] != src[:-1])
    return dst[first], src[first]
