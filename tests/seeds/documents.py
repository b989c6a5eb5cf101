"""The documents that the product comes from, read from the folder in GLT_TEST_SEEDS; their text is not part of the project."""

from __future__ import annotations

import ast
import codeop
import os
import re
from pathlib import Path

import pytest

VARIABLE = "GLT_TEST_SEEDS"


def document(number: str) -> str:
    """Skips the test, with the reason, where there is no such folder."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        pytest.skip(f"needs the documents: set {VARIABLE} to their folder")
    (path,) = Path(folder).glob(f"{number}_*.txt")
    return path.read_text()


def python_blocks(text: str) -> list[str]:
    """The Python of a document in its order: fenced blocks, sessions (``>>>``) and cells (``In [1]:``)."""
    found = []
    for match in re.finditer(r"^```\w*\n(.*?)^```|^In \[\d+\]:\n(.*?)(?=^In \[|^#+ |\Z)", text, re.M | re.S):
        fenced, cell = match.groups()
        code = _longest_python(cell) if fenced is None else _session(fenced) if ">>> " in fenced else fenced
        if _is_python(code) and code.strip():
            found.append("\n".join(line.rstrip() for line in code.splitlines()) + "\n")
    return found


def titled_blocks(text: str) -> list[str]:
    """Fenced blocks that say that they are Python, in order, also those that are not."""
    return re.findall(r"^```python[^\n]*\n(.*?)^```", text, re.M | re.S)


def _is_python(code: str) -> bool:
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


def _longest_python(text: str) -> str:
    """A cell up to its output, or the text that follows it."""
    lines = text.splitlines()
    return next(code for n in range(len(lines), -1, -1) if _is_python(code := "\n".join(lines[:n])))


def _session(text: str) -> str:
    """What was typed, without what was printed."""
    typed: list[str] = []
    is_open = False
    for line in text.splitlines():
        if line.startswith(">>> "):
            typed.append(line[4:])
        elif is_open:
            typed.append(line.removeprefix("... "))
        else:
            continue
        start = max(i for i, each in enumerate(typed) if not each.startswith((" ", ")")))
        is_open = codeop.compile_command("\n".join(typed[start:]), symbol="exec") is None
    return "\n".join(typed)
