"""Scores of a batch of edges and of its negatives, and the losses of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from glt_lightning.base import DataError, EdgeType

_NONE = (
    "the batch has neither edge_label_index with labels nor triplets (src_index, dst_pos_index). Train and evaluate on a "
    "GLTDataModule with task: link."
)


@dataclass(frozen=True)
class LinkScores:
    """Scores of P edges and of their negatives.

    Attributes:
        positive: Float [P].
        negative: Float [N], of pairs that belong to no edge; or [P, K], each edge's own.
        mask: bool [P, K], which of them count; None: all.
    """

    positive: Tensor
    negative: Tensor
    mask: Tensor | None = None

    def __len__(self) -> int:
        return len(self.positive)

    @property
    def flat_negative(self) -> Tensor:
        """[N]: the negatives that count."""
        return self.negative.flatten() if self.mask is None else self.negative[self.mask]

    def own_negative(self, what: str) -> Tensor:
        """[P, K], -inf where one does not count. Raises `DataError` for negatives that belong to no edge."""
        if self.negative.dim() != 2:
            raise DataError(
                f"{what} compares each edge with negatives of its own, but the batch has pairs with labels. Set "
                "neg_sampling: {mode: triplet}, or choose loss: bce and metrics such as auc, ap and hits@K."
            )
        return self.negative if self.mask is None else self.negative.masked_fill(~self.mask, -torch.inf)


def types_in(batch: Any, edge_types: Sequence[EdgeType | None]) -> Sequence[EdgeType | None]:
    """Those of a loader's edges: a split may lack one of several types."""
    return edge_types if len(edge_types) == 1 else [t for t in edge_types if t is not None and "input_id" in batch[t]]


def edge_ends(batch: Any, edge_type: EdgeType | None) -> tuple[Tensor, Tensor]:
    """Positions of both ends of a batch's edges, without negatives, among the seeds of their node types."""
    pairs, sources, destinations = _stores(batch, edge_type)
    if "edge_label_index" in pairs:
        src, dst = pairs.edge_label_index[:, : len(pairs.input_id)]
        return src, dst
    if "src_index" not in sources or "dst_pos_index" not in destinations:
        raise DataError(_NONE)
    return sources.src_index, destinations.dst_pos_index


def score_links(
    batch: Any, edge_type: EdgeType | None, source: Tensor, destination: Tensor, decoder: Any
) -> LinkScores:
    """Scores of the edges of a batch, under PyG's names.

    edge_type: of the edges, in a heterogeneous graph.  source, destination: embeddings of the seeds of the two node types.

    Raises `DataError` for a batch without edges.
    """
    pairs, sources, destinations = _stores(batch, edge_type)
    if "edge_label_index" in pairs:
        return _labelled(pairs, source, destination, decoder)
    src, dst = edge_ends(batch, edge_type)
    u, v = source[src], destination[dst]
    mask = next((store.neg_mask for store in (pairs, sources, destinations) if "neg_mask" in store), None)
    positive = decoder(u, v)
    if "dst_neg_index" not in destinations:  # the other edges of the batch are an edge's negatives
        return LinkScores(positive, decoder.all_pairs(u, v), mask)
    index = destinations.dst_neg_index
    if mask is not None and index.dim() == 1:  # one set for all edges
        return LinkScores(positive, decoder.all_pairs(u, destination[index]), mask)
    index = index[:, None] if index.dim() == 1 else index
    return LinkScores(positive, decoder(u[:, None], destination[index]), mask)


def _stores(batch: Any, edge_type: EdgeType | None) -> tuple[Any, Any, Any]:
    """What has the fields of the edges, of their sources and of their destinations."""
    if edge_type is None:
        return batch, batch, batch
    pairs = batch[edge_type]
    if "src_index" in pairs:  # of a loader with several edge types
        return pairs, pairs, pairs
    return pairs, batch[edge_type[0]], batch[edge_type[2]]


def _labelled(store: Any, source: Tensor, destination: Tensor, decoder: Any) -> LinkScores:
    label = store.get("edge_label")
    if label is None:
        raise DataError("the batch has edges without labels and without negatives. Set neg_sampling.")
    if label.dim() != 1:
        raise DataError(
            f"edge_label: expected one label for each edge, 0 where there is none; got {list(label.shape)}."
        )
    src, dst = store.edge_label_index
    scores = decoder(source[src], destination[dst])
    return LinkScores(scores[label > 0], scores[label <= 0])


def bce(scores: LinkScores) -> tuple[Tensor, int]:
    """(binary cross-entropy over edges and negatives, number of both)."""
    positive, negative = _full(scores.positive), _full(scores.flat_negative)
    count = len(positive) + len(negative)
    return (functional.softplus(-positive).sum() + functional.softplus(negative).sum()) / max(1, count), count


def bpr(scores: LinkScores) -> tuple[Tensor, int]:
    """(how often a negative is ahead of its edge, as the logistic loss of the difference; number of comparisons)."""
    negative = _full(scores.own_negative("loss: bpr"))
    losses = functional.softplus(negative - _full(scores.positive)[:, None])
    count = losses.numel() if scores.mask is None else int(scores.mask.sum())
    return losses.sum() / max(1, count), count


def softmax(scores: LinkScores) -> tuple[Tensor, int]:
    """(cross-entropy of each edge among its negatives, number of edges)."""
    positive = _full(scores.positive)[:, None]
    rows = torch.cat([positive, _full(scores.own_negative("loss: softmax"))], dim=1)
    return (rows.logsumexp(dim=1) - positive[:, 0]).sum() / max(1, len(scores)), len(scores)


LOSSES: dict[str, Callable[[LinkScores], tuple[Tensor, int]]] = {"bce": bce, "bpr": bpr, "softmax": softmax}


def mean_loss(name: str, scores: Iterable[LinkScores]) -> tuple[Tensor, int]:
    """(mean over what the loss counts, of all edge types together; number of these)."""
    found = [LOSSES[name](each) for each in scores]
    count = sum(each for _, each in found)
    if len(found) == 1:
        return found[0]
    return torch.stack([loss * (each / max(1, count)) for loss, each in found]).sum(), count


def _full(scores: Tensor) -> Tensor:
    """At least float32: a sum of many losses is too great for a float16."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))
