"""The edges of a batch beyond the sampled ones: among all of its nodes, or of the other direction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from glt_lightning.kernels import Among, ExcludedEdges, Pairs, Picks, Subgraph, entries_of
from glt_lightning.sampling.neighbors import Found, NeighborSource
from glt_lightning.sampling.questions.has_edges import HasEdges
from glt_lightning.sampling.questions.induce import Induce
from glt_lightning.sampling.subgraph_task import INDUCED

_EMPTY = np.empty(0, dtype=np.int64)
_TABLE = (
    4  # entries of a table for each node that is looked up in it; one of as many takes a tenth of the time of searches
)


@dataclass(frozen=True)
class FoundEdges:
    """Edges of one edge type of a batch. src, dst: int [E] lids.  row: int64 [E] edge rows."""

    src: np.ndarray
    dst: np.ndarray
    row: np.ndarray

    def where(self, kept: np.ndarray) -> FoundEdges:
        return FoundEdges(self.src[kept], self.dst[kept], self.row[kept])

    @classmethod
    def joined(cls, pieces: Sequence[FoundEdges]) -> FoundEdges:
        each = ([getattr(piece, name) for piece in pieces] for name in ("src", "dst", "row"))
        return cls(*(np.concatenate([_EMPTY, *arrays]) for arrays in each))


class BatchNodes:
    """The nodes of one type of a batch.

    gid: int64 [N] by lid.  tree: int64 [N], the tree of each node; None: the batch has no trees.
    ids: int64 [M], the distinct gids, ascending.  number: int64 [N], the position of each node's gid in ``ids``.
    """

    def __init__(self, gid: np.ndarray, tree: np.ndarray | None) -> None:
        self.gid, self.tree = gid, None if tree is None else tree.astype(np.int64)
        self.ids, self._first, self.number = np.unique(gid, return_index=True, return_inverse=True)
        if self.tree is not None:
            self._num_trees = 1 + int(self.tree.max(initial=-1))
            self._keys, self._first = np.unique(self.number * self._num_trees + self.tree, return_index=True)

    def sources(self, number: np.ndarray, tree: np.ndarray | None) -> np.ndarray:
        """Returns int64 [n], the lid of each node as the source of edges in a tree: that of its first row there; -1 if the tree
        does not have the node. number: positions in ``ids``.  tree: the tree of each."""
        if self.tree is None or tree is None:
            found: np.ndarray = self._first[number]
            return found
        keys = np.where(tree < self._num_trees, number * self._num_trees + tree, -1)
        if len(self.ids) * self._num_trees <= _TABLE * len(keys):
            table = np.full(len(self.ids) * self._num_trees + 1, -1, dtype=np.int64)  # the last one is for other trees
            table[self._keys] = self._first
            return table[keys]
        at = np.minimum(np.searchsorted(self._keys, keys), max(0, len(self._keys) - 1))
        return np.where(self._keys[at] == keys, self._first[at], -1)

    @property
    def own(self) -> np.ndarray:
        """The lid of each node as the source of edges, int64 [N]. It differs from the node's own for a seed that comes twice."""
        return self.sources(self.number, self.tree)


def complete_edges(source: NeighborSource, found: Found, excluded: ExcludedEdges | None) -> Found:
    """Adds the edges of ``source.config.subgraph`` to a batch.

    excluded: edges to leave out. Asks owners for the rows of remote nodes, and for the attributes of the new edges.
    Raises `DataError` for a row beyond the limit, and as `NeighborSource.ask`.
    """
    task = source.config.subgraph
    if task is None:
        return found
    completed = source.complete(found, excluded)
    if completed is not None:
        return completed
    trees = found.tree or [None] * len(found.gid)
    nodes = [BatchNodes(gid, tree) for gid, tree in zip(found.gid, trees, strict=True)]
    pairs = {} if excluded is None else excluded.pairs
    if task.kind == INDUCED:
        edges = _induced(source, nodes, pairs)
        for table in source.edges:  # the edges of the hops, which a batch of induced edges does not have
            table.clear()
        source.reached_edges({r: each.row for r, each in enumerate(edges)})
        return _having(found, edges)
    stored, copies = _reverse(source, found, nodes, pairs)
    joined = [FoundEdges.joined(both).row for both in zip(stored, copies, strict=True)]
    source.reached_edges(dict(enumerate(joined)))
    sampled = [_sampled(found, r) for r in range(len(stored))]
    edges = [FoundEdges.joined(each) for each in zip(sampled, stored, copies, strict=True)]
    flipped = [np.arange(len(whole.src)) >= len(whole.src) - len(c.src) for whole, c in zip(edges, copies, strict=True)]
    return replace(_having(found, edges), flipped=flipped)


