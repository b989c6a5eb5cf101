"""Adds rows to a partition, and leaves out deleted ones: makes the overlay (`graph.overlay`) by which it reads as the graph
partitioned anew.

A row with new entries is stored whole, with the old entries copied and the new ones merged in by the order of rows. So an
overlay takes memory for the degrees of the nodes that new edges lead to, and no reader merges anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from glt_lightning.base import DataError, EdgeType, PartitionError, edge_type_str
from glt_lightning.graph import (
    TIMES,
    EdgeColumns,
    GrownNumbers,
    GrownPartition,
    LocalPartition,
    Manifest,
    Overlay,
    OverlayFacts,
    cum_name,
    edge_path,
    node_path,
)
from glt_lightning.kernels import from_bfloat16, spread
from glt_lightning.partition.additions import (
    Additions,
    ChangedNodes,
    DeletedEdges,
    NewEdges,
    StoredAttributes,
    checked_edges,
    require_alive,
)
from glt_lightning.partition.build.times import WeightSums

_MOST_IDS = 2**31 - 1
_NONE = np.empty(0, np.int64)


def add_rows(
    base: LocalPartition, additions: Additions, version: int = 0, recorded: OverlayFacts | None = None
) -> GrownPartition:
    """Returns the partition with further rows, in memory. Its batches equal those of the graph partitioned anew.

    Args:
        base: The partition; it stays as it is, and open.
        additions: The rows.
        version: The number of the version that they make; 0: they are of this process alone.
        recorded: What is known of the overlay, where some parts are not mapped here.

    Raises:
        DataError: For rows that do not fit the graph, naming the row.
        PartitionError: For a partition of an earlier release, to which no rows can be added.

    Example:
        >>> partition = LocalPartition.open("parts")
        >>> new = Additions(
        ...     nodes={"node": NewNodes(1, {"x": np.ones((1, 3), np.float32)})},
        ...     edges={("node", "to", "node"): NewEdges(np.array([[0, 10], [10, 1]]))},
        ... )
        >>> grown = add_rows(partition, new)
        >>> grown.manifest.num_nodes, grown.manifest.num_edges
        ((11,), (22,))
        >>> partition.close()
    """
    manifest = base.manifest
    require_growable(manifest, additions, base, recorded)
    return GrownPartition(base, replace(_Layers(base, additions, recorded).overlay(), version=version))


def require_growable(
    manifest: Manifest, additions: Additions, base: LocalPartition, recorded: OverlayFacts | None = None
) -> None:
    """Raises `PartitionError` for a partition that cannot be grown."""
    if len(base.parts) < manifest.num_parts and recorded is None:
        raise PartitionError(f"{base.directory}: rows can be added where all parts are mapped; here are {base.parts}.")
    if manifest.edge_columns is None:
        raise PartitionError(
            f"{base.directory}: an earlier release wrote this partition, and rows cannot be added to it: the ids of new edges "
            "are not known. Partition again."
        )
    if manifest.made_by.get("normalize", "none") != "none" and any(
        "x" in manifest.node_attrs(t) and t not in manifest.normalization
        for t, name in enumerate(manifest.schema.node_types)
        if (name in additions.nodes or name in additions.changed) and manifest.num_nodes[t]
    ):
        raise PartitionError(
            f"{base.directory}: an earlier release made this partition with normalize: {manifest.made_by['normalize']} and saved "
            "no statistics, by which new rows would be normalised. Partition again."
        )


class _Layers:
    """The arrays of an overlay of the mapped parts, made type by type. recorded: the facts, where others are not mapped."""

    def __init__(self, base: LocalPartition, additions: Additions, recorded: OverlayFacts | None) -> None:
        self.base, self.additions, self.old, self.recorded = base, additions, base.manifest, recorded
        self.num_new, self.num_parts = additions.num_new(self.old), self.old.num_parts
        names = self.old.schema.node_types
        counts = (n + k for n, k in zip(self.old.num_nodes, self.num_new, strict=True))
        self.num_nodes = dict(zip(names, counts, strict=True))
        self._require_narrow(sum(self.num_nodes.values()), self.old.id_dtype, "nodes")
        assert self.old.edge_columns is not None
        self.columns: Sequence[EdgeColumns] = self.old.edge_columns
        self.given = self._given_edges()
        self.placed = tuple(self._place(t) for t in range(len(names)))
        self.numbers = GrownNumbers(self.old, self.placed)
        self.manifest = self.numbers.manifest
        self.arrays: dict[str, np.ndarray] = {}
        self.times: dict[int, np.ndarray] = {}

    def overlay(self) -> Overlay:
        changed: dict[tuple[int, str], tuple[np.ndarray, np.ndarray]] = {}
        for t in range(len(self.num_new)):
            self._add_nodes(t)
        for name, of_type in self.additions.changed.items():
            for each in [of_type] if isinstance(of_type, ChangedNodes) else of_type:
                changed |= self._changed(self.manifest.schema.node_index(name), each)
        made = [_EdgeLayer(self, r).build() for r in range(len(self.manifest.schema.edge_types))]
        self._require_recorded()
        return Overlay(
            placed=self.placed,
            arrays=self.arrays,
            replaced=[replaced for replaced, _ in made],
            num_edges=tuple(count for _, count in made) if self.recorded is None else self.recorded.num_edges,
            edge_columns=tuple(
                EdgeColumns(c.count + self._num_given(r), c.reverse_of) for r, c in enumerate(self.columns)
            ),
            times=self.times,
            changed=changed,
            deleted={self.manifest.schema.node_index(t): ids for t, ids in self.additions.deleted.nodes.items()},
            deleted_edges={self.manifest.schema.edge_index(e): d.ends for e, d in self.additions.deleted.edges.items()},
            recorded=self.recorded,
        )

    def _require_recorded(self) -> None:
        """Raises `PartitionError` unless the mapped parts have the edges that were recorded."""
        for r, counts in enumerate(() if self.recorded is None else self.recorded.edges):
            for p in self.base.parts:
                count = len(self.arrays[edge_path(self.num_parts + p, r, "indices")])
                if count != counts[p]:
                    raise PartitionError(
                        f"{self.base.directory}: part {p} of the version has {count} edges of type "
                        f"{edge_type_str(self.old.schema.edge_types[r])}, and where it was appended {counts[p]}. Use the same "
                        "release everywhere, and check the files by partition --verify."
                    )

    def _place(self, t: int) -> np.ndarray:
        """Returns int32 [n]: the part of each new node of a type, that of most of its old neighbours; the lowest of several; of a
        node without any, one part after the other."""
        count, old, parts = self.num_new[t], self.old, self.num_parts
        votes = np.zeros((count, parts), np.int64)
        src, dst = old.schema.source_types(), old.schema.destination_types()
        for r, (index, _) in self.given.items() if parts > 1 else ():
            for mine, others, (of_mine, of_others) in ((0, 1, (src[r], dst[r])), (1, 0, (dst[r], src[r]))):
                new, near = index[mine] - old.num_nodes[t], index[others]
                known = (new >= 0) & (near < old.num_nodes[of_others])
                if of_mine == t and known.any():
                    numbers = self.base.gids(of_others)[near[known]] - old.offsets[of_others]
                    part = np.searchsorted(old.bounds[of_others], numbers, side="right") - 1
                    np.add.at(votes, (new[known], part), 1)
        found = np.where(votes.any(axis=1), votes.argmax(axis=1), np.arange(count) % parts)
        return found.astype(np.int32)

    def _given_edges(self) -> dict[int, tuple[np.ndarray, NewEdges]]:
        """Returns the checked new edges by the edge type of the user's that has them."""
        found = {}
        known = self.old.given_edge_types
        for edge_type, edges in self.additions.edges.items():
            if edge_type not in known:
                names = ", ".join(map(edge_type_str, known))
                raise DataError(f"edges: the graph has no edge type {edge_type_str(edge_type)}; it has: {names}.")
            index = checked_edges(self.old, edge_type, edges, self.num_nodes)
            self._require_not_deleted(edge_type, index, self.columns[known[edge_type]].count)
            self._require_narrow(self.columns[known[edge_type]].count + index.shape[1], self.old.edge_id_dtype, "edges")
            found[known[edge_type]] = index, edges
        return found

    def _require_not_deleted(self, edge_type: EdgeType, index: np.ndarray, first: int) -> None:
        """Raises `DataError` for an edge of a deleted node that was not deleted with it. first: the id of the first edge."""
        deleted = self.additions.deleted
        gone = deleted.edges[edge_type].ids - first if edge_type in deleted.edges else _NONE
        nodes = {
            t: np.append(deleted.nodes.get(t, _NONE), self.base.deleted(self.old.schema.node_index(t)))
            for t in (edge_type[0], edge_type[2])
        }
        require_alive(edge_type, index, nodes, gone)

    def deleted_of(self, edge_type: int) -> DeletedEdges | None:
        """Returns the deleted edges of the user's edge type that a stored one was made from; None: there are none."""
        return self.additions.deleted.edges.get(self.old.schema.edge_types[self.origin(edge_type)])

    def origin(self, edge_type: int) -> int:
        """Returns the user's edge type that a stored one was made from."""
        reverse = self.columns[edge_type].reverse_of
        return edge_type if reverse is None else reverse

    def _num_given(self, edge_type: int) -> int:
        given = self.given.get(self.origin(edge_type))
        return 0 if given is None else given[0].shape[1]

    def _require_narrow(self, count: int, dtype: str, what: str) -> None:
        if dtype == "int32" and count > _MOST_IDS:
            raise DataError(
                f"{what}: {count} do not fit the partition's int32 ids. Partition again, with wide_ids: true."
            )

    def _add_nodes(self, t: int) -> None:
        old, count = self.old, self.num_new[t]
        name = old.schema.node_types[t]
        ids = np.arange(old.num_nodes[t], old.num_nodes[t] + count)
        given = self.additions.nodes[name].attrs if name in self.additions.nodes else {}
        stored = StoredAttributes(old, "nodes", t)
        rows = stored.encoded(given, count, ids) if count else stored.empty()
        order = old.row_order
        if order is not None and order.of == "nodes" and order.time_attr in stored.names:
            self.times[t] = rows[order.time_attr].reshape(-1).astype(np.int64)
        rows["n_id"] = ids.astype(old.id_dtype)
        if node_path(0, t, "hotness") in old.arrays:
            rows["hotness"] = np.zeros(count, np.float32)
        for p in self.base.parts:
            mine = self.placed[t] == p
            self.arrays |= {node_path(self.num_parts + p, t, n): values[mine] for n, values in rows.items()}

    def _changed(self, t: int, changed: ChangedNodes) -> dict[tuple[int, str], tuple[np.ndarray, np.ndarray]]:
        name, stored, old = self.old.schema.node_types[t], StoredAttributes(self.old, "nodes", t), self.old
        ids = np.asarray(changed.ids)
        if ids.ndim != 1 or ids.dtype.kind not in "iu" or len(np.unique(ids)) < len(ids):
            raise DataError(f"changed nodes of type {name!r}: expected integers [n], each id once.")
        bad = np.flatnonzero((ids < 0) | (ids >= old.num_nodes[t]))
        if len(bad):
            raise DataError(
                f"changed nodes of type {name!r}: {ids[bad[0]]} is no node of the graph, which has 0 to {old.num_nodes[t] - 1}."
            )
        if old.row_order is not None and old.row_order.of == "nodes" and old.row_order.time_attr in changed.attrs:
            raise DataError(
                f"changed nodes of type {name!r}: {old.row_order.time_attr} orders the rows of the graph and cannot change."
            )
        stored.require_known(changed.attrs)
        gids = self.gids(t, ids)
        order = np.argsort(gids)
        return {
            (t, n): (gids[order], stored.encode(n, values, len(ids), ids)[order]) for n, values in changed.attrs.items()
        }

    def gids(self, t: int, user_ids: np.ndarray) -> np.ndarray:
        """Returns int64 [n]: the gids of nodes in the grown graph."""
        return self.numbers.gids(self.base, t, user_ids)


