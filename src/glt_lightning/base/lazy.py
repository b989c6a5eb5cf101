"""Names that a package gives out without importing their modules before somebody asks for one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any


@cache
def listed_names(package: str) -> dict[str, str]:
    """Maps each name that the package's ``__init__.py`` imports below ``if TYPE_CHECKING:`` to the module that defines it.

    One list serves type checkers, readers and Python: the file is read again, as text. Raises ImportError for an installation
    without source files.
    """
    import ast

    spec = sys.modules[package].__spec__
    assert spec is not None
    source = spec.loader.get_source(package)  # type: ignore[union-attr]  # of files and of zipped packages
    if source is None:
        raise ImportError(f"{package}: its source file is missing. Install the package with its .py files.")
    tree = ast.parse(source)
    [block] = [each for each in tree.body if isinstance(each, ast.If)]
    return {
        alias.name: f"{package}.{alias.name}" if each.module == package else str(each.module)
        for each in block.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }


def lazy_names(
    package: str, homes: Mapping[str, str] | None = None, refused: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The package's ``__getattr__`` and ``__dir__``.  homes: name -> the module that defines it, `listed_names` if left out.
    refused: name -> why there is none, and what to use instead.

    A name whose home is the package's module of that name is the module itself, as Python has it after an import. Raises
    `OptionError` for a refused name.
    """

    def __getattr__(name: str) -> Any:
        if refused is not None and name in refused:
            from glt_lightning.base.errors import OptionError

            raise OptionError(f"{package}.{refused[name].format(name=name)}")
        # Python asks for its own names before there is anything to read
        found = None if name.startswith("__") else (listed_names(package) if homes is None else homes).get(name)
        if found is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(found)
        return module if found == f"{package}.{name}" else getattr(module, name)

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *(listed_names(package) if homes is None else homes)})

    return __getattr__, __dir__
