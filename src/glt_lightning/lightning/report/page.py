"""Reports as pages that need nothing else: no script, no font, no picture from elsewhere. The pages are the jinja2 templates
in ``templates/``, which `render` fills in."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
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


# The same on a terminal.


_COLUMNS = 11  # of a table beside each other; more parts go below


def page_text(rows: Sequence[tuple[str, str]], tables: Sequence[Table]) -> str:
    """Writes facts (name, value), and aligned tables below them."""
    width = max(len(name) for name, _ in rows)
    lines = [f"{name.ljust(width)}  {value}" for name, value in rows]
    for table in tables:
        lines += ["", *_table(table)]
    return "\n".join(_printable(line) for line in lines)


def _table(table: Table) -> list[str]:
    lines = [table.title]
    for begin in range(1, len(table.head), _COLUMNS):
        columns = [0, *range(begin, min(begin + _COLUMNS, len(table.head)))]
        lines += _aligned([[row[c] for c in columns] for row in (table.head, *table.rows)])
    return [*lines, f"({table.note})"] if table.note else lines


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligns a table: the first column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def _printable(line: str) -> str:
    """Replaces control characters, which names of types and data sets may contain."""
    return "".join(c if c.isprintable() else "?" for c in line)


# Small plots of matplotlib as inline SVG. They have no background, and greys that can be read on light and dark pages.


_DOTS = 60  # points of a line from which on they are not marked
_LABELS = 16  # most labels below a plot
_GREY = "#7d8796"

_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text, in the font of the page
    "svg.hashsalt": "glt_lightning",  # the same plot is the same text
    "text.parse_math": False,  # names may have dollar signs
    "font.size": 8,
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _GREY),
}

_XLINK = ' xmlns:xlink="http://www.w3.org/1999/xlink"'  # HTML knows it
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


@dataclass(frozen=True)
class Series:
    """One line or one set of bars. values: in the order of the labels; None is left out."""

    name: str
    values: tuple[float | None, ...]


def bars(labels: Sequence[str], series: Sequence[Series], unit: str) -> str:
    """Groups of bars, one group per label."""
    width = 0.8 / max(1, len(series))

    def draw(axes: Any) -> list[Any]:
        return [
            axes.bar([i + (s + 0.5) * width - 0.4 for i in at], values, width)
            for s, (at, values) in enumerate(map(_known, series))
        ]

    return _svg(labels, series, unit, draw)


def lines(labels: Sequence[str], series: Sequence[Series], unit: str, thick: bool = True) -> str:
    """One line per series over evenly spaced labels. thick: the last series is drawn thicker."""

    def draw(axes: Any) -> list[Any]:
        drawn = []
        for s, (at, values) in enumerate(map(_known, series)):
            width = 3.5 if thick and s == len(series) - 1 else 1.5
            drawn += axes.plot(at, values, linewidth=width, marker="o" if len(at) <= _DOTS else "", markersize=3)
        return drawn

    return _svg(labels, series, unit, draw)


def _known(series: Series) -> tuple[list[int], list[float]]:
    """(positions, values) without those that are not known."""
    known = [(i, value) for i, value in enumerate(series.values) if value is not None]
    return [i for i, _ in known], [value for _, value in known]


def _svg(labels: Sequence[str], series: Sequence[Series], unit: str, draw: Callable[[Any], list[Any]]) -> str:
    """A plot whose axis of values holds 0, with a legend where there are several series."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure  # draws without pyplot's state and windows

    with rc_context(_STYLE):
        figure = Figure(figsize=(4.4, 2.6), layout="constrained")
        axes = figure.add_subplot()
        drawn = draw(axes)
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, 0.0), max(high, 0.0))
        shown = range(0, len(labels), -(-len(labels) // _LABELS) or 1)
        axes.set_xticks(list(shown), [labels[i] for i in shown])
        axes.set_ylabel(unit)
        if len(series) > 1:  # matplotlib leaves out names that begin with an underscore
            axes.legend(drawn, [f" {each.name}" for each in series], frameon=False)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata=_NO_METADATA)
    svg = text.getvalue()
    return svg[svg.index("<svg") :].replace(' xmlns="http://www.w3.org/2000/svg"', "", 1).replace(_XLINK, "", 1)
