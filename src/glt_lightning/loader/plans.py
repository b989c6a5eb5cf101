"""The plan of a loader: which seeds each rank takes, in what order, and how they are sampled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from glt_lightning.base import OptionError, SamplingOptions
from glt_lightning.graph import AnyGraph, Manifest
from glt_lightning.kernels import mix64
from glt_lightning.loader.fanouts import fanouts_of, seeds_alone
from glt_lightning.loader.recipe import subgraph_task
from glt_lightning.loader.resume import graph_identity, seeds_identity
from glt_lightning.loader.spec import LoaderSpec
from glt_lightning.loader.time_bounds import times_of, with_bounds
from glt_lightning.loader.typed_plan import TypedPlan, TypedSeeds, joined
from glt_lightning.sampling import (
    EpochPlan,
    ImportanceTask,
    OwnBatches,
    Sample,
    SamplerConfig,
    require_aggregable,
)
from glt_lightning.workers import Ranks

_BITS_PER_EDGE = 16  # of the filter: of 16 drawn pairs that are no edges, one is searched for


class OwnEdges:
    """A set of pairs of the user's ids.

    src, dst: int64 [S], below the numbers of nodes ``counts`` (of sources, of destinations). Pairs are kept as sorted 64-bit
    keys, and before the search among these a filter of hashed bits answers for most pairs: a search in 10 M keys misses the
    caches of a CPU about 20 times, the filter once.

    Raises `OptionError` for node types whose pairs do not fit 64 bits.
    """

    def __init__(self, src: np.ndarray, dst: np.ndarray, counts: tuple[int, int], where: str) -> None:
        if counts[0] * counts[1] >= 1 << 64:
            raise OptionError(
                f"{where}: neg_sampling.strict: {counts[0]} x {counts[1]} pairs of nodes do not fit 64 bits. Set it to false."
            )
        self._num_dst = np.uint64(counts[1])
        self._keys = np.unique(self._key(src, dst))
        self._shift = np.uint64(64 - max(3, (_BITS_PER_EDGE * len(self._keys)).bit_length()))
        flags = np.zeros(1 << (64 - int(self._shift)), dtype=bool)
        flags[mix64(self._keys) >> self._shift] = True
        self._filter = np.packbits(flags, bitorder="little")

    def _key(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        return src.astype(np.uint64) * self._num_dst + dst.astype(np.uint64)

    def contains(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """int64 [n]: the positions in ``src`` and ``dst``, int64 arrays [m], of pairs that are in the set; ascending."""
        keys = self._key(src, dst)
        bits = mix64(keys) >> self._shift
        likely = self._filter[bits >> np.uint64(3)] >> (bits & np.uint64(7)).astype(np.uint8) & 1
        some = np.flatnonzero(likely)
        if not len(some):
            return some
        at = np.minimum(np.searchsorted(self._keys, keys[some]), len(self._keys) - 1)
        found: np.ndarray = some[self._keys[at] == keys[some]]
        return found


_log = logging.getLogger(__name__)

_NO_HASH = (
    "loader %r: an earlier release wrote this partition folder, without a hash of the split's ids: a checkpoint "
    "in mid-epoch resumes only with this partition. Partition again to resume with other parts."
)

_FEW_SEEDS = (
    "loader %r: %d seeds for %d ranks: a rank without seeds gets one batch with batch_size 0, in which the mean of a loss is not "
    "a number."
)


def sampler_config(
    spec: LoaderSpec,
    seeds: TypedSeeds,
    manifest: Manifest,
    sampling: SamplingOptions,
    other_ends: Collection[int] = (),
) -> SamplerConfig:
    """How the batches of a loader are sampled. other_ends: the node types of the destinations, where seeds are the sources of
    edges. Raises `OptionError` for fan-outs that do not fit the graph."""
    walks = ImportanceTask.of(sampling, manifest.schema)
    task = subgraph_task(spec, manifest, sampling)
    fanouts = fanouts_of(spec, task, walks, {*seeds.types, *other_ends}, manifest.schema)
    config = SamplerConfig.of(
        manifest,
        sampling.draw,
        weight_attr=spec.weight_attr or sampling.weight_attr,
        time_attr=sampling.time_attr,
        seed_type=seeds.node_type,
        fanouts=fanouts,
        stored=sampling.feature_dtype == "stored",
        aggregate=sampling.aggregate_first if len(spec.num_neighbors) and not spec.all_rows else None,
        pointers=spec.edge_format != "tensor",
        disjoint=spec.disjoint or sampling.time_attr is not None,
        by_source=spec.edge_format == "edge_index_csr" and not spec.exact,  # evaluation has no backward pass
        with_row=spec.with_row,
        subgraph=task,
        own_batches=OwnBatches.name_of(sampling.batch_sampler),
    )
    config = config if walks is None else config.by_walks(walks)
    if (
        task is not None and config.own_batches is not None
    ):  # it may find the edges itself, whose rows batches have ids by
        config = replace(config, with_edge=True)
    require_aggregable(manifest, config)
    for t, node_type in enumerate(manifest.schema.node_types):
        if spec.with_row and "row" in manifest.node_attrs(t):
            raise OptionError(
                f"loader {spec.name!r}: with_row: nodes of type {node_type!r} have an attribute row, and batches would have two. "
                "Partition the data set without it, or under another name."
            )
    has_name = [t for i, t in enumerate(manifest.schema.node_types) if Sample.TREE_OF in manifest.node_attrs(i)]
    if config.disjoint and has_name:
        raise OptionError(
            f"loader {spec.name!r}: disjoint: batches say in {Sample.TREE_OF!r} which tree a node is in, and nodes of type "
            f"{has_name[0]} have an attribute of this name. Give it another one when partitioning."
        )
    return config


def batch_manifest(manifest: Manifest, config: SamplerConfig) -> Manifest:
    """Of what batches have: the attributes as they are stored, or decoded, and the edge types of walks."""
    manifest = manifest.as_stored if config.stored else manifest
    return manifest if config.importance is None else manifest.with_edge_types(config.importance.edge_types)


def attribute_reading(
    spec: LoaderSpec, seeds: TypedSeeds, name: str, manifest: Manifest, sampling: SamplingOptions, seed: int
) -> tuple[SamplerConfig, EpochPlan]:
    """Batches of all seeds alone, in their order and on every rank, which bring the attribute ``name`` of them."""
    config = SamplerConfig(
        seed_type=seeds.node_type, fanouts=seeds_alone(manifest.schema), threads=sampling.num_threads
    )
    plan = EpochPlan(seeds=seeds.gids, batch_size=spec.batch_size, seed=seed, loader=f"{spec.name}/{name}", exact=True)
    return config, plan


def plan_nodes(
    spec: LoaderSpec,
    graph: AnyGraph,
    sampling: SamplingOptions,
    seed: int,
    ranks: Ranks,
    read: Callable[[LoaderSpec, str], np.ndarray],
) -> tuple[EpochPlan, SamplerConfig, TypedSeeds]:
    """Who takes which seeds, with their extras and bounds in time; how their batches are sampled; the seeds.

    read: gives an attribute of seeds. Raises as `sampler_config` and `share_out`.
    """
    seeds, manifest = spec.typed_seeds(graph), graph.manifest
    config = sampler_config(spec, seeds, manifest, sampling)
    times = times_of(spec, seeds, manifest, sampling, read)
    extras = [each.find_extras(part) for each, part in zip(spec.by_type, seeds.parts, strict=True)]
    plan, extras = with_bounds(share_out(spec, seeds, manifest, sampling, seed, ranks), extras, times, sampling)
    plan = replace(plan, extras=extras[0]) if len(extras) == 1 else TypedPlan.over(plan, seeds, extras)
    return plan, config, seeds


def share_out(
    spec: LoaderSpec, seeds: TypedSeeds, manifest: Manifest, sampling: SamplingOptions, seed: int, ranks: Ranks
) -> EpochPlan:
    """Who takes which seeds. With ``per_rank`` seeds a collective call. Raises `OptionError` for seeds that do not fit."""
    if spec.per_rank:
        plan = _own_plan(spec, seeds, seed, ranks)
    else:
        owners = _owner_ranks(seeds, manifest, ranks.world_size) if sampling.seed_placement == "owner" else None
        plan = _shared_plan(spec, seeds, seed, ranks, owners)
    return replace(plan, batch_dependency=sampling.batch_dependency)


def plan_identity(
    specs: Sequence[LoaderSpec], plan: EpochPlan, seeds: TypedSeeds, manifest: Manifest, ranks: Ranks
) -> dict[str, Any]:
    """What a checkpoint in mid-epoch must find again. Logs what cannot be found again, and what seeds are too few. specs: of
    the seeds of each type."""
    spec = specs[0]
    identity: dict[str, Any] = {"graph": graph_identity(manifest), "world_size": ranks.world_size}
    # None where it is not asked for, so that a checkpoint with another value is noticed; those of earlier releases lack it
    identity["batch_dependency"] = plan.batch_dependency if plan.batch_dependency > 1 else None
    if spec.per_rank:  # the state is the same on every rank, so it cannot hold what one rank alone has
        return identity
    identity |= seeds_identity(specs, manifest, seeds, plan)
    if "seeds_crc32" in identity and not spec.exact and ranks.rank == 0:
        _log.info(_NO_HASH, spec.name)
    if spec.exact and 0 < len(plan.seeds) < ranks.world_size and ranks.rank == 0:
        _log.warning(_FEW_SEEDS, spec.name, len(plan.seeds), ranks.world_size)
    return identity


def _shared_plan(spec: LoaderSpec, seeds: TypedSeeds, seed: int, ranks: Ranks, owners: np.ndarray | None) -> EpochPlan:
    """Seeds that all ranks share out among themselves. owners: int64 [S], the rank whose part holds each seed, where that
    rank is to take it."""
    return EpochPlan(
        seeds=seeds.gids,
        batch_size=spec.batch_size,
        seed=seed,
        loader=spec.name,
        rank=ranks.rank,
        world_size=ranks.world_size,
        shuffle=spec.shuffle,
        exact=spec.exact,
        weights=spec.weights,
        owner=owners,
    )


def _own_plan(spec: LoaderSpec, seeds: TypedSeeds, seed: int, ranks: Ranks) -> EpochPlan:
    """This rank's own seeds, as many steps as the rank with the most."""
    if ranks.world_size > 1 and ranks.gather_counts is None:
        raise OptionError(f"loader {spec.name!r}: per_rank seeds on {ranks.world_size} ranks need gather_counts.")
    plan = EpochPlan(
        seeds=seeds.gids,
        batch_size=spec.batch_size,
        seed=seed,
        loader=f"{spec.name}/{ranks.rank}",
        shuffle=spec.shuffle,
        exact=spec.exact,
        weights=spec.weights,
    )
    counts = [len(plan)] if ranks.gather_counts is None else ranks.gather_counts(len(plan))
    if min(counts) == 0 and not spec.exact:
        raise OptionError(f"loader {spec.name!r}: rank {counts.index(0)} has no seeds; every rank needs some to train.")
    return plan if spec.exact else replace(plan, steps=max(counts))


