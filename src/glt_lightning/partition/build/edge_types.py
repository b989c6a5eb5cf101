"""The edge types that are stored: the user's, and with ``undirected`` their reverses."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from glt_lightning.base import EdgeType, GraphSchema, edge_type_str

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredEdgeType:
    """A stored edge type and the user's edge type it comes from.

    Attributes:
        edge_type: The stored type.
        source: The user's type.
        flip: Sources and destinations are swapped.
        both: Each edge is stored in both directions; parallel edges are then merged and keep the lowest edge id.
    """

    edge_type: EdgeType
    source: EdgeType
    flip: bool = False
    both: bool = False


def stored_edge_types(schema: GraphSchema, undirected: bool) -> tuple[GraphSchema, list[StoredEdgeType]]:
    """Returns the stored schema, and its edge types in the order of the schema.

    Reverses follow PyG's ``ToUndirected``: an edge type within one node type gets its reverse edges added, one between two types
    gets a second edge type ``(dst, "rev_" + rel, src)``, unless the data has that edge type already.
    """
    stored_types = []
    for edge_type in schema.edge_types:
        src, rel, dst = edge_type
        stored_types.append(StoredEdgeType(edge_type, edge_type, both=undirected and src == dst))
        if not undirected or src == dst:
            continue
        reverse = (dst, f"rev_{rel}", src)
        if reverse in schema.edge_types or _is_reverse(edge_type, schema):
            _log.info(
                "undirected: the data already contains the reverse of edge type %s, so none is added.",
                edge_type_str(edge_type),
            )
        else:
            stored_types.append(StoredEdgeType(reverse, edge_type, flip=True))
    stored_types.sort(key=lambda stored_type: stored_type.edge_type)
    stored = GraphSchema(schema.node_types, tuple(r.edge_type for r in stored_types), schema.homogeneous)
    return stored, stored_types


def _is_reverse(edge_type: EdgeType, schema: GraphSchema) -> bool:
    src, rel, dst = edge_type
    return rel.startswith("rev_") and (dst, rel.removeprefix("rev_"), src) in schema.edge_types


def in_both_directions(edge_types: Iterable[EdgeType]) -> Iterator[StoredEdgeType]:
    """Yields edge types of which each edge is in the rows of both its ends: the user's, directed both ways."""
    for edge_type in edge_types:
        src, rel, dst = edge_type
        yield StoredEdgeType(edge_type, edge_type, both=src == dst)
        if src != dst:
            yield StoredEdgeType((dst, rel, src), edge_type, flip=True)
