"""What is known of a graph before it is loaded: enough to build a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from glt_lightning.base import GraphSchema, NodeType
from glt_lightning.graph import Manifest
from glt_lightning.lightning.label_facts import LabelFacts, labels_of_manifest, labels_of_source
from glt_lightning.partition import GraphSource, categories_of, check_labels, stored_edge_types


@dataclass(frozen=True)
class GraphFacts:
    """Types and sizes of a graph as batches will have them.

    num_features: width of ``x`` per node type, None without it.
    num_categories: number of codes of each column of ``x_codes``, for the node types that have them.
    splits: node type of each split.
    labels: what the labels of ``target_type`` are, None without.
    """

    schema: GraphSchema
    num_nodes: Mapping[NodeType, int]
    num_features: Mapping[NodeType, int | None]
    num_classes: int | None
    target_type: NodeType | None
    splits: Mapping[str, NodeType]
    num_categories: Mapping[NodeType, Sequence[int]] = field(default_factory=dict)
    labels: LabelFacts | None = None

    @classmethod
    def of_manifest(cls, manifest: Manifest) -> GraphFacts:
        types = manifest.schema.node_types
        return cls(
            manifest.schema,
            dict(zip(types, manifest.num_nodes, strict=True)),
            {t: manifest.num_features(t) for t in types},
            manifest.num_classes,
            manifest.target_type,
            {name: split.node_type for name, split in manifest.splits.items()},
            manifest.num_categories,
            labels_of_manifest(manifest),
        )

    @classmethod
    def of_source(cls, source: GraphSource, undirected: bool, allow: Collection[str] = ()) -> GraphFacts:
        """Raises `DataError` for labels that no model can be sized by. allow: ``partition.allow``."""
        schema, _ = stored_edge_types(source.schema, undirected)
        if source.target_type is not None:
            check_labels(source, source.target_type, allow)
        return cls(
            schema,
            dict(source.num_nodes),
            dict(source.num_features),
            source.num_classes,
            source.target_type,
            {name: node_type for name, (node_type, _) in source.splits.items()},
            categories_of(source),
            labels_of_source(source),
        )
