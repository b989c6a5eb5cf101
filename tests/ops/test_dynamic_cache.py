"""The cache that learns what is hot: equal to S3-FIFO in plain Python, request by request."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from glt_lightning.base import DataError, OptionError
from glt_lightning.kernels import DynamicCache
from tests.helpers.s3fifo import S3Fifo, ShardedS3Fifo, lru_hits

ROWS = [(np.dtype(np.int64), ()), (np.dtype(np.float32), (3,)), (np.dtype(np.uint8), (5, 1))]


def _rows_of(ids):
    """Rows as functions of the ids, one array for each of ROWS."""
    columns = ids[:, None] + np.arange(5)
    return [ids * 7, columns[:, :3].astype(np.float32), (columns % 251).astype(np.uint8)[:, :, None]]


def _assert_rows(place, rows, ids):
    hit = place >= 0
    assert place[hit].tolist() == list(range(hit.sum()))
    for got, expected in zip(rows, _rows_of(ids[hit]), strict=True):
        assert got.dtype == expected.dtype
        assert np.array_equal(got, expected)


def _replay(cache, reference, calls):
    """Each call looks ids up, then offers those that were missed, as often as they were."""
    hits = misses = 0
    for ids in calls:
        ids = np.array(ids, dtype=np.int64)
        place, rows = cache.find(ids)
        assert (place >= 0).tolist() == [reference.find(i) for i in ids.tolist()]
        _assert_rows(place, rows, ids)
        missed = ids[place < 0]
        cache.insert(missed, _rows_of(missed))
        for i in missed.tolist():
            reference.insert(i)
        hits, misses = hits + len(ids) - len(missed), misses + len(missed)
        assert (cache.hits, cache.misses, cache.evictions) == (hits, misses, reference.evictions)


@st.composite
def _streams(draw):
    """Calls whose ids come back often (a few hot ones), sometimes, or hardly ever; some of them large numbers."""
    width = draw(st.sampled_from([8, 40, 150]))
    one = st.one_of(st.integers(0, 5), st.integers(0, width), st.integers(0, width).map(lambda i: (1 << 63) - 1 - i))
    return draw(st.lists(st.lists(one, max_size=60), max_size=25))


@settings(max_examples=300, deadline=None)
@given(capacity=st.integers(1, 60), calls=_streams())
def test_one_shard_like_the_reference(capacity, calls):
    reference = S3Fifo(capacity)
    cache = DynamicCache(capacity, ROWS, shards=1)
    _replay(cache, reference, calls)
    assert len(cache) == len(reference.uses)


@settings(max_examples=150, deadline=None)
@given(shards=st.integers(1, 9), more=st.integers(0, 80), calls=_streams())
def test_many_shards_like_the_reference(shards, more, calls):
    reference = ShardedS3Fifo(shards + more, shards)
    cache = DynamicCache(shards + more, ROWS, shards=shards)
    _replay(cache, reference, calls)
    assert len(cache) == len(reference)


@pytest.mark.parametrize("shards", [1, 5])
def test_long_skewed_stream_like_the_reference(shards):
    ids = np.random.default_rng(1).zipf(1.2, 40_000) % 5000
    _replay(DynamicCache(300, ROWS, shards=shards), ShardedS3Fifo(300, shards), np.array_split(ids, 200))


def test_an_id_that_is_there_keeps_its_rows():
    cache = DynamicCache(4, ROWS)
    ids = np.array([3, 3, 2])
    cache.insert(ids, _rows_of(np.array([3, 9, 2])))
    cache.insert(ids[:1], _rows_of(np.array([8])))
    place, rows = cache.find(np.array([2, 5, 3, 2]))
    assert place.tolist() == [0, -1, 1, 2]
    assert rows[0].tolist() == [14, 21, 14]
    assert len(cache) == 2


def test_rows_go_where_the_caller_says():
    cache = DynamicCache(10, ROWS)
    ids = np.arange(10)
    cache.insert(ids, _rows_of(ids))
    out = [np.full((12, *shape), 1, dtype=dtype) for dtype, shape in ROWS]
    place, rows = cache.find(ids[::-2], out)
    _assert_rows(place, rows, ids[::-2])
    for got, given_ in zip(rows, out, strict=True):
        assert got.base is given_
        np.testing.assert_array_equal(given_[5:], 1)


@pytest.mark.parametrize("shards", [1, 7])
def test_threads(shards):
    """Every row found is the id's own, and nothing is counted twice or lost."""
    cache = DynamicCache(500, ROWS, shards=shards)
    looked_up, wrong = [0] * 8, []

    def work(thread):
        random = np.random.default_rng(thread)
        try:
            for _ in range(60):
                ids = random.zipf(1.3, 700) % 3000
                place, rows = cache.find(ids)
                _assert_rows(place, rows, ids)
                cache.insert(ids[place < 0], _rows_of(ids[place < 0]))
                looked_up[thread] += len(ids)
        except AssertionError as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(t,)) for t in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert cache.hits + cache.misses == sum(looked_up)
    assert len(cache) == 500
    assert 0 < cache.evictions <= cache.misses - 500
    everything = np.arange(3000)
    place, rows = cache.find(everything)
    _assert_rows(place, rows, everything)
    assert (place >= 0).sum() == 500  # each entry can be found, once


