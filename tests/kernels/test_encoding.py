"""Rows that are stored in fewer bytes: encoding rounds as said, gathering decodes exactly."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from glt_lightning.base import DataError, NativeError
from glt_lightning.kernels import BFLOAT16, ENCODINGS, Shards, from_bfloat16, to_bfloat16
from tests.helpers.examples import examples
from tests.reference import ops as reference

NAMES = sorted(ENCODINGS)


def as_torch(stored: np.ndarray, name: str) -> torch.Tensor:
    return (
        torch.from_numpy(stored.view(np.int16)).view(torch.bfloat16) if name == "bfloat16" else torch.from_numpy(stored)
    )


@settings(max_examples=examples(100), deadline=None)
@given(
    name=st.sampled_from(NAMES),
    row_shape=st.sampled_from([(), (0,), (1,), (3,), (8,), (17,), (100,), (2, 5)]),
    parts=st.integers(1, 12),
    threads=st.sampled_from([1, 3]),
    start=st.sampled_from([0, 2**31 - 3]),
    seed=st.integers(0, 2**32),
)
def test_gather_decodes(name, row_shape, parts, threads, start, seed):
    encoding, rng = ENCODINGS[name], np.random.default_rng(seed)
    if not encoding.fits(row_shape):
        return
    shape = encoding.stored_shape(row_shape)
    values = [rng.standard_normal((int(rng.integers(0, 9)), *row_shape)).astype(np.float32) for _ in range(parts)]
    shards = [encoding.encode(v) for v in values]
    assert all(s.dtype == encoding.dtype and s.shape[1:] == shape for s in shards)
    total = sum(map(len, shards))
    rows = rng.integers(0, total, int(rng.integers(0, 700))) if total else np.empty(0, dtype=np.int64)
    array = Shards(shards, start=start, encoding=encoding)
    got = array.gather(rows + start, threads=threads)
    want = reference.decode(as_torch(np.concatenate(shards), name), name)[torch.from_numpy(rows)]
    assert got.dtype == array.dtype == np.float32
    assert got.shape == (len(rows), *row_shape)
    assert np.array_equal(got, want.numpy())
    raw = array.raw.gather(rows + start, threads=threads)
    assert raw.dtype == array.stored_dtype
    assert np.array_equal(raw, np.concatenate(shards)[rows])


@settings(max_examples=examples(100), deadline=None)
@given(
    name=st.sampled_from([None, *NAMES]),
    row_shape=st.sampled_from([(), (0,), (1,), (17,), (100,), (2, 5)]),
    parts=st.integers(1, 12),
    destinations=st.sampled_from([0, 1, 40, 5000]),
    mean=st.booleans(),
    threads=st.sampled_from([1, 3]),
    seed=st.integers(0, 2**32),
)
def test_gather_sum(name, row_shape, parts, destinations, mean, threads, seed):
    encoding, rng = ENCODINGS.get(name), np.random.default_rng(seed)
    if encoding is not None and not encoding.fits(row_shape):
        return
    values = [rng.standard_normal((int(rng.integers(1, 9)), *row_shape)).astype(np.float32) for _ in range(parts)]
    shards = values if encoding is None else [encoding.encode(v) for v in values]
    array = Shards(shards, start=7, encoding=encoding)
    ids = rng.permutation(7 + np.arange(sum(map(len, shards)))).astype(np.int64)
    edges = int(rng.integers(0, 400)) if destinations else 0
    src = rng.integers(0, len(ids), edges).astype(np.int32)
    dst = np.sort(rng.integers(0, max(1, destinations), edges)).astype(np.int32)
    out = np.full((destinations, *row_shape), np.nan, dtype=np.float32)
    array.gather_sum(ids, src, dst, out, mean=mean, threads=threads)
    rows = torch.from_numpy(array.gather(ids))
    want = reference.gather_sum(rows, torch.from_numpy(src), torch.from_numpy(dst), destinations, mean=mean)
    assert np.array_equal(out, want.numpy())


def test_gather_sum_refuses_what_does_not_fit():
    array, out = (
        Shards([np.ones((3, 2), dtype=np.float32), None], bounds=np.array([0, 3, 5])),
        np.empty((2, 2), dtype=np.float32),
    )
    ids, edges = np.arange(5), np.array([0, 1], dtype=np.int32)
    for src in ([0, 4], [-1, 0], [0, 5]):
        with pytest.raises(DataError, match="gather_sum: id"):
            array.gather_sum(ids, np.array(src, dtype=np.int32), edges, out)
    for dst in ([1, 0], [-1, 0], [0, 2]):
        with pytest.raises(NativeError, match="gather_sum"):
            array.gather_sum(ids, edges, np.array(dst, dtype=np.int32), out)
    with pytest.raises(DataError, match="expected float32 rows, got int64"):
        Shards([np.ones((3, 2), dtype=np.int64)]).gather_sum(ids, edges, edges, out)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("width", [1, 8, 64])
def test_every_half(name, width):
    """Rows of one value and rows of many take different ways through the kernel."""
    stored = np.arange(1 << 16, dtype=np.uint16).view(ENCODINGS[name].dtype).reshape(-1, width)
    got = Shards([stored], encoding=ENCODINGS[name]).gather(np.arange(len(stored)))
    want = reference.decode(as_torch(stored, name), name).numpy()
    nan = np.isnan(want)
    assert np.array_equal(np.isnan(got), nan)
    assert np.array_equal(got[~nan].view(np.uint32), want[~nan].view(np.uint32))


def test_every_int8():
    scales = np.array([0, 1e-45, 1e-30, 0.1, 1, 2e36], dtype=np.float32)
    steps = np.tile(np.arange(-127, 128, dtype=np.int8), (len(scales), 1))
    stored = np.concatenate([scales[:, None].view(np.uint8), steps.view(np.uint8)], axis=1)
    got = Shards([stored], encoding=ENCODINGS["int8"]).gather(np.arange(len(scales)))
    assert np.array_equal(got, scales[:, None] * steps.astype(np.float32))


def test_bfloat16_rounds_as_torch():
    rng = np.random.default_rng(0)
    values = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)  # NaN and infinity among them
    want = torch.from_numpy(values).bfloat16()
    finite = ~np.isnan(values)
    assert np.array_equal(to_bfloat16(values)[finite], want.view(torch.int16).numpy().view(np.uint16)[finite])
    assert np.isnan(from_bfloat16(to_bfloat16(values))[~finite]).all()


def test_int8_rounds_to_the_nearest_step():
    values = np.random.default_rng(0).standard_normal((50, 30)).astype(np.float32)
    values[3] = 0
    stored = ENCODINGS["int8"].encode(values)
    scale = stored[:, :4].copy().view(np.float32)[:, 0]
    assert np.array_equal(scale, np.abs(values).max(axis=1) / np.float32(127))
    assert scale[3] == 0
    got = Shards([stored], encoding=ENCODINGS["int8"]).gather(np.arange(50))
    assert (np.abs(got - values) <= scale[:, None] * 0.5001).all()
    assert not got[3].any()
    halves = ENCODINGS["int8"].encode(np.array([[127, 0.5, 1.5, 2.5, -0.5, -1.5]], dtype=np.float32))
    assert halves[0, 4:].view(np.int8).tolist() == [127, 0, 2, 2, 0, -2]
    tiny = ENCODINGS["int8"].encode(np.full((1, 2), 1e-45, dtype=np.float32))
    assert not Shards([tiny], encoding=ENCODINGS["int8"]).gather(np.zeros(1, np.int64)).any()


@pytest.mark.parametrize("name", NAMES)
def test_further_shards_are_stored_rows(name):
    encoding = ENCODINGS[name]
    values = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    stored = encoding.encode(values)
    array = Shards([stored[:2]], encoding=encoding).extended([(10, stored[2:])], 20)
    whole = Shards([stored], encoding=encoding).gather(np.arange(6))
    assert np.array_equal(array.gather(np.array([0, 1, 10, 11, 12, 13])), whole)
    with pytest.raises(DataError, match="float32 rows"):
        Shards([stored[:2]], encoding=encoding).extended([(10, values[2:])], 20)


@pytest.mark.parametrize("bad", [4, 11, -1])
def test_refuses_ids_outside(bad):
    rows = np.zeros((3, 6), np.uint8)
    with pytest.raises(DataError, match=f"id {bad} at position 2"):
        Shards([rows, rows], start=5, encoding=ENCODINGS["int8"]).gather(np.array([5, 10, bad]))


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        (np.zeros((3, 2), np.float32), "float16"),
        (np.zeros((3, 2), np.uint16), "float16"),
        (np.zeros((3, 3), np.uint8), "int8"),
        (np.zeros(3, np.uint8), "int8"),
        (np.zeros((3, 2), BFLOAT16), "bfloat16"),
    ],
)
def test_refuses_what_is_not_stored_so(rows, name):
    with pytest.raises(DataError, match=f"do not hold {name}"):
        Shards([rows], encoding=ENCODINGS[name])
