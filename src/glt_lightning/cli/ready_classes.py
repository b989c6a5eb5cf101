"""``--data.help`` and ``--model.help`` without a class: which classes there are, and how to see the options of one."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from lightning.pytorch import LightningDataModule, LightningModule

from glt_lightning.lightning import (
    BestCheckpoint,
    GLTDataModule,
    PredictionWriter,
    RunReport,
    SamplingMonitor,
    WholeCheckpointIO,
)
from glt_lightning.models import GraphSAGE, LinkPredictor, NodePredictor

_READY: dict[str, list[type]] = {"data": [GLTDataModule], "model": [GraphSAGE, LinkPredictor, NodePredictor]}
# jsonargparse knows a class by its name alone once it is imported
CALLBACKS = (BestCheckpoint, PredictionWriter, RunReport, SamplingMonitor, WholeCheckpointIO)
_BASES = {"data": LightningDataModule, "model": LightningModule}
_OWN = {"data": "my_module.MyDataModule", "model": "my_module.MyModel"}


def asked_for_classes(argv: Sequence[str]) -> str | None:
    """The group, ``data`` or ``model``, whose help is asked for without a class."""
    for number, arg in enumerate(argv):
        group = arg.removeprefix("--").removesuffix(".help")
        if group in _BASES and arg == f"--{group}.help":
            following = argv[number + 1 : number + 2]
            if not following or following[0].startswith("-"):
                return group
    return None


def ready_classes(group: str, command: str) -> str:
    """A page about the classes of a group. command: such as ``python -m lightning fit``."""
    found = _READY[group]
    width = max(len(kind.__name__) for kind in found)
    lines = [f"  {kind.__name__:<{width}}  {_first_line(kind)}" for kind in found]
    return "\n".join(
        [
            f"--{group} takes the name of a ready class, or the dotted path of your own {_BASES[group].__name__}.",
            "",
            *lines,
            "",
            f"Options of one:  {command} --{group}.help {found[0].__name__}",
            f"One of your own: {command} --{group} {_OWN[group]} (a file in the current folder; docs/lightning.md)",
        ]
    )


def class_names(group: str) -> list[str]:
    """Names of the ready classes of a group."""
    return [kind.__name__ for kind in _READY[group]]


def _first_line(kind: type) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0]
