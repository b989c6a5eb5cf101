"""`Dataset`: a graph of one process, from tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from glt_lightning.base import EDGE, NODE, DataError, EdgeType, NodeType, OptionError
from glt_lightning.compat.glt.feature import Feature
from glt_lightning.compat.glt.fields import GLTFields
from glt_lightning.compat.glt.given import read_labels
from glt_lightning.compat.glt.graph import EDGE_ASSIGN, Graph, Topology
from glt_lightning.compat.glt.tensor_graph import FLOATS, TensorGraph
from glt_lightning.graph import LocalPartition
from glt_lightning.partition import partition_in_memory

_LAYOUT = {"out": "CSR", "in": "CSC"}


class Dataset:
    """Graph, features and labels for the loaders of one process; dictionaries by type for a heterogeneous graph.

    Args:
        graph: A `Graph`, or one for each edge type.
        node_features, edge_features: A `Feature`, or one for each type.
        node_labels: Labels [N, ...] by id, or for each node type.
        edge_dir: ``out``: loaders draw among destinations. ``in``: among sources.
        node_split: (train, val, test) ids.
    """

    def __init__(
        self,
        graph: Any = None,
        node_features: Any = None,
        edge_features: Any = None,
        node_labels: Any = None,
        edge_dir: str = "out",
        node_split: Any = None,
    ) -> None:
        if edge_dir not in _LAYOUT:
            raise OptionError(f"Dataset: edge_dir: expected 'out' or 'in', got {edge_dir!r}.")
        self.graph, self.edge_dir, self.node_split = graph, edge_dir, node_split
        self.node_features, self.edge_features, self.node_labels = node_features, edge_features, node_labels
        self._opened: LocalPartition | None = None

    def init_graph(
        self,
        edge_index: Any = None,
        edge_ids: Any = None,
        edge_weights: Any = None,
        layout: Any = "COO",
        graph_mode: str = "ZERO_COPY",
        directed: bool = False,
        device: int | None = None,
    ) -> None:
        """edge_index, edge_ids, edge_weights, layout: as `Topology` takes them, each also by edge type."""
        kind = _LAYOUT[self.edge_dir]

        def one(edge_type: EdgeType | None) -> Graph:
            def of(given: Any) -> Any:
                return given[edge_type] if isinstance(given, Mapping) else given

            topo = Topology(of(edge_index), of(edge_ids), of(edge_weights), of(layout), kind)
            return Graph(topo, graph_mode, device)

        self.graph = {e: one(e) for e in edge_index} if isinstance(edge_index, Mapping) else one(None)
        self._opened = None

    def init_node_features(
        self,
        node_feature_data: Any = None,
        id2idx: Any = None,
        sort_func: Any = None,
        split_ratio: Any = 0.0,
        device_group_list: Any = None,
        device: Any = None,
        with_gpu: bool = True,
        dtype: Any = FLOATS,
    ) -> None:
        """node_feature_data: [N, ...].  id2idx: the row of each id.  sort_func: such as `sort_by_in_degree`, asked where
        ``split_ratio`` is above 0.  The others are those of `Feature`."""

        def one(rows: Any, node_type: NodeType | None) -> Feature:
            ratio = split_ratio[node_type] if isinstance(split_ratio, Mapping) else split_ratio
            rows, index = torch.as_tensor(rows), id2idx[node_type] if isinstance(id2idx, Mapping) else id2idx
            if sort_func is not None and ratio > 0 and isinstance(self.graph, Graph):
                rows, index = sort_func(rows, ratio, self.graph.topo)
            return Feature(rows, index, ratio, device_group_list, device, with_gpu, dtype)

        self.node_features = _each(node_feature_data, one)
        self._opened = None

    def init_edge_features(
        self,
        edge_feature_data: Any = None,
        id2idx: Any = None,
        split_ratio: float = 0.0,
        device_group_list: Any = None,
        device: Any = None,
        with_gpu: bool = True,
        dtype: Any = FLOATS,
    ) -> None:
        """edge_feature_data: [E, ...], by the ids of edges.  id2idx: the row of each id.  The others are those of `Feature`."""

        def one(rows: Any, edge_type: EdgeType | None) -> Feature:
            index = id2idx[edge_type] if isinstance(id2idx, Mapping) else id2idx
            return Feature(rows, index, split_ratio, device_group_list, device, with_gpu, dtype)

        self.edge_features = _each(edge_feature_data, one)
        self._opened = None

    def init_node_labels(self, node_label_data: Any = None, id2idx: Any = None) -> None:
        """node_label_data: [N, ...].  id2idx: the row of each id."""

        def one(rows: Any, node_type: NodeType | None) -> Tensor:
            index = id2idx[node_type] if isinstance(id2idx, Mapping) else id2idx
            labels: Tensor = torch.as_tensor(rows)
            return labels if index is None else labels[torch.as_tensor(index).long()]

        self.node_labels = _each(node_label_data, one)

    def init_node_split(self, node_split: Any = None) -> None:
        """node_split: (train, val, test) ids."""
        self.node_split = node_split

    def random_node_split(self, num_val: float, num_test: float) -> None:
        """Splits the labelled nodes, by torch's generator. num_val, num_test: numbers, or shares below 1."""
        if isinstance(self.graph, Mapping):
            raise OptionError("random_node_split: in a heterogeneous graph give init_node_split ids of one node type.")
        self.node_split = split_at_random(torch.arange(self._num_nodes()[NODE]), num_val, num_test)

    train_idx = property(lambda self: None if self.node_split is None else self.node_split[0])
    val_idx = property(lambda self: None if self.node_split is None else self.node_split[1])
    test_idx = property(lambda self: None if self.node_split is None else self.node_split[2])

    def get_graph(self, etype: EdgeType | None = None) -> Any:
        return self.graph if etype is None else self.graph[etype]

    def get_node_types(self) -> list[NodeType] | None:
        return sorted(self._num_nodes()) if isinstance(self.graph, Mapping) else None

    def get_edge_types(self) -> list[EdgeType] | None:
        return list(self.graph) if isinstance(self.graph, Mapping) else None

    def get_node_feature(self, ntype: NodeType | None = None) -> Any:
        return self.node_features[ntype] if isinstance(self.node_features, Mapping) else self.node_features

    def get_edge_feature(self, etype: EdgeType | None = None) -> Any:
        return self.edge_features[etype] if isinstance(self.edge_features, Mapping) else self.edge_features

    def get_node_label(self, ntype: NodeType | None = None) -> Any:
        return self.node_labels[ntype] if isinstance(self.node_labels, Mapping) else self.node_labels

    def load_vineyard(self, *_: Any, **__: Any) -> None:
        """Refused: vineyard is not read."""
        raise OptionError(
            "load_vineyard: vineyard is not read. Export the graph, and partition the files: docs/data.md."
        )

    # What loaders read

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}  # its files go with this process

    def open(self) -> LocalPartition:
        """The graph as a partition of one part, made at the first call."""
        if self._opened is None:
            graph = self._tensors()
            made_by = {EDGE_ASSIGN: "by_src"} if graph.by_src else {}
            weights = [] if graph.edge_weights is None else ["edge_weight"]
            self._opened = partition_in_memory(graph.source(), weights=weights, made_by=made_by)
        return self._opened

    def fields(self, **options: Any) -> GLTFields:
        """What batches get beside their own fields."""
        stored = self._tensors(with_rows=False).stored
        ids = {stored(e): g.topo.edge_ids.sort().values for e, g in self._graphs().items()}
        labels: dict[NodeType, Tensor] = {}
        if self.node_labels is not None:
            labels = read_labels(self.node_labels, self.open().schema)
        return GLTFields(
            labels=_lookup(labels) if labels else None, labelled=frozenset(labels), edge_ids=_own_ids(ids), **options
        )

    def _graphs(self) -> dict[EdgeType, Graph]:
        if self.graph is None:
            raise OptionError("Dataset: no graph. Call init_graph(edge_index) first.")
        return dict(self.graph) if isinstance(self.graph, Mapping) else {EDGE: self.graph}

    def _num_nodes(self) -> dict[NodeType, int]:
        counts: dict[NodeType, int] = {}
        for (src, _, dst), graph in self._graphs().items():
            sources, destinations, _, _ = graph.topo.to_coo()
            for t, ids in ((src, sources), (dst, destinations)):
                counts[t] = max(counts.get(t, 0), int(ids.max()) + 1 if len(ids) else 0)
        for given in (self.node_features, self.node_labels):
            for t, rows in ({} if given is None else given if isinstance(given, Mapping) else {NODE: given}).items():
                counts[t] = max(counts.get(t, 0), len(rows.by_id) if isinstance(rows, Feature) else len(rows))
        return counts

    def _tensors(self, with_rows: bool = True) -> TensorGraph:
        hetero, graphs = isinstance(self.graph, Mapping), self._graphs()
        if not with_rows:
            return TensorGraph(num_nodes={} if hetero else 0, edge_index=None, by_src=self.edge_dir == "out")
        counts = self._num_nodes()
        edges: dict[Any, Any] = {}
        weights: dict[Any, Any] = {}
        rows: dict[Any, Any] = {}
        for edge_type, graph in graphs.items():
            sources, destinations, ids, weight = graph.topo.to_coo()
            order = torch.argsort(ids)  # an edge's number in the folder is its place among the ids
            edges[edge_type] = torch.stack([sources[order], destinations[order]])
            if weight is not None:
                weights[edge_type] = weight[order]
            feature = (
                self.get_edge_feature(edge_type if hetero else None) if self._has_edge_feature(edge_type) else None
            )
            if feature is not None:
                rows[edge_type] = feature[ids[order]]
        nodes = {t: _padded(f.by_id, counts[t]) for t, f in self._node_rows().items()}
        return TensorGraph(
            num_nodes=counts if hetero else counts[NODE],
            edge_index=edges if hetero else edges[EDGE],
            node_feat=nodes if hetero else nodes.get(NODE),
            edge_feat=rows if hetero else rows.get(EDGE),
            edge_weights=(weights if hetero else weights.get(EDGE)) if weights else None,
            by_src=self.edge_dir == "out",
        )

    def _node_rows(self) -> dict[NodeType, Feature]:
        given = self.node_features
        return {} if given is None else dict(given) if isinstance(given, Mapping) else {NODE: given}

    def _has_edge_feature(self, edge_type: EdgeType) -> bool:
        given = self.edge_features
        return given is not None and (edge_type in given if isinstance(given, Mapping) else True)


