"""The plan of a loader of edges: which edges each batch has, and what its sampler cannot know of their negatives."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from glt_lightning.base import DataError, EdgeType, GraphSchema, OptionError, SamplingOptions
from glt_lightning.graph import AnyGraph, Manifest, Seeds
from glt_lightning.loader.link_spec import LinkSpec, require_ids
from glt_lightning.loader.plans import OwnEdges, sampler_config, share_out
from glt_lightning.loader.spec import LoaderSpec
from glt_lightning.loader.time_bounds import with_bounds
from glt_lightning.loader.times import require_times
from glt_lightning.loader.typed_plan import Pieces, TypedSeeds
from glt_lightning.sampling import (
    BatchRequest,
    DrawnTrials,
    EpochPlan,
    LinkTask,
    NodeWeights,
    SamplerConfig,
    key_of_type,
)
from glt_lightning.workers import Ranks

LOOKED_UP = 1024  # edges of an epoch of which the sampler says whether they are stored


@dataclass(frozen=True)
class LinkEdges:
    """The edges of a loader, and how their negatives are drawn.

    src, dst: int64 [S] user ids.  gids: int64 [2, S].  num_nodes: of sources and destinations, alike or with weights.
    own: the edges, where negatives must not be among them.  negatives, source_negatives: int64 [S, K], given ones.
    times: int64 [S], by which the nodes of negatives exist.  kinds: of edges that have some.
    """

    task: LinkTask
    src: np.ndarray
    dst: np.ndarray
    gids: tuple[np.ndarray, np.ndarray]
    num_nodes: tuple[int | NodeWeights, int | NodeWeights]
    own: OwnEdges | None
    negatives: np.ndarray | None
    source_negatives: np.ndarray | None = None
    times: np.ndarray | None = None
    kinds: Kinds | None = None

    @classmethod
    def of(cls, spec: LinkSpec, task: LinkTask, graph: AnyGraph) -> LinkEdges:
        """Raises `DataError` for ids that the graph does not have, `OptionError` for weights of another number of nodes."""
        schema, where = graph.schema, f"loader {spec.name!r}"
        types = task.ends(schema)
        counts = graph.manifest.num_nodes[types[0]], graph.manifest.num_nodes[types[1]]
        src, dst = spec.edge_label_index
        gids = []
        for name, ids, node_type, count in zip(("sources", "destinations"), (src, dst), types, counts, strict=True):
            require_ids(f"{where}: {name} of edge_label_index", ids, count, schema.node_types[node_type])
            distinct, inverse = np.unique(ids, return_inverse=True)  # fewer ids to ask a server for
            gids.append(graph.seeds(node_type, distinct).gids[inverse])
        gone = [graph.deleted(t) for t in types]
        for name, end, least in (("negatives", 1, -1), ("source_negatives", 0, 0)):
            if (given := getattr(spec, name)) is None:
                continue
            ends_type = schema.node_types[types[end]]
            require_ids(f"{where}: {name}", given, counts[end], ends_type, least=least)
            if np.isin(given, gone[end]).any():
                raise DataError(f"{where}: {name}: some are nodes of type {ends_type!r} that are deleted.")
        options = spec.neg_sampling
        num_nodes: list[int | NodeWeights] = list(counts)
        for i, (name, ids) in enumerate((("src_weight", src), ("dst_weight", dst))):
            given = None if options is None else getattr(options, name)
            if given is not None or (options is not None and len(gone[i])):
                weights = np.ones(counts[i], np.int64)
                if given is not None:
                    weights = _weights(f"{where}: neg_sampling.{name}", given, ids, counts[i])
                num_nodes[i] = NodeWeights(_without(weights, gone[i]))
        strict = task.mode is not None and task.strict
        kinds = Kinds.of(spec)
        own = _own_edges(spec, kinds, counts, where) if strict and len(src) else None
        times = spec.edge_label_time if task.timed else None
        given = spec.negatives, spec.source_negatives
        return cls(task, src, dst, (gids[0], gids[1]), (num_nodes[0], num_nodes[1]), own, *given, times, kinds)

    @property
    def digest(self) -> str:
        """Of all but the sources, which `resume.seeds_identity` has a hash of."""
        digest = hashlib.blake2b(digest_size=16)
        weights = [each.ends if isinstance(each, NodeWeights) else np.array(each) for each in self.num_nodes]
        given = [self.negatives, self.source_negatives, None if self.kinds is None else self.kinds.of_edge]
        for array in (self.dst, *weights, *(each for each in given if each is not None)):
            digest.update(f"{array.dtype.str}:{array.shape}:".encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def arrays(self, key: int, positions: np.ndarray) -> dict[str, np.ndarray]:
        """`BatchRequest.link` of a batch with the edges at ``positions``. key: of the draws of this edge type."""
        task, count = self.task, self.task.count(len(positions))
        found = {"dst": self.gids[1][positions]}
        if self.negatives is not None:
            found["negatives"] = self.negatives[positions]
        if self.source_negatives is not None:
            found["source_negatives"] = self.source_negatives[positions]
        if self.times is not None:
            found["time"] = self.times[positions]
        if task.mode is None:
            return found
        numbers, trials = np.arange(count), DrawnTrials(key, *self.num_nodes)
        tried = task.trials
        src = dst = np.empty((0, tried), dtype=np.int64)
        weighted = any(isinstance(each, NodeWeights) for each in self.num_nodes)
        if weighted or (self.own is not None and task.sharing != "in_batch"):
            dst = trials.dst(numbers, 0, tried)
            src = trials.src(numbers, 0, tried) if task.mode == "binary" else src
        if weighted:
            found["trial_dst"] = dst
            if task.mode == "binary":
                found["trial_src"] = src
        if self.own is not None:
            found["rejected"] = self._rejected(self.own, positions, numbers, src, dst)
        return found

    def _rejected(
        self, own: OwnEdges, positions: np.ndarray, numbers: np.ndarray, src: np.ndarray, dst: np.ndarray
    ) -> np.ndarray:
        """Of the pairs that are tried, or of those of the mask, the positions of the loader's own edges."""
        mine = self.src[positions]
        if self.kinds is not None:
            mine = self.kinds.keyed(mine, positions)
            src = self.kinds.keyed(src, positions[numbers % max(1, len(positions))][:, None]) if src.size else src
        if self.task.sharing == "none":
            if self.task.mode == "triplet" and len(mine):
                src = np.repeat(mine[numbers % len(mine), None], dst.shape[1], axis=1)
            return own.contains(src.ravel(), dst.ravel())
        others = self.dst[positions] if self.task.sharing == "in_batch" else dst[:, 0]
        return own.contains(np.repeat(mine, len(others)), np.tile(others, len(mine)))


