"""Metrics of OGB's link data sets: equal to its Evaluator, exact over any number of ranks and batches."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import rank_zero_warn

from glt_lightning.base import DataError, at_least

# A reciprocal rank is counted in units of 2^-30. Integers sum up to the same number in any order, so the result does not
# depend on ranks and batches; int64 has room for 8e9 positives, and the error of a mean is below that of float32.
_UNIT = 1 << 30


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
        """float32: the share, over all ranks."""
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


class OGBMRR(Metric):
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

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    reciprocals: Tensor
    num_positives: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("reciprocals", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("num_positives", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, y_pred_pos: Tensor, y_pred_neg: Tensor) -> None:
        """Adds scores of positives [P] and of the negatives [P, K] of each."""
        pos = _scores("y_pred_pos", "[P]", y_pred_pos).to(self.device)[:, None]
        neg = _scores("y_pred_neg", "[P, K]", y_pred_neg).to(self.device)
        if len(pos) != len(neg):
            raise DataError(f"y_pred_neg: expected a row for each of {len(pos)} positives; got {list(neg.shape)}.")
        twice = 2 + (neg > pos).sum(dim=1) + (neg >= pos).sum(dim=1)  # two times the rank
        self.reciprocals = self.reciprocals + (2 * _UNIT / twice.double()).round().long().sum()
        self.num_positives = self.num_positives + len(pos)

    def compute(self) -> Tensor:
        """float32: the mean, over all ranks."""
        return (self.reciprocals.double() / _UNIT / self.num_positives).float()


def _best(k: int, scores: Tensor) -> Tensor:
    """The k best, descending, of at least k scores of any shape."""
    return scores.flatten().topk(k).values


def _joined(positives: list[Tensor] | Tensor, like: Tensor) -> Tensor:
    """The list of a rank, or what torchmetrics made of those of all ranks, as one tensor."""
    return torch.cat([like.new_empty(0), *positives]) if isinstance(positives, list) else positives


def _scores(name: str, shape: str, given: Any) -> Tensor:
    """As float64, without gradients. shape: ``[P]`` or ``[P, K]``."""
    if not isinstance(given, Tensor):
        raise DataError(f"{name}: expected a tensor of floats {shape}; got {type(given).__name__}.")
    if given.dim() != shape.count(",") + 1 or not given.is_floating_point():
        raise DataError(f"{name}: expected floats {shape}; got {given.dtype} {list(given.shape)}.")
    if given.isnan().any():
        raise DataError(
            f"{name}: {int(given.isnan().sum())} of {given.numel()} scores are NaN. Has the model diverged?"
        )
    return given.detach().double()
