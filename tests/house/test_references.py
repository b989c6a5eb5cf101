"""What docstrings name is there: each `dotted.name` in single backticks is a module, or a name in one."""

from __future__ import annotations

import importlib
import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

import glt_lightning

ROOT = Path(glt_lightning.__file__).parent
DOTTED = re.compile(r"(?<!`)`([A-Za-z_]\w*(?:\.\w+)+)(?:\(\))?`(?!`)")
NOT_INSTALLED = {"dgl"}  # peers, whose names docstrings may mention


def module_of(path: Path) -> str:
    return ".".join(("glt_lightning", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


MODULES = {module_of(path): path for path in sorted(ROOT.rglob("*.py"))}


@cache
def text_of(module: str) -> str:
    return MODULES[module].read_text()


def is_in(module: str, names: list[str]) -> bool:
    """Whether a module defines the first of the names, or gives it out, and has the others."""
    return all(re.search(rf"\b{re.escape(name)}\b", text_of(module)) for name in names)


def is_there(name: str, module: str) -> bool:
    """module: that of the docstring."""
    head, *rest = name.removeprefix("glt_lightning.").split(".")
    if head in NOT_INSTALLED or re.search(rf"^\s*(?:from .*)?import .*\b{head}\b", text_of(module), re.M):
        return True
    for cut in range(len(rest) + 1, 0, -1):
        ending = "." + ".".join([head, *rest][:cut])
        if any(is_in(each, [head, *rest][cut:]) for each in MODULES if each.endswith(ending)):
            return True
    owners = [each for each in MODULES if re.search(rf"^(?:class )?{head}\b", text_of(each), re.M)]
    if any(is_in(each, rest) for each in owners):
        return True
    return importlib.util.find_spec(head) is not None and hasattr_of(head, rest)


def hasattr_of(head: str, rest: list[str]) -> bool:
    found: object = importlib.import_module(head)
    for at, name in enumerate(rest):
        if not hasattr(found, name):
            try:
                found = importlib.import_module(".".join([head, *rest[: at + 1]]))
            except ImportError:
                return False
        else:
            found = getattr(found, name)
    return True


@pytest.mark.parametrize("room", sorted({path.relative_to(ROOT).parts[0] for path in MODULES.values()}))
def test_docstrings_name_what_is_there(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {name}"
        for module, path in MODULES.items()
        if path.relative_to(ROOT).parts[0] == room
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for name in DOTTED.findall(line)
        if not is_there(name, module)
    ]
    assert not wrong, "\n".join(wrong)
