"""What is known of a graph before it is loaded: enough to build a model."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glt_lightning.base import EdgeType, GraphSchema, NodeType
from glt_lightning.graph import Manifest, attr_key, edge_split_path, node_path
from glt_lightning.partition.build.edge_types import stored_edge_types
from glt_lightning.partition.edge_splits.source import LinkSource
from glt_lightning.partition.sources.base import GraphSource, categories_of, edge_categories_of
from glt_lightning.partition.splits import check_labels


@dataclass(frozen=True)
class GraphFacts:
    """Types and sizes of a graph as batches will have them.

    num_features: width of ``x`` per node type, None without it.
    num_categories: number of codes of each column of ``x_codes``, for the node types that have them.
    splits: node type of each split.
    empty_splits: those without a node.
    strays: a line for each array of the data that is ignored, and each attribute with almost a known name.
    edges: what edges have that encoders can read, for the edge types that have some of it.
    labels: what the labels of ``target_type`` are, None without.
    edge_labels: what the labels of edges to predict are, for the edge types that have some.
    """

    schema: GraphSchema
    num_nodes: Mapping[NodeType, int]
    num_features: Mapping[NodeType, int | None]
    num_classes: int | None
    target_type: NodeType | None
    splits: Mapping[str, NodeType]
    num_categories: Mapping[NodeType, Sequence[int]] = field(default_factory=dict)
    edges: Mapping[EdgeType, EdgeFacts] = field(default_factory=dict)
    labels: LabelFacts | None = None
    edge_labels: Mapping[EdgeType, LabelFacts] = field(default_factory=dict)
    empty_splits: Collection[str] = ()
    strays: Sequence[str] = ()

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
            _edges_of_manifest(manifest),
            _labels_of_manifest(manifest),
            _edge_labels_of_manifest(manifest),
            {name for name, split in manifest.splits.items() if not split.count},
        )

    @classmethod
    def of_source(cls, source: GraphSource, undirected: bool, allow: Collection[str] = ()) -> GraphFacts:
        """Raises `DataError` for labels that no model can be sized by. allow: ``partition.allow``."""
        schema, stored = stored_edge_types(source.schema, undirected)
        if source.target_type is not None:
            check_labels(source, source.target_type, allow)
        splits = source.splits
        return cls(
            schema,
            dict(source.num_nodes),
            dict(source.num_features),
            source.num_classes,
            source.target_type,
            {name: node_type for name, (node_type, _) in splits.items()},
            categories_of(source),
            _edges_of_source(source, {each.edge_type: each.source for each in stored}),
            _labels_of_source(source),
            _edge_labels_of_source(source),
            {name for name, (_, ids) in splits.items() if not (ids.any() if ids.dtype == np.bool_ else len(ids))},
            getattr(source, "strays", ()),
        )


# What edges have that encoders can read. Plain values, as `LabelFacts` are.


# ``width``: of ``edge_attr``, None without it.  ``weight``: whether there is an ``edge_weight``.  ``num_categories``: number of
# codes of each column of ``edge_codes``, empty without it.
EdgeFacts = dict[str, Any]


def _edges_of_manifest(manifest: Manifest) -> dict[EdgeType, EdgeFacts]:
    found = {}
    for r, edge_type in enumerate(manifest.schema.edge_types):
        width, weight = (manifest.edge_width(r, name) for name in ("edge_attr", "edge_weight"))
        found[edge_type] = _edge_facts(width, weight, manifest.num_edge_categories.get(r, ()))
    return {edge_type: facts for edge_type, facts in found.items() if any(facts.values())}


def _edges_of_source(source: GraphSource, stored: Mapping[EdgeType, EdgeType]) -> dict[EdgeType, EdgeFacts]:
    """The same of a data set that is not partitioned yet. stored: the user's edge type of each stored one."""
    # the rows of a graph whose edges are held out are counted by reading its edges; their widths are those of all edges
    labels = source.label_attrs if isinstance(source, LinkSource) else {}
    source = source.inner if isinstance(source, LinkSource) else source
    codes, found = edge_categories_of(source), {}
    for edge_type, given in stored.items():
        shapes = {name: rows.shape[1:] for name, rows in source.edge_attrs(given).items() if name != labels.get(given)}
        width, weight = (math.prod(shapes[name]) if name in shapes else None for name in ("edge_attr", "edge_weight"))
        found[edge_type] = _edge_facts(width, weight, codes.get(given, ()))
    return {edge_type: facts for edge_type, facts in found.items() if any(facts.values())}


def _edge_facts(width: int | None, weight: int | None, codes: Sequence[int]) -> EdgeFacts:
    return {"width": width or None, "weight": weight == 1, "num_categories": list(codes)}


# What is known of the labels before anything is loaded: enough to choose a task and to size a model's output.


# ``kind``: int, bool or float.  ``width``: D of labels [N, D], None of labels [N].  ``num_classes``: None for a regression.
# ``class_names``: names of the classes, or of the D labels, None where they have none. Plain values, because a module keeps
# them among its hyper-parameters and checkpoints are read with ``weights_only``.
LabelFacts = dict[str, Any]
_KINDS = {"i": "int", "u": "int", "b": "bool"}


def _labels_of_manifest(manifest: Manifest) -> LabelFacts | None:
    """None where the target has no labels."""
    if manifest.target_type is None:
        return None
    t = manifest.schema.node_index(manifest.target_type)
    entry = manifest.arrays.get(node_path(0, t, "y"))
    if entry is None:
        return None
    kind = "float" if attr_key("nodes", t, "y") in manifest.encodings else _kind(entry.dtype)
    return _facts(kind, entry.shape[1:], manifest.num_classes, manifest.class_names)


def _labels_of_source(source: GraphSource) -> LabelFacts | None:
    """The same of a data set that is not partitioned yet, without loading one that tells by ``label_form``."""
    form = getattr(source, "label_form", None)
    if form is None:
        if source.target_type is None or (y := source.node_attrs(source.target_type).get("y")) is None:
            return None
        form = _kind(y.dtype), tuple(y.shape[1:])
    kind, shape = form
    return _facts(kind, shape, source.num_classes, getattr(source, "class_names", None))


def _kind(dtype: Any) -> str:
    return _KINDS.get(np.dtype(dtype).kind, "float")


def _facts(kind: str, shape: tuple[int, ...], num_classes: int | None, names: Sequence[Any] | None) -> LabelFacts:
    class_names = None if names is None else [str(name) for name in names]
    return {
        "kind": kind,
        "width": shape[0] if shape else None,
        "num_classes": num_classes,
        "class_names": class_names,
    }


def _edge_labels_of_manifest(manifest: Manifest) -> dict[EdgeType, LabelFacts]:
    found = {}
    for r, labels in manifest.edge_labels.items():
        if (entry := manifest.arrays.get(edge_split_path(r, "train", "label"))) is not None:
            facts = _facts(_kind(entry.dtype), entry.shape[1:], labels.num_classes, labels.class_names)
            found[manifest.schema.edge_types[r]] = facts
    return found


def _edge_labels_of_source(source: GraphSource) -> dict[EdgeType, LabelFacts]:
    """Raises `DataError` where edges whose labels are to be predicted have none."""
    labels = source.labels if isinstance(source, LinkSource) else {}
    return {
        e: _facts(_kind(each.values.dtype), tuple(each.values.shape[1:]), each.num_classes, each.class_names)
        for e, each in labels.items()
    }
