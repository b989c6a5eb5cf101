"""Excluded edges, and the further edges of subgraphs, for batches that a GPU samples."""

from __future__ import annotations

import numpy as np

from glt_lightning.graph import LocalPartition
from glt_lightning.kernels import DeviceExcluded, DeviceGraph, DeviceSubgraph, ExcludedEdges, Kernels, RemoteParts
from glt_lightning.sampling.device_remote_edges import RemoteEdges
from glt_lightning.sampling.device_subgraph import DeviceEdgeFinder
from glt_lightning.sampling.device_walks import DeviceVisits
from glt_lightning.sampling.request import SamplerConfig
from glt_lightning.sampling.source import EdgeOwners


class DeviceEdges(DeviceVisits):
    """The tables of a device, with the methods that copy excluded edges to it and find further edges on it. is_remote: bool
    [P], True for parts that are not mapped; None: all are mapped."""

    _graph: DeviceGraph  # drawn from as ``config`` says

    def __init__(
        self, partition: LocalPartition, config: SamplerConfig, kernels: Kernels, is_remote: np.ndarray | None
    ) -> None:
        super().__init__(partition, config)
        self._kernels = kernels
        self._remote = None if is_remote is None else RemoteParts(partition.view, is_remote, kernels)

    def put_excluded(self, excluded: ExcludedEdges | None) -> DeviceExcluded | None:
        """Copies excluded edges to the device. The CPU finds their entries in the mapped files: there are few, and their number
        has to be known for the device's memory."""
        if excluded is None:
            return None
        return DeviceExcluded(excluded.find(self.view), self.view.num_edge_types, self._kernels)

    def complete(
        self, found: DeviceSubgraph, excluded: ExcludedEdges | None, owners: EdgeOwners | None = None
    ) -> DeviceSubgraph:
        remote = None
        if self._remote is not None:
            assert owners is not None
            room = self.config.require_room
            remote = RemoteEdges(self._remote, owners, self.edges, self.view, self._kernels, room)
        num_edges = self.view.edge_bounds[:, -1].tolist()
        return DeviceEdgeFinder(self._graph, self.config, num_edges, remote).complete(found, excluded)
