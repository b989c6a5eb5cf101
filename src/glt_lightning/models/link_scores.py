"""Scores of a batch of edges and its negatives, the losses and decoders for them, and the metrics of OGB."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import Metric
from torchmetrics.utilities import rank_zero_warn

from glt_lightning.base import DataError, EdgeType, OptionError, at_least, one_of
from glt_lightning.inference import RankMetric
from glt_lightning.models.relations import DECODERS

_NONE = (
    "the batch has neither edge_label_index with labels nor triplets (src_index, dst_pos_index). Train and evaluate on a "
    "GLTDataModule with task: link."
)


@dataclass(frozen=True)
class LinkScores:
    """Scores of P edges and of their negatives.

    Attributes:
        positive: Float [P], scores of the edges.
        negative: Float [N], scores of pairs that belong to no edge; or [P, K], of the negatives of each edge.
        mask: bool [P, K], True for negatives that count; None: all do.
    """

    positive: Tensor
    negative: Tensor
    mask: Tensor | None = None

    def __len__(self) -> int:
        return len(self.positive)

    @property
    def flat_negative(self) -> Tensor:
        """Scores [N] of the negatives that count."""
        return self.negative.flatten() if self.mask is None else self.negative[self.mask]

    def own_negative(self, what: str) -> Tensor:
        """Returns scores [P, K] of each edge's negatives, -inf for those that do not count. Raises `DataError` for negatives that
        belong to no edge; ``what`` begins its text."""
        if self.negative.dim() != 2:
            raise DataError(
                f"{what} compares each edge with negatives of its own, but the batch has pairs with labels. Set "
                "neg_sampling: {mode: triplet}, or choose loss: bce and metrics such as auc, ap and hits@K."
            )
        return self.negative if self.mask is None else self.negative.masked_fill(~self.mask, -torch.inf)


def types_in(batch: Any, edge_types: Sequence[EdgeType | None]) -> Sequence[EdgeType | None]:
    """The edge types whose edges a batch has: a split may lack one of several."""
    return edge_types if len(edge_types) == 1 else [t for t in edge_types if t is not None and "input_id" in batch[t]]


def edge_ends(batch: Any, edge_type: EdgeType | None) -> tuple[Tensor, Tensor]:
    """Returns the positions of both ends of a batch's edges, without negatives, among the seeds of their node types."""
    pairs, sources, destinations = _stores(batch, edge_type)
    if "edge_label_index" in pairs:
        src, dst = pairs.edge_label_index[:, : len(pairs.input_id)]
        return src, dst
    if "src_index" not in sources or "dst_pos_index" not in destinations:
        raise DataError(_NONE)
    return sources.src_index, destinations.dst_pos_index


def score_links(
    batch: Any, edge_type: EdgeType | None, source: Tensor, destination: Tensor, decoder: Any, both_ends: bool = False
) -> LinkScores:
    """Scores the edges of a batch that has PyG's fields for them.

    edge_type: of the edges, in a heterogeneous graph.  source, destination: embeddings of the seeds of the two node types.
    both_ends: the destinations of triplets that make no edge are scored as sources, too, for which both are of one node type.
    With ``src_neg_index``, given negatives of sources, each edge is compared twice, with destinations and with sources, as OGB
    evaluates knowledge graphs, so there are 2 P scores.

    Raises `DataError` for a batch without edges, or without the relations that the decoder needs.
    """
    pairs, sources, destinations = _stores(batch, edge_type)
    relation = _relation_for(decoder, batch, edge_type)
    if "edge_label_index" in pairs:
        if both_ends:
            raise DataError(
                "corrupt: both scores triplets, but the batch has pairs. Set neg_sampling: {mode: triplet}."
            )
        return _labelled(pairs, source, destination, decoder, relation)
    src, dst = edge_ends(batch, edge_type)
    u, v = source[src], destination[dst]
    mask = next((store.neg_mask for store in (pairs, sources, destinations) if "neg_mask" in store), None)
    positive, each = decoder(u, v, **_kinds(relation)), None if relation is None else relation[:, None]
    if "dst_neg_index" not in destinations:  # the other edges of the batch are an edge's negatives
        index, shared = dst, True
    else:
        index = destinations.dst_neg_index
        shared = mask is not None and index.dim() == 1  # one set for all edges
    if shared:
        negative, index = decoder.all_pairs(u, destination[index], **_kinds(relation)), index[None]
    else:
        index = index[:, None] if index.dim() == 1 else index
        negative = decoder(u[:, None], destination[index], **_kinds(each))
    if "src_neg_index" in sources:
        heads = decoder(source[sources.src_neg_index], v[:, None], **_kinds(each))
        width = max(negative.shape[1], heads.shape[1])
        rows = [functional.pad(part, (0, width - part.shape[1]), value=-torch.inf) for part in (negative, heads)]
        return LinkScores(torch.cat([positive, positive]), torch.cat(rows), torch.cat(rows) > -torch.inf)
    if both_ends:
        negative = torch.cat([negative, decoder(source[index], v[:, None], **_kinds(each))], dim=1)
        mask = None if mask is None else torch.cat([mask, mask], dim=1)
    return LinkScores(positive, negative, mask)


