"""Cached neighbour lists of remote nodes. One copy for all processes of a host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from glt_lightning.base import DataError, DrawOptions, PickerSpec
from glt_lightning.graph.drawn_rows import RowDraws, pickable
from glt_lightning.graph.manifest import Manifest, cum_name, edge_path
from glt_lightning.graph.row_order import TIMES
from glt_lightning.graph.shared_arrays import SharedArrays
from glt_lightning.kernels import (
    Among,
    EdgeTypeArrays,
    ExcludedEntries,
    GraphView,
    LaborIds,
    Pairs,
    PickableRows,
    Picks,
    RankedSet,
    Shards,
    Trees,
    row_bytes,
)

_MOST_EDGES = 2**31  # edges of one type: `CachedEdges.find` gives their places as int32


@dataclass(frozen=True)
class NeighborLists:
    """Whole neighbour lists of one edge type, for nodes in ascending order.

    counts: [K].  neighbors: [sum of counts] gids, in stored order.  first_edge: int64 [K], edge row of each list's first.
    """

    counts: np.ndarray
    neighbors: np.ndarray
    first_edge: np.ndarray


class CachedEdges:
    """The attributes of all edges of the cached lists of one edge type.

    rows: ``edge_ids`` or attribute, as stored -> [E, ...], list after list.
    """

    def __init__(self, indptr: np.ndarray, first_edge: np.ndarray, rows: Mapping[str, np.ndarray]) -> None:
        some = np.flatnonzero(np.diff(indptr))
        self.rows, self._first_edge = rows, first_edge[some]
        self._first, self._counts = indptr[some], np.diff(indptr)[some]

    def __len__(self) -> int:
        return len(self.rows["edge_ids"])

    def find(self, edge_rows: np.ndarray) -> np.ndarray:
        """Returns int32 [n]: where the attributes of ``edge_rows`` (int64 [n]) are, -1 for one that is not cached."""
        if not len(self._first_edge):
            return np.full(len(edge_rows), -1, dtype=np.int32)
        at = np.maximum(np.searchsorted(self._first_edge, edge_rows, side="right") - 1, 0)
        offset = edge_rows - self._first_edge[at]
        inside = (offset >= 0) & (offset < self._counts[at])
        return np.where(inside, self._first[at] + offset, -1).astype(np.int32)


class TopologyCache:
    """Draws neighbours of nodes whose lists are cached; the picks are equal to their owners'.

    Attributes:
        nodes: For each node type the nodes whose lists are cached, or None.
        edges: For each edge type the attributes of the edges of all cached lists, or None if the graph has none.
        arrays: The memory that holds them.
    """

    def __init__(self, arrays: SharedArrays, manifest: Manifest) -> None:
        self.arrays, found = arrays, arrays.arrays
        schema, offsets = manifest.schema, manifest.offsets
        types, edge_types = range(len(schema.node_types)), range(len(schema.edge_types))
        self.nodes = [
            RankedSet(found[f"members/{t}"], offsets[t], manifest.num_nodes[t]) if f"members/{t}" in found else None
            for t in types
        ]
        empty = np.empty(0, dtype=manifest.id_dtype)
        user_ids = [found.get(f"n_id/{t}", empty) for t in types]
        # The cached nodes of a type are a type of their own behind those of the graph; neighbours keep their gids.
        self._first = np.cumsum([manifest.total_nodes, *(len(ids) for ids in user_ids)])
        dst = schema.destination_types()
        lists = [
            EdgeTypeArrays(found[f"indptr/{r}"], found[f"indices/{r}"])
            if f"indptr/{r}" in found
            else EdgeTypeArrays(np.zeros(1, dtype=np.int64), empty)
            for r in edge_types
        ]
        bounds = np.array([*offsets[:-1], *self._first], dtype=np.int64)
        ends = schema.source_types(), [len(types) + t for t in dst]
        keys = schema.edge_type_keys()
        edge_counts = np.array([[len(each.indices)] for each in lists], dtype=np.int64).reshape(len(lists), 1)
        ids = [*(None for _ in types), *user_ids]

        def view_of(arrays: Sequence[EdgeTypeArrays], labor: LaborIds | None = None) -> GraphView:
            return GraphView(bounds, arrays, ids, keys, *ends, edge_counts, labor)

        self._view_of, self._view = view_of, view_of(lists)
        self._manifest, self._pickable = manifest, dict[tuple[PickerSpec, bool], PickableRows]()
        self._views: dict[tuple[tuple[str | None, ...], bool, bool], GraphView] = {}
        self._timed = [manifest.is_timed(r) for r in edge_types]
        self._lists, self._first_edge = lists, [found.get(f"first_edge/{r}") for r in edge_types]
        self._dst = dst
        self.edges = [self._edges_of(r) for r in edge_types]

    def _edges_of(self, edge_type: int) -> CachedEdges | None:
        prefix, found = f"edge/{edge_type}/", self.arrays.arrays
        rows = {name.removeprefix(prefix): array for name, array in found.items() if name.startswith(prefix)}
        if not rows:
            return None
        return CachedEdges(found[f"indptr/{edge_type}"], found[f"first_edge/{edge_type}"], rows)

    def _view_by(self, draw: DrawOptions, labor: LaborIds | None = None) -> GraphView:
        """Returns a view of the lists for draws by these options: by weights, with times, or by LABOR."""
        weights = draw.weights if any(draw.weights) else (None,) * len(self._lists)
        if not draw.timed and not any(weights) and not draw.labor:
            return self._view
        how = (weights, draw.timed, draw.labor)
        if how not in self._views:
            arrays = list(self._lists)
            for r, weight in enumerate(weights):
                sums = None if weight is None else self._of_edges(r, cum_name(weight), np.int32)
                times = self._of_edges(r, TIMES, np.int64) if draw.timed and self._timed[r] else None
                arrays[r] = replace(arrays[r], sums=sums, times=times)
            self._views[how] = self._view_of(arrays, labor if draw.labor else None)
        return self._views[how]

    def _draws_by(self, draw: DrawOptions, labor: LaborIds | None) -> RowDraws:
        view, picker = self._view_by(draw, labor), draw.picker
        if picker is None:
            return RowDraws(view, draw)
        if (picker, draw.timed) not in self._pickable:
            manifest, edge_types = self._manifest, range(len(self._lists))
            shards = {
                (r, name): Shards([self._of_edges(r, name, *kind)], encoding=manifest.decoded_by("edges", r, name))
                for r in edge_types
                for name, kind in stored_edge_rows(manifest, r).items()
            }
            self._pickable[picker, draw.timed] = pickable(view, manifest, picker, lambda r, name: shards[r, name])
        return RowDraws(view, draw, self._pickable[picker, draw.timed])

    def _of_edges(self, edge_type: int, name: str, dtype: Any, shape: tuple[int, ...] = ()) -> np.ndarray:
        """Returns an array with an entry for each edge of the lists."""
        lists, edges = self._lists[edge_type], self.edges[edge_type]
        found: np.ndarray = np.empty((0, *shape), dtype) if edges is None else edges.rows[name]
        if len(found) != len(lists.indices):
            raise DataError(
                f"cache.topology: too many edges of one type for their {name} ({len(lists.indices)}). Lower it."
            )
        return found

    @classmethod
    def create(
        cls,
        manifest: Manifest,
        gids: Sequence[np.ndarray],
        user_ids: Sequence[np.ndarray],
        lists: Sequence[NeighborLists | None],
    ) -> TopologyCache:
        """Makes a cache whose attributes of edges, if the graph has any, are still to be filled in; then call `finish`.

        gids: for each node type int64 [K], ascending.  user_ids: the user's ids of these nodes.  lists: for each edge type the
        neighbour lists of the nodes of its destination type. Raises MemoryError if the host has too little memory."""
        id_dtype = np.dtype(manifest.id_dtype)
        shapes: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        for t, nodes in enumerate(gids):
            if len(nodes):
                shapes[f"members/{t}"] = (np.dtype(np.uint64), (RankedSet.words_for(manifest.num_nodes[t]),))
                shapes[f"n_id/{t}"] = (id_dtype, (len(nodes),))
        for r, each in enumerate(lists):
            if each is not None:
                shapes[f"indptr/{r}"] = (np.dtype(np.int64), (len(each.counts) + 1,))
                shapes[f"first_edge/{r}"] = (np.dtype(np.int64), (len(each.counts),))
                shapes[f"indices/{r}"] = (id_dtype, (len(each.neighbors),))
                if len(each.neighbors) < _MOST_EDGES:  # else positions exceed an int32: attributes are fetched
                    for name, (dtype, shape) in stored_edge_rows(manifest, r).items():
                        shapes[f"edge/{r}/{name}"] = (dtype, (len(each.neighbors), *shape))
        made = SharedArrays.create(shapes, {})
        arrays = made.arrays
        for t, nodes in enumerate(gids):
            if len(nodes):
                RankedSet.build(nodes, manifest.offsets[t], manifest.num_nodes[t], arrays[f"members/{t}"])
                arrays[f"n_id/{t}"][:] = user_ids[t]
        for r, each in enumerate(lists):
            if each is not None:
                np.cumsum(each.counts, out=arrays[f"indptr/{r}"][1:])
                arrays[f"first_edge/{r}"][:] = each.first_edge
                arrays[f"indices/{r}"][:] = each.neighbors
        return cls(made, manifest)

    @staticmethod
    def index_bytes(manifest: Manifest, node_type: int) -> int:
        """Returns the bytes of the index by which the cached nodes of a type are found."""
        return 8 * RankedSet.words_for(manifest.num_nodes[node_type])

    @staticmethod
    def node_bytes(manifest: Manifest, counts: Mapping[int, np.ndarray], nodes: int) -> np.ndarray:
        """Returns int64 [n]: the bytes of each of n nodes of a type in a cache, with their lists. counts: by edge type, lengths
        of their lists, [n]."""
        id_bytes = np.dtype(manifest.id_dtype).itemsize
        sizes = np.full(nodes, id_bytes + 16 * len(counts), dtype=np.int64)
        for r, each in counts.items():
            entry = sum(row_bytes(dtype, shape) for dtype, shape in stored_edge_rows(manifest, r).values())
            sizes += each.astype(np.int64) * (id_bytes + entry)
        return sizes

    def edge_rows(self, edge_type: int) -> np.ndarray:
        """Returns int64 [E]: the edge row of each entry of the cached lists."""
        lists, first = self._lists[edge_type], self._first_edge[edge_type]
        assert first is not None
        counts = np.diff(lists.indptr)
        rows: np.ndarray = np.arange(len(lists.indices)) + np.repeat(first - lists.indptr[:-1], counts)
        return rows

    def finish(self) -> None:
        """Completes the cache: other processes may open it after this."""
        self.arrays.finish()

    @classmethod
    def open(cls, path: str, manifest: Manifest) -> TopologyCache:
        """Maps the finished lists of another process of the host. Raises `DataError` if they are damaged."""
        return cls(SharedArrays.open(path), manifest)

    def sample(
        self,
        edge_type: int,
        ranks: np.ndarray,
        fanout: int,
        batch_key: int,
        hop: int,
        draw: DrawOptions,
        excluded: Pairs | None = None,
        trees: Trees | None = None,
        labor: LaborIds | None = None,
    ) -> Picks:
        """Draws neighbours of cached nodes of the edge type's destination type. ranks: int [n], in the cache.  excluded: (ranks,
        sources) of edges to leave out, ascending.  trees: the trees of these rows, by their node type in the graph.  labor: the
        ids of the graph, if ``draw`` is by LABOR."""
        dst = self._dst[edge_type]
        ranks, first_row = ranks.astype(np.int64), self._first[dst]
        draws = self._draws_by(draw, labor)
        view, without = draws.view, None
        if excluded is not None:
            without = ExcludedEntries.find(self._view, edge_type, excluded[0].astype(np.int64) + first_row, excluded[1])
        if trees is not None:
            trees = trees.of_rows({int(view.dst_types[edge_type]): trees.of[dst]})
        rows = draws.of(edge_type, ranks + first_row, fanout, batch_key, hop, without, trees)
        counts, neighbors, edges = rows.picks()
        if edges is not None:
            first = self._first_edge[edge_type]
            assert first is not None
            # the view numbers edges by their position in the cached lists; callers need the rows of the partition
            edges += np.repeat(first[ranks] - self._lists[edge_type].indptr[ranks], counts)
        return Picks(counts, neighbors, edges)

    def has_edges(
        self, edge_type: int, ranks: np.ndarray, src: np.ndarray, weights: tuple[str | None, ...] = ()
    ) -> np.ndarray:
        """Returns bool [n]: True if the list of a cached node, by rank, has the neighbour in ``src`` (gids), with a weight other
        than 0."""
        return self._view_by(DrawOptions(weights=weights)).has_edges(
            edge_type,
            ranks.astype(np.int64) + self._first[self._dst[edge_type]],
            src,
        )

    def induce(self, among: Among, weights: tuple[str | None, ...]) -> Picks:
        """Finds the edges in the lists of cached nodes whose sources are members. among: its ``rows`` are ranks in the cache."""
        edge_type, ranks = among.edge_type, among.rows.astype(np.int64)
        rows = replace(among, rows=ranks + self._first[self._dst[edge_type]])
        picks = rows.find(self._view_by(DrawOptions(weights=weights)))
        first = self._first_edge[edge_type]
        assert first is not None
        assert picks.edge_rows is not None
        picks.edge_rows[:] += np.repeat(first[ranks] - self._lists[edge_type].indptr[ranks], picks.counts)
        return picks

    @property
    def num_nodes(self) -> int:
        return int(self._first[-1] - self._first[0])

    @property
    def nbytes(self) -> int:
        return self.arrays.nbytes

    def close(self) -> None:
        self.arrays.close()


def stored_edge_rows(manifest: Manifest, edge_type: int) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    """Returns for ``edge_ids``, attributes and times of an edge type the dtype and shape of one row, as stored; empty if edges
    have ids alone."""
    wanted = manifest.edge_attrs(edge_type) or manifest.is_timed(edge_type)
    names = manifest.edge_rows(edge_type) if wanted else ()
    entries = {name: manifest.arrays[edge_path(0, edge_type, name)] for name in names}
    return {name: (np.dtype(entry.dtype), tuple(entry.shape[1:])) for name, entry in entries.items()}
