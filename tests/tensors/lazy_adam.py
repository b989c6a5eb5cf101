"""`GraphSAGE` with a dense embedding of which Adam moves the rows of the batch alone: what rows of a table have to equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from glt_lightning import DistEmbedding, GraphSAGE


class LazyAdam(torch.optim.Adam):
    """Adam for parameters and, counting the steps of each row, for the rows of a parameter that have a gradient."""

    def __init__(self, module: nn.Module, rows: nn.Parameter, lr: float) -> None:
        super().__init__([each for each in module.parameters() if each is not rows], lr=lr)
        self.rows, self.first, self.second = rows, torch.zeros_like(rows), torch.zeros_like(rows)
        self.steps = torch.zeros(len(rows), 1)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = super().step(closure)
        gradient, self.rows.grad = self.rows.grad, None
        at = gradient.abs().amax(dim=1).nonzero().squeeze(1)
        g, lr = gradient[at], self.param_groups[0]["lr"]
        self.steps[at] += 1
        self.first[at] = 0.9 * self.first[at] + 0.1 * g
        self.second[at] = 0.999 * self.second[at] + 0.001 * g * g
        first, second = self.first[at] / (1 - 0.9 ** self.steps[at]), self.second[at] / (1 - 0.999 ** self.steps[at])
        self.rows[at] -= lr * first / (second.sqrt() + 1e-8)
        return loss


class LazyGraphSAGE(GraphSAGE):
    """Made with ``node_embedding: sparse``; its rows become a parameter, with their first values."""

    def setup(self, stage: str) -> None:
        super().setup(stage)
        encoder: Any = self.gnn.encoder
        if isinstance(embedding := encoder.layer, DistEmbedding):
            values = torch.from_numpy(embedding.rows.table.read(embedding.rows.order()))
            encoder.layer = nn.Embedding.from_pretrained(values, freeze=False)

    def configure_optimizers(self) -> Any:
        return LazyAdam(self, self.gnn.encoder.layer.weight, self.lr)
