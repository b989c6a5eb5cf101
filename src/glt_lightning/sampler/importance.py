"""Neighbours by random walks (PinSAGE): a hop of a batch leads to the nodes that walks from its frontier visit most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.data.other_edges import OtherEdges
from glt_lightning.ops.excluded import ExcludedEdges
from glt_lightning.ops.merge import Drawn, Picks
from glt_lightning.ops.mix import hop_key
from glt_lightning.ops.trees import Trees
from glt_lightning.ops.walks import Walks, count_visits
from glt_lightning.sampler.draws import role_key
from glt_lightning.sampler.importance_task import ImportanceTask
from glt_lightning.sampler.neighbors import Found, LocalSource, NeighborSource
from glt_lightning.sampler.request import SamplerConfig
from glt_lightning.sampler.sample import EDGE_WEIGHT, VISITS, Field, edge_key
from glt_lightning.sampler.walks import WalkStart

_AT_ONCE = 1 << 20  # walks whose steps are in memory at once


def partition_for(partition: LocalPartition, config: SamplerConfig) -> LocalPartition:
    """The partition with the edge types that batches have."""
    task = config.importance
    return partition if task is None else OtherEdges(partition, task.edge_types)


class ImportanceSource:
    """`neighbors.NeighborSource` over ``source``, whose edge types are those of the task.

    Edges have the numbers of visits where others have their edge rows. Attributes of nodes come as from ``source``.
    """

    def __init__(self, source: NeighborSource, task: ImportanceTask) -> None:
        self._source, self._task = source, task
        self.config, self.view, self.nodes, self.edges = source.config, source.view, source.nodes, source.edges
        self.begin, self.settle, self.walk = source.begin, source.settle, source.walk
        self.has_edges, self.induce, self.read_targets = source.has_edges, source.induce, source.read_targets
        self.reached_nodes, self.complete = source.reached_nodes, source.complete

    @property
    def local(self) -> LocalSource:
        return self._source.local

    def reached_edges(self, edges: Mapping[int, np.ndarray]) -> None:
        """They have no attributes."""

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
        """Owners send the attributes of the frontier while walks go on from it. excluded: of stored edge types."""
        if new:
            self._source.reached_nodes(frontier)
        role, drawn = role_key(key, "walk"), {}
        for r, fanout in enumerate(fanouts):
            if fanout:
                t = int(self.view.dst_types[r])
                of = None if trees is None else trees.of[t]
                rule, each = self._task.rule(r), hop_key(role, hop, int(self.view.keys[r]))
                start = WalkStart(rule=rule, roots=frontier[t], walks=self._task.walks, key=each, trees=of)
                if excluded is not None:
                    start = replace(start, excluded=excluded.of_types(rule.edge_types))
                drawn[r] = Drawn([self._most_visited(start, fanout)])
        return drawn

    def _most_visited(self, start: WalkStart, fanout: int) -> Picks:
        every, step, pieces = len(start.rule.edge_types), max(1, _AT_ONCE // start.walks), []
        for begin in range(0, max(1, len(start.roots)), step):
            some = np.ascontiguousarray(start.roots[begin : begin + step])
            of = None if start.trees is None else np.ascontiguousarray(start.trees[begin : begin + step])
            walks = self._source.walk(replace(start, roots=some, trees=of))
            pieces.append(self._visits(walks, every, fanout, None if self._task.self_loops else some))
        columns = zip(*((p.counts, p.neighbors, p.edge_rows) for p in pieces), strict=True)
        return Picks(*map(np.concatenate, columns)) if len(pieces) > 1 else pieces[0]

    def _visits(self, walks: Walks, every: int, fanout: int, roots: np.ndarray | None) -> Picks:
        return count_visits(walks.trace, self._task.walks, every, fanout, roots, self.config.threads)


def visit_fields(local: LocalSource, found: Found, edge_type: int) -> list[Field]:
    """``visits`` of the edges of a type, and ``edge_weight``, their share of all visits of a node's edges."""
    visits, dst = found.edge_row[edge_type], found.dst[edge_type]
    weight = (
        (visits / np.bincount(dst, weights=visits)[dst]).astype(np.float32) if len(dst) else np.empty(0, np.float32)
    )
    return [local.put(edge_key(edge_type, name), values) for name, values in ((VISITS, visits), (EDGE_WEIGHT, weight))]
