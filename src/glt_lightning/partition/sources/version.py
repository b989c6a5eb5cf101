"""A version of a partition as a graph to partition: its edges and rows as they are stored, without the user's data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np

from glt_lightning.base import EdgeType, GraphSchema, NodeType
from glt_lightning.graph import EdgeEnds, GrownPartition, LocalPartition, edge_path, open_array
from glt_lightning.kernels import BFLOAT16
from glt_lightning.partition.additions import Additions, NewEdges, StoredAttributes
from glt_lightning.partition.arrays import ArrayWriter
from glt_lightning.partition.edge_splits.read import NumberedEdges
from glt_lightning.partition.sources.base import EdgeList, Rows, Splits
from glt_lightning.partition.stored_tables import TABLE_ENCODING
from glt_lightning.partition.tasks.exchange import load_array

_CHUNK = 1 << 20  # edges looked at together

Gather = Callable[[np.ndarray], np.ndarray]  # int64 ids [n] -> rows [n, ...]


class VersionSource:
    """The graph of a version, as a `GraphSource`. Rows are as they are stored: attributes in fewer bytes are not decoded.

    graph: the partition with the rows of the version.  additions: these rows.  folder: for working files.  forget: give zeros
    in place of the attributes of deleted nodes.
    """

    num_features: Mapping[NodeType, int | None] = {}

    def __init__(self, graph: GrownPartition, additions: Additions, folder: Path, forget: bool) -> None:
        self._graph, self._additions, self._folder, self._forget = graph, additions, folder, forget
        base = graph.base.manifest
        self._before, self._columns = base.edge_columns or (), graph.manifest.edge_columns or ()
        self.path, self.name, self.fingerprint = graph.directory, str(base.made_by.get("source")), ""
        self._of_user = base.given_edge_types
        self.schema = GraphSchema(base.schema.node_types, tuple(self._of_user), base.schema.homogeneous)
        self.num_nodes = dict(zip(self.schema.node_types, graph.manifest.num_nodes, strict=True))
        self.num_classes, self.target_type = base.num_classes, base.target_type
        self.class_names = None if base.class_names is None else list(base.class_names)
        self.num_categories = base.num_categories
        self.num_edge_categories = {
            e: base.num_edge_categories[r] for e, r in self._of_user.items() if r in base.num_edge_categories
        }
        self._kept: dict[int, np.ndarray] = {}

    @property
    def splits(self) -> Splits:
        found, graph = {}, self._graph
        for name in sorted(graph.manifest.splits):
            seeds = graph.split(name)
            t = seeds.node_type
            ids = graph.user_ids(t)[seeds.gids - graph.manifest.offsets[t]]
            found[name] = self.schema.node_types[t], ids.astype(np.int64)
        return found

    @cached_property
    def table_encoding(self) -> bytes | None:
        base, arrays = self._graph.base, self._graph.base.manifest.arrays
        if TABLE_ENCODING not in arrays:
            return None
        return open_array(base.directory, TABLE_ENCODING, arrays[TABLE_ENCODING]).tobytes()

    def node_attrs(self, node_type: NodeType) -> Mapping[str, Rows]:
        t, graph = self.schema.node_index(node_type), self._graph
        gone = graph.deleted(t) if self._forget else np.empty(0, np.int64)
        found = {}
        for name in graph.base.manifest.node_attrs(t):
            shards = graph.node_shards(t, name).raw

            def gather(ids: np.ndarray, take: Gather = shards.gather) -> np.ndarray:
                rows = take(graph.gids_of(t, ids))
                if len(gone):
                    rows[np.isin(ids, gone)] = 0
                return rows

            bfloat16 = graph.base.manifest.is_bfloat16("nodes", t, name)
            empty = np.empty((0, *shards.stored_row_shape), shards.stored_dtype)
            found[name] = _StoredRows(self.num_nodes[node_type], empty, gather, bfloat16)
        return found

    def edges(self, edge_type: EdgeType) -> EdgeList:
        r = self._of_user[edge_type]
        new, ids = self._new_edges(edge_type)
        columns = self._rows_of_edges(r, "edge_ids", ids.astype(self._graph.base.manifest.edge_id_dtype))
        kept, ends = self._kept_of(r), np.asarray(new.edge_index)
        return _StoredEdges(self._graph.base, r, kept, ends, columns, self._columns[r].count)

    def edge_attrs(self, edge_type: EdgeType) -> Mapping[str, Rows]:
        r = self._of_user[edge_type]
        new, ids = self._new_edges(edge_type)
        stored = StoredAttributes(self._graph.base.manifest, "edges", r)
        rows = stored.encoded(new.attrs, len(ids), ids) if len(ids) else stored.empty()
        return {name: self._rows_of_edges(r, name, values) for name, values in rows.items()}

    def _new_edges(self, edge_type: EdgeType) -> tuple[NewEdges, np.ndarray]:
        """Returns the edges that the version added, without those that were merged into others or deleted, and their ids."""
        r, new = self._of_user[edge_type], self._additions.edges.get(edge_type)
        first = self._before[r].count
        if new is None:
            return NewEdges(np.empty((2, 0), np.int64)), np.empty(0, np.int64)
        if self._columns[r].reverse_of is None and edge_type not in self._additions.deleted.edges:
            return new, np.arange(first, self._columns[r].count)
        parts = range(self._graph.base.manifest.num_parts, self._graph.manifest.num_parts)
        found = np.unique(np.concatenate([self._graph.overlay.arrays[edge_path(p, r, "edge_ids")] for p in parts]))
        ids = found[found >= first].astype(np.int64)
        index = np.asarray(new.edge_index)[:, ids - first]
        return NewEdges(index, {name: np.asarray(rows)[ids - first] for name, rows in new.attrs.items()}), ids

    def _rows_of_edges(self, r: int, name: str, new: np.ndarray) -> _StoredRows:
        """The rows of the edges that the partition stores, in its order, and of the new ones behind them."""
        base, kept = self._graph.base, self._kept_of(r)
        shards = base.edge_shards(r, name).raw
        count = len(shards) if kept is None else len(kept)

        def gather(ids: np.ndarray) -> np.ndarray:
            old = ids < count
            found = np.empty((len(ids), *new.shape[1:]), new.dtype)
            found[old] = shards.gather(ids[old] if kept is None else kept[ids[old]])
            found[~old] = new[ids[~old] - count]
            return found

        return _StoredRows(count + len(new), new[:0], gather, base.manifest.is_bfloat16("edges", r, name))

    def _kept_of(self, r: int) -> np.ndarray | None:
        """Returns the positions of the stored edges to read, a mapped file: those that are not deleted, and where both directions
        are stored, in one of them; None: all."""
        both = self._columns[r].reverse_of is not None
        deleted = self._additions.deleted.edges.get(self._graph.schema.edge_types[r])
        if not both and deleted is None:
            return None
        if r not in self._kept:
            base, path = self._graph.base, self._folder / f"{r}.npy"
            edge_ids = base.edge_shards(r, "edge_ids")
            with ArrayWriter(self._folder, path.name, np.int64, hashed=False) as writer:
                for begin in range(0, base.manifest.num_edges[r], _CHUNK):
                    positions = np.arange(begin, min(begin + _CHUNK, base.manifest.num_edges[r]))
                    if deleted is not None:
                        positions = positions[~np.isin(edge_ids.gather(positions), deleted.ids)]
                    if both:
                        source, destination = EdgeEnds(base, r).user_ids(positions)
                        positions = positions[source <= destination]
                    writer.write(positions)
            self._kept[r] = load_array(path)
        return self._kept[r]


class _StoredRows:
    """Rows that are gathered when they are asked for. like: an array of no rows."""

    def __init__(self, count: int, like: np.ndarray, gather: Gather, bfloat16: bool) -> None:
        self.shape: tuple[int, ...] = (count, *like.shape[1:])
        self._gather, self.dtype = gather, BFLOAT16 if bfloat16 else like.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: slice | np.ndarray, /) -> np.ndarray:
        ids = np.arange(*index.indices(len(self))) if isinstance(index, slice) else np.asarray(index, np.int64)
        rows = self._gather(ids)
        return rows.view(self.dtype) if self.dtype == BFLOAT16 else rows


class _StoredEdges(NumberedEdges):
    """The stored edges of a type in the order of the partition, and new ones behind them.

    Rows of the partition are sorted by source and edge id, so that of parallel edges the first has the lowest id.
    """

    def __init__(
        self,
        base: LocalPartition,
        edge_type: int,
        kept: np.ndarray | None,
        new: np.ndarray,
        columns: Rows,
        num_columns: int,
    ) -> None:
        self._base, self._r, self._kept, self._new = base, edge_type, kept, new
        self.columns, self.num_columns, self.num_edges = columns, num_columns, len(columns)

    def part(self, size: int, begin: int, end: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        stored = self.num_edges - self._new.shape[1]
        for at in range(begin, end, size):
            ids = np.arange(at, min(at + size, end))
            old, new = ids[ids < stored], ids[ids >= stored] - stored
            positions = old if self._kept is None else np.asarray(self._kept[old])
            ends = EdgeEnds(self._base, self._r).user_ids(positions)
            source, destination = (np.append(one, own[new]) for one, own in zip(ends, self._new, strict=True))
            yield source.astype(np.int64), destination.astype(np.int64)


def parts_of(graph: GrownPartition) -> dict[NodeType, np.ndarray]:
    """Returns node type -> int32 [N]: the part of each node of a version by user id, of new ones that where they were placed."""
    found, base = {}, graph.base.manifest
    for t, name in enumerate(base.schema.node_types):
        old = base.part_of(t, graph.base.gids(t))
        found[name] = np.concatenate([old, graph.overlay.placed[t]]).astype(np.int32)
    return found
