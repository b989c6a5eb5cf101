"""How often the seeds of training are drawn: ``seed_weights`` of the data module."""

from __future__ import annotations

import numpy as np

from glt_lightning.base import DataError, OptionError

BALANCED = "balanced"


def check_seed_weights(given: object) -> None:
    """Raises `OptionError` unless it is None or a name."""
    if given is not None and (not isinstance(given, str) or not given):
        raise OptionError(f"seed_weights: expected balanced, or the name of a node attribute; got {given!r:.80}.")


def weights_of(given: str, values: np.ndarray) -> np.ndarray:
    """float64 [S] of the labels of the training seeds (``balanced``), or of their attribute of this name."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if given == BALANCED:
        return _by_class(values)
    if values.ndim != 1:
        raise DataError(f"{given}: expected one number for each node, got {list(values.shape)}.")
    return values.astype(np.float64)


def _by_class(labels: np.ndarray) -> np.ndarray:
    """The rarer a class, the more: all classes are drawn equally often. Zero without a label."""
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        raise DataError(
            "seed_weights: balanced: expected one class for each node, but labels y are "
            f"{labels.dtype} {list(labels.shape)}. Name an attribute of the nodes that holds their weights."
        )
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    weights = np.where(labels < 0, 0.0, 1.0 / counts[classes]) if labels.dtype.kind == "i" else 1.0 / counts[classes]
    if not weights.any():
        raise DataError("seed_weights: balanced: no training seed has a label.")
    return weights
