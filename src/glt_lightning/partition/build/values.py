"""Checks the values of attributes before nodes are assigned to parts.

That reads all values once more than writing does. It takes seconds, while the assignment, after which writing would find bad
values, may take hours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from glt_lightning.partition.build.normalize import numbered_chunks
from glt_lightning.partition.build.rows import StoredAs
from glt_lightning.partition.build.stored_graph import StoredGraph
from glt_lightning.partition.build.times import Times, WeightSums
from glt_lightning.partition.edge_splits.read import user_columns
from glt_lightning.partition.sources.base import EdgeList, Rows


@dataclass(frozen=True)
class Checked:
    """An attribute whose values may be refused: as times, as weights, or since NaN is not allowed (``stored``)."""

    rows: Rows
    edges: EdgeList | None
    times: Times | None
    weights: WeightSums | None
    stored: StoredAs | None

    def check(self, begin: int, end: int) -> None:
        """Raises `DataError` for the first bad value of the rows [begin, end)."""
        for ids, chunk in numbered_chunks(self.rows, begin, end):
            user_ids: np.ndarray = ids if self.edges is None else user_columns(self.edges, ids)
            if self.times is not None:
                self.times.converted(chunk, user_ids)
            if self.weights is not None:
                self.weights.require_weights(chunk, user_ids)
            if self.stored is not None:
                self.stored.require_allowed(chunk, ids)


def checked_attrs(graph: StoredGraph) -> dict[str, Checked]:
    """Returns the attributes whose values are checked, by a name of their own."""
    storage, schema = graph.storage, graph.source.schema
    found = {}
    for edge_type in schema.edge_types:
        weights, edges = storage.weights[edge_type], graph.edges[edge_type]
        for name, rows in graph.source.edge_attrs(edge_type).items():
            times = storage.times_of(edge_type, name)
            found[f"{edge_type}.{name}"] = Checked(
                rows, edges, times, weights.get(name), _if_checked(storage.edges[edge_type], name)
            )
    for node_type in schema.node_types:
        for name, rows in graph.source.node_attrs(node_type).items():
            stored = _if_checked(storage.nodes[node_type], name)
            if name == "x" and graph.normalize != "none":
                stored = None  # each row is looked at when it enters the statistics
            found[f"{node_type}.{name}"] = Checked(rows, None, storage.times_of(node_type, name), None, stored)
    return {key: each for key, each in found.items() if each.times or each.weights or each.stored}


def _if_checked(stored: Mapping[str, StoredAs], name: str) -> StoredAs | None:
    return None if stored[name].allow is None else stored[name]
