"""Ranking of links against all destinations, measured by the metrics of PyG; and of both ends of each link without other known
ones, as knowledge graphs are evaluated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch_geometric.metrics as pyg_metrics
from torch import Tensor
from torchmetrics import Metric

from glt_lightning.base import DataError, OptionError, at_least
from glt_lightning.inference.top_k import Candidates, HeldRows, KnownPairs

_METRICS = {
    "hits": "LinkPredHitRatio",
    "precision": "LinkPredPrecision",
    "recall": "LinkPredRecall",
    "f1": "LinkPredF1",
    "map": "LinkPredMAP",
    "ndcg": "LinkPredNDCG",
    "mrr": "LinkPredMRR",
}
_FILTERED = "filtered_"
_AT_ONCE = 1 << 24  # scores
_SOURCES, _DESTINATIONS = 4096, 1 << 16  # embeddings


def rank_links(
    source: np.ndarray | Mapping[str, np.ndarray],
    destination: np.ndarray | Mapping[str, np.ndarray],
    edges: np.ndarray,
    *,
    known: np.ndarray | None = None,
    metrics: Sequence[str] = ("hits@10", "mrr@10", "ndcg@10"),
    score: Callable[[Tensor, Tensor], Tensor] | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, float]:
    """Ranks, for each source of some edges, all destinations by their scores, and measures the ranks of its edges.

    No negatives are sampled, on whose number a metric would depend. Scores are made in pieces, so that memory does not grow
    with the graph.

    Args:
        source: float [N, D], embeddings of the source type by the user's ids; or what `read_embeddings` returns, which leaves out
            deleted nodes: nodes without a row are not ranked.
        destination: The same of the destination type; in a graph with one node type the same object.
        edges: int [2, E], the edges to predict, in the user's ids.
        known: int [2, K], edges that are left out of the ranking, such as those of training. An edge to predict is never left
            out.
        metrics: NAME@K: ``hits`` (share of sources with an edge among the first K), ``mrr``, ``ndcg``, ``map``, ``precision``,
            ``recall``, ``f1``; PyG's LinkPred metrics. Or ``filtered_mrr`` and ``filtered_hits@K``: each edge is ranked twice,
            its destination among all destinations and its source among all sources, without the other ``known`` edges.
        score: Scores [S, M] of S sources with all destinations, such as ``model.decoder.all_pairs`` of a `LinkPredictor`; None:
            inner products.
        device: Device that computes the scores.

    Raises:
        OptionError: For an unknown metric.
        DataError: For edges of nodes that do not exist, or have no embedding.

    Example:
        >>> rows = np.eye(4, dtype=np.float32)[[0, 1, 0, 1]]
        >>> rank_links(rows, rows, np.array([[0], [2]]), known=np.array([[0], [0]]), metrics=["hits@1", "mrr@2"])
        {'hits@1': 1.0, 'mrr@2': 1.0}
    """
    made: dict[str, Any] = {name: Ranking.metric(name).to(device) for name in metrics}
    (of_source, sources), (of_destination, destinations) = _given(source), _given(destination)
    edges = _checked("edges", edges, sources, destinations)
    known = _checked("known", np.empty((2, 0)) if known is None else known, sources, destinations)

    def tensor(rows: np.ndarray) -> Tensor:
        return torch.from_numpy(np.asarray(rows, dtype=np.float32)).to(device)

    ranking = Ranking(
        lambda at: tensor(of_source[at]),
        lambda at: tensor(of_destination[at]),
        (len(sources), len(destinations)),
        score or _products,
    )
    with torch.no_grad():
        ranking.update(made.values(), edges, known)
    return {name: float(metric.compute()) for name, metric in made.items()}


# A reciprocal rank is counted in units of 2^-30. Integers sum up to the same number in any order, so the result does not
# depend on ranks and batches; int64 has room for 8e9 positives, and the error of a mean is below that of float32.
_UNIT = 1 << 30


class RankMetric(Metric):
    """The mean reciprocal rank, or Hits@K: the share of ranks up to K. Without ranks it is NaN.

    Each rank of the job holds two integers, so the result is the same, bit for bit, for any number of them and of batches.

    k: K; None: the mean reciprocal rank.  kwargs: arguments of torchmetrics' `Metric`.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    total: Tensor  # in units
    num_positives: Tensor

    def __init__(self, k: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if k is not None:
            at_least("k", k, 1)
        self.k = k
        self.add_state("total", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("num_positives", torch.tensor(0), dist_reduce_fx="sum")

    @staticmethod
    def twice(positive: Tensor, negative: Tensor) -> Tensor:
        """Returns int64 [P]: two times the rank of each score [P] among its negatives [P, K], from 1 on; a tie counts half, as in
        OGB's ``Evaluator``."""
        above, not_below = (negative > positive[:, None]).sum(dim=1), (negative >= positive[:, None]).sum(dim=1)
        return 2 + above + not_below

    def update(self, twice: Tensor) -> None:
        """Adds ranks, int64 [n], as `twice` returns them."""
        found = 2 * _UNIT / twice.double() if self.k is None else _UNIT * (twice <= 2 * self.k)
        self.total = self.total + found.round().long().sum()
        self.num_positives = self.num_positives + len(twice)

    def compute(self) -> Tensor:
        """Returns float32: the mean over all ranks of the job."""
        return (self.total.double() / _UNIT / self.num_positives).float()


@dataclass(frozen=True)
class Embedded:
    """Nodes of a type. rows: returns the embeddings of ids int64 [n].  count: number of nodes."""

    rows: Callable[[np.ndarray], Tensor]
    count: int


class Ranking:
    """Ranks the ends of edges in pieces.

    source, destination: return the embeddings of ids int64 [n].  counts: numbers of sources and of destinations.
    score: returns the scores of all pairs of some sources and destinations."""

    def __init__(
        self,
        source: Callable[[np.ndarray], Tensor],
        destination: Callable[[np.ndarray], Tensor],
        counts: tuple[int, int],
        score: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        self.source, self.destination = Embedded(source, counts[0]), Embedded(destination, counts[1])
        self.score = score

    @staticmethod
    def metric(name: str) -> Any:
        """Makes PyG's metric of a NAME@K, or a `RankMetric` of a filtered one. Raises `OptionError` for an unknown one."""
        kind, _, k = str(name).partition("@")
        if kind == f"{_FILTERED}mrr" and kind == name:
            return RankMetric()
        if kind not in (*_METRICS, f"{_FILTERED}hits") or not k.isdigit() or not int(k):
            raise OptionError(
                f"metrics: expected NAME@K with a name of {', '.join(_METRICS)}, such as hits@10, or filtered_mrr or "
                f"filtered_hits@K; got {name!r}."
            )
        return RankMetric(int(k)) if kind.startswith(_FILTERED) else getattr(pyg_metrics, _METRICS[kind])(int(k))

    def update(
        self, metrics: Iterable[Any], edges: np.ndarray, known: np.ndarray, filtered: np.ndarray | None = None
    ) -> None:
        """Updates metrics with the ranking of each source of edges int64 [2, E], those that are filtered with the ranks of both
        ends of each edge. known: int64 [2, K], edges that are left out.  filtered: those that are left out for filtered metrics;
        None: the same."""
        metrics = list(metrics)
        of_ranks = [metric for metric in metrics if isinstance(metric, RankMetric)]
        if of_ranks:
            self._update_filtered(of_ranks, edges, known if filtered is None else filtered)
        if len(metrics) > len(of_ranks):
            others = [metric for metric in metrics if not isinstance(metric, RankMetric)]
            self._update_first(others, np.unique(edges, axis=1), known)

    def _update_filtered(self, metrics: Sequence[RankMetric], edges: np.ndarray, known: np.ndarray) -> None:
        def turned(some: Tensor, others: Tensor) -> Tensor:
            return self.score(others, some).T

        sides = (self.source, self.destination, self.score), (self.destination, self.source, turned)
        for n, (given, ranked, score) in enumerate(sides):
            pairs = edges[:: -1 if n else 1]
            left_out = KnownPairs(pairs[:: -1 if n else 1] for pairs in (edges, known))
            for twice in _ranks(given, ranked, score, pairs[:, np.argsort(pairs[0], kind="stable")], left_out):
                for metric in metrics:
                    metric.update(twice.to(metric.device))

    def _update_first(self, metrics: Sequence[Any], edges: np.ndarray, known: np.ndarray) -> None:
        sources = np.unique(edges[0])
        most = min(self.destination.count, max(metric.k for metric in metrics))
        by_source = [pairs[:, np.argsort(pairs[0], kind="stable")] for pairs in (edges, known)]
        for begin in range(0, len(sources), _SOURCES):
            some = sources[begin : begin + _SOURCES]
            wanted, left_out = (_of_sources(pairs, some) for pairs in by_source)
            first = self._first(self.source.rows(some), wanted, left_out, most)
            for metric in metrics:
                metric.update(first[:, : metric.k], torch.from_numpy(wanted).to(first.device))

    def _first(self, rows: Tensor, wanted: np.ndarray, left_out: np.ndarray, most: int) -> Tensor:
        """Returns int64 [S, most]: the destinations with the highest scores. wanted, left_out: [2, n], positions of sources and
        ids."""
        best, ids = rows.new_empty(len(rows), 0), torch.empty(len(rows), 0, dtype=torch.long, device=rows.device)
        at_once = max(1, min(_DESTINATIONS, _AT_ONCE // len(rows)))
        for begin in range(0, self.destination.count, at_once):
            some = np.arange(begin, min(begin + at_once, self.destination.count))
            scores = self.score(rows, self.destination.rows(some))
            own, drop = (_of_destinations(pairs, begin, len(some), rows.device) for pairs in (wanted, left_out))
            kept = scores[own[0], own[1]]
            scores[drop[0], drop[1]] = float("-inf")
            scores[own[0], own[1]] = kept
            top = scores.topk(min(most, len(some)), dim=1)
            best, ids = torch.cat([best, top.values], dim=1), torch.cat([ids, top.indices + begin], dim=1)
            chosen = best.topk(min(most, best.size(1)), dim=1)
            best, ids = chosen.values, ids.gather(1, chosen.indices)
        return ids


def _ranks(
    given: Embedded, ranked: Embedded, score: Callable[[Tensor, Tensor], Tensor], edges: np.ndarray, known: KnownPairs
) -> Iterator[Tensor]:
    """Yields `RankMetric.twice` of the second end of some edges at a time among all nodes of its type.

    edges: int64 [2, E], by their first end.  known: pairs that are left out, the edges themselves among them."""
    rows, at_once = HeldRows(ranked.rows), max(1, _AT_ONCE // ranked.count)
    blocks = [np.arange(at, min(at + _DESTINATIONS, ranked.count)) for at in range(0, ranked.count, _DESTINATIONS)]
    for begin in range(0, edges.shape[1], at_once):
        ends, wanted = edges[:, begin : begin + at_once]
        ids, at = np.unique(ends, return_inverse=True)
        own = given.rows(ids)
        # the whole row at once: equal scores are equal bits if one call makes them
        scores = torch.cat([score(own, rows(block)).float() for block in blocks], dim=1)[
            torch.from_numpy(at).to(own.device)
        ]
        if scores.isnan().any():
            raise DataError("ranking: a score is not a number. Has the model diverged?")
        positive = scores.gather(1, torch.from_numpy(wanted).to(own.device)[:, None])[:, 0]
        drop = torch.from_numpy(known.of(ends)).to(own.device)
        scores[drop[0], drop[1]] = float("-inf")
        yield RankMetric.twice(positive, scores)


def _products(rows: Tensor, others: Tensor) -> Tensor:
    return rows @ others.T


def _of_destinations(pairs: np.ndarray, begin: int, count: int, device: torch.device) -> Tensor:
    """Returns int64 [2, n]: the pairs whose destination is in a range, by position in it."""
    here = (pairs[1] >= begin) & (pairs[1] < begin + count)
    return torch.from_numpy(np.stack([pairs[0][here], pairs[1][here] - begin])).to(device)


def _given(embedded: np.ndarray | Mapping[str, np.ndarray]) -> tuple[np.ndarray, Candidates]:
    """Returns embeddings, and the nodes that they are of."""
    if not isinstance(embedded, Mapping):
        return embedded, Candidates(len(embedded))
    rows, ids = embedded["embedding"], embedded["n_id"]
    if (np.diff(ids) <= 0).any():
        raise DataError(
            "rank_links: n_id: expected the nodes of one type, ascending. Read them by read_embeddings(folder, node_type)."
        )
    return rows, Candidates(int(ids.max(initial=-1)) + 1, ids)


def _checked(name: str, pairs: np.ndarray, sources: Candidates, destinations: Candidates) -> np.ndarray:
    """Returns int64 [2, E]: the positions of the ends of pairs, without repetitions. Raises `DataError` for another shape, or ids
    without an embedding."""
    found = np.asarray(pairs)
    if found.ndim != 2 or len(found) != 2:
        raise DataError(f"rank_links: {name}: expected [2, E], got {list(found.shape)}.")
    found = np.unique(found.astype(np.int64), axis=1)
    ends = []
    for end, ids, nodes in (("source", found[0], sources), ("destination", found[1], destinations)):
        at = nodes.positions(ids)
        bad = ids[(ids < 0) | (ids >= nodes.count) | (at < 0)]
        if len(bad):
            rows = (
                f"rows 0 to {nodes.count - 1}" if nodes.ids is None else f"{len(nodes)} nodes up to {nodes.count - 1}"
            )
            raise DataError(f"rank_links: {name}: {end} {bad[0]} has no embedding; there are {rows}.")
        ends.append(at)
    return np.stack(ends)


def _of_sources(pairs: np.ndarray, sources: np.ndarray) -> np.ndarray:
    """Returns int64 [2, n]: the pairs of some sources, by position in these. Pairs and sources ascend by source."""
    at = np.minimum(np.searchsorted(sources, pairs[0]), len(sources) - 1)
    here = sources[at] == pairs[0]
    return np.stack([at[here], pairs[1][here]])
