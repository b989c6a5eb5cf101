"""``--data.help`` and ``--model.help`` without a class: which classes there are, and how to see the options of one."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

from lightning.pytorch import LightningDataModule, LightningModule

import glt_lightning

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
    found = _ready(group)
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
    return [kind.__name__ for kind in _ready(group)]


def _ready(group: str) -> list[type]:
    return sorted(_of_the_package(_BASES[group]), key=lambda kind: kind.__name__)


def _of_the_package(base: type) -> Iterator[type]:
    """Public subclasses of ours that nothing of ours inherits from: `GraphDataModule` is only a part of `GLTDataModule`."""
    kinds: list[type] = base.__subclasses__()
    for kind in kinds:
        inner = list(_of_the_package(kind))
        yield from inner
        if not inner and kind.__module__.startswith("glt_lightning.") and kind.__name__ in glt_lightning.__all__:
            yield kind


def _first_line(kind: type) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0]
