"""Text of shell scripts: words of a command with variables in them, and templates."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

_BLANK = re.compile(r"@(\w+)@")


def shell_word(word: str, variables: Mapping[str, str]) -> str:
    """A word, quoted. variables: what stands for the value of a variable -> the name of that variable."""
    pieces = re.split("(" + "|".join(map(re.escape, variables)) + ")", word) if variables else [word]
    quoted = (f'"${variables[piece]}"' if piece in variables else shlex.quote(piece) for piece in pieces if piece)
    return "".join(quoted) or "''"


def shell_json(value: Any, variables: Mapping[str, str], whole: Sequence[str] = ()) -> str:
    """A value as JSON, as one word. whole: those of the variables whose own values are JSON, not part of a text."""
    text = json.dumps(value)
    for mark in whole:
        text = text.replace(json.dumps(mark), mark)
    for mark in variables:
        text = text.replace(json.dumps(mark)[1:-1], mark)
    return shell_word(text, variables)


def shell_lines(words: Sequence[str], variables: Mapping[str, str]) -> str:
    """A command, with each option on a line of its own."""
    text = ""
    for word in words:
        space = " \\\n    " if word.startswith("--") else " "
        text += (space if text else "") + shell_word(word, variables)
    return text


def filled(template: str, **values: str) -> str:
    """A template with ``@name@`` replaced. Raises KeyError for a name that is not given."""
    return _BLANK.sub(lambda found: values[found[1]], template)