def score_pairs(batch: Any, edge_type: EdgeType | None, source: Tensor, destination: Tensor, decoder: Any) -> Tensor:
    """Scores the edges of a batch, [P], from the embeddings [P, D] of their ends. edge_type: as for `score_links`."""
    found: Tensor = decoder(source, destination, **_kinds(_relation_for(decoder, batch, edge_type)))
    return found


def relation_of(batch: Any, edge_type: EdgeType | None) -> Tensor:
    """Returns the relation of each edge of a batch, int64 [P]. Raises `DataError` for a batch without them."""
    pairs = batch if edge_type is None else batch[edge_type]
    if "rel_type" not in pairs:
        raise DataError("the edges of the batch have no rel_type. Name what has their relations: data.links.relation.")
    found: Tensor = pairs.rel_type
    return found


def _relation_for(decoder: Any, batch: Any, edge_type: EdgeType | None) -> Tensor | None:
    """Returns `relation_of` for a decoder of several relations, None for others."""
    return None if getattr(decoder, "num_relations", None) is None else relation_of(batch, edge_type)


def _kinds(relation: Tensor | None) -> dict[str, Tensor]:
    """Returns the argument of a decoder of several relations; dot, bilinear and mlp take none."""
    return {} if relation is None else {"relation": relation}


def _stores(batch: Any, edge_type: EdgeType | None) -> tuple[Any, Any, Any]:
    """The stores of a batch that have the fields of the edges, of their sources and of their destinations."""
    if edge_type is None:
        return batch, batch, batch
    pairs = batch[edge_type]
    if "src_index" in pairs:  # of a loader with several edge types
        return pairs, pairs, pairs
    return pairs, batch[edge_type[0]], batch[edge_type[2]]


def _labelled(store: Any, source: Tensor, destination: Tensor, decoder: Any, relation: Tensor | None) -> LinkScores:
    label = store.get("edge_label")
    if label is None:
        raise DataError("the batch has edges without labels and without negatives. Set neg_sampling.")
    if label.dim() != 1:
        raise DataError(
            f"edge_label: expected one label for each edge, 0 where there is none; got {list(label.shape)}."
        )
    src, dst = store.edge_label_index
    if relation is not None:  # negative j has that of edge j mod P
        relation = relation[torch.arange(len(src), device=src.device) % max(1, len(relation))]
    scores = decoder(source[src], destination[dst], **_kinds(relation))
    return LinkScores(scores[label > 0], scores[label <= 0])


def bce(scores: LinkScores) -> tuple[Tensor, int]:
    """Returns the mean binary cross-entropy over edges and negatives, and their number."""
    positive, negative = _full(scores.positive), _full(scores.flat_negative)
    count = len(positive) + len(negative)
    return (functional.softplus(-positive).sum() + functional.softplus(negative).sum()) / max(1, count), count


def bpr(scores: LinkScores) -> tuple[Tensor, int]:
    """Returns the mean logistic loss of the difference between each edge and each of its negatives, and the number of pairs
    (Bayesian personalised ranking)."""
    negative = _full(scores.own_negative("loss: bpr"))
    losses = functional.softplus(negative - _full(scores.positive)[:, None])
    count = losses.numel() if scores.mask is None else int(scores.mask.sum())
    return losses.sum() / max(1, count), count


def softmax(scores: LinkScores) -> tuple[Tensor, int]:
    """Returns the mean cross-entropy of each edge among its negatives, and the number of edges."""
    positive = _full(scores.positive)[:, None]
    rows = torch.cat([positive, _full(scores.own_negative("loss: softmax"))], dim=1)
    return (rows.logsumexp(dim=1) - positive[:, 0]).sum() / max(1, len(scores)), len(scores)


LOSSES: dict[str, Callable[[LinkScores], tuple[Tensor, int]]] = {"bce": bce, "bpr": bpr, "softmax": softmax}


