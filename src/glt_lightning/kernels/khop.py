"""A whole k-hop batch in one native call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glt_lightning.base import DEFAULT_DRAW, DataError, DrawOptions
from glt_lightning.kernels.excluded import ExcludedEntries, excluded_structs
from glt_lightning.kernels.graph import GraphView, per_type
from glt_lightning.kernels.native import GROW, WorkspaceStruct, call, check, library, pointers
from glt_lightning.kernels.trees import Trees, TreesStruct

_FIRST_NODES = 1 << 20  # first guess if the fan-outs allow more nodes; memory that is not touched costs nothing


# A table of 4 bytes per node needs no keys, no probing and, from batch to batch, no clearing: [10, 25] x 1000 in a graph of
# 2.4 M nodes takes 0.87 of the CPU time. It is used up to this many nodes per slot of a hash table: up to 4 times the memory,
# or 16 times in a graph whose table fits into a third-level cache ([15, 10, 5] x 64 of 2.4 M nodes: 0.91 of the time).
_NODES_PER_SLOT, _NODES_PER_SLOT_IN_CACHE, _NODES_IN_CACHE = 8, 32, 1 << 23


@dataclass(frozen=True)
class Subgraph:
    """The nodes and edges of a k-hop batch. T node types, R edge types, H hops; lids count per node type, seeds first.

    gid, uid: T arrays int64 [n_t], ids in the graph and the user's ids, by lid.
    src, dst: R arrays int32 [e_r], lids of the neighbour and of the node it was drawn for, hop after hop.
    edge_row: R arrays int64 [e_r], or None if edge rows were not requested.
    e_id: R arrays [e_r] of the user's edge ids as stored, or None if they were not requested.
    nodes_per_hop: int64 [T, H + 1], number of nodes first found in each hop.  edges_per_hop: int64 [R, H].
    tree: T arrays int32 [n_t], the tree of each node; None if the batch has no trees.
    flipped: R arrays bool [e_r], True for edges that are stored in the other direction alone; None if there are none.
    """

    gid: list[np.ndarray]
    uid: list[np.ndarray]
    src: list[np.ndarray]
    dst: list[np.ndarray]
    edge_row: list[np.ndarray | None]
    nodes_per_hop: np.ndarray
    edges_per_hop: np.ndarray
    e_id: list[np.ndarray | None] = field(default_factory=list)
    tree: list[np.ndarray] | None = None
    flipped: list[np.ndarray] | None = None

    def without_last_hop(self) -> Subgraph:
        """Returns the batch without the nodes that the last hop found, and without its edges."""
        nodes_per_hop, edges_per_hop = self.nodes_per_hop[:, :-1].copy(), self.edges_per_hop[:, :-1].copy()
        nodes, edges = nodes_per_hop.sum(axis=1).tolist(), edges_per_hop.sum(axis=1).tolist()
        return Subgraph(
            gid=first_of(self.gid, nodes),
            uid=first_of(self.uid, nodes),
            src=first_of(self.src, edges),
            dst=first_of(self.dst, edges),
            edge_row=first_of(self.edge_row, edges),
            e_id=first_of(self.e_id, edges),
            nodes_per_hop=nodes_per_hop,
            edges_per_hop=edges_per_hop,
            tree=None if self.tree is None else first_of(self.tree, nodes),
        )


class KHopOp:
    """Samples batches from a graph whose rows are all local. Owns the workspace, so one instance serves one thread.

    fanouts: [H][R], per hop and edge type; -1 all, 0 none.
    edge_rows: for each edge type, True to return edge rows; None: as ``draw.with_edge``, for all.
    edge_ids: for each edge type the arrays [edges] of its P parts, which are read together with the neighbours, or None
    without edge ids; all of one dtype, int32 or int64. A second pass over the edges would take half as long again.
    require_room: called with the number of bytes before memory for nodes or edges of a batch grows; may raise to refuse it.
    disjoint: batches have trees.
    """

    def __init__(
        self,
        graph: GraphView,
        fanouts: Sequence[Sequence[int]],
        draw: DrawOptions = DEFAULT_DRAW,
        *,
        edge_rows: Sequence[bool] | None = None,
        edge_ids: Sequence[Sequence[np.ndarray | None] | None] | None = None,
        require_room: Callable[[int], None] | None = None,
        disjoint: bool = False,
    ) -> None:
        self._require_room, self._disjoint = require_room, disjoint
        self._graph, self._draw = graph, draw
        edge_types = graph.num_edge_types
        self._wanted = [draw.with_edge] * edge_types if edge_rows is None else list(edge_rows)
        self._keep = [None] * edge_types if edge_ids is None else list(edge_ids)
        parts = [part for parts in self._keep for part in (parts or [None] * graph.num_parts)]
        self._edge_ids, self._edge_id_dtype = pointers(parts), _dtype_of(parts)
        self._fanouts = np.ascontiguousarray(fanouts, dtype=np.int32).reshape(len(fanouts), graph.num_edge_types)
        self._hops = len(fanouts)
        self._type_sizes = np.diff(graph.type_offsets)
        # with trees the keys of the table are larger; memory that 8-byte slots do not touch costs nothing
        self._wide = disjoint or graph.num_nodes >= 2**32 - 1
        self._most_nodes = 0  # largest batch so far: sizes the relabel table of the next
        self._call = library().glt_khop
        self._detail = np.zeros(4, dtype=np.int64)
        self._nodes_per_hop = np.zeros((graph.num_types, self._hops + 1), dtype=np.int64)
        self._edges_per_hop = np.zeros((graph.num_edge_types, self._hops), dtype=np.int64)
        self._table, self._table_base = np.empty(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
        self._slots = 0
        self._scratch = np.empty(1 << 15, dtype=np.uint64)
        self._node_cap = np.zeros(graph.num_types, dtype=np.int64)
        self._edge_cap = np.zeros(graph.num_edge_types, dtype=np.int64)
        self._gid = [np.empty(0, dtype=np.int64)] * graph.num_types
        self._uid = list(self._gid)
        self._tree = [np.empty(0, dtype=np.int32)] * graph.num_types
        self._no_trees, self._num_trees = np.empty(0, dtype=np.int32), 1
        self._src = [np.empty(0, dtype=np.int32)] * graph.num_edge_types
        self._dst = list(self._src)
        self._edge_row: list[np.ndarray | None] = [None] * graph.num_edge_types
        self._e_id: list[np.ndarray | None] = [None] * graph.num_edge_types
        self._sized_for = [-1] * graph.num_types
        self._no_seeds, self._num_seeds = np.empty(0, dtype=np.int64), np.zeros(graph.num_types, dtype=np.int64)
        self._struct = WorkspaceStruct()
        self._address = ctypes.addressof(self._struct)
        self._fixed = (graph.address, *(a.ctypes.data for a in (self._num_seeds, self._fanouts, self._detail)))
        if draw.threads > 1:
            self._scratch = np.empty(draw.threads << 17, dtype=np.uint64)

    def __call__(
        self,
        seeds: Mapping[int, np.ndarray],
        batch_key: int,
        excluded: Mapping[int, ExcludedEntries] | None = None,
        trees: Trees | None = None,
    ) -> Subgraph:
        """Samples one batch. seeds: by node type int64 [S] gids; a seed that comes twice has two rows.  excluded: by edge type,
        entries of rows to leave out.  trees: the trees of all seeds, in a disjoint batch.

        The arrays of the result are valid until the next call.
        Raises `DataError` for a seed outside its type, `PartitionError` for damaged rows.
        """
        each = per_type(seeds, self._graph.num_types, self._no_seeds)
        each = [np.ascontiguousarray(gids, dtype=np.int64) for gids in each]
        self._num_seeds[:] = [len(gids) for gids in each]
        of_trees = None if trees is None else self._struct_of(trees)
        self._size_for(self._num_seeds.tolist())
        graph, num_seeds, fanouts, detail = self._fixed
        seed_pointers = pointers(each)
        without = excluded_structs(excluded, self._graph.num_edge_types)
        while True:
            status = self._call(
                graph,
                seed_pointers.ctypes.data,
                num_seeds,
                self._hops,
                fanouts,
                batch_key,
                self._draw.replace,
                self._draw.threads,
                without,
                None if of_trees is None else ctypes.byref(of_trees),
                self._address,
                detail,
            )
            if status != GROW:
                break
            self._grow(*self._detail[:3].tolist())
        if status:
            check(status, self._detail, "sample")
        return self._result()

    def _struct_of(self, trees: Trees) -> TreesStruct:
        assert self._disjoint, "no room for trees"
        self._num_trees = max(self._num_trees, trees.num_trees)
        return trees.struct(per_type(trees.of, self._graph.num_types, self._no_trees), self._draw.last)

    def _result(self) -> Subgraph:
        nodes = self._nodes_per_hop.sum(axis=1).tolist()
        edges = self._edges_per_hop.sum(axis=1).tolist()
        self._most_nodes = max(self._most_nodes, sum(nodes))
        return Subgraph(
            gid=first_of(self._gid, nodes),
            uid=first_of(self._uid, nodes),
            src=first_of(self._src, edges),
            dst=first_of(self._dst, edges),
            edge_row=first_of(self._edge_row, edges),
            e_id=first_of(self._e_id, edges),
            nodes_per_hop=self._nodes_per_hop,
            edges_per_hop=self._edges_per_hop,
            tree=first_of(self._tree, nodes) if self._disjoint else None,
        )

    def _bounds(self, num_seeds: Sequence[int]) -> tuple[list[int], list[int]]:
        """Returns the largest numbers of nodes per type and edges per edge type that the fan-outs allow."""
        graph = self._graph
        sizes = (self._type_sizes * self._num_trees).tolist()  # a node may be in every tree
        nodes, frontier = list(num_seeds), list(num_seeds)
        edges = [0] * graph.num_edge_types
        for hop in self._fanouts.tolist():
            new = [0] * graph.num_types
            for r, fanout in enumerate(hop):
                source, rows = int(graph.src_types[r]), frontier[int(graph.dst_types[r])]
                found = (
                    rows * fanout if fanout >= 0 else (int(graph.edge_bounds[r, -1]) * self._num_trees if rows else 0)
                )
                edges[r] += found
                new[source] += found
            frontier = [min(n, s) for n, s in zip(new, sizes, strict=True)]
            nodes = [n + f for n, f in zip(nodes, frontier, strict=True)]
        # seeds may repeat
        return [min(n, s + x) for n, s, x in zip(nodes, sizes, num_seeds, strict=True)], edges

    def _size_for(self, num_seeds: list[int]) -> None:
        """Allocates workspace for so many seeds of each type. It never shrinks: batches of links have different numbers each
        time."""
        most = [max(pair) for pair in zip(num_seeds, self._sized_for, strict=True)]
        if self._sized_for == most and self._settled:
            return
        nodes, edges = self._bounds(most)
        for t, n in enumerate(nodes):
            if self._node_cap[t] < min(n, _FIRST_NODES):
                self._node_array(t, min(n, _FIRST_NODES))
        for r, n in enumerate(edges):
            if self._edge_cap[r] < min(n, 4 * _FIRST_NODES):
                self._edge_array(r, min(n, 4 * _FIRST_NODES))
        bound = sum(nodes)
        guess = self._most_nodes + self._most_nodes // 2 if self._most_nodes else _FIRST_NODES
        self._table_slots(min(bound, max(guess, 2 * sum(most))))
        # once the guess from earlier batches reaches the bound, the sizes for these numbers of seeds are final
        self._sized_for, self._settled = most, bound <= guess or bool(self._most_nodes)
        self._bind()

    _settled = False

    def _table_slots(self, nodes: int) -> None:
        """Makes a table with enough slots for this many ids; one slot per node of the graph if that is not much more."""
        slots = 64
        while slots * 3 // 4 < nodes + 1:
            slots *= 2
        nodes_of_graph = self._graph.num_nodes
        most = _NODES_PER_SLOT_IN_CACHE if nodes_of_graph <= _NODES_IN_CACHE else _NODES_PER_SLOT
        if not self._disjoint and nodes_of_graph <= most * slots:
            slots = max(2, nodes_of_graph)
        if slots == self._slots:
            return
        if len(self._table) < slots * (2 if self._wide else 1):
            self._table = np.empty(slots * (2 if self._wide else 1), dtype=np.int64)
        self._slots, self._table_base[0] = slots, 0

    def _node_array(self, t: int, n: int) -> None:
        self._gid[t], self._uid[t] = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
        if self._disjoint:
            self._tree[t] = np.empty(n, dtype=np.int32)
        self._node_cap[t] = n

    def _edge_array(self, r: int, n: int) -> None:
        self._src[r], self._dst[r] = np.empty(n, dtype=np.int32), np.empty(n, dtype=np.int32)
        if self._wanted[r]:
            self._edge_row[r] = np.empty(n, dtype=np.int64)
        if self._keep[r] is not None:
            self._e_id[r] = np.empty(n, dtype=self._edge_id_dtype)
        self._edge_cap[r] = n

    def _grow(self, which: int, index: int, needed: int) -> None:
        """Enlarges one part of the workspace. The call is then repeated and gives the same batch."""
        if self._require_room is not None:
            self._require_room(needed * self._entry_bytes(which, index))
        if which == 0:
            self._table_slots(max(needed, 2 * self._slots * 3 // 4))
        elif which == 1:
            self._scratch = np.empty(max(needed, 2 * len(self._scratch)), dtype=np.uint64)
        elif which == 2:
            self._node_array(index, max(needed, 2 * int(self._node_cap[index])))
        else:
            self._edge_array(index, max(needed, 2 * int(self._edge_cap[index])))
        self._bind()

    def _entry_bytes(self, which: int, index: int) -> int:
        if which < 2:
            return 8
        if which == 2:
            return self._gid[index].itemsize + self._uid[index].itemsize + 4 * self._disjoint
        ids = self._edge_id_dtype.itemsize if self._keep[index] is not None else 0
        return 8 + 8 * self._wanted[index] + ids

    def _bind(self) -> None:
        for r, wanted in enumerate(self._wanted):  # an array of no entries still asks: the kernel looks at the pointer
            if wanted and self._edge_row[r] is None:
                self._edge_row[r] = np.empty(1, dtype=np.int64)
            if self._keep[r] is not None and self._e_id[r] is None:
                self._e_id[r] = np.empty(1, dtype=self._edge_id_dtype)
        lists: list[Sequence[np.ndarray | None]] = [
            self._gid,
            self._uid,
            self._src,
            self._dst,
            self._edge_row,
            self._e_id,
            self._tree,
        ]
        tables = [pointers(a) for a in lists]
        self._tables = tables
        s = self._struct
        s.table_cap, s.table = self._slots, self._table.ctypes.data
        s.table_base = self._table_base.ctypes.data
        s.scratch_cap, s.scratch = len(self._scratch), self._scratch.ctypes.data
        s.node_cap, s.edge_cap = self._node_cap.ctypes.data, self._edge_cap.ctypes.data
        s.gid, s.uid, s.src, s.dst, s.edge_row, s.e_id, s.tree = (t.ctypes.data for t in tables)
        s.edge_id_bytes, s.edge_ids = self._edge_id_dtype.itemsize, self._edge_ids.ctypes.data
        s.nodes_per_hop, s.edges_per_hop = self._nodes_per_hop.ctypes.data, self._edges_per_hop.ctypes.data


def first_of(arrays: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    """Returns the first entries of each array, or tensor; None stays None. counts: their numbers.  arrays: may be empty."""
    return [a if a is None else a[:n] for a, n in zip(arrays, counts, strict=False)]


def _dtype_of(arrays: Sequence[np.ndarray | None]) -> np.dtype:
    """Returns the dtype of edge ids. Raises `DataError` if there are several."""
    found = {array.dtype for array in arrays if array is not None}
    if len(found) > 1:
        raise DataError(f"edge_ids: expected one dtype, got {', '.join(sorted(map(str, found)))}.")
    return found.pop() if found else np.dtype(np.int64)


def widen(values: np.ndarray, out: np.ndarray) -> None:
    """Copies int32 [n] into ``out``, int64 [n]."""
    library().glt_widen(values.ctypes.data, len(values), out.ctypes.data)


# Local ids by first occurrence.


def relabel(
    ids: np.ndarray, known: np.ndarray | None = None, *, wide: bool | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers ids in the order of their first occurrence, after those of ``known``.

    ids: int64 [n], >= 0.  known: int64 [k], ids that have the local ids 0..k-1 already; of equal ones the first counts.
    Returns (unique int64 [k + new], lids int32 [n]) with ``unique[lids] == ids``.
    Raises `DataError` for a negative id.
    """
    known = np.empty(0, dtype=np.int64) if known is None else known
    if wide is None:
        wide = bool(len(ids) and ids.max() >= 2**32 - 2) or bool(len(known) and known.max() >= 2**32 - 2)
    cap = len(known) + len(ids)
    unique = np.empty(cap, dtype=np.int64)
    unique[: len(known)] = known
    slots = 64
    while slots * 3 // 4 <= cap:
        slots *= 2
    table = np.empty(slots * (2 if wide else 1), dtype=np.int64)
    count = np.array([len(known)], dtype=np.int64)
    lids = np.empty(len(ids), dtype=np.int32)
    status, detail = call(library().glt_relabel, ids, len(ids), table, slots, wide, 1, unique, count, cap, lids)
    assert status != GROW, detail
    check(status, detail, "relabel")
    return unique[: count[0]].copy(), lids
