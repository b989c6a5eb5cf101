"""Counters: sums, differences, and what is refused of a message."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from glt_lightning.sampling import Counters

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
def test_a_count_that_cannot_be_true_is_0_and_said_once(bad: object, place: int, monkeypatch, caplog) -> None:
    monkeypatch.setattr("glt_lightning.sampling.counters._warned", False)
    values: list = SOME.to_list()
    values[place] = bad
    expected = SOME.to_list()
    expected[place] = 0
    assert Counters.from_list(values).to_list() == Counters.from_list(values).to_list() == expected
    assert len(caplog.messages) == 1
    assert "Batches are not affected" in caplog.text


@pytest.mark.parametrize("bad", [None, 7, {}, [], [0] * 18])
def test_no_counts_at_all(bad: object) -> None:
    assert Counters.from_list(bad) == Counters()
