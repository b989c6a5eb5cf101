"""`ModuleWrapper`: a module around another one, whose weights it has and whose checkpoints it loads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import LightningModule


class ModuleWrapper(LightningModule):
    """Is set up and loaded as ``inner`` is, so that a predict loop of its own takes a checkpoint of ``inner``."""

    def __init__(self, inner: LightningModule) -> None:
        super().__init__()
        self.inner = inner

    def setup(self, stage: str) -> None:
        self.inner.setup(stage)

    def configure_model(self) -> None:
        self.inner.configure_model()

    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        return self.inner.state_dict(*arguments, **options)

    def load_state_dict(self, state_dict: Mapping[str, Any], *arguments: Any, **options: Any) -> Any:
        return self.inner.load_state_dict(state_dict, *arguments, **options)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.inner.on_load_checkpoint(checkpoint)
