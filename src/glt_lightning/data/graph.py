"""What a loader needs to know of a graph, wherever the graph is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from glt_lightning.data.manifest import Manifest
from glt_lightning.types import GraphSchema


@dataclass(frozen=True)
class Seeds:
    """Seed nodes. node_type: index in the schema; gids: int64 [S] in the user's order (position = ``input_id``)."""

    node_type: int
    gids: np.ndarray


class Graph(Protocol):
    """A partitioned graph: mapped here (`LocalPartition`) or held by servers."""

    manifest: Manifest
    schema: GraphSchema

    def split(self, name: str) -> Seeds:
        """The seeds of a split. Raises `DataError` naming the splits there are."""

    def seeds(self, node_type: int, user_ids: np.ndarray | None = None) -> Seeds:
        """Seeds by the user's ids, int [S]; None: every node of the type. Raises `DataError` for an id out of range."""
