"""The result of a k-hop batch on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class DeviceSubgraph:
    """What a k-hop call found, as `Subgraph`. T node types, R edge types, H hops.

    Tensors are int64 on the device and the caller's to keep: by type ``gid`` and ``uid`` [nodes], by edge type
    ``edge_index`` [2, edges] (lids of sources, of destinations) and ``edge_row`` [edges] or None. A list may be the
    beginning of a longer piece of memory.
    nodes_per_hop: int64 [T, H + 1].  edges_per_hop: int64 [R, H]. Both on the host.
    remote: by type, the lids of remote nodes in the order of hops, whose ``uid`` are not filled in; the ``edge_row`` of
    remote edges are numbers from the end of the edge rows on. None where the whole graph is local.
    tree: by type int64 [nodes], in a disjoint batch.  flipped: as `Subgraph.flipped`, on the host.
    """

    gid: list[Tensor]
    uid: list[Tensor]
    edge_index: list[Tensor]
    edge_row: list[Tensor | None]
    nodes_per_hop: np.ndarray
    edges_per_hop: np.ndarray
    remote: list[Tensor] | None = None
    tree: list[Tensor] | None = None
    flipped: list[np.ndarray] | None = None

    @property
    def src(self) -> list[Tensor]:
        return [e[0] for e in self.edge_index]

    @property
    def dst(self) -> list[Tensor]:
        return [e[1] for e in self.edge_index]


class PendingBatch(Protocol):
    """A batch on its way."""

    def result(self) -> DeviceSubgraph:
        """The batch. Waits for its sizes. Raises as `CudaKHopOp.__call__`."""
