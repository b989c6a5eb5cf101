"""Predicts the traffic between hosts by sampling some batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import numpy as np

from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.ops.khop import KHopOp
from glt_lightning.options import SeedPlacement
from glt_lightning.partition.report.caches import PRESAMPLED, RemoteRanking, presampled_lists, stored_lists
from glt_lightning.partition.report.contents import part_of
from glt_lightning.partition.report.estimate import Estimate
from glt_lightning.partition.report.options import TrafficOptions
from glt_lightning.partition.report.requests import Asked, OwnerRequests
from glt_lightning.sampler.fanouts import fanout_table
from glt_lightning.sampler.plan import EpochPlan
from glt_lightning.sampler.request import SamplerConfig, drawn_from
from glt_lightning.store.hotness import stored_policies

PLACEMENTS: tuple[SeedPlacement, ...] = get_args(SeedPlacement)[::-1]  # owner first
_SPLIT = "train"
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


def why_no_traffic(partition: LocalPartition) -> str | None:
    """The reason why traffic cannot be predicted; None if it can."""
    manifest = partition.manifest
    if _SPLIT not in manifest.splits and manifest.edge_splits:
        return (
            "it is predicted for batches of seed nodes, and this partition has edges to predict, whose batches also ask whether "
            "negatives are edges"
        )
    if _SPLIT not in manifest.splits:
        return f"the partition has no split {_SPLIT!r}"
    if manifest.splits[_SPLIT].count < manifest.num_parts:
        return f"split {_SPLIT!r} has {manifest.splits[_SPLIT].count} seeds for {manifest.num_parts} ranks, one for each part"
    return None


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
        manifest, schema = partition.manifest, partition.schema
        self._partition, self._options, self._done = partition, options, done
        self._seeds = partition.split(_SPLIT)
        self._config = SamplerConfig(
            seed_type=self._seeds.node_type,
            fanouts=fanout_table(options.num_neighbors, schema),
            **drawn_from(manifest, options, options.weight_attr).values,
        )
        no_rows = [False] * len(schema.edge_types)  # which edges were picked does not matter here
        view = partition.weighted(self._config.weights)
        self._sample = KHopOp(view, self._config.fanouts, self._config, edge_rows=no_rows)
        self._requests = OwnerRequests(manifest, self._config)
        self._owner = part_of(manifest, self._seeds.node_type, self._seeds.gids)
        self._policies = _policies(partition)

    def of_placement(self, placement: SeedPlacement) -> ExpectedTraffic:
        plans = [self._plan(placement, part) for part in range(self._partition.manifest.num_parts)]
        parts = tuple(self._of_part(part, plan) for part, plan in enumerate(plans))
        return ExpectedTraffic(placement=placement, steps=max(map(len, plans)), parts=parts)

    def _plan(self, placement: SeedPlacement, part: int) -> EpochPlan:
        """As a loader of worker mode makes it."""
        return EpochPlan(
            seeds=self._seeds.gids,
            batch_size=self._options.batch_size,
            seed=self._options.seed,
            loader=_SPLIT,
            rank=part,
            world_size=self._partition.manifest.num_parts,
            shuffle=True,
            owner=self._owner if placement == "owner" else None,
        )

    def _of_part(self, part: int, plan: EpochPlan) -> PartTraffic:
        caches = [
            (policy, lists, ratio) for policy, lists in self._lists(part, plan) for ratio in sorted(self._options.cache)
        ]
        nodes: list[int] = []
        asked: list[list[Asked]] = []
        for request in plan.requests(_MEASURED):
            if len(nodes) == self._options.batches:
                break
            found = self._sample({self._seeds.node_type: request.seeds}, request.key)
            cached = [lists.cached(found.gid, ratio) for _, lists, ratio in caches]
            nodes.append(int(found.nodes_per_hop.sum()))
            asked.append(self._requests.of_batch(found, part, cached))
            self._done(1)
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

    def _with_cache(
        self, plain: list[Asked], cached: list[Asked], policy: str, lists: RemoteRanking, ratio: float
    ) -> CachedTraffic:
        rows, missed = sum(a.node_rows for a in plain), sum(a.node_rows for a in cached)
        widths = [sum(each) for each in self._requests.node_widths]
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
        for number, request in enumerate(plan.requests(_RANKED)):
            if number == self._options.batches:
                break
            found = self._sample({self._seeds.node_type: request.seeds}, request.key)
            for t, gids in enumerate(found.gid):
                counts[t][gids - manifest.offsets[t]] += 1
            self._done(1)
        return [(PRESAMPLED, presampled_lists(manifest, part, counts, max(self._options.cache)))]
