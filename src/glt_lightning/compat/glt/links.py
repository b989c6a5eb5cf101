"""Edges to predict, as GraphLearn-for-PyTorch gives them and as our loaders take them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from glt_lightning.base import EDGE, EdgeType, GraphSchema, NegativeSampling, OptionError, edge_type_str
from glt_lightning.compat.glt.stored import StoredEdges
from glt_lightning.loader import LinkSpec
from glt_lightning.partition import host_array
from glt_lightning.sampling import LinkTask


def link_spec(stored: StoredEdges, name: str, edges: Any, labels: Any, neg_sampling: Any) -> tuple[LinkSpec, bool]:
    """(the loader, whether ``edge_label_index`` of its batches has to be swapped).

    GLT gives the rows of ``edge_label_index`` swapped, except for in-bound sampling in heterogeneous graphs. Out-bound, edges are
    stored turned round, which has swapped them already; those of triplets are given as they are. Raises `OptionError` for edges
    that cannot be given.
    """
    edge_type, ends = _typed(stored, edges)
    homogeneous = stored.schema.homogeneous
    negatives = NegativeSampling.of(neg_sampling)
    triplets = negatives is not None and negatives.mode == "triplet"
    turn = stored.turned and not triplets
    make = TurnedLinks if stored.turned and triplets else LinkSpec
    spec = make(
        name=name,
        edge_label_index=ends[::-1] if turn else ends,
        num_neighbors=[1],
        batch_size=1,
        edge_type=edge_type_str(stored.stored(edge_type)) if edge_type is not None else None,
        edge_label=None if labels is None else host_array("edge_label", labels),
        neg_sampling=negatives,
    )
    return spec, homogeneous and not turn and not triplets


class TurnedLinks(LinkSpec):
    """Edges that are stored the other way round, with negatives among the destinations that the user means."""

    def task(self, schema: GraphSchema) -> LinkTask:
        return replace(super().task(schema), turned=True)


def _typed(stored: StoredEdges, edges: Any) -> tuple[EdgeType | None, np.ndarray]:
    edge_type: Any = None
    if isinstance(edges, (tuple, list)) and len(edges) == 2 and _is_type(edges[0]):
        edge_type, edges = edges
    if edge_type is None and not stored.schema.homogeneous:
        raise OptionError("edge_label_index: expected (edge type, edges) in a heterogeneous graph.")
    if edges is None:
        raise OptionError(
            "edge_label_index: expected edges int [2, S]. None, for all edges, is not taken: they lie in the parts of several "
            "processes. Give each process its own."
        )
    ends = np.stack([host_array("edge_label_index", each) for each in edges]) if len(edges) == 2 else np.asarray(edges)
    return (None if stored.schema.homogeneous else edge_type or EDGE), ends


def _is_type(given: Any) -> bool:
    return isinstance(given, str) or (isinstance(given, tuple) and len(given) == 3 and isinstance(given[0], str))
