"""Checks that several options share. Each raises `OptionError` with the name of the option."""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import os
import warnings
from argparse import Namespace
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from glt_lightning.base.errors import DataError, OptionError
from glt_lightning.base.removed import without_removed
from glt_lightning.base.types import MAX_FANOUT

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


# A class and its arguments, as YAML names them: a class path, or ``{class_path: ..., init_args: {...}}``.


@dataclass(frozen=True)
class ClassSpec:
    """option: which option names it, for errors.  arguments: keyword arguments of the class."""

    option: str
    path: str
    arguments: Mapping[str, Any]

    @classmethod
    def parse(cls, option: str, given: Any) -> ClassSpec:
        """Raises `DataError` for what is neither a path nor such a mapping."""
        spec = (
            vars(given) if isinstance(given, Namespace) else {"class_path": given} if isinstance(given, str) else given
        )
        if not isinstance(spec, Mapping) or not isinstance(spec.get("class_path"), str):
            raise DataError(f"{option}: expected a class path, or class_path and init_args; got {given!r:.200}.")
        arguments = spec.get("init_args") or {}
        arguments = vars(arguments) if isinstance(arguments, Namespace) else arguments
        if not isinstance(arguments, Mapping):
            raise DataError(f"{option}: init_args: expected arguments by name, got {arguments!r:.200}.")
        # the command line puts what follows init_args. beside class_path
        beside = {key: value for key, value in spec.items() if key not in ("class_path", "init_args")}
        return cls(option, spec["class_path"], {**arguments, **beside})

    @property
    def text(self) -> str:
        """The same text for the same class and arguments. Raises `DataError` for arguments that are no plain values."""
        try:
            return f"{self.path}({json.dumps(self.arguments, sort_keys=True)})"
        except TypeError:
            raise DataError(
                f"{self.option}: {self.path}: expected plain arguments (numbers, text, lists), got {dict(self.arguments)!r:.200}."
            ) from None

    def load(self) -> type:
        kind = self._import()
        if not inspect.isclass(kind):
            raise DataError(f"{self.option}: {self.path} is not a class.")
        return kind

    def make(self) -> Callable[..., Any]:
        """A function, or a callable object of a class. Raises `DataError` for what cannot be made or called."""
        found = self._import()
        if not inspect.isclass(found):
            if not callable(found):
                raise DataError(f"{self.option}: {self.path} is not callable, but {type(found).__name__}.")
            if self.arguments:
                raise DataError(
                    f"{self.option}: {self.path} is a function and takes no init_args. Remove them, or give a class."
                )
            return cast("Callable[..., Any]", found)
        self.check(found)
        try:
            made = found(**self.arguments)
        except Exception as error:  # a third-party class may raise anything
            raise DataError(f"{self.option}: {self.text} cannot be made ({type(error).__name__}: {error}).") from error
        if not callable(made):
            raise DataError(
                f"{self.option}: {self.path} is not callable. Expected an object with __call__, such as a transform of "
                "torch_geometric.transforms."
            )
        return cast("Callable[..., Any]", made)

    def _import(self) -> Any:
        module, _, name = self.path.rpartition(".")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise DataError(
                f"{self.option}: cannot import {self.path!r} ({error}). Give the import path of a class, such as "
                "package.module.Class, of a package that is installed or in the working directory."
            ) from None

    def check(self, kind: type, given: Collection[str] = ()) -> None:
        """Raises `DataError`, with the names, for arguments that the class lacks or has no use for.

        given: names of arguments that the caller adds.
        """
        parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]  # type: ignore[misc]
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        known = [p.name for p in named]
        open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
        for name in self.arguments:
            if name not in known and not open_ended:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f" Did you mean {near[0]}?" if near else ""
                takes = ", ".join(known) or "none"
                raise DataError(f"{self.option}: {self.path} has no argument {name!r}; it takes {takes}.{hint}")
        needed = [
            p.name for p in named if p.default is p.empty and p.name not in self.arguments and p.name not in given
        ]
        if needed:
            example = ", ".join(f"{name}: ..." for name in needed)
            raise DataError(
                f"{self.option}: {self.path} needs {', '.join(needed)}. Give {{class_path: {self.path}, init_args: "
                f"{{{example}}}}}."
            )


# Files in YAML; sizes, addresses and fan-outs, as they are written there.


# One list for all edge types, or one per edge type (``src__rel__dst``).
Fanouts = list[int] | dict[str, list[int]]


