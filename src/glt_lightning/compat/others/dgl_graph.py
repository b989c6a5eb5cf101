"""A graph object of DGL, known by what it can do: the package itself is not imported."""

from __future__ import annotations

from typing import Any

import numpy as np

from glt_lightning.base import EDGE, NODE, EdgeType
from glt_lightning.compat.others.named import NamedArrays
from glt_lightning.partition import ArraySource

_HIDDEN = "_"  # names such as _ID are DGL's own


def is_dgl_graph(given: Any) -> bool:
    return all(hasattr(given, name) for name in ("canonical_etypes", "ntypes", "all_edges", "nodes", "edges"))


def dgl_source(graph: Any, name: str) -> ArraySource:
    """The graph with its data: ``feat`` is stored as ``x``, ``label`` as ``y``, masks as splits. Raises `DataError` for data that
    do not fit."""
    types: list[EdgeType] = [(e[0], e[1], e[2]) for e in graph.canonical_etypes]
    homogeneous = len(types) == 1 and len(graph.ntypes) == 1
    ours = {e: EDGE if homogeneous else e for e in types}
    nodes = {t: NODE if homogeneous else str(t) for t in graph.ntypes}
    return NamedArrays(
        name,
        {nodes[t]: int(graph.num_nodes(t)) for t in graph.ntypes},
        {ours[e]: np.stack([_array(end) for end in graph.all_edges(order="eid", etype=e)]) for e in types},
        {nodes[t]: _arrays(graph.nodes[t].data) for t in graph.ntypes},
        {ours[e]: _arrays(graph.edges[e].data) for e in types},
        homogeneous,
    ).source()


def _array(tensor: Any) -> np.ndarray:
    return np.asarray(tensor.cpu().numpy())


def _arrays(data: Any) -> dict[str, np.ndarray]:
    return {str(name): _array(values) for name, values in data.items() if not str(name).startswith(_HIDDEN)}
