"""Reading of a partitioned graph by row: attributes, the user's ids and neighbours, from mapped parts or from their owners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from glt_lightning.base import DataError, DrawOptions, OptionError, PartitionError
from glt_lightning.graph import ENDS, AnyGraph, EdgeEnds, LocalPartition, edge_path, gid_path, node_path
from glt_lightning.kernels import ExcludedEdges, RowDraw, Shards, guarded
from glt_lightning.sampling import AskedRows, Expand, Gather, HasEdges, RemoteRows, wire_dtype
from glt_lightning.tensors.space import RowSpace, row_spaces
from glt_lightning.tensors.values import ValueType
from glt_lightning.workers import ClusterGraph, ServedGraph

_AT_ONCE = 1 << 20  # rows of one request


@dataclass(frozen=True, eq=False)
class StoredRows:
    """An attribute of the partition, or the mask of a split."""

    space: RowSpace
    kind: ValueType
    row_shape: tuple[int, ...]
    ask: Callable[[np.ndarray], Callable[[], np.ndarray]]

    def read(self, rows: np.ndarray) -> np.ndarray:
        return self.read_later(rows)()

    def read_later(self, rows: np.ndarray) -> Callable[[], np.ndarray]:
        """Asks the owners of other parts for rows. Returns a function that waits for them. Raises `DataError` for a row that does
        not exist."""
        self.space.parts_of(rows)
        return self.ask(rows)

    def count_nonzero(self) -> int:
        starts = range(0, self.space.num_rows, _AT_ONCE)
        pieces = (np.arange(begin, min(begin + _AT_ONCE, self.space.num_rows)) for begin in starts)
        return sum(self.kind.count_nonzero(self.ask(rows)()) for rows in pieces)


class GraphReader:
    """Reads a partitioned graph by row. Its methods raise `PeerError`, with the name of an owner that does not answer.

    partition: the parts that this process maps; None: none.
    remote: returns the owners of the other parts, or None as long as they are not known or if all parts are mapped.
    """

    def __init__(
        self,
        graph: AnyGraph,
        partition: LocalPartition | None,
        remote: Callable[[], RemoteRows | None] = lambda: None,
    ) -> None:
        self._graph, self._partition, self._remote = graph, partition, remote
        self.manifest, self.schema = graph.manifest, graph.schema
        self._wire = wire_dtype(graph.manifest)

    @classmethod
    def of(cls, graph: AnyGraph) -> GraphReader:
        """A reader for a graph in any of its forms. Raises `OptionError` for a graph class that the program defines itself."""
        if isinstance(graph, LocalPartition):
            return cls(graph, graph)
        if isinstance(graph, ClusterGraph):
            return cls(graph, graph.partition, lambda: graph.remote)
        if isinstance(graph, ServedGraph):
            return cls(graph, None, graph.rows)
        raise OptionError(
            f"DistGraph: expected a partition folder or the graph of a strategy, got {type(graph).__name__}."
        )

    def renew(self, other: GraphReader) -> None:
        """Reads through the partition and the owners of another reader of the same graph from now on."""
        self._graph, self._partition, self._remote = other._graph, other._partition, other._remote

    @property
    def spaces(self) -> list[RowSpace]:
        """The row spaces of all node types, then of all edge types."""
        return row_spaces(self.manifest)

    # Attributes

    def names(self, space: RowSpace) -> list[str]:
        """Attributes of the partition, and ``<split>_mask`` of each split of a node type."""
        if space.kind == "edge":
            return list(self.manifest.edge_attrs(space.index))
        splits = [f"{name}_mask" for name, entry in self.manifest.splits.items() if entry.node_type == space.of]
        stored = list(self.manifest.node_attrs(space.index))
        return stored + [name for name in splits if name not in stored]

    def open(self, space: RowSpace, name: str) -> StoredRows:
        """Opens the attribute or mask ``name``, one of `names`."""
        stored = self.manifest.edge_attrs if space.kind == "edge" else self.manifest.node_attrs
        if name not in stored(space.index):
            mask = self._mask(space, name.removesuffix("_mask"))
            return StoredRows(space, ValueType("bool"), (), lambda rows: lambda: mask[rows])
        dtype, shape = self._stored(space, name)
        encoding = self.manifest.decoded_by(f"{space.kind}s", space.index, name)
        if encoding is not None:
            dtype, shape = np.dtype(np.float32), encoding.row_shape(shape)
        return StoredRows(space, ValueType.of(dtype), shape, lambda rows: self._ask(space, name, rows))

    def _mask(self, space: RowSpace, split: str) -> np.ndarray:
        mask = np.zeros(space.num_rows, dtype=np.bool_)
        mask[self._graph.split(split).gids - self._offset(space)] = True
        return mask

    def _stored(self, space: RowSpace, name: str) -> tuple[np.dtype, tuple[int, ...]]:
        path = node_path if space.kind == "node" else edge_path
        entry = self.manifest.arrays[path(0, space.index, name)]
        return np.dtype(entry.dtype), tuple(entry.shape[1:])

    def _offset(self, space: RowSpace) -> int:
        return self.manifest.offsets[space.index] if space.kind == "node" else 0

    # Rows

    def user_ids(self, space: RowSpace, rows: np.ndarray) -> np.ndarray:
        """Returns int64 [n]: the user's ids of nodes, or columns of the user's ``edge_index``. Raises `DataError` for a row that
        does not exist."""
        space.parts_of(rows)
        return self._gather(space, space.id_name, rows).astype(np.int64)

    def user_ids_of_part(self, space: RowSpace, part: int) -> np.ndarray:
        """`user_ids` of all rows of a part."""
        first, end = int(space.bounds[part]), int(space.bounds[part + 1])
        pieces = [
            self._gather(space, space.id_name, np.arange(begin, min(begin + _AT_ONCE, end)))
            for begin in range(first, end, _AT_ONCE)
        ]
        return np.concatenate([np.empty(0, np.int64), *pieces]).astype(np.int64)

    def deleted(self, space: RowSpace) -> np.ndarray:
        """Returns the user's ids of the nodes of a type that are deleted, int64 [n], ascending."""
        return self._graph.deleted(space.index)

    def rows_of(self, space: RowSpace, user_ids: np.ndarray) -> np.ndarray:
        """Returns int64 [n]: the rows of nodes by the user's ids. Raises `DataError` for an id that does not exist, and for
        edges."""
        if space.kind == "edge":
            raise DataError(
                f"rows_of: of {space.label!r}: the partition has no index of edges by the user's ids; read user_ids of the rows."
            )
        bad = np.flatnonzero((user_ids < 0) | (user_ids >= space.num_rows))
        if len(bad):
            raise DataError(
                f"rows_of: {user_ids[bad[0]]} at position {bad[0]} is not a node of type {space.label!r}, whose ids are 0 to "
                f"{space.num_rows - 1}."
            )
        return np.asarray(self._gids_by_id(space)[user_ids] - self._offset(space), dtype=np.int64)

    def _gids_by_id(self, space: RowSpace) -> np.ndarray:
        t = space.index
        if self._partition is not None and gid_path(t) in self.manifest.arrays:
            return self._partition.gids(t)
        if t not in self._gids and len(self.deleted(space)):  # no seeds, but they have rows
            parts = range(self.manifest.num_parts)
            ids = np.concatenate([self.user_ids_of_part(space, p) for p in parts])
            self._gids[t] = np.argsort(ids) + self._offset(space)
        elif t not in self._gids:
            self._gids[t] = self._graph.seeds(t).gids
        return self._gids[t]

    @cached_property
    def _gids(self) -> dict[int, np.ndarray]:
        return {}

    def _gather(self, space: RowSpace, name: str, rows: np.ndarray) -> np.ndarray:
        return self._ask(space, name, rows)()

    def _ask(self, space: RowSpace, name: str, rows: np.ndarray) -> Callable[[], np.ndarray]:
        """Asks all owners at the same time. Returns a function that waits for them, and reads the rows that are mapped here."""
        ids = rows + self._offset(space)
        if self._is_whole:
            return lambda: self._gather_local(space, name, ids)
        encoding, answers = self.manifest.decoded_by(f"{space.kind}s", space.index, name), []
        for owner, at in self._routed(space, rows):
            asked = Gather([AskedRows(space.kind, space.index, (name,), ids[at].astype(self._wire))])
            answers.append((at, self._owners.ask(owner, asked) if owner else None))

        def wait() -> np.ndarray:
            dtype, shape = self._stored(space, name)
            found = np.empty((0, *shape), dtype if encoding is None else np.float32)
            for at, answer in answers:
                if answer is None:
                    values = self._gather_local(space, name, ids[at])
                else:
                    values = np.ascontiguousarray(answer()[0][name])
                    if encoding is not None:
                        values = Shards([values], encoding=encoding).gather(np.arange(len(values)))
                if not len(found):
                    found = np.empty((len(rows), *values.shape[1:]), values.dtype)
                found[at] = values
            return found

        return wait

    @guarded()
    def _gather_local(self, space: RowSpace, name: str, ids: np.ndarray) -> np.ndarray:
        assert self._partition is not None
        if space.kind == "edge" and name == ENDS:
            return EdgeEnds(self._partition, space.index).gather(ids)
        shards = self._partition.node_shards if space.kind == "node" else self._partition.edge_shards
        return shards(space.index, name).gather(ids)

    @property
    def parts(self) -> tuple[int, ...] | None:
        """Parts that this process maps; None: servers have the graph."""
        return None if self._partition is None else self._partition.parts

    @property
    def places(self) -> tuple[LocalPartition | None, RemoteRows | None]:
        """(the parts that are mapped here, or None; the owners of the others, or None where all are)."""
        return self._partition, None if self._is_whole else self._owners

    @property
    def _is_whole(self) -> bool:
        return self._partition is not None and len(self._partition.parts) == self.manifest.num_parts

    @property
    def _owners(self) -> RemoteRows:
        remote = self._remote()
        if remote is None:
            raise PartitionError(
                "the owners of the parts that are not mapped here are not known yet. Make a loader first."
            )
        return remote

    def _routed(self, space: RowSpace, rows: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """Pairs (owner, positions of its rows); owner 0 is this process."""
        if self._is_whole:
            return [(0, np.arange(len(rows)))]
        owners = self._owners.owner_of_part[space.parts_of(rows)]
        return [(int(owner), np.flatnonzero(owners == owner)) for owner in np.unique(owners)]

    # Neighbours

    def edge_ends(self, space: RowSpace, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns int64 [n], int64 [n]: source and destination of edges, as rows of their types. Raises `DataError` for a row
        that does not exist."""
        space.parts_of(rows)
        ends = self._gather(space, ENDS, rows) if len(rows) else np.empty((0, 2), np.int64)
        types, offsets = self.schema.node_types, self.manifest.offsets
        src, dst = (ends[:, end] - offsets[types.index(space.of[2 * end])] for end in (0, 1))
        return src, dst

    def has_edges(self, space: RowSpace, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """Returns bool [n]: True where an edge of the type leads from row ``src`` to row ``dst`` of its node types."""
        types, offsets = self.schema.node_types, self.manifest.offsets
        of_src, of_dst = (types.index(space.of[end]) for end in (0, 2))
        targets = next(each for each in self.spaces if each.kind == "node" and each.index == of_dst)
        pairs, found = (dst + offsets[of_dst], src + offsets[of_src]), np.empty(len(src), np.bool_)
        for owner, at in self._routed(targets, dst):
            mine = pairs[0][at], pairs[1][at]
            found[at] = self._has_local(space.index, mine) if owner == 0 else self._has_remote(owner, space.index, mine)
        return found

    @guarded()
    def _has_local(self, edge_type: int, pairs: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        assert self._partition is not None
        return self._partition.view.has_edges(edge_type, *pairs)

    def _has_remote(self, owner: int, edge_type: int, pairs: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        dst, src = (ids.astype(self._wire) for ids in pairs)
        return self._owners.ask(owner, HasEdges(edge_type, dst, src))()

    @guarded()
    def edges_into(self, space: RowSpace, part: int) -> np.ndarray | None:
        """Returns int64 [rows of the part]: edges of all types into each row; None where the part is not mapped here."""
        if self._partition is None or part not in self._partition.parts:
            return None
        into = [r for r, (_, _, dst) in enumerate(self.schema.edge_types) if dst == space.of]
        found = np.zeros(int(space.bounds[part + 1] - space.bounds[part]), dtype=np.int64)
        if self._partition.overlaid is not None:  # rows are not where their part has them
            first = self.manifest.offsets[self.schema.node_types.index(space.of)]
            gids = first + np.arange(space.bounds[part], space.bounds[part + 1])
            return sum((self._partition.view.degrees(r, gids) for r in into), found)
        for r in into:
            found += np.diff(self._partition.pointers(r, part))
        return found

    def neighbors(
        self,
        edge_type: int,
        space: RowSpace,
        rows: np.ndarray,
        fanout: int,
        key: int,
        draw: DrawOptions,
        excluded: ExcludedEdges | None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Samples as hop 0 of a batch with this key. space: the destination type.

        Returns counts int64 [n]; the gids of sources int64 [sum of counts], in the order of the rows; and their edge rows, as
        many.
        """
        space.parts_of(rows)
        counts, pieces = np.zeros(len(rows), dtype=np.int64), []
        for owner, at in self._routed(space, rows):
            gids = rows[at] + self._offset(space)
            mine = None if excluded is None else _of_destinations(excluded, edge_type, gids)
            if owner == 0:
                found = self._draw_local(LocalDraw(edge_type, gids, fanout, key, draw, mine))
            else:
                fanouts = [0] * len(self.schema.edge_types)
                fanouts[edge_type] = fanout
                ask = Expand(key, 0, tuple(fanouts), draw, {space.index: gids.astype(self._wire)}, excluded=mine)
                picks = self._owners.ask(owner, ask)()[edge_type]
                assert picks.edge_rows is not None
                found = picks.counts, picks.neighbors, picks.edge_rows
            counts[at] = found[0]
            pieces.append((at, *found))
        begin = np.cumsum(counts) - counts
        sources, edge_rows = (np.empty(int(counts.sum()), dtype=np.int64) for _ in range(2))
        for at, their_counts, their_sources, their_rows in pieces:
            own = np.cumsum(their_counts, dtype=np.int64) - their_counts
            where = np.repeat(begin[at] - own, their_counts) + np.arange(len(their_sources))
            sources[where], edge_rows[where] = their_sources, their_rows
        return counts, sources, edge_rows

    @guarded()
    def _draw_local(self, ask: LocalDraw) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        assert self._partition is not None
        view = self._partition.weighted(ask.draw.weights)
        entries = None if ask.excluded is None else ask.excluded.find(view).get(ask.edge_type)
        gids = np.ascontiguousarray(ask.gids, dtype=np.int64)
        counts, sources, rows = RowDraw(view, ask.edge_type, gids, ask.fanout, ask.key, 0, ask.draw, entries).picks()
        assert rows is not None
        return counts, sources, rows


@dataclass(frozen=True, eq=False)
class LocalDraw:
    """Arguments of a draw for rows that are mapped here."""

    edge_type: int
    gids: np.ndarray
    fanout: int
    key: int
    draw: DrawOptions
    excluded: ExcludedEdges | None


def _of_destinations(excluded: ExcludedEdges, edge_type: int, gids: np.ndarray) -> ExcludedEdges:
    dst, src = excluded.pairs[edge_type]
    here = np.isin(dst, gids)
    return ExcludedEdges({edge_type: (dst[here], src[here])})
