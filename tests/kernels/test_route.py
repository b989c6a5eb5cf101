"""Which owner has which id."""

import numpy as np
import pytest

from glt_lightning.base import DataError
from glt_lightning.kernels import Router


@pytest.mark.parametrize("wire", [np.int32, np.int64])
@pytest.mark.parametrize("parts", [1, 3, 9, 20])
def test_like_searching_one_by_one(parts, wire):
    rng = np.random.default_rng(parts)
    bounds = np.concatenate([[5], 5 + np.cumsum(rng.integers(0, 20, parts))])  # some parts are empty
    bounds[-1] += 1
    owner_of_part = rng.integers(0, 3, parts)
    ids = rng.integers(5, bounds[-1], 200)
    route = Router(bounds, owner_of_part, 3, wire)(ids, first := np.array([0, 1000, 5000]))
    owner = owner_of_part[np.searchsorted(bounds, ids, side="right") - 1]
    assert route.owner.tolist() == owner.tolist()
    for o in range(3):
        mine = ids[owner == o]
        assert route.of(o).dtype == wire
        assert route.of(o).tolist() == mine.tolist()
        place = mine if o == 0 else first[o] + np.arange(len(mine))
        assert route.place[owner == o].tolist() == place.tolist()


def test_no_ids():
    route = Router(np.array([0, 4]), np.array([0]), 1, np.int32)(
        np.empty(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
    )
    assert route.begin == [0, 0]
    assert len(route.grouped) == len(route.place) == 0


@pytest.mark.parametrize("bad", [-1, 4])
def test_an_id_outside_the_graph(bad):
    with pytest.raises(DataError, match=f"id {bad} at position 1"):
        Router(np.array([0, 4]), np.array([0]), 1, np.int32)(np.array([2, bad]), np.zeros(1, dtype=np.int64))


@pytest.mark.parametrize("wire", [np.int32, np.int64])
def test_what_is_cached_is_of_an_owner_of_its_own(wire):
    rng = np.random.default_rng(7)
    bounds, owner_of_part = np.array([0, 10, 20, 30]), np.array([1, 0, 2])
    ids = rng.integers(0, 30, 100)
    members = np.array([2, 3, 12, 25])  # 12 is of a part that is mapped here: the cache is not asked for it
    cached = np.where(np.isin(ids, members), np.searchsorted(members, ids), -1).astype(np.int32)
    first = np.array([0, 1000, 2000, 5000])
    route = Router(bounds, owner_of_part, 3, wire)(ids, first, cached)
    remote = np.isin(ids, [2, 3, 25])
    assert route.owner.tolist() == np.where(remote, 3, owner_of_part[ids // 10]).tolist()
    assert route.of(3).tolist() == cached[remote].tolist()
    assert route.place[remote].tolist() == (5000 + cached[remote]).tolist()
    asked = (owner_of_part[ids // 10] == 1) & ~remote
    assert route.of(1).tolist() == ids[asked].tolist()
    assert route.place[asked].tolist() == (1000 + np.arange(asked.sum())).tolist()
