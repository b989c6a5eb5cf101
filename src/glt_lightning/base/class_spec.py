"""A class and its arguments, as YAML names them: a class path, or ``{class_path: ..., init_args: {...}}``."""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
from argparse import Namespace
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

from glt_lightning.base.errors import DataError


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
