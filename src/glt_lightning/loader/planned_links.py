"""The plan of a loader of edges over a graph, and how its batches are sampled."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glt_lightning.base import OptionError, SamplingOptions
from glt_lightning.graph import AnyGraph, Manifest, Seeds
from glt_lightning.loader.link_plan import LinkEdges, LinkPlan
from glt_lightning.loader.link_spec import LinkSpec, check_tree
from glt_lightning.loader.plans import sampler_config, share_out
from glt_lightning.loader.spec import LoaderSpec
from glt_lightning.loader.time_bounds import with_bounds
from glt_lightning.loader.times import require_own_negatives, require_times
from glt_lightning.loader.typed_plan import TypedSeeds
from glt_lightning.sampling import LinkTask, SamplerConfig
from glt_lightning.workers import Ranks


@dataclass(frozen=True)
class PlannedLinks:
    """The batches of a loader of edges. tasks, nodes, seeds: of each edge type its task, the loader of its sources, and these."""

    plan: LinkPlan
    config: SamplerConfig
    tasks: list[LinkTask]
    nodes: list[LoaderSpec]
    seeds: TypedSeeds


def plan_links(spec: LinkSpec, graph: AnyGraph, sampling: SamplingOptions, seed: int, ranks: Ranks) -> PlannedLinks:
    """Raises `OptionError` or `DataError` for a spec that does not fit the graph."""
    manifest, schema = graph.manifest, graph.schema
    for each in spec.by_type:
        check_tree(f"loader {spec.name!r}: ", each.tree, each.disjoint, each.neg_sampling, sampling.time_attr)
    tasks = [_with_time(each, each.task(schema), manifest, sampling) for each in spec.by_type]
    edges = [LinkEdges.of(each, task, graph) for each, task in zip(spec.by_type, tasks, strict=True)]
    nodes = [each.as_nodes() for each in spec.by_type]
    seeds = TypedSeeds(tuple(Seeds(each.task.ends(schema)[0], each.gids[0]) for each in edges))
    extras = [each.find_extras(part) for each, part in zip(nodes, seeds.parts, strict=True)]
    plan = share_out(nodes[0], seeds, manifest, sampling, seed, ranks)
    times = [each.edge_label_time for each in spec.by_type if each.edge_label_time is not None]
    plan, extras = with_bounds(plan, extras, times, sampling)
    config = sampler_config(nodes[0], seeds, manifest, sampling, {task.ends(schema)[1] for task in tasks})
    config = replace(config, link=tasks[0], more_links=tuple(tasks[1:]))
    return PlannedLinks(LinkPlan.over(plan, edges, extras, schema), config, tasks, nodes, seeds)


def _with_time(spec: LinkSpec, task: LinkTask, manifest: Manifest, sampling: SamplingOptions) -> LinkTask:
    """With negatives of nodes that exist at the time of their edge, where nodes have times. Raises `OptionError` for times that
    are missing, or that nothing reads."""
    where = f"loader {spec.name!r}"
    remedy = "Give a time for each edge (time of edge_splits)."
    edges = spec.edge_label_index.shape[1]
    require_times(f"{where}: edge_label_time", spec.edge_label_time, edges, sampling, remedy)
    require_own_negatives(where, spec.neg_sampling, sampling.time_attr)
    ends = task.ends(manifest.schema)
    of_nodes = sampling.time_attr is not None and any(sampling.time_attr in manifest.node_attrs(t) for t in ends)
    if task.unresolved != "error" and not of_nodes:
        raise OptionError(
            f"{where}: neg_sampling.unresolved: {task.unresolved!r} has no effect without sampling.time_attr and times of the "
            "nodes at either end. Remove it."
        )
    return replace(task, timed=of_nodes and task.mode is not None)
