"""A module in which one rank makes a mistake with rows, in its second batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from glt_lightning import DistTensor
from tests.tensors.twins import Twin


class Mistaken(Twin):
    """mistake: which; ``rank``: whose, of those that one rank can make alone."""

    def __init__(self, mistake: str, rank: int = 1) -> None:
        super().__init__()
        self.mistake, self.rank = mistake, rank

    def setup(self, stage: str) -> None:
        graph, alone = self.trainer.datamodule.dist_graph, self.global_rank == self.rank
        nodes = graph.num_nodes() + (self.mistake == "size" and alone)
        width = 2 + (self.mistake == "width" and alone)
        self.memory = DistTensor((nodes, width), torch.float32, "memory", graph=graph)
        if self.mistake == "name":
            DistTensor((nodes, width), torch.int64, "memory", graph=graph)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx == 1 and self.global_rank == self.rank:
            if self.mistake == "id":
                self.emb(torch.tensor([3, 10**9]))
            elif self.mistake == "no rows":
                del batch.row
                self.emb(batch)
            elif self.mistake == "shape":
                self.memory[[1, 2]] = torch.zeros(2, 5)
            elif self.mistake == "attribute":
                self.trainer.datamodule.dist_graph.ndata["x"][[1, 2]] = 1.0
        return super().training_step(batch, batch_idx)
