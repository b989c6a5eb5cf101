"""Batches of edges of one or several types: the seeds around which they are sampled."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.graph import LocalPartition
from glt_lightning.kernels import ExcludedEdges, Trees
from glt_lightning.sampling.counters import Counters
from glt_lightning.sampling.link import LinkEnds, LinkSampler
from glt_lightning.sampling.link_task import LinkTask
from glt_lightning.sampling.negatives import key_of_type
from glt_lightning.sampling.neighbors import NeighborSource
from glt_lightning.sampling.request import BatchRequest

_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class EdgeSeeds:
    """The seeds around which a batch of edges is sampled.

    seeds: node type -> int64 gids, each once, in the order in which they first occur: sources of the edges, destinations,
    then those of negatives, edge type after edge type. A disjoint batch has all of them, repeated ones included.
    excluded: edges over which no messages are passed.  arrays: the fields of the batch by PyG's names, with positions among
    the seeds; fields of further edge types are named by `BatchRequest.of_type`.  counters: the counters of the search.
    trees: the trees of the seeds, if several share one, and their bounds in time, if they have any; else None.
    examples: int64, in a disjoint batch the number of the edge that each tree belongs to, edge type after edge type;
    negative j belongs to edge j modulo the number of edges. If a tree has both ends of an edge, it is the number of the
    tree, and the trees of negatives follow those of the edges.
    """

    seeds: dict[int, np.ndarray]
    excluded: ExcludedEdges | None
    arrays: dict[str, np.ndarray]
    counters: Counters
    trees: Trees | None = None
    examples: np.ndarray | None = None


class LinksSampler:
    """Finds the seeds of batches of edges, in one thread. `SamplerConfig.links` has the edge types."""

    def __init__(self, source: NeighborSource, partition: LocalPartition) -> None:
        self._source = source
        self._links = [LinkSampler(source, partition, task) for task in source.config.links]
        self._edge_types = [partition.schema.edge_types[each.task.edge_type] for each in self._links]

    def find(self, request: BatchRequest) -> EdgeSeeds:
        """Finds the seeds of one batch. Raises `DataError` for a request that does not fit the graph, and for a strict negative
        that does not exist."""
        begin = time.perf_counter()
        self._source.begin()
        requests = split_by_type(request, [link.task for link in self._links])
        found = []
        for link, edge_type, mine in zip(self._links, self._edge_types, requests, strict=True):
            key = key_of_type(request.key, edge_type, len(self._links))
            found.append(link.find(replace(mine, key=key)))
        seeds, lids, examples = self._place(found)
        trees = _trees_of(request, examples, found)
        if self._source.config.disjoint and any(link.task.joint for link in self._links):
            trees, examples = self._joint_trees(request, found)
        arrays = {}
        for i, (link, ends) in enumerate(zip(self._links, found, strict=True)):
            for name, array in (ends.arrays | link.fields(lids[4 * i : 4 * i + 4])).items():
                arrays[BatchRequest.of_type(link.task.edge_type, name) if i else name] = array
        counters = Counters(remote_s=self._source.local.counters.remote_s)
        counters.sample_s = time.perf_counter() - begin - counters.remote_s
        for link in self._links:
            if link.task.attrs:
                self._source.local.targets[link.task.edge_type].count(counters)
        excluded = _joined(request.excluded, [each for ends in found for each in ends.excluded])
        return EdgeSeeds(seeds, excluded, arrays, counters, trees, examples)

    def _place(self, found: Sequence[LinkEnds]) -> tuple[dict[int, np.ndarray], list[np.ndarray], np.ndarray | None]:
        """Returns the seeds, the positions among them of all arrays of ``found``, and `EdgeSeeds.examples`."""
        types = [t for link in self._links for t in (*link.types, *link.types)]
        arrays = [gids for ends in found for gids in ends.all]
        if not self._source.config.disjoint:
            return *_first_occurrences(types, arrays), None
        ends = np.cumsum([0, *(len(each.src) for each in found)]).tolist()
        shared = [4 * i + 3 for i, link in enumerate(self._links) if link.task.sharing == "in_batch"]
        for i in shared:  # these negatives are the destinations of the edges, and share their trees
            arrays[i] = _NONE
        examples = [
            ends[i // 4] + np.arange(len(gids)) % max(1, len(found[i // 4].src)) for i, gids in enumerate(arrays)
        ]
        seeds, lids = _one_by_one(types, arrays)
        for i in shared:
            lids[i] = lids[i - 2]
        in_order = sorted(range(len(arrays)), key=lambda i: types[i])
        return seeds, lids, np.concatenate([examples[i] for i in in_order])

    def _joint_trees(self, request: BatchRequest, found: Sequence[LinkEnds]) -> tuple[Trees, np.ndarray]:
        """Makes trees with both ends of an edge, or of a negative, for seeds in the order of `_place`. Raises `DataError` for a
        request with bounds in time."""
        if request.trees is not None:
            raise DataError(f"batch {request.number}: trees with both ends of an edge have no bounds in time.")
        of: dict[int, list[np.ndarray]] = {}
        first = 0
        for link, ends in zip(self._links, found, strict=True):
            for node_type, gids, begin in zip(
                (*link.types, *link.types), ends.all, (0, 0, len(ends.src), len(ends.src)), strict=True
            ):
                of.setdefault(node_type, []).append(np.arange(len(gids), dtype=np.int32) + np.int32(first + begin))
            first += len(ends.src) + len(ends.src_neg)
        return Trees({t: np.concatenate(of[t]) for t in sorted(of)}), np.arange(first)


def split_by_type(request: BatchRequest, tasks: Sequence[LinkTask]) -> list[BatchRequest]:
    """Splits a request into one for each edge type, with its own edges and arrays. Raises `DataError` if the sources of one are
    missing."""
    own: list[dict[str, np.ndarray]] = [{} for _ in tasks]
    place = {str(task.edge_type): i for i, task in enumerate(tasks) if i}
    for name, array in request.link.items():
        of, _, name = name.rpartition("/")
        if of not in {"", *place}:
            known = ", ".join(place) or "none"
            raise DataError(f"link/{of}/{name}: unknown edge type; those of config.more_links are {known}.")
        own[place.get(of, 0)][name] = array
    requests = [replace(request, link=own[0])]
    for task, arrays in zip(tasks[1:], own[1:], strict=True):
        src = arrays.pop("src", None)
        if src is None or src.dtype != np.int64 or src.ndim != 1:
            got = "nothing" if src is None else f"{src.dtype} {list(src.shape)}"
            raise DataError(f"link/{BatchRequest.of_type(task.edge_type, 'src')}: expected int64 [S], got {got}.")
        requests.append(replace(request, seeds=src, link=arrays))
    return requests


def _joined(given: ExcludedEdges | None, wanted: Sequence[tuple[int, np.ndarray, np.ndarray]]) -> ExcludedEdges | None:
    pairs = {} if given is None else {r: [pair] for r, pair in given.pairs.items()}
    for edge_type, dst, src in wanted:
        pairs.setdefault(edge_type, []).append((dst, src))
    if not pairs:
        return None
    return ExcludedEdges.of(
        {r: (np.concatenate([d for d, _ in some]), np.concatenate([s for _, s in some])) for r, some in pairs.items()}
    )


def _first_occurrences(
    types: Sequence[int], arrays: Sequence[np.ndarray]
) -> tuple[dict[int, np.ndarray], list[np.ndarray]]:
    """Returns the distinct nodes of each type in the order of the arrays, and for each array its positions among these. types:
    the node type of each array."""
    seeds: dict[int, np.ndarray] = {}
    lids = list(arrays)
    for node_type in set(types):
        mine = [i for i, t in enumerate(types) if t == node_type]
        ids, first, inverse = np.unique(
            np.concatenate([arrays[i] for i in mine]), return_index=True, return_inverse=True
        )
        order = np.argsort(first)
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        seeds[node_type] = ids[order]
        ends = np.cumsum([len(arrays[i]) for i in mine])[:-1]
        for i, each in zip(mine, np.split(rank[inverse], ends), strict=True):
            lids[i] = each
    return seeds, lids


def _one_by_one(types: Sequence[int], arrays: Sequence[np.ndarray]) -> tuple[dict[int, np.ndarray], list[np.ndarray]]:
    """Returns all nodes of each type in the order of the arrays, and for each array its positions among these. types: the node
    type of each array."""
    seeds, lids = {}, list(arrays)
    for node_type in sorted(set(types)):
        mine = [i for i, t in enumerate(types) if t == node_type]
        ends = np.cumsum([0, *(len(arrays[i]) for i in mine)]).tolist()
        for i, begin, end in zip(mine, ends[:-1], ends[1:], strict=True):
            lids[i] = np.arange(begin, end)
        seeds[node_type] = np.concatenate([arrays[i] for i in mine])
    return seeds, lids


def _trees_of(request: BatchRequest, examples: np.ndarray | None, found: Sequence[LinkEnds]) -> Trees | None:
    """Gives each tree the bounds in time of the edge that it belongs to. Raises `DataError` if the request's bounds do not
    fit."""
    trees, edges = request.trees, sum(len(ends.src) for ends in found)
    if trees is None:
        return None
    if examples is None or trees.of or trees.num_trees != edges:
        raise DataError(
            f"batch {request.number}: expected until and since for each of {edges} edges of a disjoint batch."
        )
    until, since = (None if bound is None else bound[examples] for bound in (trees.until, trees.since))
    return Trees(until=until, since=since)
