"""Link predictors ranked against all destinations, by the metrics of PyG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch_geometric.metrics as pyg_metrics
from torch import Tensor

from glt_lightning.errors import DataError, OptionError

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
    """Ranks, for each source of some edges, all destinations by their scores, and measures where its edges are in this order.

    Nothing is sampled: a metric does not depend on a number of negatives, as drawn ones make it. Scores are made in pieces,
    so that memory does not grow with the graph.

    Args:
        source: float [N, D], embeddings of the source type by the user's ids, as `read_embeddings` gives them.
        destination: float [M, D], of the destination type; of a graph with one node type the same.
        edges: int [2, E], those to predict, in the user's ids.
        known: int [2, K], edges that are left out of the ranking, such as those of training. An edge to predict stays.
        metrics: NAME@K: ``hits`` (share of sources with an edge among the first K), ``mrr``, ``ndcg``, ``map``, ``precision``,
            ``recall``, ``f1``; PyG's LinkPred metrics.
        score: Scores [S, M] of S sources with all destinations, such as ``model.decoder.all_pairs`` of a `LinkPredictor`; None:
            inner products.
        device: Where scores are made.

    Raises:
        OptionError: For a metric that there is not.
        DataError: For edges of nodes that there are not.

    Example:
        >>> rows = np.eye(4, dtype=np.float32)[[0, 1, 0, 1]]
        >>> rank_links(rows, rows, np.array([[0], [2]]), known=np.array([[0], [0]]), metrics=["hits@1", "mrr@2"])
        {'hits@1': 1.0, 'mrr@2': 1.0}
    """
    made = {name: _metric(name).to(device) for name in metrics}
    edges = _checked("edges", edges, len(source), len(destination))
    known = _checked("known", np.empty((2, 0)) if known is None else known, len(source), len(destination))
    score = score or (lambda rows, others: rows @ others.T)
    others = torch.from_numpy(np.asarray(destination, dtype=np.float32)).to(device)
    sources = np.unique(edges[0])
    by_source = [pairs[:, np.argsort(pairs[0], kind="stable")] for pairs in (edges, known)]
    most = min(len(destination), max((metric.k for metric in made.values()), default=1))
    at_once = max(1, _AT_ONCE // max(1, len(destination)))
    with torch.no_grad():
        for begin in range(0, len(sources), at_once):
            some = sources[begin : begin + at_once]
            rows = torch.from_numpy(np.asarray(source[some], dtype=np.float32)).to(device)
            wanted, left_out = (torch.from_numpy(_of_sources(pairs, some)).to(device) for pairs in by_source)
            scores = score(rows, others)
            kept = scores[wanted[0], wanted[1]]
            scores[left_out[0], left_out[1]] = float("-inf")
            scores[wanted[0], wanted[1]] = kept
            first = scores.topk(most, dim=1).indices
            for metric in made.values():
                metric.update(first[:, : metric.k], wanted)
    return {name: float(metric.compute()) for name, metric in made.items()}


def _metric(name: str) -> Any:
    kind, _, k = str(name).partition("@")
    if kind not in _METRICS or not k.isdigit() or not int(k):
        raise OptionError(
            f"metrics: expected NAME@K with a name of {', '.join(_METRICS)}, such as hits@10; got {name!r}."
        )
    return getattr(pyg_metrics, _METRICS[kind])(int(k))


def _checked(name: str, pairs: np.ndarray, sources: int, destinations: int) -> np.ndarray:
    """int64 [2, E], without repeated edges."""
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
    """[2, n]: the pairs of some sources, by position in these. pairs: ascending in their sources, as these are."""
    at = np.minimum(np.searchsorted(sources, pairs[0]), len(sources) - 1)
    here = sources[at] == pairs[0]
    return np.stack([at[here], pairs[1][here]])
