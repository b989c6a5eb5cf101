"""The device that a script names, or the CPU where that cannot be used: scripts made for a GPU run without one."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from glt_lightning.base import NativeError, OptionError

_log = logging.getLogger(__name__)


def usable_device(given: Any) -> str:
    """``cpu`` or a CUDA device, as ``partition.device`` takes it. Results are the same on all.

    given: as torch spells it. A CUDA device that cannot be used is replaced by the CPU, which is logged once.
    """
    name = str(given)
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or not (index.isdigit() or not index):
        raise OptionError(f"device: expected 'cpu', 'cuda' or 'cuda:0' and so on, got {given!r}.")
    if kind == "cpu":
        return "cpu"
    from glt_lightning.kernels import Kernels  # imports torch

    try:
        Kernels.open(name)
    except NativeError as error:
        _say_once(str(error))
        return "cpu"
    return name


@cache
def _say_once(reason: str) -> None:
    _log.warning("device: %s The CPU is used; the result is the same.", reason)
