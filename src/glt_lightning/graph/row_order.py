"""The order of the entries of a row in a partition whose edges have times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

TIMES = "times"  # edge array, int64 [edges]: ascends within each row


@dataclass(frozen=True)
class RowOrder:
    """The order of rows by time: entries are in the order (time, user id of the source, edge id).

    Attributes:
        time_attr: The attribute that has the times, of edges or of nodes.
        of: ``edges``, or ``nodes``: the time of an edge is that of its source.
        edge_types: Indices of the edge types that have times, ascending. Rows of other edge types are in the canonical order.

    Example:
        >>> RowOrder("time", "nodes", (0, 2)).to_json()
        {'time_attr': 'time', 'of': 'nodes', 'edge_types': [0, 2]}
    """

    time_attr: str
    of: Literal["nodes", "edges"]
    edge_types: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        return {"time_attr": self.time_attr, "of": self.of, "edge_types": list(self.edge_types)}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any] | None) -> RowOrder | None:
        """The inverse of `to_json`; None for a partition without times."""
        return None if raw is None else cls(raw["time_attr"], raw["of"], tuple(raw["edge_types"]))
