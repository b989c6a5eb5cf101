"""`GraphPartitionBook`: which part has which rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import DataError, EdgeType, NodeType, OptionError
from glt_lightning.tensors import DistGraph, RowSpace, rows_of_index

_WITHIN = "partid2nids(partid) and partid2eids(partid) are consecutive: subtract the first of them."
_REFUSED = {
    "metadata": "num_partitions() is the number of parts, len(partid2nids(part)) and len(partid2eids(part)) their sizes.",
    "nid2localnid": _WITHIN,
    "eid2localeid": _WITHIN,
}


class GraphPartitionBook:
    """Which part has which rows.

    graph: the graph.  partid: the part that this host maps; the first of them, if there are several.
    """

    def __init__(self, graph: DistGraph) -> None:
        self.graph = graph
        self.partid = (graph.reader.parts or (0,))[0]

    def num_partitions(self) -> int:
        return self.graph.reader.manifest.num_parts

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

    def __getattr__(self, name: str) -> Any:
        if name in _REFUSED:
            raise OptionError(f"GraphPartitionBook.{name}: {_REFUSED[name]}")
        raise AttributeError(f"GraphPartitionBook has no attribute {name!r}")


def _parts(space: RowSpace, ids: Any) -> Tensor:
    return torch.from_numpy(space.parts_of(rows_of_index(ids, space.num_rows)).astype(np.int64))


def _rows(space: RowSpace, part: int) -> Tensor:
    if not 0 <= part < space.num_parts:
        raise DataError(f"part: expected 0 to {space.num_parts - 1}, got {part}.")
    return torch.arange(int(space.bounds[part]), int(space.bounds[part + 1]))
