"""Predicts the traffic of training between hosts by sampling some batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from typing import get_args

import numpy as np

from glt_lightning.base import SeedPlacement
from glt_lightning.graph import CacheChoice, LocalPartition, Manifest, node_path
from glt_lightning.kernels import row_bytes
from glt_lightning.loader.traffic.options import TrafficOptions, TrainBatches, why_no_batches
from glt_lightning.sampling import EpochPlan, KHopSampler
from glt_lightning.workers import Asked, CountingOwners, placed_parts, time_calls

PLACEMENTS: tuple[SeedPlacement, ...] = get_args(SeedPlacement)[::-1]  # owner first


# Epochs: one is predicted, another ranks nodes for a cache, so that the cache cannot know the first
_MEASURED, _RANKED = 0, 1
_TIMED, _FEWER = 8, 64  # batches, and the share of their seeds that those of few have
PRESAMPLED = "presampled"  # the ranking of caches where the folder has none


@dataclass(frozen=True)
class Estimate:
    """error: standard error of ``mean``; None if only one batch was sampled."""

    mean: float
    error: float | None

    @classmethod
    def of(cls, values: Sequence[float] | np.ndarray) -> Estimate:
        """The estimate from one value per batch, at least one."""
        array = np.asarray(values, dtype=np.float64)
        error = float(array.std(ddof=1)) / math.sqrt(len(array)) if len(array) > 1 else None
        return cls(float(array.mean()), error)

    @classmethod
    def mean_of(cls, estimates: Sequence[Estimate]) -> Estimate:
        """The mean of independent estimates, one per part, with its error."""
        errors = [each.error for each in estimates if each.error is not None]
        error = math.sqrt(sum(e * e for e in errors)) / len(errors) if len(errors) == len(estimates) else None
        return cls(sum(each.mean for each in estimates) / len(estimates), error)


@dataclass(frozen=True, kw_only=True)
class CachedTraffic:
    """The traffic of a part's batches with a remote cache. hit_rate: share of the remote node rows that are in the cache, None
    without such rows.

    row_bytes: of the attributes that are requested, as stored.  cache_bytes: memory that the cache takes on the part's host.
    """

    policy: str
    ratio: float
    hit_rate: float | None
    remote_rows: Estimate
    row_bytes: Estimate
    requests: Estimate
    bytes: Estimate
    cache_bytes: int


@dataclass(frozen=True, kw_only=True)
class PartTraffic:
    """The traffic per batch of the rank that has ``part``, or of a rank with this number.

    seeds, nodes, edges: of a batch.  rows, row_bytes: of all its attributes, and their bytes as stored.  remote_nodes: nodes
    of other hosts.  remote_rows: rows of attributes that are requested, of nodes and, if batches have edge ids, of edges.
    remote_row_bytes: of these.  requests: round trips.  bytes: bytes of bodies in both directions.
    """

    part: int
    batches: int
    seeds: Estimate
    nodes: Estimate
    edges: Estimate
    rows: Estimate
    row_bytes: Estimate
    remote_nodes: Estimate
    remote_rows: Estimate
    remote_row_bytes: Estimate
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
    """The traffic with a seed placement, by part, or by rank. steps: batches of a rank in an epoch."""

    placement: SeedPlacement
    steps: int
    parts: tuple[PartTraffic, ...]

    def mean(self, name: str) -> Estimate:
        """The mean over the parts of one of the estimates of `PartTraffic`."""
        return Estimate.mean_of([getattr(part, name) for part in self.parts])


class TrafficPrediction:
    """A prediction of what ranks ask of each other in training.

    Attributes:
        policies: Rankings by which caches are assumed to be filled: those that the partition stores, or one by sampled batches.

    Args:
        partition: With all its parts.
        options: The batches.

    Example:
        >>> options = TrafficOptions(num_neighbors=[2], batch_size=4)
        >>> found = TrafficPrediction(LocalPartition.open("parts"), options).of_parts()
        >>> [(traffic.placement, traffic.steps) for traffic in found]
        [('owner', 1), ('global', 1)]
    """

    def __init__(self, partition: LocalPartition, options: TrafficOptions) -> None:
        self._partition, self._options = partition, options
        self.policies = partition.manifest.remote_policies or (PRESAMPLED,)

    @cached_property
    def why_not(self) -> str | None:
        """The reason why training would have no batches; None if it has some."""
        return why_no_batches(self._partition, self._options)

    @property
    def most_batches(self) -> int:
        """The largest number of batches that `of_parts` samples."""
        again = 2 if self.policies == (PRESAMPLED,) else 1
        return len(PLACEMENTS) * self._partition.manifest.num_parts * self._options.batches * again

    def of_parts(self, done: Callable[[int], object] = lambda n: None) -> tuple[ExpectedTraffic, ...]:
        """Samples the first batches of an epoch of each rank, where rank p has part p. done: called with numbers of sampled
        batches.

        Raises `OptionError` for fan-outs that do not fit the graph.
        """
        hosts = _Hosts(self._partition, self._options, done)
        return tuple(hosts.with_placement(placement) for placement in PLACEMENTS)

    def of_ranks(self, placement: SeedPlacement, hosts: int, ranks: int, most: int = 8) -> ExpectedTraffic:
        """Samples as `of_parts`, for ``hosts`` hosts with ``ranks`` ranks each, which share the parts of their host; at most
        ``most`` ranks, spread over the hosts."""
        return _Hosts(self._partition, self._options, lambda n: None, hosts, ranks).with_placement(placement, most)

    def time_calls(self, *, encrypted: bool) -> dict[str, float]:
        """Times a connection by batches that ask an owner over it (`workers.time_calls`): these, and some of few seeds."""
        asked = []
        for size in (max(1, self._options.batch_size // _FEWER), self._options.batch_size):
            batches = TrainBatches(self._partition, replace(self._options, batch_size=size))
            asked.append((batches.config, list(islice(batches.plan("global", 0).requests(_MEASURED), _TIMED))))
        return time_calls(encrypted=encrypted, partition=self._partition, asked=asked)


class _Hosts:
    """hosts, ranks: number of hosts, and of ranks on each; by default each part has a host with one rank."""

    def __init__(
        self,
        partition: LocalPartition,
        options: TrafficOptions,
        done: Callable[[int], object],
        hosts: int | None = None,
        ranks: int = 1,
    ) -> None:
        self._partition, self._options, self._done = partition, options, done
        self._hosts, self._ranks = hosts or partition.manifest.num_parts, ranks
        self._batches = TrainBatches(partition, options, self._hosts * ranks)
        self._policies = partition.manifest.remote_policies

    def with_placement(self, placement: SeedPlacement, most: int | None = None) -> ExpectedTraffic:
        world = self._hosts * self._ranks
        chosen = sorted({r * world // min(world, most or world) for r in range(min(world, most or world))})
        plans = {rank: self._batches.plan(placement, rank) for rank in chosen}
        parts = tuple(self._of_rank(rank, plan) for rank, plan in plans.items())
        return ExpectedTraffic(placement=placement, steps=max(map(len, plans.values())), parts=parts)

    def _of_rank(self, rank: int, plan: EpochPlan) -> PartTraffic:
        host = rank // self._ranks
        caches = [
            (policy, lists, ratio) for policy, lists in self._lists(host, plan) for ratio in sorted(self._options.cache)
        ]
        held = [partial(lists.cached, ratio=ratio) for _, lists, ratio in caches]
        owners = CountingOwners(self._partition, self._batches.config, host, held, self._hosts)
        seeds: list[int] = []
        nodes: list[int] = []
        edges: list[int] = []
        rows: list[tuple[int, int]] = []
        asked: list[list[Asked]] = []
        for count, gids, edges_of_type in self._sampled(plan, _MEASURED, owners):
            seeds.append(count)
            nodes.append(sum(map(len, gids)))
            edges.append(sum(edges_of_type))
            rows.append(owners.attributes(list(map(len, gids)), edges_of_type))
            asked.append(owners.asked)
        plain, *with_cache = [list(each) for each in zip(*asked, strict=True)]
        return PartTraffic(
            part=rank,
            batches=len(nodes),
            seeds=Estimate.of(seeds),
            nodes=Estimate.of(nodes),
            edges=Estimate.of(edges),
            rows=Estimate.of([count for count, _ in rows]),
            row_bytes=Estimate.of([nbytes for _, nbytes in rows]),
            remote_nodes=Estimate.of([a.node_rows for a in plain]),
            remote_rows=Estimate.of([a.node_rows + a.edge_rows for a in plain]),
            remote_row_bytes=Estimate.of([a.row_bytes for a in plain]),
            requests=Estimate.of([a.requests for a in plain]),
            bytes=Estimate.of([a.bytes_out + a.bytes_in for a in plain]),
            bytes_out=Estimate.of([a.bytes_out for a in plain]),
            bytes_in=Estimate.of([a.bytes_in for a in plain]),
            caches=tuple(self._with_cache(plain, each, *cache) for each, cache in zip(with_cache, caches, strict=True)),
        )

    def _sampled(
        self, plan: EpochPlan, epoch: int, owners: CountingOwners
    ) -> Iterator[tuple[int, list[np.ndarray], list[int]]]:
        """Samples the first batches of an epoch. Yields for each batch the number of its seeds, the distinct gids of each node
        type, and the number of edges of each type."""
        config = self._batches.config
        sampler = KHopSampler(self._partition, config, remote=owners)
        for request in islice(plan.requests(epoch), self._options.batches):
            owners.begin()
            found, _ = sampler.find(request)
            gids = [np.unique(gids) if config.disjoint else gids for gids in found.gid]
            yield len(request.seeds), gids, list(map(len, found.src))
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
            row_bytes=Estimate.of([a.row_bytes for a in cached]),
            requests=Estimate.of([a.requests for a in cached]),
            bytes=Estimate.of([a.bytes_out + a.bytes_in for a in cached]),
            cache_bytes=sum(n * width for n, width in zip(lists.sizes(ratio), widths, strict=True)),
        )

    def _lists(self, host: int, plan: EpochPlan) -> list[tuple[str, RemoteRanking]]:
        """The stored rankings of a host's remote nodes; without any, one made from batches of another epoch than the measured
        one, as its own batches would make a cache look better than it is."""
        manifest = self._partition.manifest
        if not self._options.cache or self._hosts == 1 or manifest.num_parts == 1:
            return []
        parts = placed_parts(host, self._hosts, manifest.num_parts)
        if self._policies:
            return [(policy, stored_lists(self._partition, policy, parts)) for policy in self._policies]
        counts = [np.zeros(n, dtype=np.int32) for n in manifest.num_nodes]
        owners = CountingOwners(self._partition, self._batches.config, host, [], self._hosts)
        for _, found, _ in self._sampled(plan, _RANKED, owners):
            for t, gids in enumerate(found):
                counts[t][gids - manifest.offsets[t]] += 1
        return [(PRESAMPLED, presampled_lists(manifest, parts, counts, max(self._options.cache)))]


# The remote rows that a cache of a host would hold, hottest first.


class RemoteRanking:
    """The remote nodes to cache for one part, per node type, hottest first.

    lists: T arrays of gids [K_t].
    """

    def __init__(self, manifest: Manifest, lists: Sequence[np.ndarray]) -> None:
        self._manifest, self._lists = manifest, lists
        self._none = np.iinfo(np.int32).max
        self._rank = []  # position of each node of a type in the list
        for n, gids, first in zip(manifest.num_nodes, lists, manifest.offsets, strict=False):
            rank = np.full(n, self._none, dtype=np.int32)
            rank[np.asarray(gids) - first] = np.arange(len(gids), dtype=np.int32)
            self._rank.append(rank)

    def cached(self, node_type: int, gids: np.ndarray, ratio: float) -> np.ndarray:
        """Returns bool [n]: whether nodes of a type are in a cache with this share of the nodes of each type."""
        ranks = self._rank[node_type][gids - self._manifest.offsets[node_type]]
        found: np.ndarray = ranks < self.sizes(ratio)[node_type]
        return found

    def sizes(self, ratio: float) -> list[int]:
        """Number of nodes of each type in a cache of this share; fewer if the list is shorter."""
        return [
            CacheChoice.rows_of_share(ratio, n, len(gids))
            for n, gids in zip(self._manifest.num_nodes, self._lists, strict=True)
        ]


def stored_lists(partition: LocalPartition, policy: str, parts: tuple[int, ...]) -> RemoteRanking:
    """Reads the rankings that the partitioner has written, for a host with ``parts``."""
    choice = CacheChoice.stored(LocalPartition(partition.directory, partition.manifest, parts), policy)
    assert choice is not None, "the folder has lists of this policy"
    return RemoteRanking(partition.manifest, [each.gids for each in choice.ranked])


def presampled_lists(
    manifest: Manifest, parts: Sequence[int], counts: Sequence[np.ndarray], ratio: float
) -> RemoteRanking:
    """Ranks the nodes of other parts than ``parts`` by how many batches they were in, then as their parts rank them.

    counts: T arrays int32 [N_t], batches by number in the type.  ratio: the lists are long enough for such a cache.
    """
    lists = []
    for seen, bounds, offset in zip(counts, manifest.bounds, manifest.offsets, strict=False):
        nodes = np.arange(len(seen), dtype=np.int64)
        row = nodes - np.repeat(bounds[:-1], np.diff(bounds))  # the hottest of a part come first
        remote = np.delete(nodes, np.concatenate([nodes[bounds[p] : bounds[p + 1]] for p in parts]))
        hottest = np.lexsort((row[remote], -seen[remote]))[: CacheChoice.rows_of_share(ratio, len(seen), len(remote))]
        lists.append(remote[hottest] + offset)
    return RemoteRanking(manifest, lists)


def cached_widths(manifest: Manifest) -> list[int]:
    """Bytes of a node's row in a remote cache, by type: its id and attributes."""
    widths = []
    for t in range(len(manifest.schema.node_types)):
        entries = [manifest.arrays[node_path(0, t, name)] for name in ("n_id", *manifest.node_attrs(t))]
        widths.append(sum(row_bytes(entry.dtype, entry.shape[1:]) for entry in entries))
    return widths


def remote_cache_bytes(manifest: Manifest, ratio: float) -> float:
    """The memory of a remote cache with this share of the nodes of each type."""
    return sum(ratio * n * width for n, width in zip(manifest.num_nodes, cached_widths(manifest), strict=True))
