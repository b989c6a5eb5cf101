"""Plots: axes and points."""

from __future__ import annotations

import re

import pytest

from glt_lightning.lightning.report.page import Series, bars, lines


def texts(svg: str) -> list[str]:
    return [text.replace("\N{MINUS SIGN}", "-") for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]


def axis(svg: str) -> list[float]:
    """Its numbers, where the labels are letters."""
    return [float(text) for text in texts(svg) if re.fullmatch(r"[-+.e\d]+", text)]


def dots(svg: str) -> int:
    return len(re.findall('<circle [^>]*fill="#1f77b4"', svg))


@pytest.mark.parametrize(
    "values", [(0.2, 0.81), (-0.4, 0.7), (-30.0, -10.0), (0.0,), (None,), (-1e-9, 1.0), (5e9, 6e9)]
)
def test_the_axis_holds_zero_and_every_value(values: tuple[float | None, ...]) -> None:
    svg = lines(["a", "b"][: len(values)], [Series("it", values)], "")
    ticks = axis(svg)
    known = [v for v in values if v is not None]
    assert 0 in ticks
    step = ticks[1] - ticks[0]
    assert all(ticks[0] - step <= v <= ticks[-1] + step for v in known)
    assert dots(svg) == len(known)


@pytest.mark.parametrize("draw", [lines, bars])
def test_names_are_text(draw) -> None:
    series = [Series("_<b>", (1.0, None)), Series("$x$ & $y", (None, 2.0))]
    svg = draw(["a", "<i>"], series, "MB")
    assert {"_&lt;b&gt;", "$x$ &amp; $y", "&lt;i&gt;", "MB"} <= set(texts(svg))
    assert svg == draw(["a", "<i>"], series, "MB")  # bit for bit


def test_many_points_are_a_line_alone() -> None:
    svg = lines([f"e{i}" for i in range(500)], [Series("a", tuple(float(i) for i in range(500)))], "s")
    assert dots(svg) == 0
    assert len([text for text in texts(svg) if text.startswith("e")]) <= 16


@pytest.mark.parametrize("unit", ["", "MB"])
def test_the_numbers_of_the_axis_are_inside(unit: str) -> None:
    svg = lines(["a", "b"], [Series("it", (-30.0, 2.0))], unit)
    ends = re.findall(r'<text x="([\d.]+)"[^>]*text-anchor="end"[^>]*>([^<]*)<', svg)
    assert len(ends) >= 3
    assert all(float(x) >= len(text) * 0.6 * 8 for x, text in ends)
