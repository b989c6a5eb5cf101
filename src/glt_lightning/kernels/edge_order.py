"""The two orders of a batch's edges: by destination, in which they come, and by source, which a backward pass reads."""

from __future__ import annotations

from typing import Any

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.kernels.native import BAD_ARG, I32, I64, P, Signatures, bind, call, check

_SIGNATURES: Signatures = {
    "glt_colptr": [P, I64, I64, P, P],
    "glt_by_source": [P, P, I64, I64, I32, P, P, P, P],
}
_library = bind(_SIGNATURES)


def column_pointers(dst: np.ndarray, out: np.ndarray) -> None:
    """Where the edges into each node begin. dst: int32 [E], ascending.  out: int64 [nodes + 1].

    Raises `DataError` for destinations that are not ascending, or no nodes: only a sampler of the user's own gives such.
    """
    nodes = len(out) - 1
    status, detail = call(_library().glt_colptr, dst, len(dst), nodes, out)
    if status == BAD_ARG:
        raise DataError(
            f"edge_format edge_index: the edges of a batch have to be sorted by destination, 0 to {nodes - 1}; edge {detail[0]} "
            f"leads to {detail[1]}. Sort the edges that the sampler gives, or use edge_format tensor."
        )
    check(status, detail, "column_pointers")


def by_source(src: np.ndarray, dst: np.ndarray, nodes: int, out: np.ndarray, *, threads: int = 1) -> None:
    """The edges sorted by source; those of one source stay in their order. src, dst: int32 [E], src in [0, nodes).

    out: int64 [nodes + 1 + 2 E]: where the edges of each source begin, their destinations, their positions in ``src``.
    Raises `DataError` for a source that is no node.
    """
    rowptr, col, perm = split_by_source(out, nodes)
    status, detail = call(_library().glt_by_source, src, dst, len(src), nodes, threads, rowptr, col, perm)
    if status == BAD_ARG:
        raise DataError(
            f"edge_format edge_index: edge {detail[0]} comes from {detail[1]}, and there are {nodes} nodes."
        )
    check(status, detail, "by_source")


def split_by_source(values: Any, nodes: int) -> tuple[Any, Any, Any]:
    """(rowptr [nodes + 1], col [E], perm [E]): views of what `by_source` writes, an array or a tensor."""
    edges = (len(values) - nodes - 1) // 2
    first = nodes + 1
    return values[:first], values[first : first + edges], values[first + edges :]
