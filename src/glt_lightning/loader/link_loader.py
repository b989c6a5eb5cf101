"""The loader of edges that a training loop iterates."""

from __future__ import annotations

import logging
from dataclasses import replace

from glt_lightning.data.graph import AnyGraph, Seeds
from glt_lightning.data.manifest import Manifest
from glt_lightning.errors import OptionError
from glt_lightning.loader.link_collate import LinkCollate
from glt_lightning.loader.link_plan import LinkEdges, LinkPlan
from glt_lightning.loader.link_spec import LinkSpec as LinkSpec
from glt_lightning.loader.neighbor_loader import DistNeighborLoader
from glt_lightning.loader.plans import plan_identity, sampler_config, share_out
from glt_lightning.loader.time_bounds import with_bounds
from glt_lightning.loader.times import require_own_negatives, require_times
from glt_lightning.loader.typed_plan import TypedSeeds
from glt_lightning.options import SamplingOptions
from glt_lightning.producer.base import Producer
from glt_lightning.producer.ranks import Ranks
from glt_lightning.sampler.link_task import LinkTask
from glt_lightning.sampler.sample import Sample, link_key

_log = logging.getLogger(__name__)


class DistLinkNeighborLoader(DistNeighborLoader):
    """Yields the batches of one rank around edges and their negatives, as PyG `Data` or `HeteroData` with the fields of PyG's
    `LinkNeighborLoader`.

    Made by `LoaderContext.make_link_loader`; it is a `DistNeighborLoader` whose seeds are edges. ``edge_label_index``,
    ``src_index``, ``dst_pos_index`` and ``dst_neg_index`` name nodes of the batch, and ``input_id`` the edges by their position
    in the spec. ``neg_mask`` is true where a shared negative is one. There is no ``batch_size``.

    Args:
        plan: The edges of each batch.
        config: How neighbours are drawn.
        producer: Makes the batches.
        collate: Turns a `Sample` into a PyG object.
        identity: Facts that a checkpoint is compared with when it is loaded.
        transform: What every batch goes through before it is given out, or None.

    Example:
        >>> edges = np.array([[0, 3, 4], [1, 4, 6]])
        >>> spec = LinkSpec(
        ...     name="train", edge_label_index=edges, num_neighbors=[2], batch_size=2, neg_sampling=("triplet", 2)
        ... )
        >>> with LoaderContext(LocalPartition.open("parts")) as context:
        ...     for batch in context.make_link_loader(spec):
        ...         print(batch.n_id[batch.src_index], batch.n_id[batch.dst_pos_index], batch.dst_neg_index.shape)
        tensor([0, 3]) tensor([1, 4]) torch.Size([2, 2])
        tensor([4]) tensor([6]) torch.Size([1, 2])
    """

    _warned = False

    def _count(self, sample: Sample) -> None:
        super()._count(sample)
        prefix, name = link_key(""), "stored"
        stored = [int(a[0]) for key, a in sample.arrays.items() if key.startswith(prefix) and key.endswith(name)]
        if self._warned or not any(stored) or self._plan.rank:
            return
        self._warned = True
        _log.warning(
            "loader %r: exclude_target_edges is none, and %d of the %d edges of batch %d are stored in the graph: messages are "
            "passed over the edges that are to be predicted, so a model can learn to look them up. Set exclude_target_edges to "
            "reverse, or leave these edges out of the partition.",
            self._plan.loader,
            sum(stored),
            sample.num_seeds,
            sample.number,
        )


def make_link_loader(
    spec: LinkSpec, graph: AnyGraph, sampling: SamplingOptions, seed: int, ranks: Ranks, producer: Producer
) -> tuple[DistLinkNeighborLoader, LinkCollate]:
    """Raises `OptionError` or `DataError` for a spec that does not fit the graph."""
    manifest, schema = graph.manifest, graph.schema
    tasks = [_with_time(each, each.task(schema), manifest, sampling) for each in spec.by_type]
    edges = [LinkEdges.of(each, task, graph) for each, task in zip(spec.by_type, tasks, strict=True)]
    nodes = [each.as_nodes() for each in spec.by_type]
    seeds = TypedSeeds(tuple(Seeds(schema.source_types()[each.task.edge_type], each.gids[0]) for each in edges))
    extras = [each.find_extras(part) for each, part in zip(nodes, seeds.parts, strict=True)]
    plan = share_out(nodes[0], seeds, manifest, sampling, seed, ranks)
    times = [each.edge_label_time for each in spec.by_type if each.edge_label_time is not None]
    plan, extras = with_bounds(plan, extras, times, sampling)
    plan = LinkPlan.over(plan, edges, extras, schema)
    config = replace(sampler_config(nodes[0], seeds, manifest, sampling), link=tasks[0], more_links=tuple(tasks[1:]))
    collate = LinkCollate(manifest.as_stored if config.stored else manifest, tasks, config.timed)
    identity = plan_identity(nodes, plan, seeds, manifest, ranks) | plan.link_identity(shared=not spec.per_rank)
    return DistLinkNeighborLoader(plan, config, producer, collate, identity, spec.transform), collate


def _with_time(spec: LinkSpec, task: LinkTask, manifest: Manifest, sampling: SamplingOptions) -> LinkTask:
    """With negatives of nodes that exist at the time of their edge, where nodes have times. Raises `OptionError` for times that
    are missing, or that nothing reads."""
    where = f"loader {spec.name!r}"
    remedy = "Give a time for each edge (time of edge_splits)."
    edges = spec.edge_label_index.shape[1]
    require_times(f"{where}: edge_label_time", spec.edge_label_time, edges, sampling, remedy)
    require_own_negatives(where, spec.neg_sampling, sampling.time_attr)
    ends = manifest.schema.source_types()[task.edge_type], manifest.schema.destination_types()[task.edge_type]
    of_nodes = sampling.time_attr is not None and any(sampling.time_attr in manifest.node_attrs(t) for t in ends)
    if task.unresolved != "error" and not of_nodes:
        raise OptionError(
            f"{where}: neg_sampling.unresolved: {task.unresolved!r} has no effect without sampling.time_attr and times of the "
            "nodes at either end. Remove it."
        )
    return replace(task, timed=of_nodes and task.mode is not None)
