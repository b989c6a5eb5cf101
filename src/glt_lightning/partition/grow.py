"""Adds rows to a partition, and leaves out deleted ones: makes the overlay (`graph.overlay`) by which it reads as the graph
partitioned anew.

A row with new entries is stored whole: the places of the new ones are searched for in the order of rows, and the old ones are
copied around them. So an overlay takes memory for the degrees of the nodes that new edges lead to, and no reader merges anything.
To append rows, they are checked and counted alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from glt_lightning.base import DataError, EdgeType, PartitionError, edge_type_str
from glt_lightning.graph import (
    TIMES,
    EdgeColumns,
    GrownNumbers,
    GrownPartition,
    LocalPartition,
    Overlay,
    OverlayFacts,
    cum_name,
    edge_path,
    node_path,
)
from glt_lightning.kernels import Shards, copy_runs, from_bfloat16, sort_keys, spread
from glt_lightning.partition.additions import (
    Additions,
    DeletedEdges,
    NewEdges,
    StoredAttributes,
    checked_changes,
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
    require_growable(base, additions, recorded)
    return GrownPartition(base, replace(_Layers(base, additions, recorded).overlay(), version=version))


def check_rows(base: LocalPartition, additions: Additions) -> OverlayFacts:
    """Checks rows as `add_rows` does, which raises the same errors. Returns what is known of the overlay.

    No rows with stored entries are made, unless weights or deleted rows must be checked, so it reads little of the graph.
    """
    require_growable(base, additions)
    deleted, edge_types = additions.deleted, range(len(base.manifest.schema.edge_types))
    if deleted.nodes or deleted.edges or any(base.manifest.weights(r) for r in edge_types):
        overlay = _Layers(base, additions, None).overlay()
        GrownPartition(base, overlay).close()
        return overlay.facts
    return _Layers(base, additions, None, counted=True).facts


def require_growable(base: LocalPartition, additions: Additions, recorded: OverlayFacts | None = None) -> None:
    """Raises `PartitionError` for a partition that cannot be grown."""
    manifest = base.manifest
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
    """The arrays of an overlay of the mapped parts, made type by type. recorded: the facts, where others are not mapped.
    counted: only the facts are needed, and nothing is deleted."""

    def __init__(
        self, base: LocalPartition, additions: Additions, recorded: OverlayFacts | None, *, counted: bool = False
    ) -> None:
        self.base, self.additions, self.old, self.recorded = base, additions, base.manifest, recorded
        self.counted = counted
        self.num_new, self.num_parts = additions.num_new(self.old), self.old.num_parts
        names = self.old.schema.node_types
        self.num_nodes = additions.num_nodes(self.old)
        self._require_narrow(sum(self.num_nodes.values()), self.old.id_dtype, "nodes")
        assert self.old.edge_columns is not None
        self.columns: Sequence[EdgeColumns] = self.old.edge_columns
        self.given = self._given_edges()
        self.placed = tuple(self._place(t) for t in range(len(names)))
        self.numbers = GrownNumbers(self.old, self.placed)
        self.manifest = self.numbers.manifest
        self.arrays: dict[str, np.ndarray] = {}  # of nodes
        self.times: dict[int, np.ndarray] = {}
        for t in range(len(names)):
            self._add_nodes(t)
        self.changed: dict[tuple[int, str], tuple[np.ndarray, np.ndarray]] = {}
        for name, each in additions.changes():
            t = self.old.schema.node_index(name)
            ids, rows = checked_changes(self.old, name, each, self.old.num_nodes[t])
            gids = self.gids(t, ids)
            order = np.argsort(gids)
            self.changed |= {(t, n): (gids[order], values[order]) for n, values in rows.items()}
        self.edges = [_EdgeLayer(self, r) for r in range(len(self.manifest.schema.edge_types))]

    @cached_property
    def facts(self) -> OverlayFacts:
        """What other processes know of the overlay. Raises `PartitionError` unless the mapped parts have the edges recorded."""
        counts = tuple(tuple(layer.counts()) for layer in self.edges)
        if self.recorded is None:
            return OverlayFacts(self._digest(), tuple(layer.num_edges() for layer in self.edges), counts)
        for r, wanted in enumerate(self.recorded.edges):
            for p in self.base.parts:
                if counts[r][p] != wanted[p]:
                    raise PartitionError(
                        f"{self.base.directory}: part {p} of the version has {counts[r][p]} edges of type "
                        f"{edge_type_str(self.old.schema.edge_types[r])}, and where it was appended {wanted[p]}. Use the same "
                        "release everywhere, and check the files by partition --verify."
                    )
        return self.recorded

    def overlay(self) -> Overlay:
        facts, arrays = self.facts, dict(self.arrays)
        for layer in self.edges:
            arrays |= layer.build()
        return Overlay(
            placed=self.placed,
            arrays=arrays,
            replaced=[layer.replaced for layer in self.edges],
            facts=facts,
            edge_columns=tuple(
                EdgeColumns(c.count + self._num_given(r), c.reverse_of) for r, c in enumerate(self.columns)
            ),
            times=self.times,
            changed=self.changed,
            deleted={self.manifest.schema.node_index(t): ids for t, ids in self.additions.deleted.nodes.items()},
            deleted_edges={self.manifest.schema.edge_index(e): d.ends for e, d in self.additions.deleted.edges.items()},
        )

    def _digest(self) -> str:
        """Returns a hash of the rows as stored, without those of the base: the overlay is made of these and the base alone."""
        arrays = {**self.arrays, **{f"placed/{t}": parts for t, parts in enumerate(self.placed)}}
        arrays |= {f"ends/{r}": index for r, (index, _) in self.given.items()}
        for r, layer in enumerate(self.edges):
            arrays |= {f"edges/{r}/{name}": values for name, values in layer.added.rows.items()}
        for (t, name), (gids, rows) in self.changed.items():
            arrays |= {f"changed/{t}/{name}/gids": gids, f"changed/{t}/{name}/rows": rows}
        arrays |= {f"deleted/{t}": ids for t, ids in self.additions.deleted.nodes.items()}
        for e, gone in self.additions.deleted.edges.items():
            arrays |= {f"deleted/{edge_type_str(e)}/ids": gone.ids, f"deleted/{edge_type_str(e)}/ends": gone.ends}
        digest = hashlib.blake2b(str(self.old.made_by.get("overlay", "")).encode(), digest_size=16)
        for path, array in sorted(arrays.items()):
            digest.update(f"{path}:{array.dtype.str}:{array.shape}:".encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        return digest.hexdigest()

    def _place(self, t: int) -> np.ndarray:
        """Returns int32 [n]: the part of each new node of a type, that of most of its old neighbours; the lowest of several; of a
        node without any, one part after the other."""
        count, old, parts = self.num_new[t], self.old, self.num_parts
        votes = np.zeros((count, parts), np.int64)
        src, dst = old.schema.source_types(), old.schema.destination_types()
        for r, (index, _) in self.given.items() if parts > 1 and count else ():
            for mine, others, (of_mine, of_others) in ((0, 1, (src[r], dst[r])), (1, 0, (dst[r], src[r]))):
                new, near = index[mine] - old.num_nodes[t], index[others]
                known = (new >= 0) & (near < old.num_nodes[of_others])
                if of_mine == t and known.any():
                    part = old.part_of(of_others, self.base.gids(of_others)[near[known]])
                    np.add.at(votes, (new[known], part), 1)
        found = np.where(votes.any(axis=1), votes.argmax(axis=1), np.arange(count) % parts)
        return found.astype(np.int32)

    def _given_edges(self) -> dict[int, tuple[np.ndarray, NewEdges]]:
        """Returns the checked new edges by the edge type of the user's that has them."""
        found = {}
        known = self.old.given_edge_types
        for edge_type, edges in self.additions.edges.items():
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
        by_part = np.argsort(self.placed[t], kind="stable")
        rows = {n: values[by_part] for n, values in rows.items()}  # slices of one array, which `Shards` reads as one
        ends = np.cumsum(np.bincount(self.placed[t], minlength=self.num_parts))
        for p in self.base.parts:
            mine = slice(ends[p - 1] if p else 0, ends[p])
            self.arrays |= {node_path(self.num_parts + p, t, n): values[mine] for n, values in rows.items()}

    def gids(self, t: int, user_ids: np.ndarray) -> np.ndarray:
        """Returns int64 [n]: the gids of nodes in the grown graph."""
        return self.numbers.gids(self.base, t, user_ids)


