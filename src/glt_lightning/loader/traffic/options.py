"""The batches of training whose traffic is predicted: their options, and the plan of their seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from glt_lightning.base import (
    DrawOptions,
    Fanouts,
    OptionError,
    SamplingOptions,
    SeedPlacement,
    TimeBoundary,
    WeightAttr,
    counted,
    edge_type_str,
    one_of,
    parse_fanouts,
)
from glt_lightning.graph import IN_TRAINING, LocalPartition, Manifest, edge_split_key
from glt_lightning.loader.link_plan import plan_links
from glt_lightning.loader.link_spec import LinkSpec
from glt_lightning.loader.plans import plan_nodes
from glt_lightning.loader.spec import LoaderSpec
from glt_lightning.sampling import EpochPlan, LinkTask, SamplerConfig
from glt_lightning.workers import Ranks

_SPLIT = "train"


def _default_fanouts() -> Fanouts:
    return [15, 10, 5]


@dataclass(frozen=True, kw_only=True, eq=False)
class TrafficOptions(DrawOptions):
    """The batches of training, and how their neighbours are drawn (`DrawOptions`).

    Attributes:
        num_neighbors: Fan-outs, first hop first, -1 for all; or a list per edge type.
        batch_size: Seeds per batch and rank; edges where the partition has edges to predict.
        batches: Batches to sample of each part; fewer if an epoch has fewer.
        cache: Sizes of remote caches, each as a share of all nodes of each type.
        seed: Seed of all draws.
        weight_attr, time_attr, time_window, time_boundary: As in the group ``sampling``.
        input_time: Times of the seed nodes, int [S]; None: their own.
        disjoint: Each seed is the root of a tree of its own.
        neg_sampling: Negatives of edges to predict, as in `LinkSpec`, also by edge type. None: as given with the edges, else
            ``binary``.
        exclude_target_edges, reverse_edge_types: As in `LinkSpec`.
        walks: Random walks find the neighbours (``sampling.importance_neighbors``): their traffic is not predicted.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> TrafficOptions(num_neighbors=[10, 5], batch_size=256, cache=[0.1]).batches
        16
    """

    num_neighbors: Fanouts = field(default_factory=_default_fanouts)
    batch_size: int = 1024
    batches: int = 16
    cache: Sequence[float] = (0.01, 0.05, 0.1, 0.2)
    seed: int = 0
    weight_attr: WeightAttr = None
    time_attr: str | None = None
    time_window: int | None = None
    time_boundary: TimeBoundary = "<="
    input_time: Any = None
    disjoint: bool = False
    neg_sampling: Any = None
    exclude_target_edges: str = "reverse"
    reverse_edge_types: dict[str, str] | None = None
    walks: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.num_neighbors
        for key, fanouts in given.items() if isinstance(given, dict) else [("", given)]:
            parse_fanouts(fanouts, f"num_neighbors[{key}]" if key else "num_neighbors")
        for name, least in (("batch_size", 1), ("batches", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(f"{name}: expected an integer >= {least}, got {value!r}.")
        if not all(isinstance(c, (int, float)) and not isinstance(c, bool) and 0 < c <= 1 for c in self.cache):
            raise OptionError(
                f"cache: expected shares of all nodes, above 0 and at most 1, such as [0.01, 0.1]; got {self.cache!r}."
            )
        one_of("exclude_target_edges", self.exclude_target_edges, LinkTask.EXCLUDE)
        _ = self.sampling  # which checks the others

    @property
    def sampling(self) -> SamplingOptions:
        """The sampling options of a loader whose ranks take the seeds of their own parts."""
        return SamplingOptions.of_draw(
            self,
            seed_placement="owner",
            weight_attr=self.weight_attr,
            time_attr=self.time_attr,
            time_window=self.time_window,
            time_boundary=self.time_boundary,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns plain values for JSON; of an array its shape."""
        return {name: _plain(value) for name, value in asdict(self).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return f"array {list(value.shape)}" if isinstance(value, np.ndarray) else value


# The batches of training, planned as a loader plans them, for seeds that are nodes and for edges.


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

        self._plan, self.config, _ = plan_nodes(spec, partition, options.sampling, options.seed, ranks, read)

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
    negatives = LinkSpec.of_each("neg_sampling", options.neg_sampling, list(found))
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
