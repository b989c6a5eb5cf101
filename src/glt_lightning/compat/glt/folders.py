"""A partition folder of ours as the tensors that GraphLearn-for-PyTorch's `load_partition` gives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import EDGE, EdgeType, Fanouts, OptionError, edge_type_str
from glt_lightning.compat.glt.feature import OffsetIndex
from glt_lightning.compat.glt.graph import EDGE_ASSIGN
from glt_lightning.graph import LocalPartition, Manifest, edge_path, node_path
from glt_lightning.partition import reverse_edge_type


class GraphPartitionData(NamedTuple):
    """edge_index: [2, E] of a part, ids of the whole graph.  eids: int64 [E].  weights: float32 [E], or None."""

    edge_index: Tensor
    eids: Tensor
    weights: Tensor | None = None


class FeaturePartitionData(NamedTuple):
    """feats: [n, ...] of a part.  ids: int64 [n].  cache_feats, cache_ids: of rows of other parts, or None."""

    feats: Tensor
    ids: Tensor
    cache_feats: Tensor | None = None
    cache_ids: Tensor | None = None


class PartitionBook:
    """Tells the part of ids. offset: the first id."""

    offset = 0

    def __getitem__(self, ids: Any) -> Tensor:
        raise NotImplementedError


class GLTPartitionBook(PartitionBook):
    """The part of each id. parts: int64 [N]."""

    def __init__(self, parts: Any) -> None:
        self.parts = torch.as_tensor(parts).long()

    def __getitem__(self, ids: Any) -> Tensor:
        return self.parts[torch.as_tensor(ids)]

    def __len__(self) -> int:
        return len(self.parts)


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


def load_partition(
    root_dir: str | Path, partition_idx: int, graph_caching: bool = False, device: Any = None
) -> tuple[int, int, Any, Any, Any, Any, Any]:
    """(number of parts, part, graph, node features, edge features, parts of nodes, parts of edges); dictionaries by type for a
    heterogeneous graph, features None where there are none.

    root_dir: a folder of ours.  device: of the tensors.  graph_caching: no effect.
    """
    del graph_caching
    with_close = LocalPartition.open(root_dir)
    try:
        reading = _Reading(with_close, partition_idx, torch.device("cpu" if device is None else device))
        found = reading.tuple()
    finally:
        with_close.close()
    return found


def load_graphs(partition: LocalPartition, part: int, ids: list[np.ndarray]) -> dict[EdgeType, GraphPartitionData]:
    """The edges of a mapped part, by the user's edge types. ids: the user's ids of all nodes, by node type."""
    return _Reading(partition, part, torch.device("cpu"), ids).graphs()


def cat_feature_cache(
    partition_idx: int, feat_pdata: FeaturePartitionData, feat_pb: Any
) -> tuple[float, Tensor, Tensor, Any]:
    """(share of cached rows, rows with the cached ones first, row of each id, book in which cached ids are this part's)."""
    ids, feats, cached = feat_pdata.ids, feat_pdata.feats, feat_pdata.cache_ids
    parts = feat_pb.parts if isinstance(feat_pb, GLTPartitionBook) else torch.as_tensor(feat_pb)
    book, ratio = parts.clone(), 0.0
    if cached is not None and feat_pdata.cache_feats is not None:
        book[cached] = partition_idx
        ratio = len(cached) / (len(cached) + len(ids))
        ids, feats = torch.cat([cached, ids]), torch.cat([feat_pdata.cache_feats, feats])
    index = torch.zeros(int(ids.max()) + 1 if len(ids) else 0, dtype=torch.int64)
    index[ids.flip(0)] = torch.arange(len(ids)).flip(
        0
    )  # of an id that comes twice the first row, which is the cached one
    return ratio, feats, index, GLTPartitionBook(book) if isinstance(feat_pb, GLTPartitionBook) else book


class _Reading:
    """One part of a folder."""

    def __init__(
        self, partition: LocalPartition, part: int, device: torch.device, ids: list[np.ndarray] | None = None
    ) -> None:
        manifest = partition.manifest
        if not 0 <= part < manifest.num_parts:
            raise OptionError(f"partition_idx: expected 0 to {manifest.num_parts - 1}, got {part}.")
        self._partition, self._manifest, self._part, self._device = partition, manifest, part, device
        self._stored = StoredEdges.of(manifest)
        self._ids = ids or [
            np.concatenate(partition.user_ids_by_part(t)) for t in range(len(manifest.schema.node_types))
        ]

    def tuple(self) -> tuple[int, int, Any, Any, Any, Any, Any]:
        schema = self._manifest.schema
        nodes = {t: self._node_features(i) for i, t in enumerate(schema.node_types)}
        edges = {self._stored.given(e): self._edge_features(r) for r, e in enumerate(schema.edge_types)}
        graphs = self.graphs()
        node_pb = {t: self._parts_of_nodes(i) for i, t in enumerate(schema.node_types)}
        edge_pb = {self._stored.given(e): self._parts_of_edges(r) for r, e in enumerate(schema.edge_types)}
        found: list[Any] = [graphs, _given(nodes), _given(edges), node_pb, edge_pb]
        if schema.homogeneous:
            found = [None if each is None else next(iter(each.values())) for each in found]
        return self._manifest.num_parts, self._part, found[0], found[1], found[2], found[3], found[4]

    def graphs(self) -> dict[EdgeType, GraphPartitionData]:
        return {self._stored.given(e): self._graph(r, e) for r, e in enumerate(self._manifest.schema.edge_types)}

    def _array(self, path: str) -> np.ndarray:
        return self._partition._open(path)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(array)).to(self._device)

    def _graph(self, r: int, stored: EdgeType) -> GraphPartitionData:
        schema, manifest, p = self._manifest.schema, self._manifest, self._part
        pointers, sources = self._array(edge_path(p, r, "indptr")), self._array(edge_path(p, r, "indices"))
        src, dst = schema.source_types()[r], schema.destination_types()[r]
        rows = np.repeat(np.arange(len(pointers) - 1), np.diff(pointers)) + manifest.bounds[dst][p]
        ends = [self._ids[src][sources.astype(np.int64) - manifest.offsets[src]], self._ids[dst][rows]]
        ends = ends[::-1] if self._stored.turned else ends
        weights = None
        if "edge_weight" in manifest.edge_attrs(r):
            weights = self._tensor(self._array(edge_path(p, r, "edge_weight")))
        eids = self._tensor(self._array(edge_path(p, r, "edge_ids")).astype(np.int64))
        return GraphPartitionData(self._tensor(np.stack(ends).astype(np.int64)), eids, weights)

    def _node_features(self, t: int) -> FeaturePartitionData | None:
        if "x" not in self._manifest.node_attrs(t):
            return None
        first, end = (self._manifest.offsets[t] + self._manifest.bounds[t][self._part + k] for k in (0, 1))
        rows = self._partition.node_shards(t, "x").gather(np.arange(first, end))
        ids = self._array(node_path(self._part, t, "n_id")).astype(np.int64)
        return FeaturePartitionData(self._tensor(rows), self._tensor(ids))

    def _edge_features(self, r: int) -> FeaturePartitionData | None:
        if "edge_attr" not in self._manifest.edge_attrs(r):
            return None
        bounds = self._manifest.edge_bounds(r)
        rows = self._partition.edge_shards(r, "edge_attr").gather(np.arange(bounds[self._part], bounds[self._part + 1]))
        ids = self._array(edge_path(self._part, r, "edge_ids")).astype(np.int64)
        return FeaturePartitionData(self._tensor(rows), self._tensor(ids))

    def _parts_of_nodes(self, t: int) -> Tensor:
        bounds = np.asarray(self._manifest.bounds[t])
        parts = np.empty(len(self._ids[t]), np.int64)
        parts[self._ids[t]] = np.repeat(np.arange(self._manifest.num_parts), np.diff(bounds))
        return self._tensor(parts)

    def _parts_of_edges(self, r: int) -> Tensor:
        ids = [self._array(edge_path(p, r, "edge_ids")).astype(np.int64) for p in range(self._manifest.num_parts)]
        parts = np.zeros(int(max((each.max(initial=-1) for each in ids), default=-1)) + 1, np.int64)
        for p, each in enumerate(ids):
            parts[each] = p
        return self._tensor(parts)


def _given(features: dict[Any, FeaturePartitionData | None]) -> dict[Any, FeaturePartitionData] | None:
    return {t: each for t, each in features.items() if each is not None} or None


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
