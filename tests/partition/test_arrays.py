"""Arrays: what was streamed is mapped again; what is not what the manifest says is refused by name."""

from __future__ import annotations

import errno
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.base import PartitionError
from glt_lightning.graph import ArrayEntry, arrays as graph_arrays, open_array, verify_array
from glt_lightning.partition import arrays
from glt_lightning.partition.arrays import DATA_OFFSET, ArrayWriter
from glt_lightning.partition.folder import disk_full_speaks

PATH = "part0/nodes/0/x.npy"


def write(folder: Path, array: np.ndarray, step: int = 3) -> ArrayEntry:
    with ArrayWriter(folder, PATH, array.dtype, array.shape[1:]) as writer:
        for begin in range(0, len(array), step):
            writer.write(array[begin : begin + step])
    return writer.close()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.int8, np.uint8, np.bool_, np.float16])
@pytest.mark.parametrize("shape", [(10,), (0,), (7, 3), (0, 3), (4, 0), (5, 2, 2), (1, 1)])
def test_round_trip(tmp_path: Path, dtype: type, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    entry = write(tmp_path, array)
    mapped = open_array(tmp_path, PATH, entry)
    np.testing.assert_array_equal(mapped, array)
    assert (mapped.dtype, mapped.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(np.load(tmp_path / PATH), array)  # any reader of .npy
    verify_array(tmp_path, PATH, entry)
    assert entry.bytes == (tmp_path / PATH).stat().st_size == DATA_OFFSET + array.nbytes
    assert entry.crc32 == zlib.crc32(array.tobytes())


def test_maps_are_read_only_and_aligned(tmp_path: Path) -> None:
    mapped = open_array(tmp_path, PATH, write(tmp_path, np.arange(10.0)))
    assert mapped.ctypes.data % DATA_OFFSET == 0
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1


def test_writer_converts_to_its_dtype(tmp_path: Path) -> None:
    with ArrayWriter(tmp_path, PATH, np.int32) as writer:
        writer.write(np.array([1, 2], np.int64))
        writer.write(np.array([3, 4, 5, 6], ">i8")[::2])
    assert open_array(tmp_path, PATH, writer.close()).tolist() == [1, 2, 3, 5]


def test_writer_refuses_rows_of_another_shape(tmp_path: Path) -> None:
    with ArrayWriter(tmp_path, PATH, np.float32, (3,)) as writer, pytest.raises(ValueError, match=r"expected .3,."):
        writer.write(np.ones((2, 4)))


def test_large_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_arrays, "_CHUNK", 64)
    monkeypatch.setattr(arrays, "_WRITTEN_AT_ONCE", 64)
    array = np.arange(1000)
    entry = write(tmp_path, array, step=1000)
    assert entry.crc32 == zlib.crc32(array.tobytes())
    assert open_array(tmp_path, PATH, entry).tolist() == array.tolist()


def refused(folder: Path, entry: ArrayEntry, said: str) -> None:
    for check in (open_array, verify_array):
        with pytest.raises(PartitionError, match=said) as caught:
            check(folder, PATH, entry)
        assert str(folder / PATH) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_missing(tmp_path: Path) -> None:
    refused(tmp_path, ArrayEntry("<f4", (1,), 5000, 0), "not found. Copy this part here or partition again")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dtype": "<f4"}, "it is <f8 .10., the manifest says <f4 .10."),
        ({"shape": (5, 2)}, "it is <f8 .10., the manifest says <f8 .5, 2."),
        ({"bytes": 5000}, "it has 4176 bytes, the manifest says 5000"),
        ({"crc32": 1}, "checksum .*, the manifest says 00000001"),
    ],
)
def test_manifest_and_file_disagree(tmp_path: Path, change: dict, said: str) -> None:
    refused(tmp_path, replace(write(tmp_path, np.arange(10.0)), **change), said)


@pytest.mark.parametrize("size", [0, 5, 100, DATA_OFFSET, DATA_OFFSET + 79])
def test_cut_off(tmp_path: Path, size: int) -> None:
    entry = write(tmp_path, np.arange(10.0))
    file = tmp_path / PATH
    file.write_bytes(file.read_bytes()[:size])
    refused(tmp_path, entry, f"it has {size} bytes, the manifest says 4176")
    refused(tmp_path, replace(entry, bytes=size), "damaged: ")


def test_one_bit_flipped(tmp_path: Path) -> None:
    entry = write(tmp_path, np.arange(10.0))
    data = bytearray((tmp_path / PATH).read_bytes())
    data[-3] ^= 4
    (tmp_path / PATH).write_bytes(data)
    refused(tmp_path, entry, "checksum")


def test_large_arrays_are_verified_on_demand_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_arrays, "VERIFY_BYTES", 100)
    entry = replace(write(tmp_path, np.arange(10.0)), crc32=1)
    open_array(tmp_path, PATH, entry)
    with pytest.raises(PartitionError, match="checksum"):
        verify_array(tmp_path, PATH, entry)


def replaced(folder: Path, array: np.ndarray, allow_pickle: bool = False) -> ArrayEntry:
    file = folder / PATH
    file.parent.mkdir(parents=True)
    np.save(file, array, allow_pickle=allow_pickle)
    return ArrayEntry(array.dtype.str, array.shape, file.stat().st_size, zlib.crc32(array.tobytes()))


def test_fortran_order(tmp_path: Path) -> None:
    refused(tmp_path, replaced(tmp_path, np.ones((3, 2), order="F")), "Fortran order")


def test_objects(tmp_path: Path) -> None:
    entry = replaced(tmp_path, np.array([{}]), allow_pickle=True)
    refused(tmp_path, replace(entry, dtype="<f8"), "it is .O .1., the manifest says <f8")


def test_foreign_file(tmp_path: Path) -> None:
    entry = write(tmp_path, np.arange(10.0))
    (tmp_path / PATH).write_bytes(b"\0" * entry.bytes)
    refused(tmp_path, entry, "it has no readable .npy header")


def test_folder_in_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / PATH).mkdir(parents=True)
    refused(tmp_path, ArrayEntry("<f4", (1,), 5000, 0), "cannot be read")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_no_space_left(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = ArrayWriter(tmp_path, PATH, np.float64)

    def full(fd: int, data: memoryview, offset: int) -> int:
        raise OSError(number, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    with (
        pytest.raises(PartitionError, match=r"No space left on device.: 8,000 bytes needed, [\d,]+ free") as caught,
        writer,
    ):
        writer.write(np.zeros(1000))
    assert str((tmp_path / PATH).parent) in str(caught.value)
    assert writer.entry is None


def test_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), disk_full_speaks(tmp_path, 1):
        raise PermissionError(errno.EACCES, "no")
