"""Names that a package gives out without importing their modules before somebody asks for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The package's ``__getattr__``.  homes: name -> the module that defines it.

    A name equal to the last part of its module is the module itself.
    """

    def __getattr__(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(homes[name])
        return module if homes[name].endswith(f".{name}") else getattr(module, name)

    return __getattr__