def test_hits_more_often_than_lru():
    """Half of the requests follow Zipf's law, half are ids that come but once: 13667 hits against 11704."""
    ids = np.random.default_rng(7).zipf(1.1, 60_000) % 20_000
    ids[1::2] = np.arange(1_000_000, 1_030_000)
    cache = DynamicCache(1000, [(np.dtype(np.int64), ())], shards=1)
    _assert_scan_resistant(cache, ids)
    sharded = DynamicCache(1000, [(np.dtype(np.int64), ())], shards=8)
    _assert_scan_resistant(sharded, ids)
    assert sharded.hits > 0.98 * cache.hits


def _assert_scan_resistant(cache, ids):
    for some in np.array_split(ids, 6000):
        place, _ = cache.find(some)
        cache.insert(some[place < 0], [some[place < 0]])
    assert cache.hits > 1.15 * lru_hits(ids.tolist(), 1000)


def test_memory_is_as_documented():
    cache = DynamicCache(100_000, [(np.dtype(np.int64), ()), (np.dtype(np.float32), (100,))], shards=10)
    assert abs(cache.nbytes - 100_000 * (8 + 8 + 400 + 34)) < 10 * 700
    before = cache.nbytes
    ids = np.arange(1000)
    cache.insert(ids, [ids, np.zeros((1000, 100), dtype=np.float32)])
    assert cache.nbytes == before


def test_nothing_asked_for():
    cache = DynamicCache(10, ROWS)
    nothing = np.array([], dtype=np.int64)
    cache.insert(nothing, _rows_of(nothing))
    place, rows = cache.find(nothing)
    assert place.shape == (0,)
    assert [r.shape for r in rows] == [(0,), (0, 3), (0, 5, 1)]
    assert (len(cache), cache.hits, cache.misses, cache.evictions) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("capacity", "rows", "shards", "message"),
    [
        (3, ROWS, 4, "capacity: expected at least one entry for each of 4 shards, got 3"),
        (0, ROWS, None, "capacity: expected at least one entry for each of 1 shards, got 0"),
        (3, ROWS, 0, "shards: expected 1 to 65536, got 0"),
        (100_000, ROWS, 65537, "shards: expected 1 to 65536, got 65537"),
        (10**9, ROWS, 1, "capacity: expected at most 500000000 entries a shard"),
        (3, [], None, "rows: expected a .* for at least one attribute, got none"),
        (3, [(np.dtype(object), ())], None, "rows: expected plain values"),
        (3, [(np.dtype(np.int8), (2, -1))], None, "rows: expected plain values"),
    ],
)
def test_caches_that_cannot_be(capacity, rows, shards, message):
    with pytest.raises(OptionError, match=message):
        DynamicCache(capacity, rows, shards=shards)


@pytest.mark.parametrize("change", [lambda r: r[:2], lambda r: [r[0][:1], *r[1:]], lambda r: [r[0], r[1].T, r[2]]])
def test_rows_that_do_not_fit(change):
    cache = DynamicCache(10, ROWS)
    ids = np.arange(3)
    with pytest.raises(DataError, match=r"rows.*: expected"):
        cache.insert(ids, change(_rows_of(ids)))
    with pytest.raises(DataError, match=r"out.*: expected"):
        cache.find(ids, change(_rows_of(ids)))
    assert len(cache) == 0


def test_rows_of_another_type():
    ids = np.arange(3)
    rows = _rows_of(ids)
    rows[1] = rows[1].astype(np.float64)
    with pytest.raises(DataError, match=r"rows\[1\]: expected C-contiguous float32 of shape \(3, 3\), got float64"):
        DynamicCache(10, ROWS).insert(ids, rows)


@pytest.mark.parametrize("ids", [np.arange(3, dtype=np.int32), np.zeros((2, 2), dtype=np.int64)])
def test_ids_of_another_type(ids):
    with pytest.raises(DataError, match=r"ids: expected int64 \[n\], got"):
        DynamicCache(10, ROWS).find(ids)


def test_negative_ids():
    cache = DynamicCache(10, ROWS)
    ids = np.array([4, 5, -2])
    with pytest.raises(DataError, match="ids: expected none below 0, got -2 at position 2"):
        cache.find(ids)
    with pytest.raises(DataError, match="ids: expected none below 0, got -2 at position 2"):
        cache.insert(ids, _rows_of(ids))
    assert (len(cache), cache.misses) == (0, 0)