@dataclass(frozen=True)
class Kinds:
    """Kinds of edges. of_edge: int64 [S].  count: above all that are known."""

    of_edge: np.ndarray
    count: int

    @classmethod
    def of(cls, spec: LinkSpec) -> Kinds | None:
        if spec.rel_type is None:
            return None
        known = [] if spec.known_edges is None else [spec.known_edges[2]]
        return cls(spec.rel_type, 1 + max(int(kinds.max(initial=0)) for kinds in (spec.rel_type, *known)))

    def keyed(self, src: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Returns numbers of pairs of a source and the kind of the edge at a position."""
        return src * self.count + self.of_edge[positions]


def _own_edges(spec: LinkSpec, kinds: Kinds | None, counts: tuple[int, int], where: str) -> OwnEdges:
    src, dst = spec.edge_label_index
    if kinds is None:
        return OwnEdges(src, dst, counts, where)
    src = kinds.keyed(src, np.arange(len(src)))
    if spec.known_edges is not None:
        others, ends, kind = spec.known_edges
        src, dst = np.concatenate([src, others * kinds.count + kind]), np.concatenate([dst, ends])
    return OwnEdges(src, dst, (counts[0] * kinds.count, counts[1]), where)


def _without(weights: np.ndarray, deleted: np.ndarray) -> np.ndarray:
    """Returns the weights with 0 for deleted nodes, which so are never drawn."""
    if not len(deleted):
        return weights
    weights = np.array(weights)
    weights[deleted] = 0
    return weights


def _weights(where: str, given: str | np.ndarray, ids: np.ndarray, count: int) -> np.ndarray:
    """Of each node. ids: one end of the loader's edges, whose degrees are meant."""
    if isinstance(given, str):
        degree = np.bincount(ids, minlength=count)
        if not len(ids):
            raise OptionError(f"{where}: {given!r} of a loader without edges. Give weights, or edges.")
        # two square roots, which every machine rounds alike, unlike its powers
        return degree if given == "degree" else np.sqrt(degree) * np.sqrt(np.sqrt(degree))
    if len(given) != count:
        raise OptionError(f"{where}: expected {count} weights, one for each node of its type, got {len(given)}.")
    return given


@dataclass(frozen=True, kw_only=True)
class LinkPlan(EpochPlan):
    """An `EpochPlan` over positions of edges, of one edge type after another: its seeds are their sources. extras: those of
    further types by `of_type`.  check_stored: the first batches say how many of their edges messages may be passed over."""

    edges: tuple[LinkEdges, ...]
    edge_types: tuple[EdgeType, ...]
    check_stored: bool

    @classmethod
    def over(
        cls,
        plan: EpochPlan,
        edges: Sequence[LinkEdges],
        extras: Sequence[Mapping[str, np.ndarray]],
        schema: GraphSchema,
        check_stored: bool,
    ) -> LinkPlan:
        """extras: of each edge type."""
        edge_types = tuple(schema.edge_types[each.task.edge_type] for each in edges)
        named: dict[str, np.ndarray] = {}
        for i, (each, own) in enumerate(zip(edges, extras, strict=True)):
            named |= _named(i, each.task, own)
        own = vars(plan) | {"extras": named}
        return cls(**own, edges=tuple(edges), edge_types=edge_types, check_stored=check_stored)

    def link_identity(self, shared: bool) -> dict[str, Any]:
        """What a checkpoint in mid-epoch must find again, beside what it must of every loader. shared: the edges are the same
        on every rank, as the state is."""
        found = []
        for each in self.edges:
            task = {name: value for name, value in each.task.to_wire().items() if name != "loader"}
            found.append(task | ({"edges": each.digest} if shared else {}))
        return {"links": found[0] if len(found) == 1 else found}

    def request(self, number: int, key: int, positions: np.ndarray) -> BatchRequest:
        by_type = Pieces([len(each.src) for each in self.edges])
        pieces = by_type.split(positions)
        extras, link = dict[str, np.ndarray](), dict[str, np.ndarray]()
        for i, (each, edge_type, at) in enumerate(zip(self.edges, self.edge_types, pieces, strict=True)):
            arrays = each.arrays(key_of_type(key, edge_type, len(self.edges)), at)
            first = number * self.batch_size * self.world_size < LOOKED_UP
            if self.check_stored and each.task.exclude == "none" and first:
                arrays["look_up"] = np.zeros(1, dtype=np.int64)
            link |= _named(i, each.task, arrays | ({"src": each.gids[0][at]} if i else {}))
            extras |= {BatchRequest.of_type(each.task.edge_type, "input_id"): at} if i else {}
        for name, values in self.extras.items():
            prefix, _, _ = name.rpartition("/")
            at = next(
                (p for e, p in zip(self.edges, pieces, strict=True) if str(e.task.edge_type) == prefix), pieces[0]
            )
            extras[name] = values[at]
        src, trees = self.edges[0].gids[0][pieces[0]], self._trees(by_type.join(pieces))
        return BatchRequest(number, key, src, pieces[0], extras=extras, link=link, trees=trees)


def _named(i: int, task: LinkTask, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of the i-th edge type of a loader by their names in a request."""
    return {BatchRequest.of_type(task.edge_type, name) if i else name: array for name, array in arrays.items()}


# The plan of a loader of edges over a graph, and how its batches are sampled.


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
        each.check_tree(f"loader {spec.name!r}: ", each.tree, each.disjoint, each.neg_sampling, sampling.time_attr)
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
    earlier = bool(times) and sampling.time_boundary == "<"  # no edge is sampled at its own time
    link_plan = LinkPlan.over(plan, edges, extras, schema, spec.check_stored and not earlier)
    return PlannedLinks(link_plan, config, tasks, nodes, seeds)


def _with_time(spec: LinkSpec, task: LinkTask, manifest: Manifest, sampling: SamplingOptions) -> LinkTask:
    """With negatives of nodes that exist at the time of their edge, where nodes have times. Raises `OptionError` for times that
    are missing, or that nothing reads."""
    where = f"loader {spec.name!r}"
    remedy = "Give a time for each edge (time of edge_splits)."
    edges = spec.edge_label_index.shape[1]
    require_times(f"{where}: edge_label_time", spec.edge_label_time, edges, sampling, remedy)
    spec.check_sharing(where, spec.neg_sampling, sampling.time_attr)
    ends = task.ends(manifest.schema)
    of_nodes = sampling.time_attr is not None and any(sampling.time_attr in manifest.node_attrs(t) for t in ends)
    if task.unresolved != "error" and not of_nodes:
        raise OptionError(
            f"{where}: neg_sampling.unresolved: {task.unresolved!r} has no effect without sampling.time_attr and times of the "
            "nodes at either end. Remove it."
        )
    return replace(task, timed=of_nodes and task.mode is not None)
