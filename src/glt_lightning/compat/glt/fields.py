"""Batches with GraphLearn-for-PyTorch's fields beside PyG's; where the two use one name differently, GLT's meaning holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from glt_lightning.base import EDGE, NODE, EdgeType, NodeType

Lookup = Callable[[NodeType, Tensor], Tensor]  # labels of nodes by the user's ids
_FEATURES = ("x", "edge_attr")


@dataclass(frozen=True, kw_only=True)
class GLTFields:
    """Adds GLT's fields to batches, in place.

    with_edge: ``edge`` is wanted.  collect_features: ``x`` and ``edge_attr`` are.  labels: gives ``y`` of all nodes of the types
    in ``labelled``; None: batches have what the partition has.  swap: the rows of ``edge_label_index`` change places.  edge_ids:
    gives the user's ids of edges by ``e_id``; None: they are the same.
    """

    with_edge: bool = False
    collect_features: bool = True
    labels: Lookup | None = None
    labelled: frozenset[NodeType] = frozenset()
    swap: bool = False
    edge_ids: Callable[[EdgeType, Tensor], Tensor] | None = None

    def __call__(self, batch: Any) -> Any:
        if hasattr(batch, "node_types"):
            self._heterogeneous(batch)
        else:
            self._homogeneous(batch)
        return batch

    def _homogeneous(self, batch: Any) -> None:
        if "node" not in batch:
            self._nodes(batch, NODE)
            self._edges(batch, EDGE)
            for name in ("num_sampled_nodes", "num_sampled_edges"):
                if name in batch:
                    batch[name] = torch.tensor(batch[name])
        else:
            self._features(batch)
            self._labels(batch, NODE)
            if self.edge_ids is not None:
                batch.edge = self.edge_ids(EDGE, batch.e_id)
        if self.swap and "edge_label_index" in batch:
            batch.edge_label_index = batch.edge_label_index.flip(0)

    def _heterogeneous(self, batch: Any) -> None:
        for node_type in batch.node_types:
            self._nodes(batch[node_type], node_type)
        for edge_type in batch.edge_types:
            self._edges(batch[edge_type], edge_type)
        for name, stores in (("num_sampled_nodes", batch.node_types), ("num_sampled_edges", batch.edge_types)):
            counts = {t: torch.tensor(batch[t][name]) for t in stores if name in batch[t]}
            if counts:
                setattr(batch, name, counts)

    def _nodes(self, store: Any, node_type: NodeType) -> None:
        store.node = store.n_id
        store.num_nodes = len(store.n_id)  # PyG would guess it from `batch`, the ids of seeds
        if "batch_size" in store:
            store.batch = store.n_id[: store.batch_size]
        self._features(store)
        self._labels(store, node_type)

    def _edges(self, store: Any, edge_type: EdgeType) -> None:
        if self.with_edge and "e_id" in store:
            store.edge = store.e_id if self.edge_ids is None else self.edge_ids(edge_type, store.e_id)
        self._features(store)

    def _features(self, store: Any) -> None:
        for name in _FEATURES:
            if not self.collect_features and name in store:
                del store[name]

    def _labels(self, store: Any, node_type: NodeType) -> None:
        if self.labels is not None and node_type in self.labelled:
            store.y = self.labels(node_type, store.n_id)


def lookup_in(labels: Mapping[NodeType, Tensor]) -> Lookup:
    """Labels that this process has as tensors [N, ...]."""
    return lambda node_type, ids: labels[node_type][ids]
