"""An array that is written in pieces, in any order, has the file and the entry of one that is written as a stream."""

from __future__ import annotations

import os
import tempfile
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from glt_lightning.base import PartitionError
from glt_lightning.kernels import row_bytes
from glt_lightning.partition.arrays import (
    DATA_OFFSET,
    ArrayPieces,
    ArrayWriter,
    chunk_ranges,
    hash_chunk,
    hashed_entry,
    join_crcs,
    read_rows,
    seal_array,
)
from tests.helpers.examples import examples


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.binary(max_size=70), max_size=6))
def test_sums_of_pieces_make_the_sum_of_all(pieces: list[bytes]) -> None:
    assert join_crcs((zlib.crc32(p), len(p)) for p in pieces) == zlib.crc32(b"".join(pieces))


@pytest.mark.parametrize("shape", [(1000,), (40, 3), (0,), (7, 0)])
@pytest.mark.parametrize("chunk_bytes", [64, 1 << 20])
def test_pieces_are_the_stream(
    tmp_path: Path, shape: tuple[int, ...], chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glt_lightning.partition.arrays.CHUNK_BYTES", chunk_bytes)
    rows = np.random.default_rng(0).random(shape).astype(np.float32)
    with ArrayWriter(tmp_path, "a.npy", np.float32, shape[1:]) as writer:
        writer.write(rows)
    for begin in reversed(range(0, len(rows), 13)):
        with ArrayPieces(tmp_path, "b.npy", np.float32, shape[1:]) as pieces:
            pieces.write(begin, rows[begin : begin + 13])
            pieces.write(begin, rows[begin : begin + 13])
    np.testing.assert_array_equal(read_rows(tmp_path, "a.npy", rows.dtype, rows[2:5].shape, 2), rows[2:5])
    seal_array(tmp_path, "b.npy", rows.dtype, shape)
    chunks = chunk_ranges(row_bytes(rows.dtype, shape))
    hashes = [hash_chunk(tmp_path, "b.npy", begin, end - begin) for begin, end in chunks]
    assert hashed_entry(rows.dtype, shape, hashes) == writer.close()
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 300), st.lists(st.integers(0, 90), max_size=6)), max_size=6))
def test_ranges_in_any_order(runs: list[tuple[int, list[int]]]) -> None:
    expected = np.zeros(1000, np.uint8)
    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
        ArrayPieces(folder, "a.npy", np.uint8) as pieces,
    ):
        patch.setattr("glt_lightning.partition.arrays._LARGE_PAGE", 64)
        for number, (begin, counts) in enumerate(runs, 1):
            for count in counts:  # one after another
                expected[begin : begin + count] = number
                pieces.write(begin, np.full(count, number))
                begin += count
        pieces.seal(len(expected))
        np.testing.assert_array_equal(np.load(pieces.file), expected)


def test_ranges_that_follow_each_other_are_written_by_large_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, pwrite = [], os.pwrite

    def record(fd: int, data: memoryview, offset: int) -> int:
        written.append((offset, offset + len(data)))
        return pwrite(fd, data, offset)

    monkeypatch.setattr("os.pwrite", record)
    rows = np.random.default_rng(0).integers(0, 256, 9 << 20, np.uint8)
    with ArrayPieces(tmp_path, "a.npy", np.uint8) as pieces:
        for begin, end in pairwise([0, 5000, 1 << 20, 3 << 20, (3 << 20) + 1, 8 << 20, len(rows)]):
            pieces.write(begin, rows[begin:end])
    ends = [DATA_OFFSET, 2 << 20, 8 << 20, DATA_OFFSET + len(rows)]
    assert written == [*pairwise([*ends[:2], 4 << 20, *ends[2:]])]
    seal_array(tmp_path, "a.npy", rows.dtype, rows.shape)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), rows)


def test_rows_that_nobody_writes_are_zero(tmp_path: Path) -> None:
    with ArrayPieces(tmp_path, "a.npy", np.int32) as pieces:
        pieces.write(3, np.array([7]))
        with pytest.raises(ValueError, match=r"a\.npy: rows of shape \(2,\), expected \(\)"):
            pieces.write(0, np.zeros((1, 2)))
    seal_array(tmp_path, "a.npy", np.dtype(np.int32), (5,))
    assert np.load(tmp_path / "a.npy").tolist() == [0, 0, 0, 7, 0]


def test_a_file_that_became_shorter(tmp_path: Path) -> None:
    seal_array(tmp_path, "a.npy", np.dtype(np.int32), (5,))
    with pytest.raises(PartitionError, match=r"a\.npy: it became shorter while it was written"):
        hash_chunk(tmp_path, "a.npy", 0, 24)