@dataclass
class _Entries:
    """New entries of rows, by edge id: gids of the destination and the source, edge id, and arrays by name, as stored."""

    dst: np.ndarray
    source: np.ndarray
    edge_id: np.ndarray
    rows: dict[str, np.ndarray]

    def beside(self, others: _Entries) -> _Entries:
        """Returns these entries and as many others with the same edge ids, an entry of each in turn."""

        def both(mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
            return np.stack([mine, theirs], axis=1).reshape(-1, *mine.shape[1:])

        rows = {name: both(values, others.rows[name]) for name, values in self.rows.items()}
        return _Entries(both(self.dst, others.dst), both(self.source, others.source), np.repeat(self.edge_id, 2), rows)

    def __getitem__(self, which: np.ndarray | slice) -> _Entries:
        rows = {name: values[which] for name, values in self.rows.items()}
        return _Entries(self.dst[which], self.source[which], self.edge_id[which], rows)


def _packed(keys: Sequence[np.ndarray]) -> tuple[np.ndarray, list[int]] | None:
    """Returns int64 [n] that is in the order of several integers, the last of which comes first, and the number of bits of each;
    None where they are negative, or have too many."""
    bits = [int(each.max(initial=0)).bit_length() for each in keys]
    if min((int(each.min(initial=0)) for each in keys), default=0) < 0 or sum(bits) > 63:
        return None
    packed = np.array(keys[-1])
    for each, width in zip(keys[-2::-1], bits[-2::-1], strict=True):
        packed <<= width
        packed |= each
    return packed, bits


def _order(keys: Sequence[np.ndarray]) -> np.ndarray:
    """Returns what `np.lexsort` does of integers."""
    packed = _packed(keys)
    if packed is None:
        return np.lexsort(keys)
    order = np.arange(len(keys[0]))
    sort_keys(packed[0], order)
    return order


def _distinct_pairs(ones: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns pairs of integers, each once, ascending."""
    packed = _packed([others, ones])
    if packed is None:
        ones, others = np.unique(np.stack([ones, others]), axis=1)
        return ones, others
    keys, (bits, _) = packed
    sort_keys(keys)
    first = np.ones(len(keys), bool)
    first[1:] = keys[1:] != keys[:-1]
    keys = keys[first]
    return keys >> bits, keys & ((1 << bits) - 1)


class _EdgeLayer:
    """The rows of one stored edge type in an overlay.

    Those of all parts are numbered one part after the other: of a part those of its new nodes, then the replaced ones.

    Attributes:
        replaced: int64 [n], ascending: gids of the replaced rows.
        added: The new entries of the mapped parts. Where both directions of edges are stored they are sorted, and without
            those that parallel ones, which are there already, stand for; where they are only counted, one direction of all.
        kept: The destinations of the new entries without those.
        begins: int64 [parts + 1]: the first row of each part.
        part_of_row: int64 [rows]: the part that stores the old entries of each row.
        begin, end: int64 [rows]: the old entries of each row, as edge rows of the base; a new node has none.
        dropped: int64 [2, n], ascending: the rows and stored entries of deleted edges.
    """

    def __init__(self, layers: _Layers, edge_type: int) -> None:
        self.layers, self.r = layers, edge_type
        self.base, self.old, self.manifest = layers.base, layers.old, layers.manifest
        schema = self.manifest.schema
        self.src, self.dst = schema.source_types()[edge_type], schema.destination_types()[edge_type]
        self.attrs = StoredAttributes(self.old, "edges", edge_type)
        self.weights, self.timed = self.old.weights(edge_type), self.old.is_timed(edge_type)
        self.both = layers.columns[edge_type].reverse_of == edge_type
        # Sources are stored as gids of the base less base_shift, of the grown graph less shift: the same number.
        self.base_shift = self.base.shifts[self.src] if isinstance(self.base, GrownPartition) else 0
        self.shift = self.base_shift + layers.numbers.shift(self.src)
        self.first = self.manifest.offsets[self.dst]
        self.first_new = self.first + self.old.num_nodes[self.dst]
        self.shards: dict[str, Shards] = {}
        directions, of_deleted = self._added(), self._rows_of_deleted()
        self.replaced = self._distinct_old([*(each.dst for each in directions), of_deleted])
        self._number_rows()
        self.dropped = self._dropped(self._rows(np.unique(of_deleted)))
        self.added = directions[0]
        if self.both and layers.counted and not self.added.rows:
            self.kept = self._merged()
        else:
            if self.both:
                self.added = self.added.beside(directions[1])
            if len(self.base.parts) < layers.num_parts:
                self.added = self.added[np.isin(self._part_of(self.added.dst), self.base.parts)]
            if self.both:
                self.places = self._sort()
            self.kept = self.added.dst

    def _number_rows(self) -> None:
        parts = np.arange(self.layers.num_parts + 1)
        before = np.searchsorted(self.replaced, np.add(self.manifest.bounds[self.dst], self.first))
        part = np.repeat(np.arange(len(before) - 1), np.diff(before))
        part_of_new = np.sort(self.layers.placed[self.dst])
        replaced_before, new_before = np.searchsorted(part, parts), np.searchsorted(part_of_new, parts)
        self.begins = replaced_before + new_before
        self.row_of_new = np.arange(len(part_of_new)) + replaced_before[part_of_new]
        self.row_of_replaced = np.arange(len(part)) + new_before[part + 1]
        stored = self.replaced - self.first - np.array(self.old.bounds[self.dst])[part]
        stored_in = part.copy()
        if self.base.overlaid is not None:
            gids = self.replaced - self.layers.numbers.shift(self.dst)
            at, stored_in[at], stored[at] = self.base.overlaid.replaced[self.r].find(gids)
        self.part_of_row = np.repeat(parts[:-1], np.diff(self.begins))
        self.part_of_row[self.row_of_replaced] = stored_in
        self.begin = np.asarray(self.old.edge_bounds(self.r), np.int64)[self.part_of_row]
        self.end = self.begin.copy()
        for p in self.base.parts:
            mine = np.flatnonzero(stored_in == p)
            pointers, rows = self.base.pointers(self.r, p), self.row_of_replaced[mine]
            self.begin[rows] += pointers[stored[mine]]
            self.end[rows] += pointers[stored[mine] + 1]

    def counts(self) -> list[int]:
        """Returns the number of entries in each part of the overlay."""
        stored = np.diff(np.append(0, np.cumsum(self.end - self.begin))[self.begins])
        added = np.bincount(self._part_of(self.kept), minlength=len(stored))
        dropped = np.diff(np.searchsorted(self.dropped[0], self.begins))
        return [int(n) for n in stored + added - dropped]

    def num_edges(self) -> int:
        """Returns the number of edges of the grown graph, if all parts are mapped."""
        return self.old.num_edges[self.r] + len(self.kept) - len(self.dropped[0])

    def _part_of(self, dst: np.ndarray) -> np.ndarray:
        """Returns the part of the base that nodes belong to, or were placed in."""
        return self.manifest.part_of(self.dst, dst) % self.layers.num_parts

    def _rows(self, dst: np.ndarray) -> np.ndarray:
        """Returns the rows of new nodes and of replaced ones."""
        found, is_new = np.empty(len(dst), np.int64), dst >= self.first_new
        found[is_new] = self.row_of_new[dst[is_new] - self.first_new]
        found[~is_new] = self.row_of_replaced[np.searchsorted(self.replaced, dst[~is_new])]
        return found

    def _merged(self) -> np.ndarray:
        """Returns the destinations of the new entries without those that parallel ones stand for, in any order.

        Of an edge both directions are there already, or none: it is looked up once, in the shorter row of its ends.
        """
        one, other = self.added.dst, self.added.source
        degrees = np.zeros(self.manifest.num_nodes[self.dst], np.int32)  # a row has fewer entries
        degrees[self.replaced - self.first] = (self.end - self.begin)[self.row_of_replaced]
        by_one, by_other = degrees[one - self.first], degrees[other - self.first]
        turned = (by_one > by_other) | ((by_one == by_other) & (one > other))
        short, long = _distinct_pairs(np.where(turned, other, one), np.where(turned, one, other))
        new, shift = np.maximum(short, long) >= self.first_new, self.layers.numbers.shift(self.dst)
        known = np.flatnonzero(~new)
        new[known] = ~self.base.view.has_edges(self.r, short[known] - shift, long[known] - shift)
        short, long = short[new], long[new]
        return np.concatenate([short, long[short != long]])

    def _distinct_old(self, gids: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the gids of old destinations, each once, ascending. Of many, marks take a tenth of the time of a sort."""
        count = self.old.num_nodes[self.dst]
        if 16 * sum(map(len, gids)) < count:
            found = np.unique(np.concatenate(gids))
            return found[found < self.first_new]
        marks = np.zeros(self.manifest.num_nodes[self.dst], bool)
        for each in gids:
            marks[each - self.first] = True
        return np.flatnonzero(marks[:count]) + self.first

    def _rows_of_deleted(self) -> np.ndarray:
        """Returns the gids of the old nodes that deleted edges lead to."""
        deleted = self.layers.deleted_of(self.r)
        if deleted is None:
            return _NONE
        ends = deleted.ends.ravel() if self.both else deleted.ends[0 if self.layers.origin(self.r) != self.r else 1]
        gids = self.layers.gids(self.dst, ends)
        return gids[gids < self.first_new]

    def _dropped(self, rows: np.ndarray) -> np.ndarray:
        """Returns the deleted entries of some rows, as `dropped`."""
        counts = self.end[rows] - self.begin[rows]
        entries = np.stack([np.repeat(rows, counts), spread(self.begin[rows], counts)])
        return entries[:, self._is_deleted(self._shards_of("edge_ids").gather(entries[1]))] if entries.size else entries

    def _is_deleted(self, edge_ids: np.ndarray) -> np.ndarray:
        deleted = self.layers.deleted_of(self.r)
        return np.zeros(len(edge_ids), bool) if deleted is None else np.isin(edge_ids, deleted.ids)

    def _added(self) -> list[_Entries]:
        """Returns the entries of new edges in each direction that the type has."""
        layers, origin = self.layers, self.layers.origin(self.r)
        index, edges = layers.given.get(origin, (np.empty((2, 0), np.int64), NewEdges(np.empty((2, 0), np.int64))))
        first, count = layers.columns[origin].count, index.shape[1]
        ids = np.arange(first, first + count)
        attrs = self.attrs.encoded(edges.attrs, count, ids) if count else self.attrs.empty()
        alive = ~self._is_deleted(ids)
        if not alive.all():
            index, ids, attrs = index[:, alive], ids[alive], {name: rows[alive] for name, rows in attrs.items()}
        ends = [index[::-1] if origin != self.r else index, *([index[::-1]] if self.both else [])]
        rows = [attrs | {TIMES: self._times(src, attrs)} if self.timed else attrs for src, _ in ends]
        source, dst = layers.gids(self.src, ends[0][0]), layers.gids(self.dst, ends[0][1])
        found = [_Entries(dst, source, ids, rows[0])]
        return [*found, _Entries(source, dst, ids, rows[1])] if self.both else found

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

    def _sort(self) -> tuple[np.ndarray, np.ndarray]:
        """Sorts the new entries in the order of rows, and merges parallel edges where reverse edges were added.

        Returns int64 [n], the row of each, and the stored entry that comes behind it. Of equal keys stored entries come first:
        their edge ids are lower.
        """
        added, count = self.added, self.manifest.num_nodes[self.dst]
        keys = [self._user_ids(added.source), *([added.rows[TIMES]] if self.timed else [])]
        # in the order of rows, whose numbers are found faster for sorted nodes
        node = np.where(added.dst < self.first_new, count + added.dst - self.first, added.dst - self.first_new)
        order = _order([*keys, self._part_of(added.dst) * 2 * count + node])
        added, keys = added[order], [key[order] for key in keys]
        row = self._rows(added.dst)
        places = self._places(row, keys)
        if self.both:
            again = np.zeros(len(row), bool)
            again[1:] = np.logical_and.reduce([key[1:] == key[:-1] for key in (row, *keys)])
            behind = np.flatnonzero(places > self.begin[row])
            before = places[behind] - 1
            equal = [stored == key[behind] for stored, key in zip(self._stored_keys(before), keys, strict=True)]
            again[behind[np.logical_and.reduce(equal) & ~np.isin(before, self.dropped[1])]] = True
            added, row, places = added[~again], row[~again], places[~again]
        self.added = added
        return row, places

    def _places(self, row: np.ndarray, keys: Sequence[np.ndarray]) -> np.ndarray:
        """Returns for new entries the first stored entry of their row whose keys, the last of which comes first, are greater."""
        times = self._shards_of(TIMES) if self.timed else None
        rows = self.begin[row], self.end[row]
        return self._shards_of("indices").search(self.base_shift, self.n_id, *rows, keys[0], times, *keys[1:])

    def _stored_keys(self, entries: np.ndarray) -> list[np.ndarray]:
        sources = self._shards_of("indices").gather(entries).astype(np.int64) + self.base_shift
        return [self.n_id.gather(sources), *([self._shards_of(TIMES).gather(entries)] if self.timed else [])]

    @cached_property
    def n_id(self) -> Shards:
        """The user ids of sources by gid of the base; sources are of any part."""
        if len(self.base.parts) == self.old.num_parts:
            return self.base.node_shards(self.src, "n_id")
        return Shards([self.base.user_ids(self.src)], start=self.old.offsets[self.src])

    def _shards_of(self, name: str) -> Shards:
        if name not in self.shards:
            self.shards[name] = self.base.edge_shards(self.r, name).raw
        return self.shards[name]

    def _user_ids(self, gids: np.ndarray) -> np.ndarray:
        """Returns int64 [n]: the user's ids of sources."""
        numbers = gids - self.manifest.offsets[self.src] - self.old.num_nodes[self.src]
        found, is_new = np.empty(len(gids), np.int64), numbers >= 0
        found[~is_new] = self.n_id.gather(gids[~is_new] - self.layers.numbers.shift(self.src))
        found[is_new] = (
            self.old.num_nodes[self.src] + np.argsort(self.layers.placed[self.src], kind="stable")[numbers[is_new]]
        )
        return found

    def build(self) -> dict[str, np.ndarray]:
        """Makes the arrays of the mapped parts."""
        row, places = self.places if self.both else self._sort()
        found: dict[str, np.ndarray] = {}
        for p in self.base.parts:
            path = partial(edge_path, self.layers.num_parts + p, self.r)
            found |= {path(name): array for name, array in self._build_part(p, row, places).items()}
        return found

    def _build_part(self, p: int, row: np.ndarray, places: np.ndarray) -> dict[str, np.ndarray]:
        """Makes the arrays of one part: runs of stored entries, between which new ones lie, and dropped ones lay."""
        rows = self.begins[p : p + 2]
        begin, end = self.begin[slice(*rows)], self.end[slice(*rows)]
        mine = slice(*np.searchsorted(row, rows))
        gone = self.dropped[:, slice(*np.searchsorted(self.dropped[0], rows))]
        added = self.added[mine]
        # A run ends where an entry is added before a stored one, or where one is dropped; the next begins behind that.
        cut = np.concatenate([row[mine], gone[0]]) - rows[0]
        stop = np.concatenate([places[mine], gone[1]])
        drops = np.arange(len(cut)) >= len(added.dst)
        if gone.size:
            order = np.lexsort([drops, stop, cut])
            cut, stop, drops = cut[order], stop[order], drops[order]
        runs_before = np.searchsorted(cut, np.arange(len(begin) + 1)) + np.arange(len(begin) + 1)
        after = np.arange(len(cut)) + cut + 1  # the run after each cut
        starts, ends, adds = np.zeros((3, len(begin) + len(cut)), np.int64)
        starts[runs_before[:-1]], starts[after] = begin, stop + drops
        ends[runs_before[1:] - 1], ends[after - 1] = end, stop
        adds[after] = ~drops
        counts = ends - starts
        indptr = np.append(0, np.cumsum(counts + adds))
        at, indptr = indptr[1:] - counts, indptr[runs_before]
        at_added = at[after[~drops]] - 1
        stored_in = np.repeat(self.part_of_row[slice(*rows)], np.diff(runs_before))
        runs = [(int(q), np.flatnonzero(stored_in == q)) for q in np.unique(stored_in)]
        first_edges = self.old.edge_bounds(self.r)

        def whole(name: str, values: np.ndarray) -> np.ndarray:
            made = np.empty((indptr[-1], *values.shape[1:]), self._shards_of(name).stored_dtype)
            made[at_added] = values
            for q, mine in runs:
                stored = self._shards_of(name).arrays[q]
                assert stored is not None
                copy_runs(stored, starts[mine] - first_edges[q], counts[mine], made, at[mine])
            return made

        found = {
            "indptr": indptr,
            "indices": whole("indices", added.source - self.shift),
            "edge_ids": whole("edge_ids", added.edge_id),
            **{name: whole(name, values) for name, values in added.rows.items()},
        }
        for name in self.weights:
            sums = WeightSums(f"{name} of {self.attrs.what}")
            values = self._weights(name, found[name])
            found[cum_name(name)] = sums.prefix_sums(values, indptr, found["edge_ids"], self._nodes(p))
        return found

    def _nodes(self, p: int) -> np.ndarray:
        """Returns the user ids of the rows of a part, for errors."""
        new = np.flatnonzero(self.layers.placed[self.dst] == p) + self.old.num_nodes[self.dst]
        replaced = self.replaced[self._part_of(self.replaced) == p] - self.first + self.old.offsets[self.dst]
        return np.concatenate([new, self.base.node_shards(self.dst, "n_id").gather(replaced)])

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
