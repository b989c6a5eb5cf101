"""The batches of training that a report assumes: planned as a loader plans them, for seeds that are nodes and for edges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from glt_lightning.base import SeedPlacement, counted, edge_type_str
from glt_lightning.cli.partition_report.options import TrafficOptions
from glt_lightning.graph import IN_TRAINING, LocalPartition, Manifest, edge_split_key
from glt_lightning.loader import LinkSpec, LoaderSpec, for_each_type, has_types, make_plan, plan_links, sampler_config
from glt_lightning.sampling import EpochPlan, SamplerConfig
from glt_lightning.workers import Ranks

_SPLIT = "train"


def why_no_batches(partition: LocalPartition, options: TrafficOptions) -> str | None:
    """The reason why there are no batches of training; None if there are."""
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
    """The batches of ranks that each have one part.

    config: how they are sampled.  Raises `OptionError` for options that do not fit the graph.
    """

    def __init__(self, partition: LocalPartition, options: TrafficOptions) -> None:
        ranks = Ranks(world_size=partition.manifest.num_parts)
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

    def plan(self, placement: SeedPlacement, part: int) -> EpochPlan:
        """That of the rank with ``part``."""
        return replace(self._plan, rank=part, owner=self._plan.owner if placement == "owner" else None)


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
    """Whether it has edges of validation, which training leaves out by their weight."""
    return IN_TRAINING in partition.manifest.weights(edge_type)
