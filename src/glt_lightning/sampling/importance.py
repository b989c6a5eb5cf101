"""Neighbours by random walks (PinSAGE): a hop of a batch leads to the nodes that walks from its frontier visit most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glt_lightning.graph import LocalPartition, OtherEdges
from glt_lightning.kernels import Drawn, ExcludedEdges, Trees, hop_key
from glt_lightning.sampling.draws import role_key
from glt_lightning.sampling.importance_task import ImportanceTask
from glt_lightning.sampling.neighbors import Found, LocalSource, NeighborSource
from glt_lightning.sampling.questions.has_edges import KnowsEdges
from glt_lightning.sampling.request import SamplerConfig
from glt_lightning.sampling.walks import Visiting


def partition_for(partition: LocalPartition, config: SamplerConfig) -> LocalPartition:
    """Returns the partition with the edge types of batches: those of ``config.importance``, if neighbours are found by walks."""
    task = config.importance
    return partition if task is None else OtherEdges(partition, task.edge_types)


class ImportanceSource(KnowsEdges):
    """A `NeighborSource` that finds neighbours by walks through ``source``. Its edge types are those of the task.

    Edges have numbers of visits in place of edge rows. Attributes of nodes come from ``source``.
    """

    def __init__(self, source: NeighborSource, task: ImportanceTask) -> None:
        self._source, self._task = source, task
        self.config, self.view, self.nodes, self.edges = source.config, source.view, source.nodes, source.edges
        self.begin, self.settle = source.begin, source.settle
        self.walk, self.most_visited = source.walk, source.most_visited
        self.ask, self.read_targets = source.ask, source.read_targets
        self.reached_nodes, self.complete = source.reached_nodes, source.complete

    @property
    def local(self) -> LocalSource:
        return self._source.local

    def reached_edges(self, edges: Mapping[int, np.ndarray]) -> None:
        """Does nothing: edges that walks found have no attributes."""

    def khop(
        self,
        seeds: Mapping[int, np.ndarray],
        key: int,
        excluded: ExcludedEdges | None = None,
        trees: Trees | None = None,
    ) -> Found | None:
        return None

    def expand(
        self,
        key: int,
        hop: int,
        fanouts: Sequence[int],
        frontier: Sequence[Any],
        *,
        new: bool = True,
        excluded: ExcludedEdges | None = None,
        trees: Trees | None = None,
    ) -> Mapping[int, Drawn]:
        """Finds the neighbours of a frontier. Its attributes are requested first, so that owners send them while walks go on.
        excluded: edges of stored edge types."""
        if new:
            self._source.reached_nodes(frontier)
        role, drawn = role_key(key, "walk"), {}
        for r, fanout in enumerate(fanouts):
            if fanout:
                t = int(self.view.dst_types[r])
                of = None if trees is None else trees.of.get(t)
                asked = self._visiting(r, fanout, hop_key(role, hop, int(self.view.keys[r])), excluded)
                drawn[r] = Drawn([self.most_visited(asked, frontier[t], of)])
        return drawn

    def _visiting(self, edge_type: int, fanout: int, key: int, excluded: ExcludedEdges | None) -> Visiting:
        task, rule = self._task, self._task.rule(edge_type)
        return Visiting(
            rule=rule,
            walks=task.walks,
            key=key,
            every=len(rule.edge_types),
            most=fanout,
            self_loops=task.self_loops,
            excluded=None if excluded is None else excluded.of_types(rule.edge_types),
        )
