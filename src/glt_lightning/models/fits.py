"""Checks that a model was built for the graph that it is trained or evaluated on."""

from __future__ import annotations

from typing import Any

from glt_lightning.base import DataError, OptionError
from glt_lightning.lightning import GLTDataModule


def require_same_inputs(trainer: Any, in_channels: Any, num_categories: Any, edge_facts: Any) -> None:
    """Raises `DataError` if the graph of a trainer's `GLTDataModule` has other features or codes. edge_facts: None: the model
    reads nothing of edges."""
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

    require_same_edges(edge_facts, data)


def require_same_edges(edge_facts: Any, data: GLTDataModule) -> None:
    """Raises `DataError` if edges have other attributes than a model was built for. edge_facts: None: it reads none."""
    if edge_facts and edge_facts != data.edge_facts:
        raise DataError(f"the model was built for edge_facts {edge_facts}, but the graph has {data.edge_facts}.")


def one_type(target_type: str | list[str] | None) -> str | None:
    """The node type whose labels a module predicts; None in a homogeneous graph. Raises `OptionError` for several."""
    if target_type is None or isinstance(target_type, str):
        return target_type
    if len(target_type) == 1:
        return target_type[0]
    raise OptionError(
        "target_type: this module predicts the labels of one node type, and data.seeds.input_type names "
        f"{', '.join(target_type)}. Set "
        "data.seeds.input_type to one of them, or write a module of your own: batch[type] has the seeds of each type first."
    )
