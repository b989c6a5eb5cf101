"""Groups ids by their owners, for requests, and computes the position of each id's answer."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glt_lightning.base import DEFAULT_DRAW, DataError, DrawOptions
from glt_lightning.kernels.graph import GraphView
from glt_lightning.kernels.khop import Subgraph, first_of
from glt_lightning.kernels.native import (
    BAD_ARG,
    BAD_ID,
    GROW,
    MergeStruct,
    PicksStruct,
    call,
    check,
    library,
    pointer,
    pointers,
)
from glt_lightning.kernels.rows import entries_of
from glt_lightning.kernels.trees import Trees


@dataclass(frozen=True)
class Route:
    """The owners of n ids. If some are cached, the cache counts as one more owner, after the last.

    owner: int32 [n].  grouped: int32 or int64 [n], the ids owner after owner, in their order; the ids of owner o are
    ``grouped[begin[o]:begin[o + 1]]``; for the cache, ranks in it.  place: int64 [n], the id itself if owner 0 has it, else
    ``first[o]`` plus the position in its group, or plus the rank in the cache.
    """

    owner: np.ndarray
    grouped: np.ndarray
    begin: list[int]
    place: np.ndarray
    first: np.ndarray

    def of(self, owner: int) -> np.ndarray:
        """Returns the ids of one owner, in their order."""
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
        """Finds the owners. ids: int64 [n].  first: int64 [O], the place of each owner's first answer.  cached: int32 [n], the
        rank of each id in a cache, -1 for ids that are not cached; then ``first`` has one entry more, the place of the first
        cached row.

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


# A k-hop batch built step by step, from picks that several owners made.


@dataclass(frozen=True)
class Picks:
    """The picks of one owner for its rows of one edge type, in frontier order.

    counts: [rows], neighbors: [sum of counts] gids, edge_rows: like neighbors, or None; all int32 or all int64.
    """

    counts: np.ndarray
    neighbors: np.ndarray
    edge_rows: np.ndarray | None = None

    @classmethod
    def joined(cls, pieces: Sequence[Picks]) -> Picks:
        """Joins the picks of consecutive pieces of the rows."""
        if len(pieces) == 1:
            return pieces[0]
        counts, neighbors = (np.concatenate([getattr(p, name) for p in pieces]) for name in ("counts", "neighbors"))
        edge_rows = [p.edge_rows for p in pieces if p.edge_rows is not None]
        return cls(counts, neighbors, np.concatenate(edge_rows) if edge_rows else None)

    def of_rows(self, which: np.ndarray) -> Picks:
        """Returns the picks of some rows, in the order of ``which``, int64 [n]."""
        counts = self.counts.astype(np.int64)
        at = entries_of(which, counts)
        return Picks(counts[which], self.neighbors[at], None if self.edge_rows is None else self.edge_rows[at])

    @classmethod
    def none(cls, dtype: np.dtype, draw: DrawOptions) -> Picks:
        """Returns the picks of no rows."""
        empty = np.empty(0, dtype=dtype)
        return cls(empty, **dict.fromkeys(draw.columns, empty))


@dataclass(frozen=True)
class Drawn:
    """The neighbours of a frontier along one edge type, by owner.

    picks: one entry per owner, this process (number 0) first; on a device that one is a `cuda.merge.Piece`, or None.
    owner: int32 [F], the owner of each row; None: all rows belong to the first. On a device it has remote rows only.
    """

    picks: Sequence[Any]
    owner: np.ndarray | None = None

    def stitched(self) -> Picks:
        """Stitches the picks in frontier order. In the host's memory only."""
        if self.owner is None:
            whole: Picks = self.picks[0]
            return whole
        order = np.argsort(self.owner, kind="stable")  # the picks come owner after owner, in the order of the frontier
        return Picks.joined(self.picks).of_rows(np.argsort(order))  # the inverse permutation