def _sampled(found: Subgraph, edge_type: int) -> FoundEdges:
    row = found.edge_row[edge_type]
    assert row is not None, "batches with edges of the other direction are sampled with edge rows"
    return FoundEdges(found.src[edge_type].astype(np.int64), found.dst[edge_type].astype(np.int64), row)


def _having(found: Subgraph, edges: Sequence[FoundEdges]) -> Subgraph:
    src, dst = ([np.ascontiguousarray(getattr(each, end), dtype=np.int32) for each in edges] for end in ("src", "dst"))
    return replace(found, src=src, dst=dst, edge_row=[each.row for each in edges], e_id=[])


def _induced(source: NeighborSource, nodes: Sequence[BatchNodes], excluded: Mapping[int, Pairs]) -> list[FoundEdges]:
    """Finds for each edge type all edges among the nodes of a batch, in the order of destinations and stored rows."""
    view, task = source.view, source.config.subgraph
    assert task is not None
    types = list(zip(view.src_types.tolist(), view.dst_types.tolist(), strict=True))
    asked = [
        Among.of(view, r, nodes[dst].ids, nodes[src].ids, task.limit)
        for r, (src, dst) in enumerate(types)
        if len(nodes[src].ids) and len(nodes[dst].ids)
    ]
    edges = [FoundEdges(_EMPTY, _EMPTY, _EMPTY) for _ in types]
    for among, picks in zip(asked, _edges_of(source, asked), strict=True):
        r = among.edge_type
        src, dst = (nodes[t] for t in types[r])
        found = _spread(picks, dst, np.arange(len(dst.gid)), dst.number, src)
        edges[r] = found.where(~_are_pairs(dst.gid[found.dst], src.gid[found.src], excluded.get(r)))
    return edges


def _edges_of(source: NeighborSource, asked: Sequence[Among]) -> list[Picks]:
    """Finds the edges of each entry, by the weights of the config. Asks all owners at the same time."""
    waits = [source.ask(Induce(among, source.config.weights)) for among in asked]
    return [wait() for wait in waits]


def _spread(
    picks: Picks,
    dst: BatchNodes,
    lids: np.ndarray,
    rows: np.ndarray,
    src: BatchNodes,
    members: np.ndarray | None = None,
) -> FoundEdges:
    """Makes edges of the batch, by lid, from edges of distinct nodes.

    picks: the edges of each row.  lids, rows: int [n], destinations, and the row in ``picks`` that has the edges of each.
    members: positions in ``src.ids`` of the sources that ``picks`` numbers; None: all of ``src.ids``.
    """
    assert picks.edge_rows is not None
    at = entries_of(rows, picks.counts)
    numbers, to = picks.neighbors[at], np.repeat(lids, picks.counts[rows])
    sources = src.sources(numbers if members is None else members[numbers], None if dst.tree is None else dst.tree[to])
    edges = FoundEdges(sources, to, picks.edge_rows[at].astype(np.int64, copy=False))
    return edges if dst.tree is None else edges.where(sources >= 0)


