"""The room that a partition needs while it is made is asked for before the work, and never overstated."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from glt_lightning.base import PartitionError, PartitionOptions
from glt_lightning.partition import GraphSource, assign_graph, partition_graph
from glt_lightning.partition.sources.folder import FolderSource
from tests.helpers.partition_truth import HETERO, random_source

NODES, EDGES, FLOATS = 20_000, 200_000, 50
MEMORY = 1 << 20
X, Y = 4 * FLOATS * NODES, 8 * NODES


@pytest.fixture
def source(tmp_path: Path) -> FolderSource:
    """A graph of which nothing fits in a megabyte: no edge twice, few with their reverse."""
    rng, folder = np.random.default_rng(0), tmp_path / "graph"
    folder.mkdir()
    key = np.unique(rng.integers(0, NODES * NODES, 2 * EDGES))
    key = rng.choice(key, EDGES, replace=False)
    np.save(folder / "edge_index.npy", np.stack(np.divmod(key, NODES)))
    np.save(folder / "x.npy", rng.random((NODES, FLOATS), np.float32))
    np.save(folder / "y.npy", np.zeros(NODES, np.int64))
    np.save(folder / "train.npy", np.arange(0, NODES, 3))
    return FolderSource(folder)


class Disk:
    """Bytes that the folder of a run has taken at most, seen whenever a working file is about to go."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.most = folder, 0

    def look(self) -> None:
        named = [p.stat() for p in self.folder.rglob("*") if p.is_file()]
        self.most = max(self.most, sum(s.st_blocks * 512 for s in [*named, *self._nameless()]))

    def _nameless(self) -> Iterator[os.stat_result]:
        """Open files of the folder that have no name, whether as descriptors or as maps; each once."""
        seen = {}
        for link in [*Path("/proc/self/fd").iterdir(), *Path("/proc/self/map_files").iterdir()]:
            try:
                if str(self.folder) in os.readlink(link) and not (found := os.stat(link)).st_nlink:
                    seen[found.st_ino] = found
            except OSError:  # the descriptor that lists the others, or no right to follow a map
                continue
        yield from seen.values()


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(tmp_path / "out")
    remove = shutil.rmtree

    def looking(*args: object, **options: object) -> None:
        disk.look()
        remove(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(shutil, "rmtree", looking)
    return disk


def asked(monkeypatch: pytest.MonkeyPatch, run: object) -> tuple[str, int]:
    """(what is done, bytes) of the error when nothing is free."""
    with monkeypatch.context() as patch, pytest.raises(PartitionError) as caught:
        patch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=0))
        run()  # type: ignore[operator]
    said = re.search(
        r": (.*) needs at least ([\d,]+) bytes of disk, working files included, but 0 are free", str(caught.value)
    )
    assert said, caught.value
    return said[1], int(said[2].replace(",", ""))


@pytest.mark.diagonal
@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize(
    ("algorithm", "hotness"),
    [
        ("random", "degree"),
        ("random", "vip"),
        ("random", "presample"),
        ("frequency", "vip"),
        ("streaming", "vip"),
        ("metis", "degree"),
    ],
)
def test_never_more_than_is_taken_and_not_much_less(
    tmp_path: Path,
    source: FolderSource,
    disk: Disk,
    monkeypatch: pytest.MonkeyPatch,
    algorithm: str,
    hotness: str,
    undirected: bool,
) -> None:
    options = PartitionOptions(num_parts=4, algorithm=algorithm, hotness=hotness, memory_bytes=MEMORY)  # type: ignore[arg-type]

    def run() -> None:
        partition_graph(source, tmp_path / "out" / "p", options, undirected=undirected)

    what, needed = asked(monkeypatch, run)
    assert what == "a partition of this graph"
    run()
    least = 0.5 if undirected else 0.8  # how many edges merging leaves is not known before
    assert least * disk.most < needed <= disk.most, (needed, disk.most)


@pytest.mark.parametrize("algorithm", ["random", "streaming"])
def test_several_types(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, algorithm: str) -> None:
    source = random_source(np.random.default_rng(0), HETERO, nodes=3000)
    options = PartitionOptions(num_parts=3, algorithm=algorithm, hotness="vip", memory_bytes=MEMORY)

    def run() -> None:
        partition_graph(source, tmp_path / "out" / "p", options, undirected=True)

    _, needed = asked(monkeypatch, run)
    run()
    assert 0 < needed <= disk.most, (needed, disk.most)


def test_features_on_their_way_count_twice(
    tmp_path: Path, source: GraphSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = PartitionOptions(num_parts=2, memory_bytes=MEMORY)
    _, little = asked(monkeypatch, lambda: partition_graph(source, tmp_path / "p", options))
    _, much = asked(monkeypatch, lambda: partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=2)))
    records, edges, n_id = 12 * EDGES, 8 * EDGES + 8 * NODES, 4 * NODES
    numbers = 2 * n_id
    assert little == numbers + n_id + max(2 * X, X + Y + edges + records)  # x comes before y
    assert (
        much == numbers + n_id + X + Y + edges + records
    )  # with memory for them, features are not on their way in a file


def test_one_byte_too_few(tmp_path: Path, source: GraphSource, monkeypatch: pytest.MonkeyPatch) -> None:
    options = PartitionOptions(num_parts=2, memory_bytes=MEMORY)
    _, needed = asked(monkeypatch, lambda: partition_graph(source, tmp_path / "p", options))
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=needed - 1))
    with monkeypatch.context() as patch, pytest.raises(PartitionError, match="Free some space or choose another"):
        patch.setattr("glt_lightning.partition.build.builder.count_edges", None)  # no edge has been read
        partition_graph(source, tmp_path / "p", options)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=needed))
    partition_graph(source, tmp_path / "p", options)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("streaming", 2 * 12 * EDGES + 16 * NODES),  # records in both directions; what merging leaves is not known
        ("frequency", 4 * 4 * NODES + 12 * EDGES + 4 * EDGES + 16 * NODES),  # probabilities, records, rows, degrees
        ("random", 8 * NODES),
    ],
)
def test_assigning_alone(
    tmp_path: Path, source: GraphSource, disk: Disk, monkeypatch: pytest.MonkeyPatch, algorithm: str, expected: int
) -> None:
    options = PartitionOptions(num_parts=4, algorithm=algorithm, memory_bytes=MEMORY)

    def run() -> None:
        assign_graph(source, tmp_path / "out" / "parts.npz", options)

    assert asked(monkeypatch, run) == ("assigning the nodes of this graph", expected)
    assert list((tmp_path / "out").iterdir()) == []
    run()
    assert 0.7 * disk.most <= expected <= disk.most
