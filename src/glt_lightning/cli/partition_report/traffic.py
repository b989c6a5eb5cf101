"""Predicts the traffic between hosts by sampling some batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import get_args

import numpy as np

from glt_lightning.base import SeedPlacement
from glt_lightning.cli.partition_report.batches import TrainBatches
from glt_lightning.cli.partition_report.caches import (
    PRESAMPLED,
    RemoteRanking,
    cached_widths,
    presampled_lists,
    stored_lists,
)
from glt_lightning.cli.partition_report.estimate import Estimate
from glt_lightning.cli.partition_report.options import TrafficOptions
from glt_lightning.cli.partition_report.requests import Asked, CountingOwners
from glt_lightning.graph import LocalPartition, stored_policies
from glt_lightning.sampling import EpochPlan, LinksSampler, k_hop, neighbor_source

PLACEMENTS: tuple[SeedPlacement, ...] = get_args(SeedPlacement)[::-1]  # owner first
_MEASURED, _RANKED = (
    0,
    1,
)  # epochs: one is predicted, another ranks nodes for a cache, so that the cache cannot know the first


@dataclass(frozen=True, kw_only=True)
class CachedTraffic:
    """The same batches with a cache. hit_rate: share of the remote node rows that lie in it, None without such rows.

    cache_bytes: memory that the cache takes on the part's host.
    """

    policy: str
    ratio: float
    hit_rate: float | None
    remote_rows: Estimate
    bytes: Estimate
    cache_bytes: int


@dataclass(frozen=True, kw_only=True)
class PartTraffic:
    """Per batch of the rank that has ``part``.

    nodes: in a batch.  remote_nodes: of them, of other parts.  remote_rows: rows of attributes that are asked for, of
    nodes and, where batches carry edge ids, of edges.  requests: round trips.  bytes: of bodies, there and back.
    """

    part: int
    batches: int
    nodes: Estimate
    remote_nodes: Estimate
    remote_rows: Estimate
    requests: Estimate
    bytes: Estimate
    bytes_out: Estimate
    bytes_in: Estimate
    caches: tuple[CachedTraffic, ...]

    @property
    def remote_share(self) -> float:
        """Share of a batch's nodes that are remote."""
        return self.remote_nodes.mean / self.nodes.mean


@dataclass(frozen=True, kw_only=True)
class ExpectedTraffic:
    """Of a seed placement, part after part. steps: batches of a rank in an epoch."""

    placement: SeedPlacement
    steps: int
    parts: tuple[PartTraffic, ...]


def count_batches(partition: LocalPartition, options: TrafficOptions) -> int:
    """The largest number of batches that `predict_traffic` samples."""
    again = 1 if _policies(partition) else 2
    return len(PLACEMENTS) * partition.manifest.num_parts * options.batches * again


def predict_traffic(
    partition: LocalPartition, options: TrafficOptions, done: Callable[[int], object] = lambda n: None
) -> tuple[ExpectedTraffic, ...]:
    """Samples the first batches of an epoch of each rank, where rank p has part p. ``done`` hears of batches.

    Raises `OptionError` for fan-outs that do not fit the graph.
    """
    prediction = _Prediction(partition, options, done)
    return tuple(prediction.of_placement(placement) for placement in PLACEMENTS)


def _policies(partition: LocalPartition) -> tuple[str, ...]:
    return stored_policies(partition.manifest)


class _Prediction:
    def __init__(self, partition: LocalPartition, options: TrafficOptions, done: Callable[[int], object]) -> None:
        self._partition, self._options, self._done = partition, options, done
        self._batches = TrainBatches(partition, options)
        self._policies = _policies(partition)

    def of_placement(self, placement: SeedPlacement) -> ExpectedTraffic:
        plans = [self._batches.plan(placement, part) for part in range(self._partition.manifest.num_parts)]
        parts = tuple(self._of_part(part, plan) for part, plan in enumerate(plans))
        return ExpectedTraffic(placement=placement, steps=max(map(len, plans)), parts=parts)

    def _of_part(self, part: int, plan: EpochPlan) -> PartTraffic:
        caches = [
            (policy, lists, ratio) for policy, lists in self._lists(part, plan) for ratio in sorted(self._options.cache)
        ]
        owners = CountingOwners(
            self._partition, self._batches.config, part, [(lists, ratio) for _, lists, ratio in caches]
        )
        nodes: list[int] = []
        asked: list[list[Asked]] = []
        for gids in self._sampled(plan, _MEASURED, owners):
            nodes.append(sum(map(len, gids)))
            asked.append(owners.asked)
        plain, *with_cache = [list(each) for each in zip(*asked, strict=True)]
        return PartTraffic(
            part=part,
            batches=len(nodes),
            nodes=Estimate.of(nodes),
            remote_nodes=Estimate.of([a.node_rows for a in plain]),
            remote_rows=Estimate.of([a.node_rows + a.edge_rows for a in plain]),
            requests=Estimate.of([a.requests for a in plain]),
            bytes=Estimate.of([a.bytes_out + a.bytes_in for a in plain]),
            bytes_out=Estimate.of([a.bytes_out for a in plain]),
            bytes_in=Estimate.of([a.bytes_in for a in plain]),
            caches=tuple(self._with_cache(plain, each, *cache) for each, cache in zip(with_cache, caches, strict=True)),
        )

    def _sampled(self, plan: EpochPlan, epoch: int, owners: CountingOwners) -> Iterator[list[np.ndarray]]:
        """Samples the first batches of an epoch: of each the distinct nodes of each type."""
        config = self._batches.config
        source = neighbor_source(self._partition, config, remote=owners)
        links = LinksSampler(source, self._partition) if config.links else None
        for request in islice(plan.requests(epoch), self._options.batches):
            owners.begin()
            seeds, excluded, trees = request.typed_seeds(config.seed_type), request.excluded, request.trees
            if links is not None:
                ends = links.find(request)
                seeds, excluded, trees = ends.seeds, ends.excluded, ends.trees
            found = k_hop(source, seeds, request.key, excluded, trees)
            yield [np.unique(gids) if config.disjoint else gids for gids in found.gid]
            self._done(1)

    def _with_cache(
        self, plain: list[Asked], cached: list[Asked], policy: str, lists: RemoteRanking, ratio: float
    ) -> CachedTraffic:
        rows, missed = sum(a.node_rows for a in plain), sum(a.node_rows for a in cached)
        widths = cached_widths(self._partition.manifest)
        return CachedTraffic(
            policy=policy,
            ratio=ratio,
            hit_rate=1 - missed / rows if rows else None,
            remote_rows=Estimate.of([a.node_rows + a.edge_rows for a in cached]),
            bytes=Estimate.of([a.bytes_out + a.bytes_in for a in cached]),
            cache_bytes=sum(n * width for n, width in zip(lists.sizes(ratio), widths, strict=True)),
        )

    def _lists(self, part: int, plan: EpochPlan) -> list[tuple[str, RemoteRanking]]:
        """The lists in the folder; in a folder without any, one made from batches of another epoch."""
        if not self._options.cache or self._partition.manifest.num_parts == 1:
            return []
        if self._policies:
            return [(policy, stored_lists(self._partition, policy, part)) for policy in self._policies]
        manifest = self._partition.manifest
        counts = [np.zeros(n, dtype=np.int32) for n in manifest.num_nodes]
        for found in self._sampled(plan, _RANKED, CountingOwners(self._partition, self._batches.config, part, [])):
            for t, gids in enumerate(found):
                counts[t][gids - manifest.offsets[t]] += 1
        return [(PRESAMPLED, presampled_lists(manifest, part, counts, max(self._options.cache)))]
