"""Files that surely fit into memory are read by large pages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glt_lightning.graph import LocalPartition, local_partition
from tests.helpers.partitions import partitioned, small_graph

KERNEL_HAS_THEM = Path("/sys/kernel/mm/transparent_hugepage").exists()


@pytest.fixture(autouse=True)
def every_file_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_partition, "_LARGE_FILE", 1)


def advised(folder: Path) -> Iterator[bool]:
    """Whether large pages were asked for, of each mapped file."""
    ours = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            ours = str(folder) in line
        elif ours and line.startswith("VmFlags:"):
            yield "hg" in line.split()


@pytest.mark.skipif(not KERNEL_HAS_THEM, reason="a kernel without transparent huge pages")
@pytest.mark.parametrize("share", [0.5, 1])
def test_as_far_as_files_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    partition = partitioned(small_graph(), tmp_path, 1)
    arrays = [partition.user_ids_by_part(0)[0], partition.view.arrays(0, 0).indices]
    needed = sum(array.nbytes for array in arrays) + partition.view.arrays(0, 0).indptr.nbytes
    partition.close()
    del arrays
    monkeypatch.setattr(local_partition, "available_memory", lambda: int(share * 4 * (needed + 3 * 4096)))
    again = LocalPartition.open(tmp_path / "parts1")
    again.user_ids_by_part(0)
    found = list(advised(tmp_path))
    assert len(found) == 3  # n_id, indptr, indices
    assert found == [True] * 3 if share == 1 else set(found) == {True, False}
    again.close()


def test_another_thread_opens_an_array_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each summed what was mapped while the other added to it."""
    partitioned(small_graph(), tmp_path, 1).close()
    others: list[threading.Thread] = []

    class Summed(np.ndarray):
        @property
        def nbytes(self) -> int:
            if others:
                (other,) = others
                others.clear()
                other.start()
                other.join(60)
            return self.size * self.itemsize

    def open_array(*args: Any, **kwargs: Any) -> np.ndarray:
        return given(*args, **kwargs).view(Summed)

    given = local_partition.open_array
    monkeypatch.setattr(local_partition, "open_array", open_array)
    partition = LocalPartition.open(tmp_path / "parts1")
    assert partition.view.arrays(0, 0) is not None
    others.append(threading.Thread(target=partition.node_shards, args=(0, "x")))
    partition.node_shards(0, "y")
    assert not others
    partition.close()
