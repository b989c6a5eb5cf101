"""Checks of a user's attributes before anything is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from glt_lightning.errors import DataError
from glt_lightning.ops.encoding import BFLOAT16
from glt_lightning.partition.labels import check_labels
from glt_lightning.partition.sources.base import EdgeList, GraphSource, Rows, counted_by, file_of
from glt_lightning.types import EdgeType, edge_type_str

RESERVED = {"n_id", "hotness", "indptr", "indices", "edge_ids"}


def check_graph(
    source: GraphSource, edges: Mapping[EdgeType, EdgeList], normalize: str, allow: Collection[str] = ()
) -> None:
    """Lengths, dtypes and labels of all attributes. Edge ids are checked when the edges are first read, and the values of
    attributes when they are written.

    allow: ``partition.allow``.
    """
    file = file_of(source)
    for t in source.schema.node_types:
        check_labels(source, t, allow)
        attrs = source.node_attrs(t)
        for name, rows in attrs.items():
            counted = "" if rows.shape[:1] == (source.num_nodes[t],) else counted_by(source, t)
            _check_attr(f"{file}{name} of node type {t!r}", name, rows, source.num_nodes[t], f"nodes{counted}")
        if normalize != "none" and "x" in attrs and (not _is_float(attrs["x"]) or len(attrs["x"].shape) != 2):
            x = attrs["x"]
            raise DataError(
                f"normalize: expected x as floats [N, D], but x of node type {t!r} is {x.dtype} {list(x.shape)}. "
                "Convert it, or use normalize: none."
            )
    for e in source.schema.edge_types:
        for name, rows in source.edge_attrs(e).items():
            _check_attr(f"{file}{name} of edge type {edge_type_str(e)}", name, rows, edges[e].num_edges, "edges")


def _check_attr(what: str, name: str, rows: Rows, count: int, things: str) -> None:
    if name in RESERVED or not name.isidentifier() or not name.isascii():
        raise DataError(f"{what}: this name cannot be used for an attribute; rename it.")
    if not rows.shape or rows.shape[0] != count:
        raise DataError(f"{what}: has {rows.shape[0] if rows.shape else 0} rows, but there are {count} {things}.")
    if rows.dtype.kind not in "biuf" and rows.dtype != BFLOAT16:
        raise DataError(f"{what}: expected numbers or booleans, got {rows.dtype}.")


def _is_float(rows: Rows) -> bool:
    return rows.dtype.kind == "f" or rows.dtype == BFLOAT16
