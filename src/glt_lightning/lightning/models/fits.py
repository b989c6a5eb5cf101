"""Whether a model was built for the graph that it is trained or evaluated on."""

from __future__ import annotations

from typing import Any

from glt_lightning.errors import DataError
from glt_lightning.lightning.datamodule import GLTDataModule


def require_same_inputs(trainer: Any, in_channels: Any, num_categories: Any) -> None:
    """Raises `DataError` if the graph of a trainer's `GLTDataModule` has other features or codes."""
    data = getattr(trainer, "datamodule", None)
    if not isinstance(data, GLTDataModule):
        return
    if in_channels != data.num_features:
        raise DataError(
            f"the model was built for in_channels {in_channels}, but the graph has {data.num_features} features."
        )
    if (num_categories or None) != data.num_categories:
        raise DataError(
            f"the model was built for num_categories {num_categories}, but the graph has {data.num_categories}."
        )
