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
_DOTS = 60  # points of a line from which on they are not marked


@dataclass(frozen=True)
class Series:
    """One line or one set of bars. values: in the order of the labels; None is left out."""

    name: str
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class _Axis:
    """The axis of values: it holds 0, and its ticks are multiples of a round number."""

    step: float
    first: int
    last: int

    @classmethod
    def of(cls, series: Sequence[Series]) -> _Axis:
        values = [v for each in series for v in each.values if v is not None]
        low, high = min(0.0, *values, 0.0), max(0.0, *values, 0.0)
        if low == high:
            return cls(1 / _TICKS, 0, _TICKS)
        power = 10 ** math.floor(math.log10((high - low) / _TICKS))
        for step in (power * factor for factor in (1, 1.5, 2, 2.5, 3, 4, 5, 10, 20)):
            below, above = math.ceil(-low / step), math.ceil(high / step)
            if below + above <= _TICKS:
                break
        return cls(step, -below, _TICKS - below if high > 0 else 0)

    def y(self, value: float) -> float:
        share = (value / self.step - self.first) / (self.last - self.first)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def bars(labels: Sequence[str], series: Sequence[Series], unit: str) -> str:
    """Groups of bars, one group per label. The values are 0 or more."""
    axis = _Axis.of(series)
    group = (_WIDTH - _LEFT - _RIGHT) / max(1, len(labels))
    width = 0.8 * group / max(1, len(series))
    shapes = []
    for s, each in enumerate(series):
        for i, value in enumerate(each.values):
            if value is not None:
                x, y = _LEFT + i * group + 0.1 * group + s * width, axis.y(value)
                shapes.append(
                    f'<rect class="{_color(s)}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
                    f'height="{axis.y(0) - y:.1f}">{_tip(each, labels[i], value, unit)}</rect>'
                )
    centers = [_LEFT + (i + 0.5) * group for i in range(len(labels))]
    return _figure(shapes, centers, labels, series, axis, unit)


def lines(labels: Sequence[str], series: Sequence[Series], unit: str, thick: bool = True) -> str:
    """One line per series over evenly spaced labels. thick: the last series is drawn thicker."""
    axis = _Axis.of(series)
    step = (_WIDTH - _LEFT - _RIGHT) / max(1, len(labels))
    centers = [_LEFT + (i + 0.5) * step for i in range(len(labels))]
    shapes = []
    for s, each in enumerate(series):
        known = [(i, v) for i, v in enumerate(each.values) if v is not None]
        path = " ".join(f"{centers[i]:.1f},{axis.y(v):.1f}" for i, v in known)
        kind = f"line {_color(s)}{' thick' if thick and s == len(series) - 1 else ''}"
        shapes.append(f'<polyline class="{kind}" points="{path}"><title>{escape(each.name)}</title></polyline>')
        shapes += [
            f'<circle class="{_color(s)}" cx="{centers[i]:.1f}" cy="{axis.y(v):.1f}" r="2.5">'
            f"{_tip(each, labels[i], v, unit)}</circle>"
            for i, v in known
            if len(known) <= _DOTS
        ]
    return _figure(shapes, centers, labels, series, axis, unit)


def _tip(series: Series, label: str, value: float, unit: str) -> str:
    return f"<title>{escape(series.name)}, {escape(label)}: {value:,.4g} {escape(unit)}</title>"


def _figure(
    shapes: list[str],
    centers: list[float],
    labels: Sequence[str],
    series: Sequence[Series],
    axis: _Axis,
    unit: str,
) -> str:
    """Axes around the shapes, and a legend below where there are several series."""
    marks = []
    for tick in range(axis.first, axis.last + 1):
        value = axis.step * tick
        y = axis.y(value)
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


def _color(number: int) -> str:
    return f"s{number % _SERIES}"


def _short(value: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"
