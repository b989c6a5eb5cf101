"""Sparse node embeddings of the ready modules: rows of `DistEmbedding`, and the optimizer that trains them."""

from __future__ import annotations

import torch
from torch import nn

from glt_lightning.base import OptionError, one_of
from glt_lightning.tensors import DistEmbedding, Optimizers, SparseAdam

NODE_EMBEDDINGS = ("dense", "sparse")


def rows_of(module: nn.Module) -> list[DistEmbedding]:
    return [each for each in module.modules() if isinstance(each, DistEmbedding)]


def check_node_embedding(module: nn.Module, node_embedding: str) -> None:
    """Raises `OptionError` for an unknown value, and for ``sparse`` if no node would have an embedding."""
    one_of("node_embedding", node_embedding, NODE_EMBEDDINGS)
    if node_embedding == "sparse" and not rows_of(module):
        raise OptionError(
            "node_embedding: sparse: all nodes that the model reads have features or codes, so none has an embedding. Remove "
            "the option, or leave x out of the data set."
        )


def adam_of(module: nn.Module, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """Makes Adam for the parameters of a module and, without weight decay, for its sparse rows."""
    # by default torch runs some ten operations for each parameter on a CPU; fused, one kernel
    fused = True if all(each.device.type == "cpu" for each in module.parameters()) else None
    dense = torch.optim.Adam(module.parameters(), lr=lr, weight_decay=weight_decay, fused=fused)
    dense._step_supports_amp_scaling = False  # or Lightning refuses to clip gradients in mixed precision
    rows = rows_of(module)
    return Optimizers(dense, SparseAdam(rows, lr=lr)) if rows else dense