def _owner_ranks(seeds: TypedSeeds, manifest: Manifest, world_size: int) -> np.ndarray:
    """int64 [S]: the rank whose part holds each seed; part p belongs to rank p mod world_size."""
    parts = []
    for each in seeds.parts:
        found = manifest.part_of(each.node_type, each.gids)
        parts.append(found % manifest.base_parts)  # with an overlay, its parts are where those of the base are
    return joined(parts) % world_size


def log_stored_dtypes(manifest: Manifest) -> None:
    """Logs the dtype of each encoded attribute in batches; warns if the option has no effect."""
    dtypes: dict[str, set[str]] = {}
    for key, entry in manifest.encodings.items():
        still = key in manifest.as_stored.encodings and entry.stored != "bfloat16"
        dtypes.setdefault("float32, decoded from int8" if still else entry.stored, set()).add(key)
    if not dtypes.keys() - {"float32, decoded from int8"}:
        _log.warning(
            "sampling.feature_dtype: stored has no effect: no attribute is stored as float16 or bfloat16. Remove it, or "
            "partition with partition.storage."
        )
        return
    attributes = "; ".join(f"{', '.join(sorted(keys))} as {dtype}" for dtype, keys in sorted(dtypes.items()))
    _log.info("sampling.feature_dtype: stored: batches have %s.", attributes)
