"""Small plots as inline SVG. Colours come from classes of the page, so that they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 440, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 14, 12, 36
_SERIES = 6  # colours; more series than that share one
_TICKS = 4


@dataclass(frozen=True)
class Series:
    """One line or one set of bars. values: in the order of the labels; None is left out."""

    name: str
    values: tuple[float | None, ...]


def bars(labels: Sequence[str], series: Sequence[Series], unit: str) -> str:
    """Groups of bars, one group per label."""
    top = _top(series)
    group = (_WIDTH - _LEFT - _RIGHT) / max(1, len(labels))
    width = 0.8 * group / max(1, len(series))
    shapes = []
    for s, each in enumerate(series):
        for i, value in enumerate(each.values):
            if value is not None:
                x, y = _LEFT + i * group + 0.1 * group + s * width, _y(value, top)
                shapes.append(
                    f'<rect class="{_color(s)}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
                    f'height="{_y(0, top) - y:.1f}"><title>{escape(each.name)}, {escape(labels[i])}: {value:,.4g} '
                    f"{escape(unit)}</title></rect>"
                )
    centers = [_LEFT + (i + 0.5) * group for i in range(len(labels))]
    return _figure(shapes, centers, labels, series, top, unit)


def lines(labels: Sequence[str], series: Sequence[Series], unit: str) -> str:
    """One line per series over evenly spaced labels; the last series is drawn thicker."""
    top = _top(series)
    step = (_WIDTH - _LEFT - _RIGHT) / max(1, len(labels))
    centers = [_LEFT + (i + 0.5) * step for i in range(len(labels))]
    shapes = []
    for s, each in enumerate(series):
        points = [(x, _y(v, top)) for x, v in zip(centers, each.values, strict=True) if v is not None]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        thick = " thick" if s == len(series) - 1 else ""
        shapes.append(
            f'<polyline class="line {_color(s)}{thick}" points="{path}"><title>{escape(each.name)}</title></polyline>'
        )
        shapes += [f'<circle class="{_color(s)}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in points]
    return _figure(shapes, centers, labels, series, top, unit)


def _figure(
    shapes: list[str],
    centers: list[float],
    labels: Sequence[str],
    series: Sequence[Series],
    top: float,
    unit: str,
) -> str:
    """Axes around the shapes, and a legend below where there are several series."""
    marks = []
    for tick in range(_TICKS + 1):
        value = top * tick / _TICKS
        y = _y(value, top)
        marks.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}"/>')
        marks.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(value)}</text>')
    every = -(-len(labels) // 16)
    for i in range(0, len(labels), every):
        y = _HEIGHT - _BOTTOM + 16
        marks.append(f'<text x="{centers[i]:.1f}" y="{y}" text-anchor="middle">{escape(labels[i])}</text>')
    marks.append(f'<text x="{_LEFT - 50}" y="{_HEIGHT - 4}">{escape(unit)}</text>')
    svg = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(marks)}{"".join(shapes)}</svg>'
    return svg + _legend(series)


def _legend(series: Sequence[Series]) -> str:
    if len(series) < 2:
        return ""
    entries = [f'<span><i class="{_color(s)}"></i>{escape(each.name)}</span>' for s, each in enumerate(series)]
    return f'<p class="legend">{"".join(entries)}</p>'


def _top(series: Sequence[Series]) -> float:
    """The end of the axis: the ticks are round numbers."""
    most = max((v for each in series for v in each.values if v is not None), default=0)
    if most <= 0:
        return 1.0
    power = 10 ** math.floor(math.log10(most / _TICKS))
    return _TICKS * next(step * power for step in (1, 1.5, 2, 2.5, 3, 4, 5, 10) if step * power * _TICKS >= most)


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM)


def _color(number: int) -> str:
    return f"s{number % _SERIES}"


def _short(value: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"
