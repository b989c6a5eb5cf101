"""What gathers and looks up on a device, run on the host: bodies in random orders of threads, as in test_device_logic."""

import re
from contextlib import ExitStack
from threading import Thread

import numpy as np
import pytest
import torch

from glt_lightning.base import DataError
from glt_lightning.graph.device_choice import bus_stride
from glt_lightning.kernels import ENCODINGS, CudaShards, RowsAt, Shards
from glt_lightning.kernels.cuda.stream import raise_if
from tests.helpers import device_cases as cases
from tests.helpers.cuda_ranked_set import CudaRankedSet

NAMES = sorted(ENCODINGS)


@pytest.mark.parametrize("seed", range(50))
def test_gather(kernels, seed):
    kernels.schedule(seed)
    cases.check_gather(kernels, seed, place=lambda values: values)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(60))
def test_gather_decodes(kernels, seed, name):
    kernels.schedule(seed)
    cases.check_gather_decode(kernels, seed, name, place=lambda values: values)


@pytest.mark.parametrize("seed", range(10))
def test_gather_from_registered_memory(kernels, seed):
    with ExitStack() as stack:
        place = cases.registered_place(kernels, stack.push)
        cases.check_gather(kernels, seed, place)
        for name in NAMES:
            cases.check_gather_decode(kernels, seed, name, place)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("width", [1, 8, 64])
def test_every_half(kernels, name, width):
    stored = np.arange(1 << 16, dtype=np.uint16).view(ENCODINGS[name].dtype).reshape(-1, width)
    rows = torch.from_numpy(stored.view(np.int16)).view(getattr(torch, name))
    ids = np.arange(len(stored))
    got = CudaShards([rows], kernels, encoding=ENCODINGS[name]).gather(torch.from_numpy(ids))
    want = Shards([stored], encoding=ENCODINGS[name]).gather(ids)
    assert np.array_equal(got.numpy().view(np.uint32), want.view(np.uint32))
    assert np.array_equal(got.numpy(), rows.float().numpy(), equal_nan=True)


@pytest.mark.parametrize("seed", range(40))
def test_rank_find(kernels, seed):
    kernels.schedule(seed)
    cases.check_rank_find(kernels, seed)


def test_rank_find_refuses_other_ids(kernels):
    with pytest.raises(DataError, match=re.escape("ids: expected int64 [n]")):
        CudaRankedSet(torch.zeros(4, dtype=torch.int64), 0, 10, kernels).find(torch.zeros(3, dtype=torch.int32))


def _reads(emulated, address: int, row_bytes: int) -> int:
    """Lines of 128 bytes that 32 lanes ask for: those whose words make 128 bytes together, each group for itself."""
    word = min(16, row_bytes & -row_bytes)
    first, asked = np.empty(32, dtype=np.uint32), set()
    emulated.emulate_lanes(address, word, 32, first.ctypes.data)
    assert sorted(first) == list(range(32))
    for lane, begin in enumerate(first.tolist()):
        for time, i in enumerate(range(begin, row_bytes // word, 32)):
            asked.add((time, lane * word // 128, (address + i * word) // 128))
    return len(asked)


@pytest.mark.parametrize(
    ("row_bytes", "stride", "reads"),
    [(136, 136, 2), (200, 256, 2), (400, 400, 4), (512, 512, 4), (1000, 1024, 8), (1200, 1200, 12)],
)
def test_lanes_read_whole_lines(emulated, row_bytes, stride, reads):
    """In the mean over all places of a row. Where lane 0 begins with word 0, rows of 400 bytes take 6.6 reads, of 1200 18."""
    assert bus_stride(row_bytes) == stride
    counted = [_reads(emulated, 4096 + k * stride, row_bytes) for k in range(128)]
    assert sum(counted) == 128 * reads


# --- what an array is made of


def test_shards_may_lie_in_several_memories_and_be_missing(kernels):
    far = torch.arange(6.0).view(3, 2)
    at = RowsAt(address=far.data_ptr(), rows=3, dtype=torch.float32, row_shape=(2,), keep=far)
    shards = CudaShards([torch.ones(2, 2), None, at], kernels, bounds=np.array([10, 12, 20, 23]))
    assert len(shards) == 13
    assert shards.gather(torch.tensor([11, 22, 20])).tolist() == [[1, 1], [4, 5], [0, 1]]
    shards.gather(torch.tensor([15]))
    with pytest.raises(DataError, match="id 15 at position 0"):
        shards.check()


@pytest.mark.parametrize("name", NAMES)
def test_further_shards_are_stored_rows(kernels, name):
    encoding = ENCODINGS[name]
    stored = encoding.encode(np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32))
    rows = torch.from_numpy(stored.view(np.int16) if name == "bfloat16" else stored)
    first = CudaShards([rows[:2]], kernels, start=1, encoding=encoding)
    assert first.extended([], 30) is first
    array = first.extended([(10, rows[2:5]), (20, rows[5:])], 21)
    ids = np.array([1, 2, 10, 11, 12, 20])
    want = Shards([stored], encoding=encoding).gather(np.arange(6))
    assert np.array_equal(array.gather(torch.from_numpy(ids)).numpy(), want)
    assert torch.equal(array.raw.gather(torch.from_numpy(ids)), rows)
    with pytest.raises(DataError, match="float64 rows of shape"):
        first.extended([(10, torch.zeros(1, 5, dtype=torch.float64))], 20)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.bfloat16])
def test_bytes_are_moved_whatever_the_dtype(kernels, dtype):
    rows = torch.arange(16, dtype=torch.uint8).view(dtype)
    got = CudaShards([rows], kernels).gather(torch.tensor([1, 0]))
    assert got.dtype == dtype
    assert got.view(torch.uint8).tolist() == rows.view(torch.uint8).view(len(rows), -1)[[1, 0]].view(-1).tolist()


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        (torch.zeros(3, 2), "float16"),
        (torch.zeros(3, 2, dtype=torch.int16), "float16"),
        (torch.zeros(3, 3, dtype=torch.uint8), "int8"),
        (torch.zeros(3, dtype=torch.uint8), "int8"),
        (torch.zeros(3, 2, dtype=torch.float16), "bfloat16"),
    ],
)
def test_what_is_not_stored_so_is_refused(kernels, rows, name):
    with pytest.raises(DataError, match=f"do not hold {name}"):
        CudaShards([rows], kernels, encoding=ENCODINGS[name])


