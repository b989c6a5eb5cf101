"""What all ranks of a Trainer tell each other, under any strategy."""

from __future__ import annotations

import torch.distributed
from lightning.pytorch import Trainer

from glt_lightning.tensors import gather_text


def gather_text_of(trainer: Trainer, text: str) -> list[str]:
    """The texts of all ranks, in rank order. A collective call."""
    if not torch.distributed.is_initialized():
        return [text]
    return gather_text(text, trainer.world_size, trainer.strategy.root_device)
