"""Arrays that several processes map."""

import subprocess
import sys

import numpy as np
import pytest

from glt_lightning.base import DataError
from glt_lightning.graph import SharedArrays, host_memory as free_memory

SHAPES = {"a": (np.dtype(np.float32), (3, 5)), "b": (np.dtype(np.int64), (0,)), "c": (np.dtype(np.uint8), (5000,))}


def _filled():
    made = SharedArrays.create(SHAPES, {"what": "test", "n": 3})
    made.arrays["a"][:] = np.arange(15).reshape(3, 5)
    made.arrays["c"][:] = 7
    return made


def _check(opened):
    assert opened.meta == {"what": "test", "n": 3}
    assert {n: (a.dtype, a.shape) for n, a in opened.arrays.items()} == SHAPES
    assert opened.arrays["a"].tolist() == np.arange(15.0).reshape(3, 5).tolist()
    np.testing.assert_array_equal(opened.arrays["c"], 7)
    assert all(a.ctypes.data % 4096 == 0 for a in opened.arrays.values() if a.size)
    assert not opened.arrays["a"].flags.writeable


def test_rows_may_lie_apart(tmp_path):
    file, shapes = tmp_path / "padded.bin", {"a": (np.dtype(np.int16), (5, 2, 3)), "b": (np.dtype(np.int64), (0, 3))}
    made = SharedArrays.create(shapes, {}, strides={"a": 4096, "b": 32})
    made.arrays["a"][:] = numbers = np.arange(30).reshape(5, 2, 3)
    made.finish()
    opened = SharedArrays.open(made.path)
    assert np.array_equal(opened.arrays["a"], numbers)
    assert opened.arrays["a"].strides == (4096, 6, 2)
    assert opened.arrays["b"].shape == (0, 3)
    assert opened.nbytes == 6 * 4096
    content = bytes(opened.memory)
    opened.close()
    made.close()
    for stride in (b"   8", b"9999"):  # less than a row; more than the file has
        file.write_bytes(content.replace(b"4096, 4096]", b"4096, " + stride + b"]"))
        with pytest.raises(DataError, match="damaged"):
            SharedArrays.open(file)


def test_another_process_opens_what_is_finished():
    made = _filled()
    made.finish()
    code = (
        "import sys; from glt_lightning.graph.shared_arrays import SharedArrays as S; o = S.open(sys.argv[1]);"
        "print(o.arrays['a'].sum(), o.meta['n']); o.close()"
    )
    said = subprocess.run([sys.executable, "-c", code, made.path], capture_output=True, text=True, timeout=60)
    assert said.stdout.split() == ["105.0", "3"], said.stderr
    opened = SharedArrays.open(made.path)
    made.close()
    _check(opened)  # the memory outlives its maker
    opened.close()


def test_what_is_not_finished_cannot_be_opened():
    made = _filled()
    with pytest.raises(DataError, match="not a finished file of shared arrays"):
        SharedArrays.open(made.path)
    made.close()


@pytest.mark.parametrize("content", [b"", b"x" * 5000, b"GLTARRAY" + (10).to_bytes(8, "little") + b"{" * 5000])
def test_a_file_of_something_else(tmp_path, content):
    file = tmp_path / "cache.bin"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"not a finished file|damaged"):
        SharedArrays.open(file)


def test_a_file_that_was_cut(tmp_path):
    file = tmp_path / "cache.bin"
    made = _filled()
    made.finish()
    file.write_bytes(bytes(made.memory)[:-4096])
    made.close()
    with pytest.raises(DataError, match="damaged"):
        SharedArrays.open(file)


def test_more_memory_than_there_is():
    shapes = {"a": (np.dtype(np.uint8), (1 << 45,))}
    with pytest.raises(MemoryError, match=r"bytes are needed, [\d,]+ are available"):
        SharedArrays.create(shapes, {})


@pytest.mark.parametrize("version", [1, 2])
def test_a_control_group_limits_memory(tmp_path, monkeypatch, version):
    files = {
        "memory.max": "1000000",
        "memory.current": "300000",
        "memory.stat": "anon 5\ninactive_file 90000\nactive_file 10000\n",
    }
    if version == 1:
        files = {
            "memory.limit_in_bytes": "1000000",
            "memory.usage_in_bytes": "300000",
            "memory.stat": "total_inactive_file 90000\ntotal_active_file 10000\n",
        }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    names = ("memory.max", "memory.current", "")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
    assert free_memory._left(tmp_path, *names) == [800_000]
    assert 0 < free_memory.available_memory() < 1 << 50
