"""Ranges of rows: every row once, no more rows and edges than asked for, whatever host has the parts."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st

from glt_lightning.inference.states import chunks_of, cut, share_of
from tests.helpers.examples import examples


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(0, 30), max_size=40), st.integers(1, 9), st.integers(1, 40), st.integers(1, 4))
def test_each_row_once_within_the_bounds(degrees: list[int], batch: int, edges: int, ranks: int) -> None:
    chunks = cut(np.array(degrees, dtype=np.int64), batch, edges)
    assert [row for begin, end in chunks for row in range(begin, end)] == list(range(len(degrees)))
    for begin, end in chunks:
        assert end - begin <= batch
        assert end - begin == 1 or sum(degrees[begin:end]) <= edges
    shares = [share_of(chunks, turn, ranks).tolist() for turn in range(ranks)]
    assert sorted(each for share in shares for each in share) == chunks.tolist()
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_no_chunk_has_rows_of_two_parts() -> None:
    parts = [(0, np.ones(5, dtype=np.int64)), (9, np.ones(2, dtype=np.int64)), (11, np.empty(0, dtype=np.int64))]
    assert chunks_of(parts, 3, 100).tolist() == [[0, 3], [3, 5], [9, 11]]