@dataclass
class _Entries:
    """Entries of rows: the row of each, gid of the source, edge id, and arrays by name, as stored."""

    row: np.ndarray
    source: np.ndarray
    edge_id: np.ndarray
    rows: dict[str, np.ndarray]

    @classmethod
    def joined(cls, pieces: Sequence[_Entries]) -> _Entries:
        return cls(
            np.concatenate([each.row for each in pieces]),
            np.concatenate([each.source for each in pieces]),
            np.concatenate([each.edge_id for each in pieces]),
            {name: np.concatenate([each.rows[name] for each in pieces]) for name in pieces[0].rows},
        )

    def of_rows(self, begin: int, end: int) -> _Entries:
        """Returns the entries of rows [begin, end), which ascend, with rows counted from ``begin`` on."""
        low, high = np.searchsorted(self.row, [begin, end])
        found = self[slice(int(low), int(high))]
        return _Entries(found.row - begin, found.source, found.edge_id, found.rows)

    def __getitem__(self, which: np.ndarray | slice) -> _Entries:
        rows = {name: values[which] for name, values in self.rows.items()}
        return _Entries(self.row[which], self.source[which], self.edge_id[which], rows)


class _EdgeLayer:
    """The rows of one stored edge type in an overlay: those of the new nodes, then the replaced ones."""

    def __init__(self, layers: _Layers, edge_type: int) -> None:
        self.layers, self.r = layers, edge_type
        self.base, self.old, self.manifest = layers.base, layers.old, layers.manifest
        schema = self.manifest.schema
        self.src, self.dst = schema.source_types()[edge_type], schema.destination_types()[edge_type]
        self.attrs = StoredAttributes(self.old, "edges", edge_type)
        self.weights, self.timed = self.old.weights(edge_type), self.old.is_timed(edge_type)
        self.both = layers.columns[edge_type].reverse_of == edge_type
        self.shift = layers.numbers.shift(self.src)

    def build(self) -> tuple[np.ndarray, int]:
        """Makes the arrays. Returns (gids of the replaced rows, number of edges of the grown graph, if all parts are mapped)."""
        added, dst = self._added()
        first_new = self.manifest.offsets[self.dst] + self.old.num_nodes[self.dst]
        is_new = dst >= first_new
        replaced = np.unique(np.concatenate([dst[~is_new], self._rows_of_deleted(first_new)]))
        # Rows of all parts of the overlay, one part after the other: those of its new nodes, then the replaced ones.
        new = np.bincount(self.layers.placed[self.dst], minlength=self.layers.num_parts)
        part = self._parts(replaced)
        before = np.cumsum(new)  # new nodes of a part and those before it
        rows_of_replaced = before[part] + np.arange(len(replaced))
        replaced_before = np.searchsorted(part, np.arange(len(new)))
        numbers = dst[is_new] - first_new
        added.row[is_new] = numbers + replaced_before[np.searchsorted(before, numbers, side="right")]
        added.row[~is_new] = rows_of_replaced[np.searchsorted(replaced, dst[~is_new])]
        begins = np.append(replaced_before + before - new, len(replaced) + new.sum())
        added = added[np.isin(np.searchsorted(begins, added.row, side="right") - 1, self.base.parts)]
        whole = self._stored(replaced, part, rows_of_replaced)
        stored = whole[~self._is_deleted(whole.edge_id)]
        entries = self._ordered(_Entries.joined([stored, added]), len(stored.row))
        for p in self.base.parts:
            rows = self._ids_of_rows(p, replaced[part == p])
            self._write(p, entries.of_rows(begins[p], begins[p + 1]), rows)
        return replaced, self.old.num_edges[self.r] + len(entries.row) - len(whole.row)

    def _rows_of_deleted(self, first_new: int) -> np.ndarray:
        """Returns the gids of the old nodes that deleted edges lead to."""
        deleted = self.layers.deleted_of(self.r)
        if deleted is None:
            return _NONE
        ends = deleted.ends.ravel() if self.both else deleted.ends[0 if self.layers.origin(self.r) != self.r else 1]
        gids = self.layers.gids(self.dst, ends)
        return gids[gids < first_new]

    def _is_deleted(self, edge_ids: np.ndarray) -> np.ndarray:
        deleted = self.layers.deleted_of(self.r)
        return np.zeros(len(edge_ids), bool) if deleted is None else np.isin(edge_ids, deleted.ids)

    def _ids_of_rows(self, part: int, replaced: np.ndarray) -> np.ndarray:
        """Returns the user ids of the rows of a part of the overlay, for errors."""
        new = np.flatnonzero(self.layers.placed[self.dst] == part) + self.old.num_nodes[self.dst]
        numbers = replaced - self.layers.numbers.shift(self.dst)
        return np.concatenate([new, self.base.node_shards(self.dst, "n_id").gather(numbers)])

    def _added(self) -> tuple[_Entries, np.ndarray]:
        """Returns the entries of new edges, in both directions where the type has both, and the gids of their destinations."""
        layers, origin = self.layers, self.layers.origin(self.r)
        index, edges = layers.given.get(origin, (np.empty((2, 0), np.int64), NewEdges(np.empty((2, 0), np.int64))))
        first, count = layers.columns[origin].count, index.shape[1]
        ids = np.arange(first, first + count)
        attrs = self.attrs.encoded(edges.attrs, count, ids) if count else self.attrs.empty()
        alive = ~self._is_deleted(ids)
        index, ids, attrs = index[:, alive], ids[alive], {name: rows[alive] for name, rows in attrs.items()}
        count = len(ids)
        ends = [index[::-1] if origin != self.r else index, *([index[::-1]] if self.both else [])]
        pieces, destinations = [], []
        for src, dst in ends:
            rows = dict(attrs)
            if self.timed:
                rows[TIMES] = self._times(src, attrs)
            pieces.append(_Entries(np.zeros(count, np.int64), layers.gids(self.src, src), ids, rows))
            destinations.append(layers.gids(self.dst, dst))
        return _Entries.joined(pieces), np.concatenate(destinations)

    def _times(self, sources: np.ndarray, attrs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns int64 [n], the times of new edges: of their own, or of their sources by user id."""
        order = self.old.row_order
        assert order is not None
        if order.of == "edges":
            return attrs[order.time_attr].reshape(-1).astype(np.int64)
        times, new = self.base.node_times(self.src), self.layers.times[self.src]
        assert times is not None
        found = np.empty(len(sources), np.int64)
        old = sources < len(times)
        found[old], found[~old] = times[sources[old]], new[sources[~old] - len(times)]
        return found

    def _parts(self, gids: np.ndarray) -> np.ndarray:
        numbers = gids - self.manifest.offsets[self.dst]
        return np.searchsorted(np.array(self.old.bounds[self.dst]), numbers, side="right") - 1

    def _stored(self, replaced: np.ndarray, part: np.ndarray, rows: np.ndarray) -> _Entries:
        """Returns the old entries of the replaced rows. rows: the numbers of these in the overlay."""
        numbers = replaced - self.manifest.offsets[self.dst]
        edge_bounds = self.old.edge_bounds(self.r)
        none = np.empty(0, np.int64)
        edges, row_of, sources = [none], [none], [none]
        for p in self.base.parts:
            mine = np.flatnonzero(part == p)
            row = numbers[mine] - self.old.bounds[self.dst][p]
            indptr = self.base.pointers(self.r, p)
            begin, counts = indptr[row], indptr[row + 1] - indptr[row]
            at = spread(begin, counts)
            sources.append(self.base.sources(self.r, p)[at].astype(np.int64) + self.shift)
            edges.append(at + edge_bounds[p])
            row_of.append(np.repeat(rows[mine], counts))
        edge = np.concatenate(edges)
        names = (*self.attrs.names, *((TIMES,) if self.timed else ()))
        read = {name: self.base.edge_shards(self.r, name).raw.gather(edge) for name in names}
        ids = self.base.edge_shards(self.r, "edge_ids").gather(edge).astype(np.int64)
        return _Entries(np.concatenate(row_of), np.concatenate(sources), ids, read)

    def _ordered(self, entries: _Entries, num_stored: int) -> _Entries:
        """Sorts entries in the order of rows, and merges parallel edges where reverse edges were added. The first ``num_stored``
        are in order, and have lower edge ids than the others."""
        if not len(entries.row):
            return entries
        keys = [entries.edge_id, self._user_ids(entries.source), entries.row]
        if self.timed:
            keys.insert(2, entries.rows[TIMES])
        order = np.lexsort(keys) if self.timed else self._merged(keys, num_stored)
        if self.both:
            again = np.ones(len(order), dtype=bool)
            again[0] = False
            for key in keys[1:]:
                again[1:] &= key[order][1:] == key[order][:-1]
            order = order[~again]
        return entries[order]

    def _merged(self, keys: Sequence[np.ndarray], num_stored: int) -> np.ndarray:
        """Returns the order of entries by (row, user id of the source, edge id). keys: edge ids, user ids, rows.

        A sort of all takes ten times as long as this search for the places of the new ones, which are few."""
        edge_id, user_id, row = keys
        key = row * np.int64(self.manifest.num_nodes[self.src]) + user_id
        new = num_stored + np.lexsort((edge_id[num_stored:], key[num_stored:]))
        places = np.searchsorted(key[:num_stored], key[new], side="right")
        return np.insert(np.arange(num_stored), places, new)

    def _user_ids(self, gids: np.ndarray) -> np.ndarray:
        """Returns int64 [n]: the user's ids of sources."""
        old, placed = self.old.num_nodes[self.src], self.layers.placed[self.src]
        numbers = gids - self.manifest.offsets[self.src]
        found, is_old = np.empty(len(gids), np.int64), numbers < old
        if len(self.base.parts) == self.old.num_parts:
            found[is_old] = self.base.node_shards(self.src, "n_id").gather(numbers[is_old] + self.old.offsets[self.src])
        else:  # sources are of any part
            found[is_old] = self.base.user_ids(self.src)[numbers[is_old]]
        found[~is_old] = old + np.argsort(placed, kind="stable")[numbers[~is_old] - old]
        return found

    def _write(self, part: int, entries: _Entries, nodes: np.ndarray) -> None:
        """Makes the arrays of one part. nodes: user ids of its rows."""
        old, arrays = self.old, self.layers.arrays
        indptr = np.concatenate([[0], np.cumsum(np.bincount(entries.row, minlength=len(nodes)))]).astype(np.int64)
        found = {
            "indptr": indptr,
            "indices": (entries.source - self.shift).astype(old.id_dtype),
            "edge_ids": entries.edge_id.astype(old.edge_id_dtype),
            **entries.rows,
        }
        for name in self.weights:
            sums = WeightSums(f"{name} of {self.attrs.what}")
            values = self._weights(name, entries.rows[name])
            found[cum_name(name)] = sums.prefix_sums(values, indptr, entries.edge_id, nodes)
        path = partial(edge_path, self.layers.num_parts + part, self.r)
        arrays |= {path(name): np.ascontiguousarray(a) for name, a in found.items()}

    def _weights(self, name: str, stored: np.ndarray) -> np.ndarray:
        """Returns the values of weights. Raises `PartitionError` where only rounded ones are stored."""
        if self.old.is_bfloat16("edges", self.r, name):
            return from_bfloat16(stored)
        if self.old.decoded_by("edges", self.r, name) is not None:
            raise PartitionError(
                f"{name} of {self.attrs.what}: stored in fewer bytes (partition.storage), so that the weights of rows with new "
                "edges are known rounded alone. Partition without a storage of it."
            )
        return stored
