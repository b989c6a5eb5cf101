"""Places of new entries in sorted rows, against a search of numpy."""

from __future__ import annotations

import numpy as np
import pytest

from glt_lightning.base import DataError, PartitionError
from glt_lightning.kernels import Shards


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_places_are_those_of_a_search_by_time_and_id(dtype: type, timed: bool) -> None:
    rng, shift, num_nodes = np.random.default_rng(timed), 3, 40
    counts = rng.integers(0, 50, 60)
    bounds = np.append(0, np.cumsum(counts))
    ids = rng.permutation(num_nodes).astype(dtype)
    rows = []
    for count in counts:  # ascending by time and user id, as rows are stored
        moments, gids = rng.integers(0, 4 if timed else 1, count), rng.integers(0, num_nodes, count)
        order = np.lexsort([ids[gids], moments])
        rows.append((gids[order], moments[order]))
    sources, times = (np.concatenate(each) for each in zip(*rows, strict=True))
    of = rng.integers(0, 60, 500)
    key, moment = rng.integers(0, num_nodes, 500), rng.integers(0, 4 if timed else 1, 500)
    wanted = [
        bounds[r] + np.searchsorted(rows[r][1] * num_nodes + ids[rows[r][0]], m * num_nodes + k, side="right")
        for r, k, m in zip(of, key, moment, strict=True)
    ]
    cut = int(bounds[25])  # parts end where rows do

    def shards(array: np.ndarray) -> Shards:
        return Shards([array[:cut].copy(), array[cut:].copy()], bounds=np.array([0, cut, len(array)]))

    found = shards((sources - shift).astype(dtype)).search(
        shift,
        Shards([ids[:7], ids[7:].copy()]),
        bounds[of],
        bounds[of + 1],
        key,
        shards(times) if timed else None,
        moment,
    )
    assert np.array_equal(found, wanted)


def test_no_node_and_no_row_are_refused() -> None:
    sources, ids = Shards([np.array([0, 5], np.int32), np.array([1], np.int32)]), Shards([np.arange(3, dtype=np.int32)])
    one = [np.array([n]) for n in range(5)]
    assert sources.search(0, ids, one[0], one[1], one[0]) == [1]
    with pytest.raises(DataError, match="id 5 at position 0 is not in the graph"):
        sources.search(0, ids, one[0], one[2], one[0])
    with pytest.raises(PartitionError, match="the row of edges 0 to 3 does not lie in one part"):
        sources.search(0, ids, one[0], one[3], one[0])
    with pytest.raises(PartitionError, match="the row of edges 3 to 4 does not lie in one part"):
        sources.search(0, ids, one[3], one[4], one[0])
