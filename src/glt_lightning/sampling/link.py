"""Batches of edges of one type: their ends, and negatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.graph import LocalPartition
from glt_lightning.kernels import Among
from glt_lightning.sampling.link_task import LinkTask
from glt_lightning.sampling.negatives import (
    DrawnTrials,
    GivenTrials,
    NegativeTest,
    NodeTimes,
    Trials,
    draw_negatives,
    negative_mask,
)
from glt_lightning.sampling.neighbors import NeighborSource
from glt_lightning.sampling.questions.induce import Induce
from glt_lightning.sampling.request import BatchRequest

_EMPTY = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class LinkEnds:
    """The ends of a batch's edges of one type and of their negatives, as gids. ``src_neg`` is empty for triplets, whose negatives
    have the sources of their edges.

    excluded: (edge type, dst, src) of edges over which no messages are passed.  arrays: further arrays of the batch:
    ``stored`` and ``neg_mask``, if the request or task has them, and the attributes of the edges.
    """

    src: np.ndarray
    dst: np.ndarray
    src_neg: np.ndarray
    dst_neg: np.ndarray
    excluded: list[tuple[int, np.ndarray, np.ndarray]]
    arrays: dict[str, np.ndarray]

    @property
    def all(self) -> list[np.ndarray]:
        return [self.src, self.dst, self.src_neg, self.dst_neg]


class LinkSampler:
    """Finds the ends of a batch's edges of one type, in one thread. `BatchRequest.link` has the arrays of a request."""

    def __init__(self, source: NeighborSource, partition: LocalPartition, task: LinkTask) -> None:
        self._source, self.task = source, task
        self.types = task.ends(partition.schema)
        self._gids = (_EMPTY, _EMPTY)
        if task.mode is not None and task.sharing != "in_batch":
            self._gids = partition.gids(self.types[0]), partition.gids(self.types[1])
        self._times = (_times(partition, self.types[0]), _times(partition, self.types[1])) if task.timed else None
        self._test = NegativeTest(
            _none_of if task.related else self._has_edges,
            one_type=self.types[0] == self.types[1],
            self_loops=task.self_loops,
            near=source.local is source,
            where=f"loader {task.loader!r}",
        )

    def find(self, request: BatchRequest) -> LinkEnds:
        """Finds the ends for a request with the arrays of this edge type alone. Raises `DataError` for one that does not fit the
        graph, and for a strict negative that does not exist."""
        src, dst = request.seeds, _array(request.link, "dst", (len(request.seeds),))
        src_neg, dst_neg = self._negatives(request, src, dst)
        arrays = {}
        if "look_up" in request.link:
            arrays["stored"] = np.array([np.count_nonzero(self._has_edges(dst, src))])
        if self.task.sharing != "none":
            arrays["neg_mask"] = self._mask(request, dst_neg)
        if self.task.attrs:
            arrays |= self._attributes(src, dst)
        return LinkEnds(src, dst, src_neg, dst_neg, self._excluded(src, dst), arrays)

    def _has_edges(self, dst: np.ndarray, src: np.ndarray) -> np.ndarray:
        return self._source.has_edges(self.task.edge_type, *((src, dst) if self.task.turned else (dst, src)))

    def _attributes(self, src: np.ndarray, dst: np.ndarray) -> dict[str, np.ndarray]:
        """Reads the attributes of the edges themselves, by `LinkTask.target_name`. An edge that is not stored has zeros, and the
        id -1."""
        edges = self._stored_edges(*((dst, src) if self.task.turned else (src, dst)))
        some = np.flatnonzero(edges >= 0)
        found = {}
        for name, values in self._source.read_targets(self.task.edge_type, edges[some]).items():
            whole = np.zeros((len(src), *values.shape[1:]), values.dtype)
            if name == "e_id":
                whole = np.full(len(src), -1, dtype=np.int64)
            whole[some] = values
            found[LinkTask.target_name(name)] = whole
        return found

    def _stored_edges(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """Finds the edge rows of pairs of nodes, int64 [P]: of parallel edges the first; -1 for a pair without an edge."""
        (rows, at_row), (members, at_member) = (np.unique(ids, return_inverse=True) for ids in (dst, src))
        if not len(rows):
            return _EMPTY
        among = Among.of(self._source.local.stored_view, self.task.edge_type, rows, members, None)
        picks = self._source.ask(Induce(among))()  # without weights: an edge of weight 0 is in no batch, but is stored
        assert picks.edge_rows is not None
        pairs = np.repeat(np.arange(len(rows)), picks.counts) * len(members) + picks.neighbors
        known, first = np.unique(pairs, return_index=True)
        wanted = at_row * len(members) + at_member
        at = np.minimum(np.searchsorted(known, wanted), max(0, len(known) - 1))
        if not len(known):
            return np.full(len(src), -1, dtype=np.int64)
        return np.where(known[at] == wanted, picks.edge_rows[first[at]], -1)

    def _excluded(self, src: np.ndarray, dst: np.ndarray) -> list[tuple[int, np.ndarray, np.ndarray]]:
        src, dst = (dst, src) if self.task.turned else (src, dst)
        found = [] if self.task.exclude == "none" else [(self.task.edge_type, dst, src)]
        if self.task.exclude == "reverse" and self.task.reverse is not None:
            found.append((self.task.reverse, src, dst))
        return found

    def _negatives(self, request: BatchRequest, src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draws the negatives. Returns int64 gids (src, dst); if `LinkTask.mode` is triplet, ``src`` has those that are given."""
        task, count = self.task, self.task.count(len(src))
        if task.sharing == "in_batch":
            return _EMPTY, dst
        if not count:
            return _EMPTY, _EMPTY
        self._source.config.require_room(8 * count)
        trials = self._trials(request, count)
        draw = partial(draw_negatives, trials, test=self._test, gids=self._gids, times=self._node_times(request))
        if task.sharing == "shared":
            return _EMPTY, draw(np.arange(count), strict=False, src=np.zeros(count, np.int64))[1]
        rejected = request.link.get("rejected", _EMPTY)
        if task.mode == "binary":
            return draw(np.arange(count), strict=task.strict, src=None, rejected=rejected)
        given = self._given(request, count)
        left = np.flatnonzero(given < 0)
        given[left] = draw(left, strict=task.strict, src=src[left % len(src)], rejected=rejected)[1]
        return self._given_sources(request), given

    def _trials(self, request: BatchRequest, count: int) -> Trials:
        task = self.task
        if "trial_dst" not in request.link:
            return DrawnTrials(request.key, len(self._gids[0]), len(self._gids[1]))
        shape = count, task.trials
        trials = [_EMPTY, _EMPTY]
        for i, name in enumerate(("trial_src", "trial_dst")):
            if i or task.mode == "binary":
                trials[i] = _array(request.link, name, shape)
                _require_ids(name, trials[i], 0, len(self._gids[i]))
        return GivenTrials(*trials)

    def _node_times(self, request: BatchRequest) -> NodeTimes | None:
        if self._times is None:
            return None
        edges = _array(request.link, "time", (len(request.seeds),))
        return NodeTimes(*self._times, edges, self.task.unresolved == "oldest")

    def _given(self, request: BatchRequest, count: int) -> np.ndarray:
        """Returns int64 [count], the gids of negatives that the user has given, edge after edge; -1 for those to draw."""
        if "negatives" not in request.link:
            return np.full(count, -1, dtype=np.int64)
        positives = len(request.seeds)
        ids = _array(request.link, "negatives", (positives, count // positives)).T.ravel()
        _require_ids("negatives", ids, -1, len(self._gids[1]))
        return np.where(ids < 0, -1, self._gids[1][ids].astype(np.int64))

    def _given_sources(self, request: BatchRequest) -> np.ndarray:
        """Returns int64 [P x K], the gids of the sources that the user has given as negatives, a column after the other."""
        given = request.link.get("source_negatives")
        if given is None:
            return _EMPTY
        width = given.shape[1] if given.ndim == 2 else 1
        ids = _array(request.link, "source_negatives", (len(request.seeds), width)).T.ravel()
        self._source.config.require_room(8 * len(ids))
        _require_ids("source_negatives", ids, 0, len(self._gids[0]))
        return self._gids[0][ids].astype(np.int64)

    def _mask(self, request: BatchRequest, dst_neg: np.ndarray) -> np.ndarray:
        task, src = self.task, request.seeds
        self._source.config.require_room(len(src) * len(dst_neg))
        if task.strict:
            mask = negative_mask(src, dst_neg, self._test, request.link.get("rejected", _EMPTY))
        else:
            mask = np.ones((len(src), len(dst_neg)), bool)
        if task.sharing == "in_batch":
            mask &= dst_neg[None, :] != dst_neg[:, None]  # the diagonal, too
        return mask

    def fields(self, lids: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Makes the fields of a batch, by PyG's names. lids: the lids of `LinkEnds.all`."""
        task, (src, dst, src_neg, dst_neg) = self.task, lids
        if task.mode != "triplet":
            return {"edge_label_index": np.stack([np.concatenate([src, src_neg]), np.concatenate([dst, dst_neg])])}
        if task.sharing == "none" and task.amount > 1:
            dst_neg = np.ascontiguousarray(dst_neg.reshape(int(task.amount), len(dst)).T)
        fields = {"src_index": src, "dst_pos_index": dst, "dst_neg_index": dst_neg}
        if len(src_neg):
            fields["src_neg_index"] = np.ascontiguousarray(src_neg.reshape(-1, len(src)).T)
        return fields


def _times(partition: LocalPartition, node_type: int) -> np.ndarray | None:
    """Returns the times of the nodes of a type by user id, of deleted ones the last that there is; None: nodes have no times."""
    times, deleted = partition.node_times(node_type), partition.deleted(node_type)
    if times is None or not len(deleted):
        return times
    times = np.array(times)
    times[deleted] = np.iinfo(np.int64).max
    return times


def _none_of(dst: np.ndarray, src: np.ndarray) -> np.ndarray:
    return np.zeros(len(dst), bool)


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
