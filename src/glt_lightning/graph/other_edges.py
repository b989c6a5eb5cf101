"""The nodes of a partition with other edge types than the stored ones, for batches whose edges are not stored."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from glt_lightning.base import EdgeType
from glt_lightning.graph.local_partition import LocalPartition
from glt_lightning.graph.manifest import Manifest
from glt_lightning.kernels import GraphView, Shards


def bare_view(manifest: Manifest, user_ids: Sequence[np.ndarray | None] | None = None) -> GraphView:
    """Makes a view of the types and parts of a graph, without its edges. user_ids: those of each segment; None: without."""
    schema, parts = manifest.schema, range(manifest.num_parts)
    starts = [o + b[p] for o, b in zip(manifest.offsets, manifest.bounds, strict=False) for p in parts]
    counts = [[manifest.edges(p, r) for p in parts] for r in range(len(schema.edge_types))]
    return GraphView(
        np.array([*starts, manifest.total_nodes], dtype=np.int64),
        [None] * (len(schema.edge_types) * len(parts)),
        list(user_ids or [None] * (len(schema.node_types) * len(parts))),
        schema.edge_type_keys(),
        schema.source_types(),
        schema.destination_types(),
        np.array(counts, dtype=np.int64).reshape(len(schema.edge_types), manifest.num_parts),
    )


class OtherEdges(LocalPartition):
    """A partition for batches whose edges it does not store.

    stored: the partition itself.  edge_types: the edge types of the batches.
    """

    def __init__(self, stored: LocalPartition, edge_types: Sequence[EdgeType]) -> None:
        super().__init__(stored.directory, stored.manifest.with_edge_types(edge_types), stored.parts, stored.memory)
        self._maps, self._stored, self._edge_types = stored._maps, stored, edge_types

    @property
    def with_stored_edges(self) -> LocalPartition:
        return self._stored

    @property
    def as_stored(self) -> LocalPartition:
        return OtherEdges(self._stored.as_stored, self._edge_types)

    def node_shards(self, node_type: int, name: str) -> Shards:
        return self._stored.node_shards(node_type, name)

    def deleted(self, node_type: int) -> np.ndarray:
        return self._stored.deleted(node_type)

    def drawn_by(self, weights: tuple[str | None, ...], timed: bool, labor: bool = False) -> GraphView:
        """Returns a view without edges: these edge types have none to draw."""
        return self._nodes_alone

    @cached_property
    def _nodes_alone(self) -> GraphView:
        types = range(len(self.schema.node_types))
        return bare_view(self.manifest, [ids for t in types for ids in self.mapped_user_ids(t)])
