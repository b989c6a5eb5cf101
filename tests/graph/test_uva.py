"""What GPUs read on the host: one copy, the same bytes as the files, for all processes."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from glt_lightning.base import DataError, OptionError, PartitionError
from glt_lightning.graph import BatchArrays, LocalPartition, copy_for_uva, host_memory as free_memory, open_uva, uva
from tests.helpers.partitions import partitioned, small_graph
from tests.helpers.wide import padded_graph, wide_hetero


@pytest.mark.parametrize("what", [["topology"], ["features"], ["topology", "features"]])
@pytest.mark.parametrize("edges", [False, True])
@pytest.mark.parametrize("make", [wide_hetero, padded_graph])
def test_the_bytes_of_the_files(tmp_path, monkeypatch, make, what, edges):
    monkeypatch.setattr(uva, "_CHUNK", 1000)
    partition = LocalPartition.open(partitioned(make(), tmp_path, 3).directory, parts=[0, 2])
    arrays = copy_for_uva(BatchArrays(partition, edges), what)
    for path, array in arrays.arrays.items():
        assert path.startswith(("part0", "part2"))
        assert np.array_equal(array, np.load(partition.directory / path))
    need = BatchArrays(partition, edges).need
    assert sum(a.nbytes for a in arrays.arrays.values()) == sum(getattr(need, name) for name in what)
    arrays.close()


def test_rows_begin_where_reads_over_the_bus_do(tmp_path):
    arrays = copy_for_uva(BatchArrays(partitioned(padded_graph(), tmp_path, 2)), ["topology", "features"])
    strides = {
        path.split("/", 1)[1].removesuffix(".npy"): array.strides[0]
        for path, array in arrays.arrays.items()
        if not array.flags.c_contiguous
    }
    assert strides == {"nodes/0/x": 128, "nodes/0/image": 256, "nodes/0/place": 32, "edges/0/edge_attr": 256}
    taken = [-(-len(a) * a.strides[0] // 4096) * 4096 for a in arrays.arrays.values()]
    assert all(a.ctypes.data % 4096 == 0 for a in arrays.arrays.values())
    assert 0 < arrays.nbytes - sum(taken) <= 2 * 4096  # what says where they are
    arrays.close()


CHILD = """
import sys
from glt_lightning.graph import open_uva
from glt_lightning.graph import LocalPartition
from glt_lightning.graph import BatchArrays
folder, path = sys.argv[1:]
arrays = open_uva(BatchArrays(LocalPartition.open(folder), edges=False), ["features"], path)
array = arrays.arrays["part1/nodes/0/x.npy"]
array[0, 0] += 1
print(array[0].tolist())
arrays.close()
"""


@pytest.mark.parametrize("make", [small_graph, padded_graph])
def test_processes_share_it(tmp_path, make):
    """The child's memory is ours: we see what it writes there."""
    partition = partitioned(make(), tmp_path, 2)
    arrays = copy_for_uva(BatchArrays(partition), ["topology", "features"])
    before = arrays.arrays["part1/nodes/0/x.npy"][0].copy()
    said = subprocess.run(
        [sys.executable, "-c", CHILD, str(partition.directory), arrays.path],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    after = arrays.arrays["part1/nodes/0/x.npy"][0]
    assert after.tolist() == [before[0] + 1, *before[1:]]
    assert said.stdout.strip() == str(after.tolist())
    arrays.close()
    with pytest.raises(DataError, match="cannot be opened"):
        open_uva(BatchArrays(partition, False), ["features"], arrays.path)


def test_only_for_what_it_was_made_for(tmp_path):
    partition = partitioned(small_graph(), tmp_path, 2)
    part = LocalPartition.open(partition.directory, parts=[1])
    arrays = copy_for_uva(BatchArrays(partition, False), ["topology"])
    open_uva(BatchArrays(partition, False), ["topology"], arrays.path).close()
    for which, what, edges in (
        (part, ["topology"], False),
        (partition, ["features"], False),
        (partition, ["topology"], True),
    ):
        with pytest.raises(PartitionError, match="holds another graph, or other parts of it"):
            open_uva(BatchArrays(which, edges), what, arrays.path)
    arrays.close()


def test_too_little_memory_is_said_before_anything_is_copied(tmp_path, monkeypatch):
    partition = partitioned(small_graph(), tmp_path, 2)
    monkeypatch.setattr(free_memory, "available_memory", lambda: 1 << 20)
    monkeypatch.setattr("glt_lightning.graph.uva._fill", lambda *_: pytest.fail("copied"))
    with pytest.raises(
        OptionError, match=r"sampling.features, sampling.topology: not enough host memory.*Choose device or cpu"
    ):
        copy_for_uva(BatchArrays(partition), ["topology", "features"])


def test_a_file_that_is_cut_off_leaves_nothing_behind(tmp_path):
    partition = partitioned(small_graph(), tmp_path, 1)
    path = partition.directory / "part0/nodes/0/x.npy"
    os.truncate(path, path.stat().st_size - 8)
    with pytest.raises(PartitionError, match=r"x\.npy"):
        copy_for_uva(BatchArrays(partition, False), ["features"])
