"""What the manifest of a partition says of the graph, whichever parts are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from glt_lightning.base import NodeType
from glt_lightning.graph import (
    ArrayEntry,
    EdgeSplitEntry,
    EncodingEntry,
    Manifest,
    SplitEntry,
    attr_key,
    edge_split_key,
    seeds_hash,
)
from glt_lightning.partition.build.layout import NodeLayout
from glt_lightning.partition.build.stored_graph import StoredGraph
from glt_lightning.partition.sources.base import GraphSource, categories_of


def manifest_head(
    graph: StoredGraph,
    layouts: Mapping[NodeType, NodeLayout],
    *,
    arrays: Mapping[str, ArrayEntry],
    made_by: Mapping[str, Any],
    hotness: Mapping[str, Any],
    id_dtype: np.dtype,
    edge_id_dtype: np.dtype,
) -> Manifest:
    """The manifest without the parts: it counts no edges.

    arrays: those that belong to no part.  made_by, hotness: records of how nodes were assigned and ranked.
    """
    source = graph.source
    return Manifest(
        schema=graph.schema,
        num_parts=graph.options.num_parts,
        num_nodes=tuple(graph.num_nodes.values()),
        num_edges=(),
        bounds=tuple(layout.bounds for layout in layouts.values()),
        id_dtype=id_dtype.name,
        edge_id_dtype=edge_id_dtype.name,
        num_classes=None if source.num_classes is None else int(source.num_classes),
        target_type=source.target_type,
        splits={name: SplitEntry(t, len(ids), seeds_hash(ids)) for name, (t, ids) in graph.splits.items()},
        edge_splits={
            edge_split_key(index, name): EdgeSplitEntry(len(split), split.digest)
            for (index, name), split in graph.edge_splits.items()
        },
        arrays=arrays,
        made_by=made_by,
        hotness=hotness,
        encodings=_encodings(graph),
        num_categories=categories_of(source),
        class_names=_class_names(source),
        row_order=None if graph.storage.time_attr is None else graph.storage.time_attr.row_order(graph.stored_types),
    )


def _encodings(graph: StoredGraph) -> dict[str, EncodingEntry]:
    storage = graph.storage
    attrs = [("nodes", t, storage.nodes[node_type]) for t, node_type in enumerate(graph.num_nodes)]
    attrs += [("edges", r, storage.edges[stored_type.source]) for r, stored_type in enumerate(graph.stored_types)]
    return {
        attr_key(kind, index, name): stored.entry
        for kind, index, each in attrs
        for name, stored in each.items()
        if stored.entry is not None
    }


def _class_names(source: GraphSource) -> tuple[str, ...] | None:
    """The class names, if the source has the optional attribute ``class_names``."""
    names = getattr(source, "class_names", None)
    return None if names is None else tuple(str(name) for name in names)
