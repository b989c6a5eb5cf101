"""The mean over sampled batches, with its standard error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Estimate:
    """error: standard error of ``mean``; None if only one batch was sampled."""

    mean: float
    error: float | None

    @classmethod
    def of(cls, values: Sequence[float] | np.ndarray) -> Estimate:
        """The estimate from one value per batch, at least one."""
        array = np.asarray(values, dtype=np.float64)
        error = float(array.std(ddof=1)) / math.sqrt(len(array)) if len(array) > 1 else None
        return cls(float(array.mean()), error)

    @classmethod
    def mean_of(cls, estimates: Sequence[Estimate]) -> Estimate:
        """The mean of independent estimates, one per part, with its error."""
        errors = [each.error for each in estimates if each.error is not None]
        error = math.sqrt(sum(e * e for e in errors)) / len(errors) if len(errors) == len(estimates) else None
        return cls(sum(each.mean for each in estimates) / len(estimates), error)
