"""Predicts the traffic between hosts by sampling some batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any, TypeVar, get_args

import numpy as np

from glt_lightning.base import DrawOptions, SeedPlacement, counted, edge_type_str
from glt_lightning.cli.partition_report.contents import (
    PRESAMPLED,
    RemoteRanking,
    cached_widths,
    presampled_lists,
    stored_lists,
)
from glt_lightning.cli.partition_report.estimate import Estimate
from glt_lightning.cli.partition_report.options import TrafficOptions
from glt_lightning.graph import (
    IN_TRAINING,
    LocalPartition,
    Manifest,
    edge_path,
    edge_split_key,
    node_path,
    stored_policies,
)
from glt_lightning.kernels import row_bytes
from glt_lightning.loader import LinkSpec, LoaderSpec, for_each_type, has_types, make_plan, plan_links, sampler_config
from glt_lightning.sampling import (
    AskedRows,
    EpochPlan,
    Gather,
    LinksSampler,
    OwnedParts,
    OwnerQuestion,
    Received,
    Reply,
    SamplerConfig,
    converse,
    k_hop,
    neighbor_source,
    node_names,
)
from glt_lightning.workers import Ranks, lay_out, placed_parts

PLACEMENTS: tuple[SeedPlacement, ...] = get_args(SeedPlacement)[::-1]  # owner first


_MEASURED, _RANKED = (
    0,
    1,
)  # epochs: one is predicted, another ranks nodes for a cache, so that the cache cannot know the first


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


def count_batches(partition: LocalPartition, options: TrafficOptions) -> int:
    """The largest number of batches that `predict_traffic` samples."""
    again = 1 if _policies(partition) else 2
    return len(PLACEMENTS) * partition.manifest.num_parts * options.batches * again


def predict_traffic(
    partition: LocalPartition, options: TrafficOptions, done: Callable[[int], object] = lambda n: None
) -> tuple[ExpectedTraffic, ...]:
    """Samples the first batches of an epoch of each rank, where rank p has part p. done: called with numbers of sampled batches.

    Raises `OptionError` for fan-outs that do not fit the graph.
    """
    prediction = _Prediction(partition, options, done)
    return tuple(prediction.of_placement(placement) for placement in PLACEMENTS)


def predict_ranks(
    partition: LocalPartition, options: TrafficOptions, placement: SeedPlacement, hosts: int, ranks: int, most: int = 8
) -> ExpectedTraffic:
    """Samples as `predict_traffic`, for ``hosts`` hosts with ``ranks`` ranks each, which share the parts of their host; at most
    ``most`` ranks, spread over the hosts."""
    prediction = _Prediction(partition, options, lambda n: None, hosts, ranks)
    return prediction.of_placement(placement, most)


def _policies(partition: LocalPartition) -> tuple[str, ...]:
    return stored_policies(partition.manifest)


class _Prediction:
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
        self._policies = _policies(partition)

    def of_placement(self, placement: SeedPlacement, most: int | None = None) -> ExpectedTraffic:
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
        owners = CountingOwners(
            self._partition, self._batches.config, host, [(lists, ratio) for _, lists, ratio in caches], self._hosts
        )
        seeds: list[int] = []
        nodes: list[int] = []
        edges: list[int] = []
        rows: list[tuple[int, int]] = []
        asked: list[list[Asked]] = []
        for count, gids, edges_of_type in self._sampled(plan, _MEASURED, owners):
            seeds.append(count)
            nodes.append(sum(map(len, gids)))
            edges.append(sum(edges_of_type))
            rows.append(
                _attributes(self._partition.manifest, self._batches.config, list(map(len, gids)), edges_of_type)
            )
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
        source = neighbor_source(self._partition, config, remote=owners)
        links = LinksSampler(source, self._partition) if config.links else None
        for request in islice(plan.requests(epoch), self._options.batches):
            owners.begin()
            seeds, excluded, trees = request.typed_seeds(config.seed_type), request.excluded, request.trees
            if links is not None:
                ends = links.find(request)
                seeds, excluded, trees = ends.seeds, ends.excluded, ends.trees
            found = k_hop(source, seeds, request.key, excluded, trees)
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


def _attributes(manifest: Manifest, config: SamplerConfig, nodes: list[int], edges: list[int]) -> tuple[int, int]:
    """(rows, bytes as stored) of the attributes of a batch, as `Counters` has them. nodes, edges: its counts by type."""
    rows = nbytes = 0
    for t, names in enumerate(node_names(manifest)):
        rows += nodes[t]
        nbytes += nodes[t] * _width(manifest, "node", t, ("n_id", *names))
    for r in range(len(edges) if config.has_edge_rows else 0):
        rows += edges[r]
        nbytes += edges[r] * _width(manifest, "edge", r, ("edge_ids", *manifest.edge_attrs(r)))
    return rows, nbytes


def _width(manifest: Manifest, kind: str, number: int, names: Iterable[str]) -> int:
    """Bytes of a row of attributes, as stored."""
    path = node_path if kind == "node" else edge_path
    entries = [manifest.arrays[path(0, number, name)] for name in names]
    return sum(row_bytes(entry.dtype, entry.shape[1:]) for entry in entries)


# Owners of other parts that count what a batch asks of them: the rows, the requests and the bytes of messages.


A = TypeVar("A")


@dataclass
class Asked:
    """Counts of one batch: rows of attributes by kind and their bytes, requests, and bytes of bodies in both directions."""

    node_rows: int = 0
    edge_rows: int = 0
    row_bytes: int = 0
    requests: int = 0
    bytes_out: int = 0
    bytes_in: int = 0

    def add(self, requests: int, bytes_out: int, bytes_in: int) -> None:
        self.requests += requests
        self.bytes_out += bytes_out
        self.bytes_in += bytes_in

    def __add__(self, other: Asked) -> Asked:
        return Asked(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


class CountingOwners:
    """A `sampling.source.RemoteRows` that counts, for one host of several, to which parts are dealt as `placed_parts` says.

    It answers from the mapped files, so that a batch is sampled as over the network, and counts the messages that
    `workers.cluster.remote_rows` would send. It has no limit of a reply's size, so most answers are one message. Attributes are
    counted, not read.

    draw: options of the draws.  host, hosts: its number, and their number; None: each part has a host.
    caches: pairs (ranking, share of the nodes); for each, rows are also counted without those that
    such a cache holds.
    """

    def __init__(
        self,
        partition: LocalPartition,
        draw: DrawOptions,
        host: int,
        caches: Sequence[tuple[RemoteRanking, float]],
        hosts: int | None = None,
    ) -> None:
        self._parts, self._caches = OwnedParts(partition, picker=draw.picker), caches
        self._manifest = partition.manifest
        num_parts = self._manifest.num_parts
        self.num_owners = min(hosts or num_parts, num_parts)
        owner, mine = np.arange(num_parts, dtype=np.int32) % self.num_owners, host % self.num_owners
        self.owner_of_part = np.where(owner == mine, 0, owner + (owner < mine)).astype(np.int32)
        self.begin()

    def begin(self) -> None:
        """Resets the counts for the next batch."""
        self._same, self._gathered = Asked(), [Asked() for _ in range(1 + len(self._caches))]

    @property
    def asked(self) -> list[Asked]:
        """The counts of the batch without a cache, then with each cache."""
        return [self._same + each for each in self._gathered]

    def ask(self, owner: int, question: OwnerQuestion[A]) -> Callable[[], A]:
        if isinstance(question, Gather):
            self._count_rows(question)
            return _never
        return converse(question, self._send)

    def _send(self, question: OwnerQuestion[Any]) -> Callable[[], Received]:
        return self._counted(question, self._same).received

    def _counted(self, question: OwnerQuestion[Any], asked: Asked) -> Reply:
        header, arrays = question.to_wire()
        reply = question.work(header, arrays, self._parts).reply(lambda: None)
        sent = lay_out({name: (array.dtype, array.shape) for name, array in arrays.items()})
        asked.add(1, sent[1], lay_out(reply.shapes)[1])
        return reply

    def _count_rows(self, question: Gather) -> None:
        for number, asked in enumerate(self._gathered):
            tables = [self._left(rows, number) for rows in question.tables]
            asked.node_rows += sum(len(rows.ids) for rows in tables if rows.kind == "node")
            asked.edge_rows += sum(len(rows.ids) for rows in tables if rows.kind == "edge")
            asked.row_bytes += sum(
                len(rows.ids) * _width(self._manifest, rows.kind, rows.type, rows.names) for rows in tables
            )
            if any(len(rows.ids) for rows in tables):
                self._counted(Gather(tables), asked)

    def _left(self, rows: AskedRows, number: int) -> AskedRows:
        """The rows that the cache with this number lacks; 0 is no cache."""
        if number == 0 or rows.kind != "node":
            return rows
        ranking, ratio = self._caches[number - 1]
        return replace(rows, ids=rows.ids[~ranking.cached(rows.type, rows.ids, ratio)])


def _never() -> Any:
    raise AssertionError("attributes of a predicted batch are not read")


# The batches of training that a report assumes: planned as a loader plans them, for seeds that are nodes and for edges.


_SPLIT = "train"


def why_no_batches(partition: LocalPartition, options: TrafficOptions) -> str | None:
    """The reason why training would have no batches; None if it has some."""
    if options.walks:
        return "random walks find the neighbours (sampling.importance_neighbors), and their questions are not counted"
    manifest = partition.manifest
    edges, seeds = _trained_edges(manifest), manifest.splits.get(_SPLIT)
    if not edges and seeds is None:
        return f"the partition has no split {_SPLIT!r}"
    keys = [edge_split_key(r, _SPLIT) for r in edges]
    count = sum(manifest.edge_splits[key].count for key in keys) if seeds is None or edges else seeds.count
    if count < manifest.num_parts:
        what = counted(count, "edge" if edges else "seed")
        return f"split {_SPLIT!r} has {what} for {counted(manifest.num_parts, 'rank')}, one for each part"
    if options.time_attr is None:
        return None
    if edges:
        timed = all(partition.edge_split(r, _SPLIT).time is not None for r in edges)
    else:
        own = options.time_attr in manifest.node_attrs(partition.split(_SPLIT).node_type)
        timed = own or options.input_time is not None
    what = "edges" if edges else "seeds"
    return None if timed else f"neighbours are drawn by time, and the {what} of split {_SPLIT!r} have no times"


class TrainBatches:
    """The batches of ``world_size`` ranks; None: one for each part.

    config: options of the sampling.  Raises `OptionError` for options that do not fit the graph.
    """

    def __init__(self, partition: LocalPartition, options: TrafficOptions, world_size: int | None = None) -> None:
        ranks = Ranks(world_size=world_size or partition.manifest.num_parts)
        if _trained_edges(partition.manifest):
            links = plan_links(_link_spec(partition, options), partition, options.sampling, options.seed, ranks)
            self.config: SamplerConfig = links.config
            self._plan: EpochPlan = links.plan
            return
        spec = LoaderSpec(
            name=_SPLIT,
            split=_SPLIT,
            num_neighbors=options.num_neighbors,
            batch_size=options.batch_size,
            shuffle=True,
            disjoint=options.disjoint,
            input_time=options.input_time,
        )

        def read(spec: LoaderSpec, name: str) -> np.ndarray:
            seeds = spec.find_seeds(partition)
            return partition.node_shards(seeds.node_type, name).gather(seeds.gids)

        seeds, manifest, sampling = spec.typed_seeds(partition), partition.manifest, options.sampling
        self.config = sampler_config(spec, seeds, manifest, sampling)
        self._plan = make_plan(spec, seeds, manifest, sampling, options.seed, ranks, read)

    def plan(self, placement: SeedPlacement, rank: int) -> EpochPlan:
        return replace(self._plan, rank=rank, owner=self._plan.owner if placement == "owner" else None)


def _trained_edges(manifest: Manifest) -> list[int]:
    """The edge types, by index, that have edges to predict in training."""
    return [r for r in range(len(manifest.schema.edge_types)) if edge_split_key(r, _SPLIT) in manifest.edge_splits]


def _link_spec(partition: LocalPartition, options: TrafficOptions) -> LinkSpec:
    schema = partition.schema
    masked = {edge_type_str(e): IN_TRAINING for r, e in enumerate(schema.edge_types) if _is_masked(partition, r)}
    found = {
        edge_type_str(schema.edge_types[r]): partition.edge_split(r, _SPLIT) for r in _trained_edges(partition.manifest)
    }
    given, types = options.neg_sampling, list(found)
    negatives = for_each_type("neg_sampling", given if has_types(given, types) else dict.fromkeys(types, given), types)
    specs = []
    for name, edges in found.items():
        drawn = None if edges.label is not None or edges.negatives is not None else "binary"
        specs.append(
            LinkSpec(
                name=_SPLIT,
                edge_type=name,
                edge_label_index=edges.edge,
                edge_label=edges.label,
                edge_label_time=edges.time if options.time_attr is not None else None,
                negatives=edges.negatives,
                neg_sampling=negatives[name] or drawn,
                num_neighbors=options.num_neighbors,
                batch_size=options.batch_size,
                exclude_target_edges=options.exclude_target_edges,
                reverse_edge_types=options.reverse_edge_types,
                weight_attr=masked or None,
                shuffle=True,
                disjoint=options.disjoint,
            )
        )
    return specs[0] if len(specs) == 1 else LinkSpec.over(specs)


def _is_masked(partition: LocalPartition, edge_type: int) -> bool:
    """Tells whether an edge type has edges of validation, which training leaves out by their weight."""
    return IN_TRAINING in partition.manifest.weights(edge_type)
