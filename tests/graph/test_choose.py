"""The one chooser: it spends the budget on the rows that save the most for each byte."""

import doctest

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from glt_lightning.graph import CacheChoice, cache_choice as module
from glt_lightning.graph.cache_choice import Candidates, choose, first_within
from glt_lightning.kernels import rows as row_bytes

RANKING = st.tuples(st.lists(st.integers(1, 50), max_size=12), st.integers(1, 9))


def test_examples():
    for each in (module, row_bytes):
        found = doctest.testmod(each)
        assert found.attempted
        assert not found.failed


@settings(deadline=None)
@given(st.lists(RANKING, min_size=1, max_size=4), st.integers(-5, 400))
def test_equals_one_row_after_the_other(rankings, budget):
    """Brute force: all rows in one list, best first; equal rows by their share of their ranking; until one does not fit."""
    rankings = [(sorted(hotness, reverse=True), size) for hotness, size in rankings]
    rows = [
        (-(h / size), (k + 1) / len(hotness), i, size)
        for i, (hotness, size) in enumerate(rankings)
        for k, h in enumerate(hotness)
    ]
    expected, left = [0] * len(rankings), budget
    for _, _, i, size in sorted(rows):
        if size > left:
            break
        left -= size
        expected[i] += 1
    found = choose([Candidates.alike(np.array(h, dtype=np.float64), size) for h, size in rankings], budget)
    assert found == expected


@settings(deadline=None)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=3), st.floats(0, 1.2))
def test_rows_that_save_the_same_get_the_same_share(numbers, share):
    total = sum(n * 8 for n in numbers)
    found = choose([Candidates.alike(np.ones(n), 8) for n in numbers], share * total)
    assert 8 * sum(found) <= share * total < 8 * sum(found) + 8 or found == numbers
    for n, k in zip(numbers, found, strict=True):
        assert abs(k - min(share, 1) * n) <= len(numbers)


def test_a_block_is_cut_where_the_budget_ends():
    lists = np.array([0, 3, 10, 12, 40, 41])
    ends = np.array([2, 5])
    of = Candidates(ends, np.array([5.0, 1.0]), lambda rows: lists[rows] * 4)
    counts = [choose([of], budget) for budget in (0, 11, 12, 40, 47, 48, 160, 164)]
    assert counts == [[rows] for rows in (0, 0, 1, 2, 2, 3, 4, 5)]


def test_nothing_to_choose_from():
    assert choose([], 100) == []
    assert choose([Candidates.alike(np.empty(0), 4), Candidates.alike(np.empty(0), 4)], 100) == [0, 0]
    assert choose([Candidates.alike(np.full(7, 9.0), 0), Candidates.alike(np.ones(3), 4)], 4) == [7, 1]
    assert first_within(np.array([3, 3]), 2) == first_within(np.empty(0), 9) == 0


@pytest.mark.parametrize(("share", "rows", "ranked", "expected"), [(0.1, 39, 50, 3), (1.0, 10, 4, 4), (0.0, 10, 4, 0)])
def test_a_share_of_the_rows(share, rows, ranked, expected):
    assert CacheChoice.rows_of_share(share, rows, ranked) == expected
