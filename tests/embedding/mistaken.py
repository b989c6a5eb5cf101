"""A module in which one rank makes a mistake with rows, in its second batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from glt_lightning import DistTensor
from tests.embedding.twins import Twin


class Mistaken(Twin):
    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.mistake = mistake

    def setup(self, stage: str) -> None:
        graph = self.trainer.datamodule.dist_graph
        self.memory = DistTensor((graph.num_nodes(), 2), torch.float32, "memory", graph=graph)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx == 1 and self.global_rank == 1:
            if self.mistake == "id":
                self.emb(torch.tensor([3, 10**9]))
            elif self.mistake == "no rows":
                del batch.row
                self.emb(batch)
            elif self.mistake == "shape":
                self.memory[[1, 2]] = torch.zeros(2, 5)
        return super().training_step(batch, batch_idx)
