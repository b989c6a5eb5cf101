"""Finds what is deleted with nodes and edges that a user names: all edges of these nodes, and all parallel edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from glt_lightning.base import DataError, EdgeType, NodeType, edge_type_str
from glt_lightning.graph import LocalPartition
from glt_lightning.kernels import spread
from glt_lightning.partition.additions import Additions, Deleted, DeletedEdges, NewEdges, checked_edges

_CHUNK = 1 << 22  # sources looked at together
_NONE = np.empty(0, np.int64)
Name = Callable[[NodeType, int], object]


def find_deleted(
    base: LocalPartition,
    before: Additions,
    nodes: Mapping[NodeType, np.ndarray],
    edges: Mapping[EdgeType, np.ndarray],
    name: Name = lambda _, node: node,
) -> Deleted:
    """Returns the rows to delete from a version.

    base, before: the partition, and the rows of the version.  nodes: user ids by type.  edges: [2, E] user ids by type of the
    user's edges; all edges between two nodes are deleted, where both directions are stored in either.  name: returns what
    errors call a node.

    Raises `DataError` for a node or an edge that the version does not have.
    """
    return _Search(base, before, name).find(nodes, edges)


class _Search:
    def __init__(self, base: LocalPartition, before: Additions, name: Name) -> None:
        self._base, self._before, self._name = base, before, name
        manifest = self._manifest = base.manifest
        self._num_nodes = before.num_nodes(manifest)
        self._columns = manifest.edge_columns or ()
        self._of_user = manifest.given_edge_types

    def find(self, nodes: Mapping[NodeType, np.ndarray], edges: Mapping[EdgeType, np.ndarray]) -> Deleted:
        gone = {t: self._nodes(t, ids) for t, ids in nodes.items()}
        for e in edges:
            if e not in self._of_user:
                known = ", ".join(map(edge_type_str, self._of_user))
                raise DataError(f"delete: the graph has no edge type {edge_type_str(e)}; it has: {known}.")
        found = {}
        for e in self._of_user:
            pairs = _NONE.reshape(2, 0)
            if e in edges:
                pairs = np.unique(checked_edges(self._manifest, e, NewEdges(edges[e]), self._num_nodes), axis=1)
            some = self._edges(e, gone.get(e[0], _NONE), gone.get(e[2], _NONE), pairs)
            if len(some.ids):
                found[e] = some
        return Deleted({t: ids for t, ids in gone.items() if len(ids)}, found)

    def _nodes(self, t: NodeType, given: np.ndarray) -> np.ndarray:
        if t not in self._num_nodes:
            raise DataError(f"delete: the graph has no node type {t!r}; it has: {', '.join(self._num_nodes)}.")
        ids = np.asarray(given)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise DataError(f"delete: nodes of type {t!r}: expected integers [n], got {ids.dtype} {list(ids.shape)}.")
        ids = np.unique(ids.astype(np.int64))
        gone = np.append(
            self._before.deleted.nodes.get(t, _NONE), self._base.deleted(self._manifest.schema.node_index(t))
        )
        bad = (ids < 0) | (ids >= self._num_nodes[t]) | np.isin(ids, gone)
        if bad.any():
            node = int(ids[bad.argmax()])
            if node in gone:
                raise DataError(f"delete: node {self._name(t, node)!r} of type {t!r} is deleted already.")
            raise DataError(f"delete: node {node} of type {t!r} is none of 0 to {self._num_nodes[t] - 1}.")
        return ids

    def _edges(self, e: EdgeType, src: np.ndarray, dst: np.ndarray, pairs: np.ndarray) -> DeletedEdges:
        """Returns the edges of a type with one of the sources, one of the destinations, or the ends of one of the pairs."""
        r, both = self._of_user[e], self._columns[self._of_user[e]].reverse_of is not None
        before = self._before.deleted.edges.get(e)
        found = []
        for ids, ends in (*self._stored(r, both, src, dst, pairs), self._added(e, r)):
            hit = np.isin(ends[0], src) | np.isin(ends[1], dst) | self._is_pair(e, both, ends, pairs)
            hit &= True if before is None else ~np.isin(ids, before.ids)
            found.append((ids[hit], ends[:, hit]))
        edges = DeletedEdges.of(
            np.concatenate([ids for ids, _ in found]), np.concatenate([x for _, x in found], axis=1)
        )
        missing = ~self._is_pair(e, both, pairs, edges.ends)
        if missing.any():
            held_out = self._held_out(e, both, pairs[:, missing])
            ids = np.append(edges.ids, np.full(held_out.shape[1], DeletedEdges.HELD_OUT))
            edges = DeletedEdges.of(ids, np.concatenate([edges.ends, held_out], axis=1))
            missing = ~self._is_pair(e, both, pairs, edges.ends)
        if missing.any():
            pair = zip((e[0], e[2]), pairs[:, missing.argmax()].tolist(), strict=True)
            one, other = (self._name(t, node) for t, node in pair)
            raise DataError(f"delete: edges of {edge_type_str(e)}: there is no edge from {one!r} to {other!r}.")
        return edges

    def _held_out(self, e: EdgeType, both: bool, pairs: np.ndarray) -> np.ndarray:
        """Returns [2, n] those pairs that are edges to predict, which the graph does not have where they are held out."""
        keys = (key.split("/") for key in self._manifest.edge_splits)
        splits = [self._base.edge_split(int(r), name).edge for r, name in keys if int(r) == self._of_user[e]]
        if not splits:
            return pairs[:, :0]
        deleted, before = self._before.deleted, self._before.deleted.edges.get(e)
        known = self._is_pair(e, both, pairs, np.concatenate(splits, axis=1))
        gone = np.zeros(len(known), bool) if before is None else self._is_pair(e, both, pairs, before.ends)
        for row, t in zip(pairs, (e[0], e[2]), strict=True):
            gone |= np.isin(row, deleted.nodes.get(t, _NONE))
        return pairs[:, known & ~gone]

    def _is_pair(self, e: EdgeType, both: bool, ends: np.ndarray, pairs: np.ndarray) -> np.ndarray:
        width = self._num_nodes[e[2]]
        if both:
            ends, pairs = np.sort(ends, axis=0), np.sort(pairs, axis=0)
        return np.isin(ends[0] * width + ends[1], pairs[0] * width + pairs[1])

    def _added(self, e: EdgeType, r: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids and ends of the edges that versions added, with those that were merged into others."""
        added = self._before.edges.get(e)
        ends = np.empty((2, 0), np.int64) if added is None else np.asarray(added.edge_index, np.int64)
        return self._columns[r].count + np.arange(ends.shape[1]), ends

    def _stored(
        self, r: int, both: bool, src: np.ndarray, dst: np.ndarray, pairs: np.ndarray
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the ids and ends of stored edges, all that are looked for among them."""
        rows = np.union1d(np.union1d(dst, pairs[1]), src if both else _NONE)
        found = [self._of_rows(r, rows)]
        if both or not len(src):
            return found
        return found + self._of_sources(r, src)

    def _of_rows(self, r: int, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        base, t = self._base, self._manifest.schema.destination_types()[r]
        ids = ids[ids < self._manifest.num_nodes[t]]
        numbers = base.gids(t)[ids].astype(np.int64) - self._manifest.offsets[t]
        part = np.searchsorted(np.array(self._manifest.bounds[t]), numbers, side="right") - 1
        positions, nodes = [_NONE], [_NONE]
        for p in np.unique(part).tolist():
            mine = part == p
            row, indptr = numbers[mine] - self._manifest.bounds[t][p], base.pointers(r, p)
            counts = indptr[row + 1] - indptr[row]
            positions.append(spread(np.asarray(indptr[row]), counts) + self._manifest.edge_bounds(r)[p])
            nodes.append(np.repeat(ids[mine], counts))
        at = np.concatenate(positions)
        return self._ids(r, at), np.stack([self._sources(r, at), np.concatenate(nodes)])

    def _of_sources(self, r: int, ids: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Looks at all edges of a type: only their destinations have rows."""
        base, manifest = self._base, self._manifest
        src, dst = manifest.schema.source_types()[r], manifest.schema.destination_types()[r]
        wanted = np.zeros(manifest.num_nodes[src], bool)
        wanted[ids[ids < len(wanted)]] = True
        user_ids, found = base.user_ids(src), list[tuple[np.ndarray, np.ndarray]]()
        for p in range(manifest.num_parts):
            sources, indptr, nodes = base.sources(r, p), base.pointers(r, p), base.mapped_user_ids(dst)[p]
            assert nodes is not None
            for begin in range(0, len(sources), _CHUNK):
                one = user_ids[sources[begin : begin + _CHUNK] - manifest.offsets[src]]
                hit = np.flatnonzero(wanted[one])
                row = np.searchsorted(indptr, hit + begin, side="right") - 1
                ends = np.stack([one[hit].astype(np.int64), nodes[row].astype(np.int64)])
                found.append((self._ids(r, hit + begin + manifest.edge_bounds(r)[p]), ends))
        return found

    def _ids(self, r: int, positions: np.ndarray) -> np.ndarray:
        return self._base.edge_shards(r, "edge_ids").gather(positions).astype(np.int64)

    def _sources(self, r: int, positions: np.ndarray) -> np.ndarray:
        """Returns the user ids of the sources of stored edges. positions: part after part."""
        manifest, src = self._manifest, self._manifest.schema.source_types()[r]
        bounds, found = manifest.edge_bounds(r), np.empty(len(positions), np.int64)
        part = np.searchsorted(bounds, positions, side="right") - 1
        for p in np.unique(part).tolist():
            found[part == p] = self._base.sources(r, p)[positions[part == p] - bounds[p]]
        return self._base.user_ids(src)[found - manifest.offsets[src]].astype(np.int64)
