"""Counters: sums, differences, and what is refused of a message."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from glt_lightning.sampler.counters import Counters

SOME = Counters(*range(1, 12), 0.5, 0.25, 0.125, 2.0, 12, 13)


def test_sum_and_difference() -> None:
    total = Counters()
    total.add(SOME)
    before = Counters(*total.to_list())
    total.add(SOME)
    assert total.since(before) == SOME
    assert total.rows == 2 * (1 + 3 + 5 + 7 + 12)


def test_through_a_message() -> None:
    read = Counters.from_list(json.loads(json.dumps(SOME.to_list())))
    assert read == SOME
    assert all(type(getattr(read, f.name)).__name__ == f.type for f in fields(Counters))
    assert Counters.from_list([0] * 17) == Counters()  # JSON of some other writer


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1, -0.5, 1 << 63, True, "1", None])
@pytest.mark.parametrize("place", [0, 14, 16])
def test_no_counter(bad: object, place: int) -> None:
    values: list = SOME.to_list()
    values[place] = bad
    with pytest.raises(ValueError, match="counters: expected 17 counts and seconds"):
        Counters.from_list(values)
