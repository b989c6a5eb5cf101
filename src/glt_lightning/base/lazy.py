"""Names that a package gives out without importing their modules before somebody asks for one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], refused: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The package's ``__getattr__`` and ``__dir__``.  homes: name -> the module that defines it.  refused: name -> why there is
    none, and what to use instead.

    A name whose home is the package's module of that name is the module itself, as Python has it after an import. Raises
    `OptionError` for a refused name.
    """

    def __getattr__(name: str) -> Any:
        if refused is not None and name in refused:
            from glt_lightning.base.errors import OptionError

            raise OptionError(f"{package}.{refused[name].format(name=name)}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(homes[name])
        return module if homes[name] == f"{package}.{name}" else getattr(module, name)

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return __getattr__, __dir__
