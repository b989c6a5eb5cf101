"""Checks that several options share. Each raises `OptionError` with the name of the option."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from glt_lightning.errors import OptionError


def above_zero(name: str, seconds: float) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < float("inf"):
        raise OptionError(f"{name}: expected seconds > 0, got {seconds!r}.")


def check_devices(name: str, devices: list[str]) -> None:
    for device in devices:
        if re.fullmatch(r"cuda:\d+", str(device)) is None:
            raise OptionError(f"{name}: expected devices such as cuda:0, got {device!r}.")


def at_least(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name}: expected an integer >= {least}, got {value!r}.")


def one_of(name: str, given: object, known: Sequence[str], further: str = "") -> None:
    if given in known:
        return
    near = difflib.get_close_matches(str(given), known, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise OptionError(f"{name}: expected {', '.join([*known, further] if further else known)}; got {given!r}.{hint}")


_Options = TypeVar("_Options")


def as_options(kind: type[_Options], name: str, given: Any) -> _Options:
    """An options object, or a mapping of its fields. Raises `OptionError` for anything else."""
    if isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        raise OptionError(f"{name}: expected {kind.__name__} or a mapping of its fields, got {given!r:.80}.")
    known = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise OptionError(f"{name}: expected any of {', '.join(known)}; got {key!r}.{hint}")
    return kind(**given)