def test_shards_that_cannot_be_read_are_refused(kernels):
    with pytest.raises(DataError, match=re.escape("got torch.float32 rows of shape [3]")):
        CudaShards([torch.zeros(3, 2), torch.zeros(3, 3)], kernels)
    with pytest.raises(DataError, match="or pinned memory, got a tensor on meta"):
        CudaShards([torch.zeros(3, 2, device="meta")], kernels)
    with pytest.raises(DataError, match="expected contiguous rows, got strides"):
        CudaShards([torch.zeros(2, 3).T], kernels)
    with pytest.raises(DataError, match="bounds: expected 2 for 1 shards, got 3"):
        CudaShards([torch.zeros(2, 3)], kernels, bounds=np.array([0, 1, 2]))
    odd = RowsAt(address=4097, rows=2, dtype=torch.float16, row_shape=(2,))
    with pytest.raises(DataError, match="a multiple of 2, got 0x1001"):
        CudaShards([odd], kernels, encoding=ENCODINGS["float16"])
    for stride in (4, 10):  # less than a row; not a multiple of a value
        apart = RowsAt(address=4096, rows=2, dtype=torch.float32, row_shape=(2,), stride=stride)
        with pytest.raises(DataError, match=f"a stride of at least 8 bytes and a multiple of 4, got {stride}"):
            CudaShards([apart], kernels)


# --- what is asked of it


@pytest.mark.parametrize("name", [None, *NAMES])
@pytest.mark.parametrize("bad", [4, 11, -1, 2**62])
def test_ids_outside_are_told_and_left_out(kernels, bad, name):
    encoding = name and ENCODINGS[name]
    ones = np.ones((3, 2), np.float32)
    stored = encoding.encode(ones) if encoding else ones
    rows = torch.from_numpy(stored.view(np.int16) if name == "bfloat16" else stored)
    shards = CudaShards([rows, rows], kernels, start=5, encoding=encoding)
    shards.gather(torch.tensor([5, 10]))
    shards.check()
    ids, error = torch.tensor([5, 10, bad]), kernels.new_error()
    assert shards.gather(ids, torch.zeros(3, 2), error=error).tolist() == [[1, 1], [1, 1], [0, 0]]
    with pytest.raises(DataError, match=f"id {bad} at position 2"):
        raise_if(error.tolist(), "gather")
    shards.check()  # it was told elsewhere
    shards.gather(ids)
    with pytest.raises(DataError, match=f"id {bad} at position 2"):
        shards.check()


@pytest.mark.parametrize("out", [torch.zeros(2, 2), torch.zeros(3, 2).double(), torch.zeros(2, 3).T, torch.zeros(6)])
def test_an_out_of_another_kind_is_refused(kernels, out):
    with pytest.raises(DataError, match=re.escape("out: expected contiguous torch.float32 [3, 2], got")):
        CudaShards([torch.zeros(3, 2)], kernels).gather(torch.tensor([0, 1, 2]), out)


def test_threads_gather_at_once_and_each_is_told_its_own_error(kernels):
    rows = torch.arange(4000.0).view(1000, 4)
    shards, told = CudaShards([rows], kernels), {}

    def work(bad: int) -> None:
        rng, error = np.random.default_rng(bad), kernels.new_error()
        for _ in range(20):
            ids = torch.from_numpy(rng.integers(0, 1000, 500))
            assert torch.equal(shards.gather(ids, error=error), rows[ids])
        assert error.tolist() == [0] * 5
        shards.gather(torch.tensor([bad]), error=error)
        told[bad] = error.tolist()[2]

    threads = [Thread(target=work, args=(1000 + t,)) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == {bad: bad for bad in range(1000, 1004)}


@pytest.mark.parametrize("row_shape", [(0,), (3, 0)])
def test_rows_without_bytes(kernels, row_shape):
    array = CudaShards([torch.empty(2, *row_shape), torch.empty(3, *row_shape)], kernels)
    assert array.gather(torch.tensor([4, 0])).shape == (2, *row_shape)
    array.check()
    array.gather(torch.tensor([0, 5]))
    with pytest.raises(DataError, match="id 5 at position 1"):
        array.check()