class BatchBuilder:
    """Builds one batch at a time: `start`, then for each hop `stitch` and `end_hop`, then `result`.

    Its batches are equal to those of `khop.KHopOp`. It owns its memory, so one instance serves one thread. The key of a node of
    a disjoint batch in its table is tree * number of nodes + gid.
    """

    def __init__(self, graph: GraphView, draw: DrawOptions = DEFAULT_DRAW) -> None:
        self._graph, self._columns = graph, draw.columns
        self._slots = 0
        self._trees: Trees | None = None
        self._table = np.empty(0, dtype=np.int64)
        self._detail = np.zeros(4, dtype=np.int64)
        self._counts = np.zeros(2, dtype=np.int64)
        self._gid = [np.empty(0, dtype=np.int64) for _ in range(graph.num_types)]
        self._src = [np.empty(0, dtype=np.int32) for _ in range(graph.num_edge_types)]
        self._dst = [np.empty(0, dtype=np.int32) for _ in range(graph.num_edge_types)]
        rows = np.empty(0, dtype=np.int64) if "edge_rows" in draw.columns else None
        self._edge_row = [rows for _ in range(graph.num_edge_types)]

    def start(self, seeds: Mapping[int, np.ndarray], trees: Trees | None = None) -> None:
        """Begins a batch. seeds: by node type int64 [S] gids; a seed that comes twice has two rows.  trees: the trees of all
        seeds, in a disjoint batch. Raises `DataError` as `GraphView.require_seeds`."""
        graph = self._graph
        each = graph.require_seeds(seeds)
        self._trees, self._num_ids = trees, graph.num_nodes
        if trees is not None:
            self._num_ids *= max(1, trees.num_trees)
            none = np.empty(0, dtype=np.int64)
            each = [gids + graph.num_nodes * trees.of.get(t, none).astype(np.int64) for t, gids in enumerate(each)]
        self._nodes, self._edges = [0] * graph.num_types, [0] * graph.num_edge_types
        # numbers of nodes and edges before the seeds, and behind each hop
        self._ends = [(list(self._nodes), list(self._edges))]
        for t, gids in enumerate(each):
            self._reserve_nodes(t, len(gids))
            self._gid[t][: len(gids)] = gids
            self._nodes[t] = len(gids)
        self._reserve_table(sum(self._nodes))
        self._fill()
        self.end_hop()

    @property
    def frontier(self) -> list[np.ndarray]:
        """Per node type int64 [F]: gids of the nodes that the last hop found first (the seeds before the first hop)."""
        return self._frontier if self._trees is None else [ids % self._graph.num_nodes for ids in self._frontier]

    @property
    def trees(self) -> Trees | None:
        """The trees of the frontier; None if the batch has none."""
        if self._trees is None:
            return None
        return self._trees.of_rows({t: self._tree_of(ids) for t, ids in enumerate(self._frontier)})

    @property
    def _frontier(self) -> list[np.ndarray]:
        (before, _), (now, _) = self._ends[-2:]
        return [gid[low:high] for gid, low, high in zip(self._gid, before, now, strict=True)]

    def _tree_of(self, ids: np.ndarray) -> np.ndarray:
        return (ids // self._graph.num_nodes).astype(np.int32)

    def stitch(self, drawn: Mapping[int, Drawn]) -> dict[int, np.ndarray]:
        """Adds a hop's edges, in the order of edge types. Returns their edge rows, if batches have edge rows."""
        added = {r: self.merge(r, each.picks, each.owner) for r, each in drawn.items()}
        return {r: rows for r, rows in added.items() if rows is not None}

    def merge(self, edge_type: int, picks: Sequence[Picks], owner: np.ndarray | None) -> np.ndarray | None:
        """Adds the picks for the frontier of an edge type's destination type. Returns their edge rows, in the order of the added
        edges.

        picks: one per owner.  owner: int32 [F], or None if there is one owner.
        Raises `DataError` if an answer does not fit its question.
        """
        graph = self._graph
        source = int(graph.src_types[edge_type])
        low, high = (nodes[int(graph.dst_types[edge_type])] for nodes, _ in self._ends[-2:])
        found = sum(len(p.neighbors) for p in picks)
        edges = self._edges[edge_type]
        self._reserve_edges(edge_type, edges + found)
        self._reserve_nodes(source, self._nodes[source] + found)
        if self._reserve_table(sum(self._nodes) + found):
            self._fill()
        first, last = graph.type_offsets[source : source + 2].tolist()
        if self._trees is not None:
            for number, each in enumerate(picks):
                asked = high - low if owner is None else int(np.count_nonzero(owner == number))
                require_fit(each, edge_type, asked, (first, last), self._columns)
            ids = self._gid[int(graph.dst_types[edge_type])][low:high]
            picks = _in_trees(picks, owner, ids - ids % graph.num_nodes)
            first, last = 0, self._num_ids
        structs = (PicksStruct * len(picks))(*[_struct(p, self._columns) for p in picks])
        rows = self._edge_row[edge_type]
        call = MergeStruct(
            num_owners=len(picks),
            picks=ctypes.addressof(structs),
            owner=pointer(owner),
            num_rows=high - low,
            first_lid=low,
            first_gid=first,
            num_gids=last - first,
            num_ids=self._num_ids,
            table_cap=self._slots,
            table=self._table.ctypes.data,
            node_cap=len(self._gid[source]),
            edge_cap=len(self._src[edge_type]),
            gids=self._gid[source].ctypes.data,
            src=self._src[edge_type].ctypes.data,
            dst=self._dst[edge_type].ctypes.data,
            edge_rows=pointer(rows),
        )
        self._counts[:] = self._nodes[source], edges
        at = self._counts.ctypes.data
        status = library().glt_merge(ctypes.addressof(call), at, at + 8, self._detail.ctypes.data)
        assert status != GROW, "room was made above"
        if status in (BAD_ARG, BAD_ID):
            raise DataError(
                f"merge: the picks of edge type {edge_type} do not fit the request: {self._detail.tolist()}."
            )
        check(status, self._detail, "merge")
        self._nodes[source], self._edges[edge_type] = self._counts.tolist()
        return None if rows is None else rows[edges : self._edges[edge_type]]

    def end_hop(self) -> None:
        """Makes the nodes that the hop found first the next frontier."""
        self._ends.append((list(self._nodes), list(self._edges)))

    def result(self) -> Subgraph:
        """Returns the batch, whose ``uid`` is empty. Its arrays are valid until the next `start`."""
        nodes, edges = (np.array(ends, dtype=np.int64) for ends in zip(*self._ends, strict=True))
        ids = first_of(self._gid, self._nodes)
        return Subgraph(
            gid=ids if self._trees is None else [each % self._graph.num_nodes for each in ids],
            uid=[],
            src=first_of(self._src, self._edges),
            dst=first_of(self._dst, self._edges),
            edge_row=first_of(self._edge_row, self._edges),
            nodes_per_hop=np.diff(nodes, axis=0).T.copy(),
            edges_per_hop=np.diff(edges[1:], axis=0).T.copy(),  # the seeds have none
            tree=None if self._trees is None else [self._tree_of(each) for each in ids],
        )

    def _reserve_nodes(self, node_type: int, n: int) -> None:
        self._gid[node_type] = _grown(self._gid[node_type], n)

    def _reserve_edges(self, edge_type: int, n: int) -> None:
        self._src[edge_type], self._dst[edge_type] = _grown(self._src[edge_type], n), _grown(self._dst[edge_type], n)
        if (rows := self._edge_row[edge_type]) is not None:
            self._edge_row[edge_type] = _grown(rows, n)

    def _reserve_table(self, nodes: int) -> bool:
        """Makes the table large enough for this many ids. Returns True if it is a new one."""
        slots = max(64, self._slots)
        while slots * 3 // 4 < nodes + 1 and slots < self._num_ids:
            slots *= 2
        if self._num_ids <= 2 * slots:  # one slot per node of the graph, in each tree: no probing
            slots = max(2, self._num_ids)
        words = slots * (2 if self._num_ids >= 2**32 - 1 else 1)
        if slots <= self._slots and words <= len(self._table):
            return False
        self._slots = slots
        self._table = np.empty(words, dtype=np.int64)
        return True

    def _fill(self) -> None:
        lists, counts = pointers(self._gid), np.array(self._nodes, dtype=np.int64)
        status = library().glt_table_fill(
            self._table.ctypes.data,
            self._slots,
            self._num_ids,
            lists.ctypes.data,
            counts.ctypes.data,
            len(counts),
            self._detail.ctypes.data,
        )
        check(status, self._detail, "relabel")


def require_fit(picks: Picks, edge_type: int, rows: int, gids: tuple[int, int], columns: Sequence[str]) -> None:
    """Raises `DataError` for an answer that does not fit ``rows`` rows. gids: range of gids of the neighbours' type."""
    counts, neighbors = picks.counts, picks.neighbors
    fits = (
        counts.dtype == neighbors.dtype
        and counts.dtype in (np.int32, np.int64)
        and counts.shape == (rows,)
        and counts.min(initial=0) >= 0
        and neighbors.shape == (int(counts.sum(dtype=np.int64)),)
        and (not len(neighbors) or gids[0] <= neighbors.min() <= neighbors.max() < gids[1])
        and all((each := getattr(picks, n)) is not None and each.shape == neighbors.shape for n in columns)
    )
    if not fits:
        raise DataError(
            f"merge: the picks of edge type {edge_type} do not fit the request: {counts.dtype} {list(counts.shape)} counts "
            f"and {neighbors.dtype} {list(neighbors.shape)} neighbours for {rows} rows, of gids {gids[0]} to {gids[1] - 1}."
        )


def _in_trees(picks: Sequence[Picks], owner: np.ndarray | None, base: np.ndarray) -> list[Picks]:
    """Converts neighbours to the keys of the table. base: int64 [F], the number that is added for the tree of each row."""
    found = []
    for number, each in enumerate(picks):
        mine = base if owner is None else base[owner == number]
        rows = None if each.edge_rows is None else each.edge_rows.astype(np.int64)
        found.append(Picks(each.counts.astype(np.int64), each.neighbors + np.repeat(mine, each.counts), rows))
    return found


def _grown(array: np.ndarray, n: int) -> np.ndarray:
    if n <= len(array):
        return array
    larger = np.empty(max(n, 2 * len(array)), dtype=array.dtype)
    larger[: len(array)] = array
    return larger


def _struct(p: Picks, columns: Sequence[str]) -> PicksStruct:
    arrays: list[np.ndarray | None] = [p.counts, *(getattr(p, name) for name in columns)]
    if any(a is None or a.dtype != p.counts.dtype or not a.flags.c_contiguous for a in arrays):
        raise DataError("merge: expected contiguous picks of one integer type, with edge rows if they are wanted.")
    rows = p.edge_rows if "edge_rows" in columns else None
    if rows is not None and len(rows) != len(p.neighbors):
        raise DataError(f"merge: got {len(p.neighbors)} neighbours and {len(rows)} edge rows.")
    return PicksStruct(
        bytes=p.counts.dtype.itemsize,
        num_rows=len(p.counts),
        num_entries=len(p.neighbors),
        counts=p.counts.ctypes.data,
        neighbors=p.neighbors.ctypes.data,
        edge_rows=pointer(rows),
    )
