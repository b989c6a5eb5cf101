"""Plots: axes and points."""

from __future__ import annotations

import re

import pytest

from glt_lightning.page.plots import Series, lines


def ticks(svg: str) -> list[float]:
    return [float(tick) for tick in re.findall(r'text-anchor="end">([-+.e\d]+)<', svg)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.2, 0.81), [0, 0.25, 0.5, 0.75, 1]),
        ((-0.4, 0.7), [-0.4, 0, 0.4, 0.8, 1.2]),
        ((-30.0, -10.0), [-30, -20, -10, 0]),
        ((0.0,), [0, 0.25, 0.5, 0.75, 1]),
        ((None,), [0, 0.25, 0.5, 0.75, 1]),
        ((-1e-9, 1.0), [-0.4, 0, 0.4, 0.8, 1.2]),
    ],
)
def test_the_axis_holds_zero_and_every_value(values: tuple[float | None, ...], expected: list[float]) -> None:
    svg = lines([str(i) for i in range(len(values))], [Series("a", values)], "")
    assert ticks(svg) == pytest.approx(expected)
    heights = [float(y) for y in re.findall(r' cy="([-.\d]+)"', svg)]
    assert len(heights) == sum(v is not None for v in values)
    assert all(0 < y < 240 for y in heights)


def test_points_are_where_their_values_are() -> None:
    svg = lines(["0", "1", "2"], [Series("a", (-1.0, None, 1.0))], "")
    (low, high) = [float(y) for y in re.findall(r' cy="([-.\d]+)"', svg)]
    zero = next(float(y) for y, text in re.findall(r'y="([.\d]+)" text-anchor="end">([-.\d]+)<', svg) if text == "0")
    assert low - (zero - 4) == pytest.approx(zero - 4 - high, abs=0.2)
    assert "a, 2: 1 " in svg


def test_many_points_are_a_line_alone() -> None:
    svg = lines([str(i) for i in range(500)], [Series("a", tuple(float(i) for i in range(500)))], "s")
    assert "<circle" not in svg
    assert svg.count("<text") < 30
