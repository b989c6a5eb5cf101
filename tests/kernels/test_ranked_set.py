"""Sets of ids with ranks."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from glt_lightning.base import DataError
from glt_lightning.kernels import RankedSet


def _built(members, first, num_ids):
    words = np.empty(RankedSet.words_for(num_ids), dtype=np.uint64)
    return RankedSet.build(np.array(members, dtype=np.int64), first, num_ids, words)


@given(st.integers(1, 2000), st.integers(-5, 5000), st.data())
def test_like_searching_in_the_sorted_members(num_ids, first, data):
    members = sorted(data.draw(st.sets(st.integers(first, first + num_ids - 1), max_size=300)))
    ids = np.array(data.draw(st.lists(st.integers(first - 600, first + num_ids + 600), max_size=200)), dtype=np.int64)
    position = {member: rank for rank, member in enumerate(members)}
    found = _built(members, first, num_ids).find(ids)
    assert found.dtype == np.int32
    assert found.tolist() == [position.get(i, -1) for i in ids.tolist()]


@pytest.mark.parametrize("num_ids", [191, 192, 193, 384, 100_000])
def test_all_are_members(num_ids):
    everything = np.arange(10, 10 + num_ids)
    assert _built(everything, 10, num_ids).find(everything).tolist() == list(range(num_ids))


@pytest.mark.parametrize("members", [[4, 4], [5, 4], [1, 12], [-1]])
def test_members_that_are_none(members):
    with pytest.raises(DataError, match=r"expected ascending ids from 0 to 11, each once; got"):
        _built(members, 0, 12)


def test_at_most_two_bits_for_each_id_of_a_large_graph():
    papers = 111_059_956
    assert RankedSet.words_for(papers) * 64 < 1.34 * papers
