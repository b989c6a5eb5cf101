"""Reports as pages that need nothing else: no script, no font, no picture from elsewhere. The pages are the jinja2 templates
in ``templates/``, which `render` fills in."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

_TEMPLATES = Path(__file__).parent / "templates"
_HEAD = '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>'  # templates/base.html begins so


@dataclass(frozen=True)
class Table:
    """A table, whatever it is shown on.

    title; head and rows of texts, the first of each names the row; note: a line below."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


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


# Small plots as inline SVG. They have no background, and greys that can be read on light and dark pages. Matplotlib would take
# half a second of CPU time to be imported and to draw those of a run.


_DOTS = 60  # points of a line from which on they are not marked
_LABELS = 16  # most labels below a plot
_TICKS = 6  # most lines across it
_GREY = "#7d8796"
_COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#bcbd22", "#17becf")
_WIDTH, _HEIGHT, _FONT = 317.0, 187.0, 8.0
_RIGHT = _WIDTH - _FONT  # room for half of the last label
_LETTER = 0.6 * _FONT  # width of a letter, about


@dataclass(frozen=True)
class Series:
    """One line or one set of bars. values: in the order of the labels; None is left out."""

    name: str
    values: tuple[float | None, ...]

    @property
    def known(self) -> list[tuple[int, float]]:
        """(position, value) of those that are known."""
        return [(i, value) for i, value in enumerate(self.values) if value is not None]


def bars(labels: Sequence[str], series: Sequence[Series], unit: str) -> str:
    """Groups of bars, one group per label."""
    axes, width = _Axes(labels, series, unit), 0.8 / max(1, len(series))
    marks = []
    for s, each in enumerate(series):
        for i, value in each.known:
            left, right = axes.x(i + s * width - 0.4), axes.x(i + (s + 1) * width - 0.4)
            top, bottom = axes.y(max(value, 0.0)), axes.y(min(value, 0.0))
            size = f'width="{right - left:.1f}" height="{bottom - top:.1f}"'
            marks.append(f'<rect x="{left:.1f}" y="{top:.1f}" {size} fill="{_colour(s)}"/>')
    return axes.svg(marks)


def lines(labels: Sequence[str], series: Sequence[Series], unit: str, thick: bool = True) -> str:
    """One line per series over evenly spaced labels. thick: the last series is drawn thicker."""
    axes = _Axes(labels, series, unit)
    marks = []
    for s, each in enumerate(series):
        at = [(f"{axes.x(i):.1f}", f"{axes.y(value):.1f}") for i, value in each.known]
        width = 3.5 if thick and s == len(series) - 1 else 1.5
        way = " ".join(map(",".join, at))
        marks.append(f'<polyline points="{way}" fill="none" stroke="{_colour(s)}" stroke-width="{width}"/>')
        if len(at) <= _DOTS:
            marks += [f'<circle cx="{x}" cy="{y}" r="2" fill="{_colour(s)}"/>' for x, y in at]
    return axes.svg(marks)


class _Axes:
    """Places of labels and values, of which the axis holds 0, and all but the marks of a plot: labels, lines across it, and a
    legend where there are several series."""

    def __init__(self, labels: Sequence[str], series: Sequence[Series], unit: str) -> None:
        self._labels, self._series, self._unit = labels, series, unit
        values = [value for each in series for _, value in each.known]
        low, high = min(values, default=0.0), max(values, default=0.0)
        low, high = (low, high) if low < 0 or high > 0 else (0.0, 1.0)
        step = _step(max(high, 0.0) - min(low, 0.0))
        self._low, self._high = 1.05 * min(low, 0.0), 1.05 * max(high, 0.0)
        self._ticks = [step * i for i in range(math.ceil(self._low / step), math.floor(self._high / step) + 1)]
        widest = max(len(f"{tick:g}") for tick in self._ticks)
        self._left, self._bottom = (2 * _FONT if unit else 7.0) + widest * _LETTER, _HEIGHT - 2 * _FONT

    def x(self, position: float) -> float:
        return self._left + (position + 0.5) / max(1, len(self._labels)) * (_RIGHT - self._left)

    def y(self, value: float) -> float:
        return self._bottom - (value - self._low) / (self._high - self._low) * (self._bottom - _FONT)

    def svg(self, marks: Sequence[str]) -> str:
        names, height = self._legend() if len(self._series) > 1 else ([], _HEIGHT)
        across = [f'<path d="M{self._left:.1f} {self.y(tick):.1f}H{_RIGHT:g}" opacity=".3"/>' for tick in self._ticks]
        sides = f'<path d="M{self._left:.1f} {_FONT:g}V{self._bottom:g}H{_RIGHT:g}"/>'
        values = [_text(self._left - 4, self.y(tick) + 3, f"{tick:g}", "end") for tick in self._ticks]
        every = -(-len(self._labels) // _LABELS) or 1
        below = [
            _text(self.x(i), self._bottom + 10, self._labels[i], "middle") for i in range(0, len(self._labels), every)
        ]
        middle = (self._bottom + _FONT) / 2
        unit = [_text(_FONT, middle, self._unit, "middle", f"rotate(-90 {_FONT:g} {middle:g})")] if self._unit else []
        parts = [
            f'<svg viewBox="0 0 {_WIDTH:g} {height:g}" font-size="{_FONT:g}" fill="{_GREY}">',
            f'<g fill="none" stroke="{_GREY}" stroke-width=".8">',
            *across,
            sides,
            "</g>",
            *(*values, *below, *unit, *marks, *names),
            "</svg>",
        ]
        return "\n".join(parts)

    def _legend(self) -> tuple[list[str], float]:
        """The names of the series in rows below the plot, and where these end."""
        parts, x, y = [], self._left, _HEIGHT + 4
        for s, each in enumerate(self._series):
            wide = 16 + _LETTER * len(each.name)
            if x > self._left and x + wide > _WIDTH:
                x, y = self._left, y + 11
            parts.append(f'<rect x="{x:.1f}" y="{y - 6:g}" width="8" height="6" fill="{_colour(s)}"/>')
            parts.append(_text(x + 11, y, each.name))
            x += wide
        return parts, y + 4


def _step(span: float) -> float:
    """The distance of lines across a plot: 1, 2 or 5 times a power of ten."""
    least = span / (_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * times for times in (1, 2, 5, 10) if power * times >= least)


def _text(x: float, y: float, text: str, anchor: str = "start", transform: str = "") -> str:
    turned = f' transform="{transform}"' if transform else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turned}>{escape(text, quote=False)}</text>'


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]
