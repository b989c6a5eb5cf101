"""Has mkdocstrings show the examples of docstrings as code: it knows the section `Examples`; ours is `Example`, or none."""

from __future__ import annotations

import re
from typing import Any

import griffe

_HEADING = re.compile(r"^Example:$", re.M)
_ALONE = re.compile(r"^>>> .*(?:\n.+)*", re.M)  # a paragraph that begins with a prompt, at the margin


class Examples(griffe.Extension):
    """Renames the section of each object, and fences examples without one."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = _HEADING.sub("Examples:", obj.docstring.value)
            obj.docstring.value = _ALONE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