def _reverse(
    source: NeighborSource, found: Subgraph, nodes: Sequence[BatchNodes], excluded: Mapping[int, Pairs]
) -> tuple[list[FoundEdges], list[FoundEdges]]:
    """Finds for each edge type the edges of the other direction: the stored ones that were not sampled; and, within one edge
    type, flipped copies of the sampled edges that are not stored in the other direction."""
    view, task = source.view, source.config.subgraph
    assert task is not None
    added, copied = ([FoundEdges(_EMPTY, _EMPTY, _EMPTY)] * len(task.reverse) for _ in range(2))
    wanted: dict[int, list[FoundEdges]] = {}  # by the edge type of the other direction
    for r, other in enumerate(task.reverse):
        if other >= 0 and len(found.src[r]):
            own, edges = nodes[int(view.dst_types[r])].own, _sampled(found, r)
            edges = edges.where(own[edges.dst] == edges.dst)  # another row of a seed has the same neighbours
            wanted.setdefault(other, []).append(FoundEdges(edges.dst, edges.src, edges.row))
    asked, ends = [], []
    for r, pieces in wanted.items():
        flipped, (src, dst) = FoundEdges.joined(pieces), (nodes[int(t[r])] for t in (view.src_types, view.dst_types))
        lids = _distinct(flipped.dst, len(dst.gid))
        members = _distinct(src.number[flipped.src], len(src.ids))
        rows, row_of = np.unique(dst.number[lids], return_inverse=True)
        asked.append(Among.of(view, r, dst.ids[rows], src.ids[members], task.limit))
        ends.append((r, flipped, lids, row_of, members))
    for (r, flipped, lids, row_of, members), picks in zip(ends, _edges_of(source, asked), strict=True):
        src, dst = (nodes[int(t[r])] for t in (view.src_types, view.dst_types))
        stored = _spread(picks, dst, lids, row_of, src, members)
        stored = stored.where(_in_pairs(stored, flipped))
        new = stored.where(~_is_row_of(stored, _sampled(found, r)))
        added[r] = new.where(~_are_pairs(dst.gid[new.dst], src.gid[new.src], excluded.get(r)))
        if task.reverse[r] == r:
            copies = flipped.where(~_in_pairs(flipped, stored))
            if any(source.config.weights):  # an edge of weight 0 is in no batch, nor is a copy of the other direction
                copies = copies.where(~source.ask(HasEdges(r, dst.gid[copies.dst], src.gid[copies.src]))())
            copied[r] = copies.where(~_are_pairs(dst.gid[copies.dst], src.gid[copies.src], excluded.get(r)))
    return added, copied


def _distinct(numbers: np.ndarray, count: int) -> np.ndarray:
    """Returns the distinct numbers, ascending. numbers: below ``count``."""
    found = np.zeros(count, dtype=np.bool_)
    found[numbers] = True
    return np.flatnonzero(found)


def _in_pairs(edges: FoundEdges, others: FoundEdges) -> np.ndarray:
    """Returns bool [E]: True if ``others`` have an edge with the same ends."""
    width = 1 + max(edges.src.max(initial=0), others.src.max(initial=0))
    return _are_in(edges.dst * width + edges.src, others.dst * width + others.src)


def _is_row_of(edges: FoundEdges, others: FoundEdges) -> np.ndarray:
    """Returns bool [E]: True if ``others`` have the same edge, by its edge row and its destination in the batch."""
    rows, number = np.unique(np.concatenate([edges.row, others.row]), return_inverse=True)
    mine, theirs = number[: len(edges.row)], number[len(edges.row) :]
    return _are_in(edges.dst * len(rows) + mine, others.dst * len(rows) + theirs)


def _are_in(keys: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns the same as `numpy.isin` in half of the time: that sorts both arrays, but edges lie in the order of destinations,
    so their keys are nearly sorted, and a search finds them from the cache."""
    others = np.sort(others)
    if not len(others):
        return np.zeros(len(keys), dtype=np.bool_)
    found: np.ndarray = others[np.minimum(np.searchsorted(others, keys), len(others) - 1)] == keys
    return found


def _are_pairs(dst: np.ndarray, src: np.ndarray, pairs: Pairs | None) -> np.ndarray:
    """Returns bool [E]: True for edges, by gid, that are among ``pairs``."""
    found = np.zeros(len(dst), dtype=np.bool_)
    if pairs is not None and len(pairs[0]):
        (mine,) = np.nonzero(np.isin(dst, pairs[0]) & np.isin(src, pairs[1]))
        both = np.stack([np.concatenate([dst[mine], pairs[0]]), np.concatenate([src[mine], pairs[1]])])
        _, number = np.unique(both, axis=1, return_inverse=True)
        found[mine] = np.isin(number[: len(mine)], number[len(mine) :])
    return found