def mean_loss(name: str, scores: Iterable[LinkScores]) -> tuple[Tensor, int]:
    """Returns the mean of a loss over all edge types together, weighted by what it counts, and the number of these."""
    found = [LOSSES[name](each) for each in scores]
    count = sum(each for _, each in found)
    if len(found) == 1:
        return found[0]
    return torch.stack([loss * (each / max(1, count)) for loss, each in found]).sum(), count


def _full(scores: Tensor) -> Tensor:
    """Converts scores to float32 at least: the sum of many losses overflows a float16."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


# From the embeddings of two nodes to the score of an edge between them.


_VALUES = 1 << 24  # that all pairs of some sources and destinations take at once


class DotProduct(nn.Module):
    """A decoder: the inner product of the two embeddings."""

    def forward(self, source: Tensor, destination: Tensor) -> Tensor:
        """Returns scores [...] of embeddings [..., D] and [..., D], which broadcast."""
        return (source * destination).sum(dim=-1)

    def all_pairs(self, source: Tensor, destination: Tensor) -> Tensor:
        """Returns scores [P, K] of each of P sources with each of K destinations."""
        return self.transformed(source) @ destination.T

    def transformed(self, source: Tensor) -> Tensor:
        """Returns [P, D]: rows whose inner products with destinations are the scores."""
        return source


class Bilinear(DotProduct):
    """A decoder: the product of the two embeddings with a learned matrix between them. It depends on the direction of an edge."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, width))
        nn.init.uniform_(self.weight, -1 / math.sqrt(width), 1 / math.sqrt(width))

    def forward(self, source: Tensor, destination: Tensor) -> Tensor:
        return super().forward(source @ self.weight, destination)

    def transformed(self, source: Tensor) -> Tensor:
        return source @ self.weight


