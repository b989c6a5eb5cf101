"""Checks that several options share. Each raises `OptionError` with the name of the option."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from glt_lightning.base.errors import OptionError
from glt_lightning.base.removed import without_removed

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def above_zero(name: str, seconds: float) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < float("inf"):
        raise OptionError(f"{name}: expected seconds > 0, got {seconds!r}.")


def at_least(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name}: expected an integer >= {least}, got {value!r}.")


def one_of(name: str, given: object, known: Sequence[str], further: str = "") -> None:
    """Compares the value of an option with those that are allowed.

    Args:
        name: Name of the option in the error message.
        given: The value.
        known: The allowed values.
        further: What else is allowed, in words.

    Raises:
        OptionError: For any other value, with the allowed ones and the nearest of them.

    Example:
        >>> one_of("features", "cpus", ["auto", "cpu"])
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: features: expected auto, cpu; got 'cpus'. Did you mean cpu?
    """
    if given in known:
        return
    near = difflib.get_close_matches(str(given), known, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise OptionError(f"{name}: expected {', '.join([*known, further] if further else known)}; got {given!r}.{hint}")


def advise(text: str) -> None:
    """One line about an old name, once in a job. A warning of Python's, which shows each text once in a process: the command
    line makes an options object several times."""
    if os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0":
        warnings.warn(text, FutureWarning, stacklevel=2)


_Options = TypeVar("_Options", bound="DataclassInstance")


def as_options(kind: type[_Options], name: str, given: Any) -> _Options:
    """Makes an options object of a mapping of its fields; an options object is returned as it is.

    Args:
        kind: Class of the options.
        name: Name of the group in error messages, such as ``sampling``.
        given: The object or the mapping.

    Raises:
        OptionError: For anything else, and for an unknown field, with the known ones.

    Example:
        >>> as_options(SamplingOptions, "sampling", {"num_workers": 2}).num_workers
        2
        >>> as_options(SamplingOptions, "sampling", {"worker": 2})
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: sampling: ...
    """
    if isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        raise OptionError(f"{name}: expected {kind.__name__} or a mapping of its fields, got {given!r:.80}.")
    given = without_removed(name, given)
    known = [each.name for each in fields(kind)]
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise OptionError(f"{name}: expected any of {', '.join(known)}; got {key!r}.{hint}")
    return kind(**given)
