"""Two modules that learn the same, one with rows and one with `nn.Embedding`; with whole numbers, to the last bit."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn

from glt_lightning import DistEmbedding, GLTDataModule, Optimizers, SparseAdagrad, SparseAdam, SparseSGD

NODES, WIDTH = 300, 3
QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
RULES = {"sgd": SparseSGD, "adagrad": SparseAdagrad, "adam": SparseAdam}


def first_values() -> np.ndarray:
    return (np.arange(NODES * WIDTH) % 17).astype(np.float32).reshape(NODES, WIDTH)


class Twin(LightningModule):
    """A loss that is linear in rows and parameters, with whole multiples of 12 as gradients: sums of up to 4 ranks and their
    means are exact in any order.

    kind: ``dense`` or ``sparse``.  rule: of the rows; ``float``: a loss with a gradient of any value.
    idle: the rank that looks nothing up in the first epoch, or -1.
    """

    def __init__(
        self, kind: str = "sparse", rule: str = "sgd", *, real: bool = False, bare: bool = False, idle: int = -1
    ) -> None:
        super().__init__()
        self.kind, self.rule, self.real, self.idle = kind, rule, real, idle
        values = first_values() / (100 if real else 1)
        if kind == "dense":
            self.emb = nn.Embedding.from_pretrained(torch.from_numpy(values).clone(), freeze=False)
        else:
            self.emb = DistEmbedding(WIDTH, init=values.astype(np.float32))
        self.bias = None if bare else nn.Parameter(torch.arange(WIDTH, dtype=torch.float32))
        self.steps = 0
        self.trace: list[str] = []

    def look_up(self, batch: Any) -> Tensor:
        return self.emb(batch.n_id) if self.kind == "dense" else self.emb(batch)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.steps += 1
        x = self.look_up(batch)
        if self.real:
            x = (x.tanh() * (batch.n_id % 7)[:, None].sub(3).float()).square()
        else:
            x = x * (12 * (batch.n_id % 5 - 2) + 12 * (batch_idx % 3))[:, None].float()
        weight = 0.0 if self.idle == self.global_rank and self.current_epoch == 0 else 1.0
        loss = x.sum() * weight if weight or self.kind == "dense" else torch.zeros((), requires_grad=True) * 0
        return loss if self.bias is None else loss + (self.bias * 12 * batch.batch_size).sum()

    def configure_optimizers(self) -> Any:
        lr = 2.0**-6 if not self.real else 2.0**-4
        if self.kind == "dense":
            return torch.optim.SGD(self.parameters(), lr=lr)
        sparse = RULES[self.rule]([self.emb], lr=lr)
        return sparse if self.bias is None else Optimizers(torch.optim.SGD([self.bias], lr=lr), sparse)

    @torch.no_grad()
    def table(self) -> np.ndarray:
        """[N, D] by the user's ids."""
        if self.kind == "dense":
            return self.emb.weight.numpy().copy()
        return self.emb.rows.table.read(self.emb.rows.order())

    def state(self) -> dict[str, np.ndarray]:
        order = self.emb.rows.order()
        return {name: table.read(order) for name, table in self.emb.rows.states.items()}


def data_of(graph: Path, root: Path, parts: int = 1, **options: Any) -> GLTDataModule:
    given: dict[str, Any] = {"num_neighbors": [3], "batch_size": 16, "partition": {"num_parts": parts}}
    given |= {"sampling": {"seed": 5}}
    return GLTDataModule(str(graph), str(root), **given | options)


def fit(module: Twin, data: GLTDataModule, *, ckpt_path: Any = None, **options: Any) -> Trainer:
    trainer = Trainer(**QUIET | {"max_epochs": 2, "enable_checkpointing": False, "num_sanity_val_steps": 0} | options)
    trainer.fit(module, data, ckpt_path=ckpt_path)
    return trainer


def digest(*arrays: np.ndarray) -> str:
    found = hashlib.blake2b(digest_size=8)
    for each in arrays:
        found.update(np.ascontiguousarray(each).tobytes())
    return found.hexdigest()