class PairMLP(nn.Module):
    """A decoder: two layers over the embeddings and their elementwise product. It depends on the direction of an edge."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3 * width, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 1))

    def forward(self, source: Tensor, destination: Tensor) -> Tensor:
        source, destination = torch.broadcast_tensors(source, destination)
        return self.layers(torch.cat([source, destination, source * destination], dim=-1)).squeeze(-1)

    def all_pairs(self, source: Tensor, destination: Tensor) -> Tensor:
        at_once = max(1, _VALUES // max(1, 3 * source.size(1) * len(destination)))
        return torch.cat([self(rows[:, None], destination[None]) for rows in source.split(at_once)])


def make_decoder(name: str, width: int, dropout: float, num_relations: int | None = None) -> Any:
    """Makes a decoder. num_relations: number of kinds of edges of one type; None: they have none. Raises `OptionError` for an
    unknown name."""
    one_of("decoder", name, ("dot", "bilinear", "mlp", *DECODERS))
    if name in DECODERS:
        return DECODERS[name](width, num_relations)
    if num_relations is not None:
        raise OptionError(
            f"decoder: {name}: the edges have {num_relations} relations (data.links.relation), of which it knows nothing; use "
            f"{', '.join(DECODERS)}."
        )
    if name == "mlp":
        return PairMLP(width, dropout)
    return DotProduct() if name == "dot" else Bilinear(width)


# Metrics of OGB's link data sets: equal to its Evaluator, exact over any number of ranks and batches.


class HitsAtK(Metric):
    """Hits@K as OGB defines it: the share of positives that score strictly above the K-th best of all negatives.

    All positives are ranked against the same negatives (ogbl-collab, -ddi, -ppa). With fewer than K negatives it is 1, as in
    OGB's ``Evaluator``; a warning says so. Without positives it is NaN.

    ``update(y_pred_pos, y_pred_neg)`` takes scores of positives [P] and of negatives [N], floats; P and N may differ between
    calls, and either may be 0. Each rank holds the K best of its negatives, and those of its positives that scored above
    the K-th best so far. Scores are compared in float64, to which float16, bfloat16 and float32 convert exactly.

    Args:
        k: K, at least 1.
        kwargs: Arguments of torchmetrics' `Metric`.

    Raises:
        OptionError: For a k below 1.
        DataError: For scores that are no floats, of another shape, or NaN.

    Example:
        >>> metric = HitsAtK(k=2)
        >>> metric.update(torch.tensor([0.9, 0.5, 0.1]), torch.tensor([0.8, 0.5]))  # 0.5 ties with the second best negative
        >>> metric.update(torch.tensor([0.7]), torch.tensor([0.2, 0.3]))
        >>> metric.compute()
        tensor(0.5000)
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    negatives: Tensor  # float64 [K], descending; -inf where there are fewer
    positives: list[Tensor]
    num_negatives: Tensor
    num_positives: Tensor

    def __init__(self, k: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        at_least("k", k, 1)
        self.k = k
        none = torch.full((k,), -torch.inf, dtype=torch.float64)
        self.add_state("negatives", none, dist_reduce_fx=partial(_best, k))
        self.add_state("positives", [], dist_reduce_fx="cat")
        self.add_state("num_negatives", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("num_positives", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, y_pred_pos: Tensor, y_pred_neg: Tensor) -> None:
        """Adds scores of positives [P] and of negatives [N]."""
        pos = _scores("y_pred_pos", "[P]", y_pred_pos).to(self.device)
        neg = _scores("y_pred_neg", "[N]", y_pred_neg).to(self.device)
        self.negatives = _best(self.k, torch.cat([self.negatives.double(), neg]))
        self.num_negatives = self.num_negatives + len(neg)
        self.num_positives = self.num_positives + len(pos)
        self.positives.append(
            pos[pos > self.negatives[-1]]
        )  # the K-th best only rises: what is not above it never will be

    def compute(self) -> Tensor:
        """Returns float32: the share over all ranks."""
        if self.num_negatives < self.k:
            rank_zero_warn(
                f"HitsAtK: fewer than {self.k} negatives; Hits@{self.k} is then 1, as OGB's Evaluator has it."
            )
            hits = self.num_positives
        else:
            hits = (_joined(self.positives, self.negatives) > self.negatives[-1]).sum()
        return (hits.double() / self.num_positives).float()

    def _sync_dist(self, *args: Any, **kwargs: Any) -> None:
        # Ranks gather tensors of one dtype. torchmetrics would send float32 for the list of a rank without updates, and
        # module.to(bfloat16) has cast its state.
        self.negatives = self.negatives.double()
        self.positives = [_joined(self.positives, self.negatives)]
        super()._sync_dist(*args, **kwargs)


class OGBMRR(RankMetric):
    """Mean reciprocal rank as OGB defines it: each positive is ranked among negatives of its own; ties count half.

    The rank of a positive is 1 + (number of negatives above it + number of negatives not below it) / 2, as in the path of OGB's
    ``Evaluator`` that takes tensors (ogbl-citation2, -wikikg2, -biokg). Without positives the mean is NaN.

    ``update(y_pred_pos, y_pred_neg)`` takes scores of positives [P] and of their negatives [P, K], floats; P and K may differ
    between calls. Each rank holds two integers, so the result is the same, bit for bit, for any number of ranks and batches.

    Args:
        kwargs: Arguments of torchmetrics' `Metric`.

    Raises:
        DataError: For scores that are no floats, of another shape, or NaN.

    Example:
        >>> metric = OGBMRR()
        >>> metric.update(torch.tensor([0.9, 0.5]), torch.tensor([[0.1, 0.2], [0.7, 0.5]]))  # ranks 1 and 2.5
        >>> metric.compute()
        tensor(0.7000)
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(None, **kwargs)

    def update(self, y_pred_pos: Tensor, y_pred_neg: Tensor) -> None:  # type: ignore[override]
        """Adds scores of positives [P] and of the negatives [P, K] of each."""
        pos = _scores("y_pred_pos", "[P]", y_pred_pos).to(self.device)
        neg = _scores("y_pred_neg", "[P, K]", y_pred_neg).to(self.device)
        if len(pos) != len(neg):
            raise DataError(f"y_pred_neg: expected a row for each of {len(pos)} positives; got {list(neg.shape)}.")
        super().update(self.twice(pos, neg))


def _best(k: int, scores: Tensor) -> Tensor:
    """Returns the k best, descending, of at least k scores of any shape."""
    return scores.flatten().topk(k).values


def _joined(positives: list[Tensor] | Tensor, like: Tensor) -> Tensor:
    """Returns one tensor from a rank's list, or from the tensor into which torchmetrics has joined those of all ranks."""
    return torch.cat([like.new_empty(0), *positives]) if isinstance(positives, list) else positives


def _scores(name: str, shape: str, given: Any) -> Tensor:
    """Returns scores as float64, without gradients. shape: ``[P]`` or ``[P, K]``.  Raises `DataError` for scores that are no
    floats, of another shape, or NaN."""
    if not isinstance(given, Tensor):
        raise DataError(f"{name}: expected a tensor of floats {shape}; got {type(given).__name__}.")
    if given.dim() != shape.count(",") + 1 or not given.is_floating_point():
        raise DataError(f"{name}: expected floats {shape}; got {given.dtype} {list(given.shape)}.")
    if given.isnan().any():
        raise DataError(
            f"{name}: {int(given.isnan().sum())} of {given.numel()} scores are NaN. Has the model diverged?"
        )
    return given.detach().double()
