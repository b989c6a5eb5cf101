"""What a run was configured with, as YAML."""

from __future__ import annotations

import inspect
import sys
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from lightning.pytorch import LightningModule, Trainer

_TRAINER = (
    "max_epochs",
    "max_steps",
    "precision",
    "accumulate_grad_batches",
    "gradient_clip_val",
    "check_val_every_n_epoch",
)


def configuration(trainer: Trainer, pl_module: LightningModule) -> str:
    """That of the command line, if it made this run; in a script, what the objects know of themselves."""
    if (found := _of_command_line(trainer)) is not None:
        return found
    known: dict[str, Any] = {"trainer": {name: _plain(getattr(trainer, name, None)) for name in _TRAINER}}
    known["model"] = {"class": _name(pl_module), **_hparams(pl_module)}
    if (data := getattr(trainer, "datamodule", None)) is not None:
        known["data"] = {"class": _name(data), **(_hparams(data) or _arguments(data))}
    return str(yaml.safe_dump(known, sort_keys=False, allow_unicode=True))


def _of_command_line(trainer: Trainer) -> str | None:
    module = sys.modules.get("lightning.pytorch.cli")
    if module is None:  # who did not come by it has no such callback, and need not import it
        return None
    found = [each for each in trainer.callbacks if isinstance(each, module.SaveConfigCallback)]  # type: ignore[attr-defined]
    if not found:
        return None
    made: str | None = getattr(found[0], "text", None)  # of our own command line, which makes it once
    return made or str(found[0].parser.dump(found[0].config, skip_none=False))


def _hparams(target: Any) -> dict[str, Any]:
    return {str(name): _plain(value) for name, value in dict(getattr(target, "hparams", {})).items()}


def _arguments(target: Any) -> dict[str, Any]:
    """The constructor's arguments that the object has as attributes of the same names."""
    names = list(inspect.signature(type(target).__init__).parameters)[1:]
    return {name: _plain(getattr(target, name)) for name in names if hasattr(target, name)}


def _plain(value: Any) -> Any:
    """What YAML can hold; of other objects their class."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set)) and len(value) <= 100:
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else _name(value)


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
