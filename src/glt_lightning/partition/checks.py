"""Checks of a user's graph before anything is written."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glt_lightning.errors import DataError
from glt_lightning.ops.encoding import BFLOAT16, from_bfloat16
from glt_lightning.partition.build.normalize import row_chunks
from glt_lightning.partition.sources.base import EdgeList, GraphSource, Rows
from glt_lightning.types import EdgeType, NodeType, edge_type_str

RESERVED = {"n_id", "hotness", "indptr", "indices", "edge_ids"}


def check_graph(source: GraphSource, edges: Mapping[EdgeType, EdgeList], normalize: str) -> None:
    """Lengths, dtypes and labels of all attributes. Edge ids are checked when the edges are first read."""
    for t in source.schema.node_types:
        attrs = source.node_attrs(t)
        for name, rows in attrs.items():
            _check_attr(f"{name} of node type {t!r}", name, rows, source.num_nodes[t], "nodes")
        if "y" in attrs:
            _check_labels(attrs["y"], t)
        if normalize != "none" and "x" in attrs and (not _is_float(attrs["x"]) or len(attrs["x"].shape) != 2):
            x = attrs["x"]
            raise DataError(
                f"normalize: expected x as floats [N, D], but x of node type {t!r} is {x.dtype} {list(x.shape)}. "
                "Convert it, or use normalize: none."
            )
    for e in source.schema.edge_types:
        for name, rows in source.edge_attrs(e).items():
            _check_attr(f"{name} of edge type {edge_type_str(e)}", name, rows, edges[e].num_edges, "edges")


def _check_attr(what: str, name: str, rows: Rows, count: int, things: str) -> None:
    if name in RESERVED or not name.isidentifier() or not name.isascii():
        raise DataError(f"{what}: this name cannot be used for an attribute; rename it.")
    if not rows.shape or rows.shape[0] != count:
        raise DataError(f"{what}: has {rows.shape[0] if rows.shape else 0} rows, but there are {count} {things}.")
    if rows.dtype.kind not in "biuf" and rows.dtype != BFLOAT16:
        raise DataError(f"{what}: expected numbers or booleans, got {rows.dtype}.")


def _is_float(rows: Rows) -> bool:
    return rows.dtype.kind == "f" or rows.dtype == BFLOAT16


def _check_labels(y: Rows, node_type: NodeType) -> None:
    if not _is_float(y):
        return
    begin = 0
    for chunk in row_chunks(y):
        if y.dtype == BFLOAT16:
            chunk = from_bfloat16(chunk.view("<u2"))
        bad = np.isnan(chunk).reshape(len(chunk), -1).any(axis=1)
        if bad.any():
            raise DataError(
                f"y of node type {node_type!r}: node {begin + int(bad.argmax())} has a NaN label. "
                "Give nodes without a label an integer label of -1 and leave them out of the splits."
            )
        begin += len(chunk)


def resolve_splits(source: GraphSource, given: Mapping[str, object] | None) -> dict[str, tuple[NodeType, np.ndarray]]:
    """The splits to store: the user's own where given, else those of the data; ids are checked.

    given: name -> ids or boolean mask of the target type, or (node type, ids or mask).
    """
    splits = source.splits if given is None else {name: _typed(name, value, source) for name, value in given.items()}
    return {name: (t, _split_ids(name, t, ids, source)) for name, (t, ids) in sorted(splits.items())}


def _typed(name: str, value: object, source: GraphSource) -> tuple[NodeType, np.ndarray]:
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        return value[0], np.asarray(value[1])
    node_types = source.schema.node_types
    target = node_types[0] if len(node_types) == 1 else source.target_type
    if target is None:
        raise DataError(
            f"splits: {name}: which node type it is for is not clear; give (node type, ids), types: {node_types}."
        )
    return target, np.asarray(value)


def _split_ids(name: str, node_type: NodeType, ids: np.ndarray, source: GraphSource) -> np.ndarray:
    if not name.isidentifier() or not name.isascii():
        raise DataError(f"splits: {name!r} cannot be used as a name; use letters, digits and underscores.")
    if node_type not in source.schema.node_types:
        raise DataError(
            f"splits: {name}: unknown node type {node_type!r}; known: {', '.join(source.schema.node_types)}."
        )
    count = source.num_nodes[node_type]
    if ids.dtype == np.bool_ and ids.shape == (count,):
        ids = np.flatnonzero(ids)
    if ids.size == 0:
        ids = np.zeros(0, np.int64)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise DataError(
            f"splits: {name}: expected node ids [S] or a mask [{count}], got {ids.dtype} {list(ids.shape)}."
        )
    bad = (ids < 0) | (ids >= count)
    if bad.any():
        at = int(bad.argmax())
        raise DataError(
            f"splits: {name}: position {at} holds {ids[at]}, but node type {node_type!r} has nodes 0..{count - 1}."
        )
    return ids.astype(np.int64)
