"""`GraphPartitionBook`: which part has which rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import DataError, EdgeType, NodeType
from glt_lightning.tensors import DistGraph, RowSpace, rows_of_index


class GraphPartitionBook:
    """Which part has which rows.

    graph: the graph.  partid: the part that this host maps; the first of them, if there are several.
    """

    def __init__(self, graph: DistGraph) -> None:
        self.graph = graph
        self.partid = (graph.reader.parts or (0,))[0]

    def num_partitions(self) -> int:
        return self.graph.reader.manifest.num_parts

    def metadata(self) -> list[dict[str, int]]:
        """Of each part its number, and those of its nodes and edges."""
        manifest, types = self.graph.reader.manifest, range(len(self.graph.edge_types))
        return [
            {
                "machine_id": part,
                "num_nodes": sum(int(bounds[part + 1] - bounds[part]) for bounds in manifest.bounds),
                "num_edges": sum(manifest.edges(part, edge_type) for edge_type in types),
            }
            for part in range(manifest.num_parts)
        ]

    def nid2partid(self, nids: Any, ntype: NodeType | None = None) -> Tensor:
        """int64 [n]: the part of each node."""
        return _parts(self.graph.space(ntype, "node"), nids)

    def eid2partid(self, eids: Any, etype: EdgeType | str | None = None) -> Tensor:
        """int64 [n]: the part of each edge, which is that of its destination."""
        return _parts(self.graph.space(etype, "edge"), eids)

    def partid2nids(self, partid: int, ntype: NodeType | None = None) -> Tensor:
        """The nodes of a part."""
        return _rows(self.graph.space(ntype, "node"), partid)

    def partid2eids(self, partid: int, etype: EdgeType | str | None = None) -> Tensor:
        """The edges of a part."""
        return _rows(self.graph.space(etype, "edge"), partid)

    def nid2localnid(self, nids: Any, partid: int, ntype: NodeType | None = None) -> Tensor:
        """int64 [n]: nodes of a part, counted from its first one."""
        return _local(self.graph.space(ntype, "node"), nids, partid)

    def eid2localeid(self, eids: Any, partid: int, etype: EdgeType | str | None = None) -> Tensor:
        """int64 [n]: edges of a part, counted from its first one."""
        return _local(self.graph.space(etype, "edge"), eids, partid)


def _parts(space: RowSpace, ids: Any) -> Tensor:
    return torch.from_numpy(space.parts_of(rows_of_index(ids, space.num_rows)).astype(np.int64))


def _rows(space: RowSpace, part: int) -> Tensor:
    if not 0 <= part < space.num_parts:
        raise DataError(f"part: expected 0 to {space.num_parts - 1}, got {part}.")
    return torch.arange(int(space.bounds[part]), int(space.bounds[part + 1]))


def _local(space: RowSpace, ids: Any, part: int) -> Tensor:
    rows, mine = rows_of_index(ids, space.num_rows), _rows(space, part)
    if len(rows) and (space.parts_of(rows) != part).any():
        raise DataError(
            f"part {part} has the rows {int(space.bounds[part])} to {int(space.bounds[part + 1]) - 1}; got others."
        )
    return torch.from_numpy(rows) - (mine[0] if len(mine) else 0)
