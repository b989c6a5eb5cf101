"""The native view of a typed graph: tables of pointers into mapped arrays."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.kernels.native import (
    I32,
    I64,
    GraphStruct,
    P,
    ReplacedStruct,
    Signatures,
    bind,
    call,
    check,
    pointers,
)
from glt_lightning.kernels.ranked_set import RankedSet
from glt_lightning.kernels.rows import Shards

_SIGNATURES: Signatures = {
    "glt_has_edges": [P, I32, P, P, I64, I32, P, P],
}
_library = bind(_SIGNATURES)

_Ids = TypeVar("_Ids")

_DENSE = 64  # of as many nodes one has to be replaced for a set of bits, which takes 1.34 of them a node
_HINTS = 4096  # entries of the segment look-up: 16 KiB, half of a first-level cache


@dataclass(frozen=True)
class EdgeTypeArrays:
    """The mapped arrays of one edge type in one part: CSC by destination row.

    indptr: int64 [rows + 1].  indices: int32 or int64 [edges], gids of sources.  sums: int32 [edges], prefix sums within each
    row of the weights by which neighbours are drawn; None: draws are uniform.  times: int64 [edges], ascending within each
    row; None: edges have no times.
    """

    indptr: np.ndarray
    indices: np.ndarray
    sums: np.ndarray | None = None
    times: np.ndarray | None = None


@dataclass(frozen=True)
class LaborIds:
    """The ids by which LABOR draws: every node has one random number in a hop, keyed by its user id.

    keys: `GraphSchema.node_type_keys`.  ids: for each node type, ids [N], the user ids of all its nodes by gid, also of parts
    that are not mapped; None for types at which no edge begins.  more: of the last nodes of each type, an overlay's, if ids lack
    them; empty: they have all.
    """

    keys: Sequence[int]
    ids: Sequence[np.ndarray | None]
    more: Sequence[np.ndarray | None] = ()

    @property
    def joined(self) -> list[np.ndarray | None]:
        """For each node type the ids of all its nodes in one array."""
        pairs = zip(self.ids, self.more or self.ids, strict=True)
        return [ids if ids is more or more is None else np.concatenate([ids, more]) for ids, more in pairs]


class ReplacedRows:
    """Rows of one edge type that an overlay has in place of those of their parts.

    A graph with an overlay has P parts and then P more, those of the overlay: part P + p has the new nodes that were placed in
    part p, and behind their rows the replaced rows of part p.

    gids: int64 [n], the nodes, ascending.  parts: int [n], the part of each.  new: int64 [P], for each part the number of new
    nodes of the destination type that were placed there.  num_nodes: number of nodes of the graph.  below: the rows that the
    overlay below this one replaces, whose P parts and P more are the parts here; None: there is none.
    """

    def __init__(
        self, gids: np.ndarray, parts: np.ndarray, new: np.ndarray, num_nodes: int, below: ReplacedRows | None = None
    ) -> None:
        self.gids, self.parts, self.below, self.moved = np.ascontiguousarray(gids, dtype=np.int64), parts, below, 0
        self.offset = (new - np.searchsorted(parts, np.arange(len(new)))).astype(np.int64)
        self._new, shift = new, 0
        self._hint = self._blocks = None
        first, num_ids = (int(self.gids[0]), int(self.gids[-1] - self.gids[0]) + 1) if len(gids) else (0, 0)
        if _DENSE * len(gids) > num_ids:
            words = RankedSet.words_for(num_ids)
            memory = np.empty(words + 3, np.uint64)
            self._blocks = memory[-memory.ctypes.data % 32 // 8 :][:words]
            RankedSet.build(self.gids, first, num_ids, self._blocks)
        else:
            while (num_nodes >> shift) > 2 * len(
                gids
            ) + 16:  # about half a node in a bucket, where they are spread evenly
                shift += 1
            starts = np.arange((num_nodes >> shift) + 2, dtype=np.int64) << shift
            self._hint = np.searchsorted(self.gids, starts).astype(np.int32)
        pointers = [None if each is None else each.ctypes.data for each in (self.offset, self._hint, self._blocks)]
        self._fields = {
            "num_rows": len(gids),
            "gids": self.gids.ctypes.data,
            "offset": pointers[0],
            "hint": pointers[1],
            "shift": shift,
            "num_parts": len(new),
            "blocks": pointers[2],
            "first": first,
            "num_ids": num_ids,
        }
        self.struct = self._struct()

    def behind(self, more: int) -> ReplacedRows:
        """Returns the same rows of a graph with ``more`` nodes before those of the destination type."""
        found = copy.copy(self)
        found.moved = self.moved + more
        found.below = None if self.below is None else self.below.behind(more)
        found.struct = found._struct()
        return found

    def _struct(self) -> ReplacedStruct:
        below = None if self.below is None else ctypes.addressof(self.below.struct)
        return ReplacedStruct(**self._fields, moved=self.moved, below=below)

    def find(self, gids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Finds the nodes whose rows are replaced. Returns their positions in ``gids``, and for each its part and row."""
        if not len(self.gids):
            return (np.empty(0, np.int64),) * 3 if self.below is None else self.below.find(gids)
        at = np.minimum(np.searchsorted(self.gids, gids - self.moved), len(self.gids) - 1)
        here = self.gids[at] == gids - self.moved
        found = np.flatnonzero(here)
        part = self.parts[at[found]]
        mine = found, part + len(self._new), at[found] + self.offset[part]
        if self.below is None:
            return mine
        others = np.flatnonzero(~here)
        which, *place = self.below.find(gids[others])
        return tuple(map(np.concatenate, zip(mine, (others[which], *place), strict=True)))  # type: ignore[return-value]

    def gids_of(self, part: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Finds the rows of a part of the overlay that are replaced ones. Returns their positions in ``rows``, and their gids."""
        if part < len(self._new):
            return (np.empty(0, np.int64),) * 2 if self.below is None else self.below.gids_of(part, rows)
        part -= len(self._new)
        found = np.flatnonzero(rows >= self._new[part])
        return found, self.gids[rows[found] - self.offset[part]] + self.moved


@dataclass(frozen=True)
class Overlaid:
    """What an overlay lays over the parts of a graph.

    replaced: for each edge type the rows that it has in place of theirs.  source_shift: for each edge type what is added to
    stored sources to get gids: nodes of other types may have been added in front of them.
    """

    replaced: Sequence[ReplacedRows]
    source_shift: Sequence[int]


class GraphView:
    """The topology of a graph for native calls: tables of pointers to its arrays, which it keeps alive.

    Shapes: T node types, R edge types, P parts.

    bounds: int64 [T * P + 1], first gid of each segment (type-major), ends with the number of nodes.
    arrays: R * P entries, ``[edge_type * P + part]``; None if the part is not mapped.
    user_ids: T * P arrays of user ids by row; None if not mapped.
    keys: R, of `GraphSchema.edge_type_keys`; src_types, dst_types: R indices.
    labor: the ids for draws by LABOR; None: each row draws on its own.
    overlaid: what the second half of the parts lays over the first, which may be a graph with an overlay; None: nothing.
    """

    def __init__(
        self,
        bounds: np.ndarray,
        arrays: Sequence[EdgeTypeArrays | None],
        user_ids: Sequence[np.ndarray | None],
        keys: Sequence[int],
        src_types: Sequence[int],
        dst_types: Sequence[int],
        edge_counts: np.ndarray,
        labor: LaborIds | None = None,
        overlaid: Overlaid | None = None,
    ) -> None:
        self.num_edge_types = len(keys)
        self.num_parts = len(arrays) // max(1, self.num_edge_types) if keys else 1
        self.num_types = (len(bounds) - 1) // self.num_parts
        self.bounds = np.ascontiguousarray(bounds, dtype=np.int64)
        self.num_nodes = int(self.bounds[-1])
        self.type_offsets = self.bounds[:: self.num_parts].copy()
        self.src_types = np.array(src_types, dtype=np.int32)
        self.dst_types = np.array(dst_types, dtype=np.int32)
        self.keys = np.array(keys, dtype=np.uint64)
        self.id_bytes = 4 if all(u is None or u.dtype == np.int32 for u in user_ids) else 8
        # edge row of each part's first edge, per edge type; edge_counts: int64 [R, P]
        self.edge_bounds = np.zeros((self.num_edge_types, self.num_parts + 1), dtype=np.int64)
        np.cumsum(edge_counts, axis=1, out=self.edge_bounds[:, 1:])
        self._keep = (list(arrays), list(user_ids))
        shift, self._hint = segment_hints(self.bounds)
        self._indptr = pointers([r.indptr if r else None for r in arrays])
        self._indices = pointers([r.indices if r else None for r in arrays])
        self._user_ids = pointers(list(user_ids))
        sums = [None if r is None else r.sums for r in arrays]
        self._sums = None if all(each is None for each in sums) else pointers(sums)
        times = [None if r is None else r.times for r in arrays]
        self._times = None if all(each is None for each in times) else pointers(times)
        self.labor = labor
        self._labor = None if labor is None else (np.array(labor.keys, dtype=np.uint64), pointers(labor.ids))
        self._num_ids = None if labor is None else np.array([0 if a is None else len(a) for a in labor.ids], np.int64)
        self._more_ids = None if labor is None or not labor.more else pointers(labor.more)
        self.overlaid = overlaid
        self._replaced = self._shifts = None
        if overlaid is not None:
            self._replaced = (ReplacedStruct * self.num_edge_types)(*(each.struct for each in overlaid.replaced))
            self._shifts = np.array(overlaid.source_shift, dtype=np.int64) if any(overlaid.source_shift) else None
        self._edge_base = np.ascontiguousarray(self.edge_bounds[:, :-1]).reshape(-1)
        self._num_edges = np.array([0 if r is None else len(r.indices) for r in arrays], dtype=np.int64)
        self.struct = GraphStruct(
            num_types=self.num_types,
            num_edge_types=self.num_edge_types,
            num_parts=self.num_parts,
            id_bytes=self.id_bytes,
            shift=shift,
            bounds=self.bounds.ctypes.data,
            hint=self._hint.ctypes.data,
            src_type=self.src_types.ctypes.data,
            dst_type=self.dst_types.ctypes.data,
            key=self.keys.ctypes.data,
            indptr=self._indptr.ctypes.data,
            indices=self._indices.ctypes.data,
            user_ids=self._user_ids.ctypes.data,
            edge_base=self._edge_base.ctypes.data,
            num_edges=self._num_edges.ctypes.data,
            sums=None if self._sums is None else self._sums.ctypes.data,
            times=None if self._times is None else self._times.ctypes.data,
            type_key=None if self._labor is None else self._labor[0].ctypes.data,
            all_ids=None if self._labor is None else self._labor[1].ctypes.data,
            num_ids=None if self._num_ids is None else self._num_ids.ctypes.data,
            more_ids=None if self._more_ids is None else self._more_ids.ctypes.data,
            replaced=None if self._replaced is None else ctypes.addressof(self._replaced),
            source_shift=None if self._shifts is None else self._shifts.ctypes.data,
        )
        self.address = ctypes.addressof(self.struct)

    def arrays(self, edge_type: int, part: int) -> EdgeTypeArrays | None:
        return self._keep[0][edge_type * self.num_parts + part]

    def degrees(self, edge_type: int, gids: np.ndarray) -> np.ndarray:
        """Returns int64 [n]: the number of entries of each row, 0 for rows that are not mapped. Ids are not checked: for
        estimates of work."""
        found = np.zeros(len(gids), dtype=np.int64)
        first = int(self.dst_types[edge_type]) * self.num_parts
        for part in range(self.num_parts):
            arrays = self.arrays(edge_type, part)
            if arrays is None:
                continue
            begin, end = self.bounds[first + part], self.bounds[first + part + 1]
            mine = np.flatnonzero((gids >= begin) & (gids < end))
            rows = gids[mine] - begin
            found[mine] = np.maximum(0, arrays.indptr[rows + 1] - arrays.indptr[rows])
        if self.overlaid is not None:
            at, parts, rows = self.overlaid.replaced[edge_type].find(gids)
            for part in np.unique(parts).tolist():
                mine, arrays = parts == part, self.arrays(edge_type, part)
                if arrays is not None:
                    found[at[mine]] = arrays.indptr[rows[mine] + 1] - arrays.indptr[rows[mine]]
        return found

    def user_ids(self, node_type: int, part: int) -> np.ndarray | None:
        return self._keep[1][node_type * self.num_parts + part]

    def user_ids_of(self, node_type: int, gids: np.ndarray) -> np.ndarray:
        """Returns int64 [n]: the user's ids of nodes of mapped parts."""
        parts = self.num_parts
        bounds = self.bounds[node_type * parts : (node_type + 1) * parts + 1]
        ids = Shards([self.user_ids(node_type, p) for p in range(parts)], bounds=bounds)
        return ids.gather(gids).astype(np.int64)

    def has_edges(self, edge_type: int, dst: np.ndarray, src: np.ndarray, *, threads: int = 1) -> np.ndarray:
        """Returns bool [n]: True if the edge type has an edge from ``src[i]`` to ``dst[i]``; in a view with weights, an edge
        whose weight is not 0.

        dst: int64 [n], gids of destination nodes, all local.  src: int64 [n], gids of source nodes, local or not. The row of
        each dst is read until its source is found.  threads: the most threads that share the pairs.

        Raises `DataError` for ids that `require_pairs` refuses, or whose part is not mapped; `PartitionError` for a damaged row.
        """
        self.require_pairs(edge_type, dst, src)
        dst, src = (np.ascontiguousarray(ids, dtype=np.int64) for ids in (dst, src))
        found = np.empty(len(dst), dtype=np.bool_)
        status, detail = call(_library().glt_has_edges, self.address, edge_type, dst, src, len(dst), threads, found)
        check(status, detail, "has_edges")
        return found

    def require_seeds(self, seeds: Mapping[int, np.ndarray]) -> list[np.ndarray]:
        """Returns the seeds of each node type, int64 [S] gids. Raises `DataError` for a seed of another type."""
        each = per_type(seeds, self.num_types, np.empty(0, dtype=np.int64))
        for t, gids in enumerate(each):
            begin, end = self.type_offsets[t : t + 2].tolist()
            bad = np.flatnonzero((gids < begin) | (gids >= end))
            if len(bad):
                raise DataError(f"sample: id {gids[bad[0]]} at position {bad[0]} is not a node of the seeds' type.")
        return each

    def require_pairs(self, edge_type: int, dst: np.ndarray, src: np.ndarray, what: str = "has_edges") -> None:
        """Raises `DataError` unless these can be the ends of edges: two integer arrays [n] of gids of the edge type's node types.
        what: the beginning of the errors."""
        if not isinstance(edge_type, (int, np.integer)) or not 0 <= edge_type < self.num_edge_types:
            raise DataError(
                f"{what}: expected the index of an edge type, 0 to {self.num_edge_types - 1}, got {edge_type!r:.100}."
            )
        for name, ids in (("dst", dst), ("src", src)):
            if ids.ndim != 1 or ids.dtype.kind not in "iu":
                raise DataError(f"{what}: {name}: expected gids, integers [n], got {ids.dtype} {list(ids.shape)}.")
        if len(dst) != len(src):
            raise DataError(f"{what}: expected as many dst as src, got {len(dst)} and {len(src)}.")
        types = (("dst", dst, self.dst_types[edge_type]), ("src", src, self.src_types[edge_type]))
        for name, ids, node_type in types:
            begin, end = self.type_offsets[node_type], self.bounds[(node_type + 1) * self.num_parts]
            outside = np.flatnonzero((ids < begin) | (ids >= end))
            if len(outside):
                raise DataError(
                    f"{what}: {name}: gid {ids[outside[0]]} at position {outside[0]} is no node of type {node_type}, whose gids "
                    f"are {begin} to {end - 1}. dst are nodes of the edge type's destination type, src of its source type."
                )


def per_type(seeds: Mapping[int, _Ids], num_types: int, none: _Ids) -> list[_Ids]:
    """Returns the seeds of each node type, ``none`` for a type without. Raises `DataError` for a type that the graph does not
    have."""
    unknown = [t for t in seeds if not 0 <= t < num_types]
    if unknown:
        raise DataError(f"seeds: expected node types 0 to {num_types - 1}, got {unknown[0]}.")
    return [seeds.get(t, none) for t in range(num_types)]


def segment_hints(bounds: np.ndarray) -> tuple[int, np.ndarray]:
    """Makes hints for the search of a gid's segment. Returns (shift, int32 [n]): the search begins in the segment of entry
    ``gid >> shift``."""
    num_nodes, shift = int(bounds[-1]), 0
    while (num_nodes >> shift) >= _HINTS:
        shift += 1
    starts = np.arange((num_nodes >> shift) + 1, dtype=np.int64) << shift
    return shift, (np.searchsorted(bounds, starts, side="right") - 1).astype(np.int32)
