"""Neighbours by random walks on a GPU, which walks through its own parts and counts the visits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from glt_lightning.kernels import (
    DeviceExcluded,
    DeviceGraph,
    DeviceSubgraph,
    DeviceWalks,
    ExcludedEntries,
    Frontier,
    Kernels,
    Piece,
    Visited,
)
from glt_lightning.sampling.sample import EDGE_WEIGHT, VISITS, edge_key
from glt_lightning.sampling.table import MappedTables
from glt_lightning.sampling.walks import ExcludedShares, RoutedWalks, Visiting

_STEPS_AT_ONCE = 1 << 22  # of walks, in memory at once: 32 MiB, beside the sorted copies that count them


@dataclass(frozen=True)
class _Ways:
    """The means by which the walks of a hop continue. excluded: entries of the mapped parts that walks ignore; None: there are
    none.  remote: continues walks in remote parts, if there are any; shares: the excluded edges there."""

    excluded: DeviceExcluded | None
    remote: RoutedWalks | None = None
    shares: ExcludedShares | None = None


class DeviceVisits(MappedTables):
    """The walks of a `LocalSource` on a device."""

    _kernels: Kernels
    _walked: DeviceGraph  # the stored edges, by the weights of the config

    def most_visited(
        self, asked: Visiting, frontier: Frontier, trees: np.ndarray | None, remote: RoutedWalks | None = None
    ) -> Piece:
        """Finds neighbours by walks, as `NeighborSource.most_visited`. Does not wait for the device if all parts are mapped; else
        up to twice in each round of questions. Faults are noted in the frontier's ``error``."""
        ways = self._ways(asked, remote)
        step, n = max(1, _STEPS_AT_ONCE // (asked.walks * asked.rule.length)), len(frontier)
        ends = [(begin, min(n, begin + step)) for begin in range(0, max(1, n), step)]
        pieces = [self._visited(asked, frontier, trees, ways, *each) for each in ends]
        rows = None
        if frontier.local is not None:
            assert frontier.remote is not None
            rows = torch.cat([frontier.local, frontier.remote])
        return Visited.joined(pieces).piece(rows)

    def _ways(self, asked: Visiting, remote: RoutedWalks | None) -> _Ways:
        """Prepares the excluded edges. The CPU finds them in the mapped files, as for neighbours that are drawn."""
        if remote is not None:
            shares = remote.without(asked.excluded)
            return _Ways(self._put(shares.own), remote, shares)
        return _Ways(self._put({} if asked.excluded is None else asked.excluded.find(self.stored_view)))

    def _put(self, entries: Mapping[int, ExcludedEntries]) -> DeviceExcluded | None:
        return DeviceExcluded(entries, self._walked.num_edge_types, self._kernels) if entries else None

    def _visited(
        self, asked: Visiting, frontier: Frontier, trees: np.ndarray | None, ways: _Ways, begin: int, end: int
    ) -> Visited:
        """Counts the visits for the nodes from ``begin`` to ``end`` of the frontier, in which local nodes come before remote
        ones."""
        mine = slice(begin, min(end, len(frontier.gids)))
        theirs = slice(max(0, begin - len(frontier.gids)), max(0, end - len(frontier.gids)))
        roots, away = frontier.gids[mine], np.ascontiguousarray(frontier.remote_gids[theirs])
        of = None if frontier.tree is None else frontier.local_trees[mine]
        keyed = (frontier.uids[mine], asked.walks, asked.key, of)
        walks = DeviceWalks.begin(asked.rule, roots, *keyed, self._kernels)
        if len(away):
            assert ways.remote is not None
            assert ways.shares is not None
            start = asked.start(away, None if trees is None else np.ascontiguousarray(trees[theirs]))
            self.config.require_room(start.nbytes)
            begun = ways.remote.begin(start, ways.shares, self.counters)
            walks = DeviceWalks.joined([walks, DeviceWalks.put(begun, self._kernels)])
            roots = torch.cat([roots, self._kernels.put(away)])
        self._finish(walks, frontier, ways)
        own = None if asked.self_loops else roots
        return walks.visits(asked.walks, asked.every, asked.most, own)

    def _finish(self, walks: DeviceWalks, frontier: Frontier, ways: _Ways) -> None:
        """Takes the walks to their ends: on the device and, in rounds, with the owners of remote rows."""
        walks.advance(self._walked, frontier.error, ways.excluded)
        if ways.remote is None:
            return
        assert ways.shares is not None
        while len(left := walks.under_way()):
            away = walks.on_host(left)
            ways.remote.take_on(away, np.arange(len(away)), ways.shares, self.counters)
            walks.take(left, away)
            walks.advance(self._walked, frontier.error, ways.excluded)

    def visit_columns(self, found: DeviceSubgraph, edge_type: int) -> list[tuple[str, torch.Tensor]]:
        """Returns by name the numbers of visits of each neighbour, int64 [E], and its share of the visits of all neighbours of
        the node, float32 [E]."""
        visits, dst = found.edge_row[edge_type], found.dst[edge_type]
        assert visits is not None
        nodes = int(found.nodes_per_hop[self.view.dst_types[edge_type]].sum())
        total = visits.new_zeros(nodes).index_add(0, dst, visits)
        shares = (visits.to(torch.float64) / total[dst].to(torch.float64)).to(torch.float32)
        return [(edge_key(edge_type, VISITS), visits), (edge_key(edge_type, EDGE_WEIGHT), shares)]
