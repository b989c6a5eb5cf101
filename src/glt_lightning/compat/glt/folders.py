"""A partition folder of ours as the tensors that GraphLearn-for-PyTorch's `load_partition` gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from glt_lightning.base import EDGE, EdgeType, Fanouts, OptionError, edge_type_str
from glt_lightning.compat.glt.feature import OffsetIndex
from glt_lightning.compat.glt.graph import EDGE_ASSIGN
from glt_lightning.compat.glt.tensor_graph import reverse_edge_type
from glt_lightning.graph import Manifest


class PartitionBook:
    """Tells the part of ids. offset: the first id."""

    offset = 0

    def __getitem__(self, ids: Any) -> Tensor:
        raise NotImplementedError


class RangePartitionBook(PartitionBook):
    """The same where every part owns one range of ids. partition_ranges: (first, one behind the last) of each part, which follow
    each other.  partition_idx: the part of this process.  id2index: the rows of the ids of its part."""

    def __init__(self, partition_ranges: list[tuple[int, int]], partition_idx: int) -> None:
        ends = [end for _, end in partition_ranges]
        follow = [first for first, _ in partition_ranges] == [first for first, _ in partition_ranges[:1]] + ends[:-1]
        if not partition_ranges or not follow or any(first >= end for first, end in partition_ranges):
            raise OptionError(
                f"RangePartitionBook: expected ranges that are not empty and follow each other, got {partition_ranges!r:.200}."
            )
        self.partition_ranges, self.partition_idx = partition_ranges, partition_idx
        self.partition_bounds = torch.tensor(ends)
        self.device = self.partition_bounds.device
        self.id2index = OffsetIndex(partition_ranges[partition_idx][0])

    def __getitem__(self, ids: Any) -> Tensor:
        return torch.searchsorted(self.partition_bounds, torch.as_tensor(ids), right=True)

    def __len__(self) -> int:
        return int(self.partition_bounds[-1])

    def id_filter(self, node_pb: Any, partition_idx: int) -> Tensor:
        """The ids of a part."""
        first, end = self.partition_ranges[partition_idx]
        return torch.arange(first, end)


# A partition as GraphLearn-for-PyTorch's users name its edges: what they call out-bound is stored turned round.


_DIRECTIONS = ("out", "in")


class StoredEdges:
    """Translates edge types and fan-outs. edge_dir: ``out`` or ``in``; the partition has to be made for it.

    Raises `OptionError` for another ``edge_dir`` than that of the partition.
    """

    def __init__(self, manifest: Manifest, edge_dir: str) -> None:
        if edge_dir not in _DIRECTIONS:
            raise OptionError(f"edge_dir: expected 'out' or 'in', got {edge_dir!r}.")
        self.turned = manifest.made_by.get(EDGE_ASSIGN, "by_dst") == "by_src"
        self.schema = manifest.schema
        if self.turned != (edge_dir == "out"):
            made, needed = ("by_src", "out") if self.turned else ("by_dst", "in")
            raise OptionError(
                f"edge_dir: got {edge_dir!r}, but the partition stores edges {made}, which is for edge_dir={needed!r}. Give "
                f"that, or partition again with edge_assign_strategy={'by_dst' if self.turned else 'by_src'!r}."
            )

    @classmethod
    def of(cls, manifest: Manifest) -> StoredEdges:
        """With the ``edge_dir`` of the partition."""
        return cls(manifest, "out" if manifest.made_by.get(EDGE_ASSIGN) == "by_src" else "in")

    def stored(self, edge_type: EdgeType | str) -> EdgeType:
        """The edge type under which a user's edges are stored. Raises `OptionError` for one that there is not."""
        if isinstance(edge_type, str):
            parts = tuple(edge_type.split("__"))
            if len(parts) != 3:
                raise OptionError(f"edge type: expected (source, relation, destination), got {edge_type!r}.")
            edge_type = (parts[0], parts[1], parts[2])
        found = reverse_edge_type(edge_type) if self.turned else edge_type
        if found not in self.schema.edge_types:
            known = ", ".join(map(str, map(self.given, self.schema.edge_types)))
            raise OptionError(f"edge type {edge_type!r}: the graph has none of this name; known: {known}.")
        return found

    def given(self, stored: EdgeType) -> EdgeType:
        """The inverse of `stored`."""
        return reverse_edge_type(stored) if self.turned else stored

    def fanouts(self, num_neighbors: Any) -> Fanouts:
        """For the stored edge types. Edge types that a dictionary leaves out are not sampled."""
        if not isinstance(num_neighbors, Mapping):
            return list(num_neighbors)
        by_type = {self.stored(e): list(hops) for e, hops in num_neighbors.items()}
        hops = max((len(each) for each in by_type.values()), default=0)
        if self.schema.homogeneous:
            return by_type.get(EDGE, [])
        return {edge_type_str(e): by_type.get(e, [0] * hops) for e in self.schema.edge_types}
