"""A partition takes no descriptors while it is mapped; a limit that is met all the same is named, with what to do."""

from __future__ import annotations

import errno
import gc
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.base import PartitionError
from glt_lightning.graph import LocalPartition, open_array
from glt_lightning.kernels import file_map
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.partition.arrays import ArrayWriter
from tests.helpers.partitions import partitioned, small_graph


@pytest.fixture
def at_most() -> Iterator[object]:
    """Sets how many files this process may have open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda count: resource.setrlimit(resource.RLIMIT_NOFILE, (count, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def descriptors() -> int:
    gc.collect()  # what earlier tests left open
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("parts", [pytest.param(1000, marks=pytest.mark.slow), 100])
def test_many_parts(tmp_path: Path, at_most, parts: int) -> None:
    """One map per array, of which each part has five."""
    before = descriptors()
    at_most(256)
    partitioned(small_graph(1200), tmp_path, parts).close()
    partition = LocalPartition.open(tmp_path / f"parts{parts}")
    with Session(partition) as context:
        spec = LoaderSpec(name="val", split="val", num_neighbors=[3, 3], batch_size=50)
        assert sum(batch.batch_size for batch in context.make_loader(spec)) == 400
        assert descriptors() == before
    partition.close()


def test_each_file_is_mapped_once(tmp_path: Path) -> None:
    partition = partitioned(small_graph(), tmp_path, 2)
    held = [(partition.user_ids_by_part(0), partition.node_shards(0, "x")) for _ in range(3)]
    shards = held[0][1]
    maps = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]
    assert len(maps) == len(set(maps)) == 8  # n_id, indptr, indices, x of two parts
    partition.close()
    assert shards.gather(np.arange(300))[0].tolist() == partition.node_shards(0, "x").gather(np.arange(300))[0].tolist()


def test_limit_of_open_files(tmp_path: Path, at_most) -> None:
    with ArrayWriter(tmp_path, "a.npy", np.int32) as writer:
        writer.write(np.arange(5))
    os.close(free := os.dup(0))
    at_most(free)
    with pytest.raises(PartitionError, match=r"a\.npy: cannot be read \(Too many open files\).*RLIMIT_NOFILE.*ulimit"):
        open_array(tmp_path, "a.npy", writer.close())


def test_limit_of_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ArrayWriter(tmp_path, "a.npy", np.int32) as writer:
        writer.write(np.arange(5))

    def refuse(*args: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(file_map, "_FileMap", refuse)
    with pytest.raises(PartitionError, match=r"a\.npy: .*vm\.max_map_count.*fewer parts"):
        open_array(tmp_path, "a.npy", writer.close())