def split_at_random(ids: Tensor, num_val: float, num_test: float) -> tuple[Tensor, Tensor, Tensor]:
    """(train, val, test) ids, by torch's generator. num_val, num_test: numbers, or shares below 1."""
    count = len(ids)
    val, test = (int(n * count) if n < 1 else int(n) for n in (num_val, num_test))
    if val + test > count:
        raise OptionError(f"random_node_split: {val} for validation and {test} for test of {count} nodes.")
    order = ids[torch.randperm(count)]
    return order[val + test :], order[:val], order[val : val + test]


def _each(given: Any, make: Callable[[Any, Any], Any]) -> Any:
    if given is None:
        return None
    return {t: make(rows, t) for t, rows in given.items()} if isinstance(given, Mapping) else make(given, None)


def _padded(rows: Tensor, count: int) -> Tensor:
    if len(rows) < count:
        raise DataError(f"node features: {len(rows)} rows for {count} nodes, which edges and labels name.")
    return rows


def _lookup(labels: Mapping[NodeType, Tensor]) -> Callable[[NodeType, Tensor], Tensor]:
    return lambda node_type, ids: labels[node_type][ids.cpu()].to(ids.device)


def _own_ids(ids: Mapping[EdgeType, Tensor]) -> Callable[[EdgeType, Tensor], Tensor] | None:
    """The user's ids of edges by their numbers in the folder; None where they are the same."""
    if all(torch.equal(each, torch.arange(len(each))) for each in ids.values()):
        return None
    return lambda edge_type, numbers: ids[edge_type][numbers.cpu()].to(numbers.device)
