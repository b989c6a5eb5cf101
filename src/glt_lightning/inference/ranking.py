"""Ranking of links against all destinations, measured by the metrics of PyG."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch_geometric.metrics as pyg_metrics
from torch import Tensor

from glt_lightning.base import DataError, OptionError

_METRICS = {
    "hits": "LinkPredHitRatio",
    "precision": "LinkPredPrecision",
    "recall": "LinkPredRecall",
    "f1": "LinkPredF1",
    "map": "LinkPredMAP",
    "ndcg": "LinkPredNDCG",
    "mrr": "LinkPredMRR",
}
_AT_ONCE = 1 << 24  # scores
_SOURCES, _DESTINATIONS = 4096, 1 << 16  # embeddings


def rank_links(
    source: np.ndarray,
    destination: np.ndarray,
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
        source: float [N, D], embeddings of the source type by the user's ids, as `read_embeddings` gives them.
        destination: float [M, D], embeddings of the destination type; in a graph with one node type the same array.
        edges: int [2, E], the edges to predict, in the user's ids.
        known: int [2, K], edges that are left out of the ranking, such as those of training. An edge to predict is never left
            out.
        metrics: NAME@K: ``hits`` (share of sources with an edge among the first K), ``mrr``, ``ndcg``, ``map``, ``precision``,
            ``recall``, ``f1``; PyG's LinkPred metrics.
        score: Scores [S, M] of S sources with all destinations, such as ``model.decoder.all_pairs`` of a `LinkPredictor`; None:
            inner products.
        device: Device that computes the scores.

    Raises:
        OptionError: For an unknown metric.
        DataError: For edges of nodes that do not exist.

    Example:
        >>> rows = np.eye(4, dtype=np.float32)[[0, 1, 0, 1]]
        >>> rank_links(rows, rows, np.array([[0], [2]]), known=np.array([[0], [0]]), metrics=["hits@1", "mrr@2"])
        {'hits@1': 1.0, 'mrr@2': 1.0}
    """
    made = {name: ranking_metric(name).to(device) for name in metrics}
    edges = _checked("edges", edges, len(source), len(destination))
    known = _checked("known", np.empty((2, 0)) if known is None else known, len(source), len(destination))

    def tensor(rows: np.ndarray) -> Tensor:
        return torch.from_numpy(np.asarray(rows, dtype=np.float32)).to(device)

    ranking = Ranking(
        lambda ids: tensor(source[ids]), lambda ids: tensor(destination[ids]), len(destination), score or _products
    )
    with torch.no_grad():
        ranking.update(made.values(), edges, known)
    return {name: float(metric.compute()) for name, metric in made.items()}


def ranking_metric(name: str) -> Any:
    """Makes PyG's metric of a NAME@K. Raises `OptionError` for an unknown one."""
    kind, _, k = str(name).partition("@")
    if kind not in _METRICS or not k.isdigit() or not int(k):
        raise OptionError(
            f"metrics: expected NAME@K with a name of {', '.join(_METRICS)}, such as hits@10; got {name!r}."
        )
    return getattr(pyg_metrics, _METRICS[kind])(int(k))


@dataclass(frozen=True)
class Ranking:
    """Ranks destinations in pieces.

    source, destination: return the embeddings of ids int64 [n].  count: number of destinations.
    score: returns the scores of all pairs of some sources and destinations."""

    source: Callable[[np.ndarray], Tensor]
    destination: Callable[[np.ndarray], Tensor]
    count: int
    score: Callable[[Tensor, Tensor], Tensor]

    def update(self, metrics: Iterable[Any], edges: np.ndarray, known: np.ndarray) -> None:
        """Updates metrics with the ranking of each source of edges int64 [2, E]. known: int64 [2, K], edges that are left out."""
        metrics, sources = list(metrics), np.unique(edges[0])
        most = min(self.count, max((metric.k for metric in metrics), default=1))
        by_source = [pairs[:, np.argsort(pairs[0], kind="stable")] for pairs in (edges, known)]
        for begin in range(0, len(sources), _SOURCES):
            some = sources[begin : begin + _SOURCES]
            wanted, left_out = (_of_sources(pairs, some) for pairs in by_source)
            first = self._first(self.source(some), wanted, left_out, most)
            for metric in metrics:
                metric.update(first[:, : metric.k], torch.from_numpy(wanted).to(first.device))

    def _first(self, rows: Tensor, wanted: np.ndarray, left_out: np.ndarray, most: int) -> Tensor:
        """Returns int64 [S, most]: the destinations with the highest scores. wanted, left_out: [2, n], positions of sources and
        ids."""
        best, ids = rows.new_empty(len(rows), 0), torch.empty(len(rows), 0, dtype=torch.long, device=rows.device)
        at_once = max(1, min(_DESTINATIONS, _AT_ONCE // len(rows)))
        for begin in range(0, self.count, at_once):
            some = np.arange(begin, min(begin + at_once, self.count))
            scores = self.score(rows, self.destination(some))
            own, drop = (_of_destinations(pairs, begin, len(some), rows.device) for pairs in (wanted, left_out))
            kept = scores[own[0], own[1]]
            scores[drop[0], drop[1]] = float("-inf")
            scores[own[0], own[1]] = kept
            top = scores.topk(min(most, len(some)), dim=1)
            best, ids = torch.cat([best, top.values], dim=1), torch.cat([ids, top.indices + begin], dim=1)
            chosen = best.topk(min(most, best.size(1)), dim=1)
            best, ids = chosen.values, ids.gather(1, chosen.indices)
        return ids


def _products(rows: Tensor, others: Tensor) -> Tensor:
    return rows @ others.T


def _of_destinations(pairs: np.ndarray, begin: int, count: int, device: torch.device) -> Tensor:
    """Returns int64 [2, n]: the pairs whose destination is in a range, by position in it."""
    here = (pairs[1] >= begin) & (pairs[1] < begin + count)
    return torch.from_numpy(np.stack([pairs[0][here], pairs[1][here] - begin])).to(device)


def _checked(name: str, pairs: np.ndarray, sources: int, destinations: int) -> np.ndarray:
    """Returns int64 [2, E]: the pairs without repetitions. Raises `DataError` for another shape, or ids out of range."""
    found = np.asarray(pairs)
    if found.ndim != 2 or len(found) != 2:
        raise DataError(f"rank_links: {name}: expected [2, E], got {list(found.shape)}.")
    found = np.unique(found.astype(np.int64), axis=1)
    for end, ids, count in (("source", found[0], sources), ("destination", found[1], destinations)):
        bad = ids[(ids < 0) | (ids >= count)]
        if len(bad):
            raise DataError(f"rank_links: {name}: {end} {bad[0]} has no embedding; there are rows 0 to {count - 1}.")
    return found


def _of_sources(pairs: np.ndarray, sources: np.ndarray) -> np.ndarray:
    """Returns int64 [2, n]: the pairs of some sources, by position in these. Pairs and sources ascend by source."""
    at = np.minimum(np.searchsorted(sources, pairs[0]), len(sources) - 1)
    here = sources[at] == pairs[0]
    return np.stack([at[here], pairs[1][here]])
