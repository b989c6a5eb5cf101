"""A user's graph and its stored form: the input of both stages, assigning nodes and writing parts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import NodeType, PartitionOptions, Progress, counted
from glt_lightning.graph import EdgeColumns
from glt_lightning.partition.assign.assigners import built_in, require_countable
from glt_lightning.partition.assign.base import Assigner, GraphToPartition, checked
from glt_lightning.partition.build.degrees import Degrees, count_degrees
from glt_lightning.partition.build.edge_types import stored_edge_types
from glt_lightning.partition.build.normalize import numbered_chunks
from glt_lightning.partition.build.rows import Storage
from glt_lightning.partition.build.topology import GraphTopology
from glt_lightning.partition.checks import check_graph
from glt_lightning.partition.edge_splits.read import num_columns, user_columns
from glt_lightning.partition.edge_splits.source import StoredSplits, stored_splits
from glt_lightning.partition.sources.base import GraphSource, counted_by
from glt_lightning.partition.splits import check_overlap, check_seed_labels

_log = logging.getLogger(__name__)

_FEW_NODES = 4  # average per part below which a mistaken num_parts is likelier than a tiny test graph on purpose
ResolvedSplits = Mapping[str, tuple[NodeType, np.ndarray]]


class StoredGraph:
    """The user's graph with its stored edge types and options.

    Attributes are small; arrays as long as the graph are returned by methods, so that the caller can free them.

    Attributes:
        schema, stored_types: The stored types, and the user's types they come from.
        edges: The user's edges by the user's type.
        num_nodes: Nodes of each type, in the order of the types.
        offsets: First gid of each node type.
        splits: Name -> (node type, int64 user ids).
    """

    def __init__(
        self,
        source: GraphSource,
        options: PartitionOptions,
        splits: ResolvedSplits,
        made: Mapping[str, Any],
        progress: Progress,
    ) -> None:
        self.source, self.options, self.splits, self.progress = source, options, splits, progress
        self.schema, self.stored_types = stored_edge_types(source.schema, made["undirected"])
        self.edges = {edge_type: source.edges(edge_type) for edge_type in source.schema.edge_types}
        self.num_nodes = {t: int(source.num_nodes[t]) for t in self.schema.node_types}
        self.offsets = dict(zip(self.num_nodes, np.cumsum([0, *self.num_nodes.values()]).tolist(), strict=False))
        self._normalize = made["normalize"]

    @property
    def total_nodes(self) -> int:
        return sum(self.num_nodes.values())

    @property
    def most_edge_ids(self) -> int:
        """The largest number of edge ids of a stored edge type."""
        return max((num_columns(edges) for edges in self.edges.values()), default=0)

    @property
    def edge_columns(self) -> tuple[EdgeColumns, ...]:
        """For each stored edge type the user's edges that it is made from."""
        index = {r.edge_type: k for k, r in enumerate(self.stored_types)}
        return tuple(
            EdgeColumns(num_columns(self.edges[r.source]), index[r.source] if r.flip or r.both else None)
            for r in self.stored_types
        )

    @cached_property
    def storage(self) -> Storage:
        """The stored form of the attributes. Raises `OptionError` if options name attributes that they do not fit."""
        return Storage(self.source, self.options)

    def check(self, assigner: Assigner) -> None:
        """Raises `DataError` for attributes that cannot be stored, `OptionError` for too many nodes for the assigner."""
        if not self.is_trivial(assigner):
            require_countable(assigner, self.total_nodes, self.options.algorithm_name)
        self._consider_parts()
        allow = self.options.allow
        check_graph(self.source, self.edges, self._normalize, allow)
        check_overlap(self.splits, allow, self.source)
        check_seed_labels(self.source, self.splits, allow)
        _ = self.storage

    def check_values(self) -> None:
        """Raises `DataError` for invalid weights and times, and for NaN and infinite attributes that are not allowed. Reads all
        values, once more than writing does: that takes seconds, while the assignment of nodes, after which writing would find
        them, may take hours."""
        storage = self.storage
        if storage.time_attr is not None:
            storage.time_attr.check_values(self.edges)
        for edge_type, weights in storage.weights.items():
            for name, sums in weights.items():
                for ids, chunk in numbered_chunks(self.source.edge_attrs(edge_type)[name]):
                    sums.require_weights(chunk, user_columns(self.edges[edge_type], ids))
        pairs = [(self.source.node_attrs(t), stored) for t, stored in storage.nodes.items()]
        pairs += [(self.source.edge_attrs(e), stored) for e, stored in storage.edges.items()]
        total = sum(len(rows) for attrs, stored in pairs for name, rows in attrs.items() if stored[name].allow)
        with self.progress.phase("checking values", total, "rows") as done:
            for attrs, stored in pairs:
                for name, rows in attrs.items():
                    if stored[name].allow is None or (name == "x" and self._normalize != "none"):
                        continue  # anything goes; or each is looked at when it enters the statistics
                    for ids, chunk in numbered_chunks(rows):
                        stored[name].require_allowed(chunk, ids)
                        done(len(chunk))

    def _consider_parts(self) -> None:
        parts, nodes = self.options.num_parts, self.total_nodes
        if parts > 1 and nodes < _FEW_NODES * parts:
            empty = f", so at least {counted(parts - nodes, 'part')} will be empty" if parts > nodes else ""
            _log.warning(
                "partition.num_parts: %s for a graph of %s%s. Each part is a folder of files, and most neighbours of a node "
                "are remote. One part per host, or per process that samples, is enough.",
                counted(parts, "part"),
                counted(nodes, "node"),
                empty,
            )

    @property
    def edge_splits(self) -> StoredSplits:
        """The edges to predict, by the stored edge types."""
        return stored_splits(self.source, self.schema)

    def count(self) -> Degrees:
        total = sum(e.num_edges for e in self.edges.values())
        with self.progress.phase("reading edges", total, "edges") as done:
            return count_degrees(self.edges, self.num_nodes, done, partial(counted_by, self.source))

    def topology(self, folder: Path, degrees: Degrees) -> GraphTopology:
        """The rows of the graph, in files in ``folder`` that are removed at the end of the ``with`` block."""
        memory = self.options.memory_bytes
        return GraphTopology(folder, self.edges, self.stored_types, self.num_nodes, degrees, memory, self.progress)

    def is_trivial(self, assigner: Assigner) -> bool:
        """Tells whether there is one part and a built-in assigner, so that all nodes belong to part 0."""
        return self.options.num_parts == 1 and built_in(assigner) is not None

    def assign(self, assigner: Assigner, topology: GraphTopology) -> dict[NodeType, np.ndarray]:
        """Returns node type -> int32 [N], the part of each node.

        A user's array or class is run for one part as well, so that its mistakes show before there are several parts.
        """
        if self.is_trivial(assigner):
            return {t: np.zeros(n, np.int32) for t, n in self.num_nodes.items()}
        graph = GraphToPartition(self.source, topology, self.splits, self.options, self.progress)
        return checked(assigner.assign(graph), graph, self.options.algorithm_name)
