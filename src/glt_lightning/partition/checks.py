"""Checks of a user's attributes before anything is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from glt_lightning.base import DataError, EdgeType, counted, edge_type_str
from glt_lightning.kernels import BFLOAT16
from glt_lightning.partition.sources.base import EdgeList, GraphSource, Rows, counted_by, file_of
from glt_lightning.partition.splits import check_labels

RESERVED = {"n_id", "hotness", "indptr", "indices", "edge_ids"}


def check_graph(
    source: GraphSource, edges: Mapping[EdgeType, EdgeList], normalize: str, allow: Collection[str] = ()
) -> None:
    """Checks names, lengths and dtypes of all attributes, and labels. Ids of edges are checked when edges are first read,
    values of attributes when they are written.

    allow: ``partition.allow``.

    Raises `DataError`, naming the attribute and its type.
    """
    file = file_of(source)
    for t in source.schema.node_types:
        check_labels(source, t, allow)
        attrs = source.node_attrs(t)
        for name, rows in attrs.items():
            clause = "" if rows.shape[:1] == (source.num_nodes[t],) else counted_by(source, t)
            _check_attr(f"{file}{name} of node type {t!r}", name, rows, source.num_nodes[t], "node", clause)
        if normalize != "none" and "x" in attrs and (not _is_float(attrs["x"]) or len(attrs["x"].shape) != 2):
            x = attrs["x"]
            raise DataError(
                f"normalize: {normalize} needs x as floats [N, D], but x of node type {t!r} is {x.dtype} {list(x.shape)}. "
                "Convert x to floats, or set data.normalize: none."
            )
    for e in source.schema.edge_types:
        for name, rows in source.edge_attrs(e).items():
            _check_attr(f"{file}{name} of edge type {edge_type_str(e)}", name, rows, edges[e].num_edges, "edge")


def _check_attr(what: str, name: str, rows: Rows, count: int, of: str, clause: str = "") -> None:
    if name in RESERVED or not name.isidentifier() or not name.isascii():
        raise DataError(f"{what}: this attribute name is reserved or not usable as a file name. Rename the attribute.")
    if not rows.shape or rows.shape[0] != count:
        given = counted(rows.shape[0] if rows.shape else 0, "row")
        raise DataError(f"{what}: expected one row per {of}, which makes {count}{clause}, got {given}.")
    if rows.dtype.kind not in "biuf" and rows.dtype != BFLOAT16:
        raise DataError(
            f"{what}: attributes are numbers or booleans, but the dtype is {rows.dtype}. Convert or remove it."
        )


def _is_float(rows: Rows) -> bool:
    return rows.dtype.kind == "f" or rows.dtype == BFLOAT16
