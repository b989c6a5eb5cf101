"""Finds what is deleted with nodes and edges that a user names: all edges of these nodes, and all parallel edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from glt_lightning.base import DataError, EdgeType, NodeType, edge_type_str
from glt_lightning.graph import EdgeEnds, LocalPartition
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
        pairs = {e: checked_edges(self._manifest, e, NewEdges(ends), self._num_nodes) for e, ends in edges.items()}
        found = {}
        for e in self._of_user:
            named = np.unique(pairs.get(e, _NONE.reshape(2, 0)), axis=1)
            some = self._edges(e, gone.get(e[0], _NONE), gone.get(e[2], _NONE), named)
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
        ids, ends = self._candidates(e, r, both, src, dst, pairs)
        hit = np.isin(ends[0], src) | np.isin(ends[1], dst) | self._is_pair(e, both, ends, pairs)
        hit &= True if before is None else ~np.isin(ids, before.ids)
        edges = DeletedEdges.of(ids[hit], ends[:, hit])
        missing = ~self._is_pair(e, both, pairs, edges.ends)
        if missing.any():
            held_out = self._held_out(e, both, pairs[:, missing])
            edges = edges.joined(DeletedEdges(np.full(held_out.shape[1], DeletedEdges.HELD_OUT), held_out))
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

    def _candidates(
        self, e: EdgeType, r: int, both: bool, src: np.ndarray, dst: np.ndarray, pairs: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids and ends of edges, all that are looked for among them: stored ones, and those that versions added, with
        those that were merged into others."""
        base = self._base
        found = [self._in_rows(r, np.union1d(np.union1d(dst, pairs[1]), src if both else _NONE))]
        if len(src) and not both:
            found += self._of_sources(r, src)
        stored = np.concatenate(found)
        ends = EdgeEnds(base, r).user_ids(stored)
        ids = base.edge_shards(r, "edge_ids").gather(stored)
        added = np.asarray(self._before.edges[e].edge_index) if e in self._before.edges else _NONE.reshape(2, 0)
        new = self._columns[r].count + np.arange(added.shape[1])
        return np.append(ids, new), np.concatenate([ends, added], axis=1).astype(np.int64)

    def _in_rows(self, r: int, ids: np.ndarray) -> np.ndarray:
        """Returns the edge rows of all edges that lead to nodes. ids: user ids."""
        base, t = self._base, self._manifest.schema.destination_types()[r]
        gids = base.gids_of(t, ids[ids < self._manifest.num_nodes[t]])
        part, numbers = self._manifest.part_of(t, gids), gids - self._manifest.offsets[t]
        found = [_NONE]
        for p in np.unique(part).tolist():
            row, indptr = numbers[part == p] - self._manifest.bounds[t][p], base.pointers(r, p)
            first = np.asarray(indptr[row])
            found.append(spread(first + self._manifest.edge_bounds(r)[p], indptr[row + 1] - first))
        return np.concatenate(found)

    def _of_sources(self, r: int, ids: np.ndarray) -> list[np.ndarray]:
        """Returns the edge rows of all edges that lead from nodes. Looks at all edges of a type: only destinations have rows."""
        base, manifest = self._base, self._manifest
        src, bounds = manifest.schema.source_types()[r], manifest.edge_bounds(r)
        wanted, found = np.zeros(manifest.num_nodes[src], bool), list[np.ndarray]()
        wanted[base.gids_of(src, ids[ids < len(wanted)]) - manifest.offsets[src]] = True
        for p in range(manifest.num_parts):
            sources = base.sources(r, p)
            for begin in range(0, len(sources), _CHUNK):
                hit = np.flatnonzero(wanted[sources[begin : begin + _CHUNK] - manifest.offsets[src]])
                found.append(hit + begin + bounds[p])
        return found
