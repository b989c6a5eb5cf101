"""What the CPU finds in the mapped files for batches that a GPU samples: excluded edges and, with remote parts, the further
edges of subgraphs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.ops.cuda.excluded import DeviceExcluded
from glt_lightning.ops.cuda.graph import DeviceGraph
from glt_lightning.ops.cuda.kernels import Kernels
from glt_lightning.ops.cuda.khop_batch import HostCopy
from glt_lightning.ops.cuda.subgraph import DeviceSubgraph
from glt_lightning.ops.excluded import ExcludedEdges
from glt_lightning.ops.khop import Subgraph
from glt_lightning.sampler.device_subgraph import DeviceEdgeFinder
from glt_lightning.sampler.request import SamplerConfig
from glt_lightning.sampler.table import MappedTables


class DeviceEdges(MappedTables):
    """The tables of a device, and the way of edges there, and of batches to the host and back. has_remote: some parts are not
    mapped."""

    _graph: DeviceGraph  # drawn from as ``config`` says

    def __init__(self, partition: LocalPartition, config: SamplerConfig, kernels: Kernels, *, has_remote: bool) -> None:
        super().__init__(partition, config)
        self._kernels, self._has_remote = kernels, has_remote

    def fetched(self, values: Tensor) -> np.ndarray:
        """A copy in the host's memory. Waits."""
        return HostCopy(values, self._kernels).wait().copy()

    def put_excluded(self, excluded: ExcludedEdges | None) -> DeviceExcluded | None:
        """The CPU finds them in the mapped files: there are few, and how many it finds bounds the device's memory."""
        if excluded is None:
            return None
        return DeviceExcluded(excluded.find(self.view), self.view.num_edge_types, self._kernels)

    def complete(self, found: DeviceSubgraph, excluded: ExcludedEdges | None) -> DeviceSubgraph | None:
        if self._graph.num_nodes > DeviceEdgeFinder.MOST_NODES:
            return None
        num_edges = self.view.edge_bounds[:, -1].tolist()
        return DeviceEdgeFinder(self._graph, self.config, num_edges).complete(found, excluded)

    def on_host(self, found: DeviceSubgraph) -> Subgraph:
        """Waits. The edge rows of remote edges are those that were routed, in the order of their numbers."""
        rows: list[np.ndarray | None] = []
        for table, each in zip(self.edges, found.edge_row, strict=True):
            rows.append(None if each is None else self.fetched(each))
            if rows[-1] is not None and table.routed:
                remote = rows[-1] >= table.end
                rows[-1][remote] = np.concatenate(table.routed)[rows[-1][remote] - table.end]
        return Subgraph(
            gid=[self.fetched(gids) for gids in found.gid],
            uid=[],
            src=[self.fetched(lids) for lids in found.src],
            dst=[self.fetched(lids) for lids in found.dst],
            edge_row=rows,
            nodes_per_hop=found.nodes_per_hop,
            edges_per_hop=found.edges_per_hop,
            tree=None if found.tree is None else [self.fetched(tree) for tree in found.tree],
        )

    def completed(self, found: DeviceSubgraph, edges: Subgraph) -> DeviceSubgraph:
        """With remote parts all new edges were routed, those of the mapped parts, too: they have the next numbers."""
        rows: list[Tensor | None] = []
        for r, table in enumerate(self.edges):
            mine = edges.edge_row[r]
            assert mine is not None
            new = self._kernels.put(mine)
            if self._has_remote:
                sampled = found.edge_row[r]
                kept = new[:0] if sampled is None or edges.flipped is None else sampled  # induced edges replace them
                end = table.end + sum(map(len, table.routed))
                new = torch.cat([kept, torch.arange(end - len(mine) + len(kept), end, device=new.device)])
            rows.append(new)
        ends = [np.stack([src, dst]).astype(np.int64) for src, dst in zip(edges.src, edges.dst, strict=True)]
        index = [self._kernels.put(each) for each in ends]
        return replace(found, edge_index=index, edge_row=rows, flipped=edges.flipped)
