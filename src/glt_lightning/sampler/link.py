"""Batches of edges: their negatives, and the nodes around the ends of both."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.errors import DataError
from glt_lightning.ops.excluded import ExcludedEdges
from glt_lightning.sampler.counters import Counters
from glt_lightning.sampler.link_task import LinkTask
from glt_lightning.sampler.negatives import (
    TRIALS,
    DrawnTrials,
    GivenTrials,
    NegativeTest,
    Trials,
    draw_negatives,
    negative_mask,
)
from glt_lightning.sampler.neighbors import NeighborSource
from glt_lightning.sampler.request import BatchRequest

_EMPTY = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class LinkEnds:
    """The ends of a batch's edges and negatives.

    seeds: node type -> int64 gids, each once, in first-occurrence order of the edges' sources, destinations, and those of
    negatives.  excluded: edges of the batch over which no messages are passed.  arrays: by PyG's names, with positions among
    these seeds.  counters: what it took to find them.
    """

    seeds: dict[int, np.ndarray]
    excluded: ExcludedEdges | None
    arrays: dict[str, np.ndarray]
    counters: Counters


class LinkSampler:
    """Finds the seeds of batches of edges, in one thread. `BatchRequest.link` says what a request brings."""

    def __init__(self, source: NeighborSource, partition: LocalPartition, task: LinkTask) -> None:
        self._source, self._task = source, task
        schema = partition.schema
        self._types = schema.source_types()[task.edge_type], schema.destination_types()[task.edge_type]
        self._gids = (_EMPTY, _EMPTY)
        if task.mode is not None and task.sharing != "in_batch":
            self._gids = partition.gids(self._types[0]), partition.gids(self._types[1])
        self._test = NegativeTest(
            partial(source.has_edges, task.edge_type),
            one_type=self._types[0] == self._types[1],
            self_loops=task.self_loops,
            near=source.local is source,
            where=f"loader {task.loader!r}",
        )

    def find(self, request: BatchRequest) -> LinkEnds:
        """Raises `DataError` for a request that does not fit the graph, and for a strict negative that does not exist."""
        begin = time.perf_counter()
        self._source.begin()
        src, dst = request.seeds, _array(request.link, "dst", (len(request.seeds),))
        src_neg, dst_neg = self._negatives(request, src, dst)
        excluded = self._excluded(request, src, dst)
        stored = {}
        if "look_up" in request.link:
            found = self._source.has_edges(self._task.edge_type, dst, src)
            stored["stored"] = np.array([np.count_nonzero(found)])
        seeds, (src, dst, src_neg, dst_neg_lids) = _first_occurrences(self._types, src, dst, src_neg, dst_neg)
        arrays = stored | self._fields(src, dst, src_neg, dst_neg_lids)
        if self._task.sharing != "none":
            arrays["neg_mask"] = self._mask(request, dst_neg)
        counters = Counters(remote_s=self._source.local.counters.remote_s)
        counters.sample_s = time.perf_counter() - begin - counters.remote_s
        return LinkEnds(seeds, excluded, arrays, counters)

    def _excluded(self, request: BatchRequest, src: np.ndarray, dst: np.ndarray) -> ExcludedEdges | None:
        task = self._task
        pairs = {} if request.excluded is None else dict(request.excluded.pairs)
        wanted = [] if task.exclude == "none" else [(task.edge_type, dst, src)]
        if task.exclude == "reverse" and task.reverse is not None:
            wanted.append((task.reverse, src, dst))
        for edge_type, to, of in wanted:
            more_to, more_of = pairs.get(edge_type, (_EMPTY, _EMPTY))
            pairs[edge_type] = np.concatenate([to, more_to]), np.concatenate([of, more_of])
        return ExcludedEdges.of(pairs) if pairs else None

    def _negatives(self, request: BatchRequest, src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(src, dst) int64 gids of the negatives; sources are none of their own where `LinkTask.mode` is triplet."""
        task, count = self._task, self._task.count(len(src))
        if task.sharing == "in_batch":
            return _EMPTY, dst
        if not count:
            return _EMPTY, _EMPTY
        self._source.config.require_room(8 * count)
        trials = self._trials(request, count)
        draw = partial(draw_negatives, trials, test=self._test, gids=self._gids)
        if task.sharing == "shared":
            return _EMPTY, draw(np.arange(count), strict=False, src=np.zeros(count, np.int64))[1]
        rejected = request.link.get("rejected", _EMPTY)
        if task.mode == "binary":
            return draw(np.arange(count), strict=task.strict, src=None, rejected=rejected)
        given = self._given(request, count)
        left = np.flatnonzero(given < 0)
        given[left] = draw(left, strict=task.strict, src=src[left % len(src)], rejected=rejected)[1]
        return _EMPTY, given

    def _trials(self, request: BatchRequest, count: int) -> Trials:
        task = self._task
        if "trial_dst" not in request.link:
            return DrawnTrials(request.key, len(self._gids[0]), len(self._gids[1]))
        shape = count, (TRIALS if task.strict and task.sharing == "none" else 1)
        trials = [_EMPTY, _EMPTY]
        for i, name in enumerate(("trial_src", "trial_dst")):
            if i or task.mode == "binary":
                trials[i] = _array(request.link, name, shape)
                _require_ids(name, trials[i], 0, len(self._gids[i]))
        return GivenTrials(*trials)

    def _given(self, request: BatchRequest, count: int) -> np.ndarray:
        """int64 [count]: gids of negatives that the user has given, -1 for those to draw, of one edge after the other."""
        if "negatives" not in request.link:
            return np.full(count, -1, dtype=np.int64)
        positives = len(request.seeds)
        ids = _array(request.link, "negatives", (positives, count // positives)).T.ravel()
        _require_ids("negatives", ids, -1, len(self._gids[1]))
        return np.where(ids < 0, -1, self._gids[1][ids].astype(np.int64))

    def _mask(self, request: BatchRequest, dst_neg: np.ndarray) -> np.ndarray:
        task, src = self._task, request.seeds
        self._source.config.require_room(len(src) * len(dst_neg))
        if task.strict:
            mask = negative_mask(src, dst_neg, self._test, request.link.get("rejected", _EMPTY))
        else:
            mask = np.ones((len(src), len(dst_neg)), bool)
        if task.sharing == "in_batch":
            mask &= dst_neg[None, :] != dst_neg[:, None]  # the diagonal, too
        return mask

    def _fields(
        self, src: np.ndarray, dst: np.ndarray, src_neg: np.ndarray, dst_neg: np.ndarray
    ) -> dict[str, np.ndarray]:
        task = self._task
        if task.mode != "triplet":
            return {"edge_label_index": np.stack([np.concatenate([src, src_neg]), np.concatenate([dst, dst_neg])])}
        if task.sharing == "none" and task.amount > 1:
            dst_neg = np.ascontiguousarray(dst_neg.reshape(int(task.amount), len(dst)).T)
        return {"src_index": src, "dst_pos_index": dst, "dst_neg_index": dst_neg}


def _first_occurrences(
    types: tuple[int, int], src: np.ndarray, dst: np.ndarray, src_neg: np.ndarray, dst_neg: np.ndarray
) -> tuple[dict[int, np.ndarray], list[np.ndarray]]:
    """The distinct nodes of each type in the order of the arrays, and the arrays with positions among them."""
    arrays, of_type = [src, dst, src_neg, dst_neg], [types[0], types[1], types[0], types[1]]
    seeds: dict[int, np.ndarray] = {}
    lids = list(arrays)
    for node_type in set(types):
        mine = [i for i, t in enumerate(of_type) if t == node_type]
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


def _array(given: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...]) -> np.ndarray:
    array = given.get(name)
    if array is None or array.dtype != np.int64 or array.shape != shape:
        got = "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
        raise DataError(f"link/{name}: expected int64 {list(shape)}, got {got}.")
    return array


def _require_ids(name: str, ids: np.ndarray, least: int, end: int) -> None:
    if ids.size and (ids.min() < least or ids.max() >= end):
        bad = ids[(ids < least) | (ids >= end)][0]
        raise DataError(f"link/{name}: {bad} is out of range: ids are {least} to {end - 1}.")
