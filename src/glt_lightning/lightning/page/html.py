"""Reports as pages that need nothing else: no script, no font, no picture from elsewhere. The pages are the jinja2 templates
in ``templates/``, which `render` fills in."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_TEMPLATES = Path(__file__).parent / "templates"
_NEEDED = ("jinja2", "matplotlib")
_HEAD = '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>'  # templates/base.html begins so


@dataclass(frozen=True)
class Table:
    """A table, whatever it is shown on.

    title; head and rows of texts, the first of each names the row; note: a line below."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def why_no_pages() -> str | None:
    """The packages that pages need and that are not installed, as a sentence; None where all are."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if not missing:
        return None
    return f"pages of reports need {' and '.join(missing)}: pip install 'glt-lightning[reports]'."


def render(template: str, **values: Any) -> str:
    """Fills in a template of this package. Text is escaped; plots are SVG, which `markupsafe.Markup` marks as such."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    pages = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return pages.get_template(template).render(values)


def may_be_replaced(path: Path) -> bool:
    """Whether nothing is there, or a page of `render`. Raises OSError."""
    if not os.path.lexists(path):
        return True
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as stream:  # of a pipe: no wait
        return stream.read(len(_HEAD)) == _HEAD.encode()