def parse_address(name: str, address: str) -> tuple[str, int]:
    """Reads an address: ``"host:port"`` or ``"[::1]:port"`` -> (host, port).

    Args:
        name: The option, for the error message.
        address: The address.

    Raises:
        OptionError: For anything else.

    Example:
        >>> parse_address("cluster.host", "10.0.0.1:18800")
        ('10.0.0.1', 18800)
        >>> parse_address("cluster.host", "10.0.0.1")
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: cluster.host: ...
    """
    host, _, port = str(address).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 <= int(port) <= 65535 or "/" in host:
        raise OptionError(f"{name}: expected addresses like '10.0.0.1:18800' or 'node1:18800', got {address!r}.")
    return host, int(port)


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(name: str, value: int | str) -> int:
    """Reads a number of bytes: ``"1.5GiB"`` is 1610612736; integers are returned as they are.

    Args:
        name: The option, for the error message.
        value: An integer, or a number with a unit: B, KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (powers of 1024).

    Raises:
        OptionError: For anything else, or for less than one byte.

    Example:
        >>> parse_bytes("cache.bytes", "2GiB"), parse_bytes("cache.bytes", 500)
        (2147483648, 500)
        >>> parse_bytes("cache.bytes", "much")
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: cache.bytes: ...
    """
    text = str(value).strip().upper()
    number = text.rstrip("KMGTIB ")
    try:
        size = int(float(number) * _UNITS[text[len(number) :].strip()])
    except (ValueError, KeyError, OverflowError):
        size = 0
    if size < 1:
        raise OptionError(f"{name}: expected bytes such as 500000000, '500MB' or '2GiB', got {value!r}.")
    return size


def parse_rate(name: str, value: str) -> float:
    """Reads the speed of a network, in bits per second: ``"25Gbit"`` is 3.125e9 bytes per second.

    Args:
        name: The option, for the error message.
        value: A number with a unit: kbit, Mbit or Gbit.

    Raises:
        OptionError: For anything else.

    Example:
        >>> parse_rate("--network", "25Gbit")
        3125000000.0
        >>> parse_rate("--network", "fast")
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: --network: ...
    """
    text = str(value).strip().lower().removesuffix("/s")
    for unit, factor in (("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)):
        if text.endswith(unit):
            try:
                rate = float(text.removesuffix(unit)) * factor / 8
            except ValueError:
                break
            if 0 < rate < float("inf"):
                return rate
    raise OptionError(f"{name}: expected the speed of a network such as 25Gbit or 100Mbit, got {value!r}.")


def parse_fanouts(num_neighbors: list[int], name: str = "num_neighbors", least: int = 1) -> tuple[int, ...]:
    """Checks one list of fan-outs, first hop first: each -1 (all neighbours) or 1 to `MAX_FANOUT`.

    Args:
        num_neighbors: One integer per hop.
        name: The option, for the error message.
        least: The least fan-out; 0 where this is one edge type of several, which a hop may leave out.

    Raises:
        OptionError: For an empty list or any other value.

    Example:
        >>> parse_fanouts([15, 10, -1])
        (15, 10, -1)
        >>> parse_fanouts([15, 0])
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: num_neighbors: ...
    """
    ok = isinstance(num_neighbors, (list, tuple)) and len(num_neighbors) > 0
    if ok:
        ok = all(
            isinstance(k, int) and not isinstance(k, bool) and (k == -1 or least <= k <= MAX_FANOUT)
            for k in num_neighbors
        )
    if not ok:
        given = num_neighbors if isinstance(num_neighbors, (list, tuple)) else ()
        hint = " Drop the hop instead of asking for 0." if 0 in given else ""
        if any(isinstance(k, int) and k > MAX_FANOUT for k in given):
            hint = " Use -1 to take all neighbours."
        raise OptionError(
            f"{name}: expected one integer per hop, each -1 (all) or {least} to {MAX_FANOUT}; got {num_neighbors!r}.{hint}"
        )
    return tuple(num_neighbors)


def read_yaml(path: str, text: str | None = None, option: str = "--config") -> Any:
    """The contents of a YAML file. text: they were read already.  option: which names the file, for errors.

    Raises:
        OptionError: With the file, and the line where there is one: for a file that cannot be read or is not YAML, and for a key
            that is given twice, of which YAML's readers keep the last without a word.
    """
    import yaml  # type: ignore[import-untyped]  # a process that samples does not need it

    try:
        text = Path(path).read_text() if text is None else text
        _refuse_double_keys(path, yaml.compose(text, Loader=yaml.SafeLoader), option)
        return yaml.safe_load(text)
    except OSError as error:
        raise OptionError(f"{option}: cannot read {path}: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise OptionError(f"{option}: {path} is not YAML: {error}.") from None
    except yaml.YAMLError as error:
        mark: Any = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        reason = " ".join(str(getattr(error, "problem", None) or error).split())
        begun: Any = getattr(error, "context_mark", None)
        since = (
            ""
            if begun is None or begun.line == mark.line
            else f" ({error.context}, which begins in line {begun.line + 1})"
        )
        raise OptionError(f"{option}: {path}{line}: is not YAML: {reason}{since}. Correct this line.") from None


def _refuse_double_keys(path: str, node: Any, option: str) -> None:
    pairs = node.value if node is not None and node.id == "mapping" else []
    lines: dict[str, int] = {}
    for key, _ in pairs:
        line = key.start_mark.line + 1
        if key.id == "scalar" and key.value != "<<" and lines.setdefault(key.value, line) != line:
            raise OptionError(
                f"{option}: {path}, line {line}: {key.value} is given twice, first in line {lines[key.value]}. Keep one of them."
            )
    for child in [value for _, value in pairs] or (node.value if node is not None and node.id == "sequence" else []):
        _refuse_double_keys(path, child, option)
