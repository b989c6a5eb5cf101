"""A damaged folder is found, and the file at fault is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.base import PartitionError, Progress
from glt_lightning.partition import verify_partition
from glt_lightning.partition.arrays import ArrayWriter
from tests.helpers.partitions import partitioned, small_graph, small_hetero

Change = Callable[[np.ndarray], None]


def rewrite(folder: Path, path: str, change: Change) -> None:
    """Changes an array, and its checksum in the manifest: what only a bug of a writer would do."""
    array = np.load(folder / path)
    change(array)
    with ArrayWriter(folder, path, array.dtype, array.shape[1:]) as writer:
        writer.write(array)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["arrays"][path]["crc32"] = writer.close().crc32
    (folder / "manifest.json").write_text(json.dumps(manifest))


def put(position: int, value: int) -> Change:
    def change(array: np.ndarray) -> None:
        array[position] = value

    return change


def reverse(array: np.ndarray) -> None:
    array[:] = array[::-1].copy()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return partitioned(small_graph(), tmp_path, 2, undirected=True).directory


@pytest.mark.parametrize("parts", [1, 3])
def test_good_folders(tmp_path: Path, parts: int) -> None:
    partition = partitioned(small_hetero(), tmp_path, parts, undirected=True)
    good = verify_partition(partition.directory, Progress(False))
    assert good.files == len(list(partition.directory.glob("**/*.npy")))
    assert good.bytes == sum(file.stat().st_size for file in partition.directory.glob("**/*.npy"))
    assert (good.nodes, good.edges) == (280, sum(partition.manifest.num_edges))
    assert good.seeds == 150
    assert (good.hot > 0) == (parts > 1)


def test_every_file_is_read(folder: Path) -> None:
    for file in sorted(folder.glob("**/*.npy")):
        data = file.read_bytes()
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(PartitionError, match=f"{file.relative_to(folder)}: damaged: checksum"):
            verify_partition(folder, Progress(False))
        file.write_bytes(data)


def test_a_file_is_missing_or_cut(folder: Path) -> None:
    file = folder / "part1" / "nodes" / "0" / "x.npy"
    data = file.read_bytes()
    file.write_bytes(data[:-4])
    with pytest.raises(PartitionError, match=r"part1/nodes/0/x\.npy: damaged: it has \d+ bytes"):
        verify_partition(folder, Progress(False))
    file.unlink()
    with pytest.raises(PartitionError, match=r"part1/nodes/0/x\.npy: not found"):
        verify_partition(folder, Progress(False))


HOT = "part0/hot/{policy}/0/"


@pytest.mark.parametrize(
    ("path", "change", "said"),
    [
        ("part0/edges/0/indptr.npy", put(0, 1), "the first row pointer is 1, not 0"),
        ("part1/edges/0/indptr.npy", put(7, 0), "row pointers descend at position 7"),
        ("part1/edges/0/indptr.npy", put(-1, 10**6), "the last row pointer is 1000000, but the part has"),
        ("part1/edges/0/indices.npy", put(3, 300), "300 is out of range: nodes of type 'node' are 0 to 299"),
        ("part1/edges/0/indices.npy", put(3, -1), "-1 is out of range: nodes of type 'node' are 0 to 299"),
        ("part0/edges/0/edge_ids.npy", put(3, -1), "-1 is out of range: edge ids are 0 to"),
        ("part0/nodes/0/n_id.npy", put(3, 300), "300 is out of range: user ids are 0 to 299"),
        ("nodes/0/gid.npy", put(3, 300), "300 is not the gid of the node with the user id 3"),
        ("splits/val.npy", put(3, 300), "300 is out of range: nodes of type 'node' are 0 to 299"),
        (HOT + "gids.npy", put(0, 0), "it lists nodes of its own part"),
        (HOT + "gids.npy", put(0, 300), "300 is out of range: nodes of type 'node' are 0 to 299"),
        (HOT + "gids.npy", lambda gids: gids.fill(gids[0]), "it lists a node twice"),
        (HOT + "hotness.npy", reverse, "hotness is not in descending order"),
    ],
)
def test_contents_that_cannot_be(folder: Path, path: str, change: Change, said: str) -> None:
    (policy,) = json.loads((folder / "manifest.json").read_text())["hotness"]
    path = path.format(policy=policy)
    rewrite(folder, path, change)
    with pytest.raises(PartitionError, match=f"{path}: damaged: {said}"):
        verify_partition(folder, Progress(False))


def test_a_user_id_twice(folder: Path) -> None:
    other = int(np.load(folder / "part0/nodes/0/n_id.npy")[5])
    rewrite(folder, "part1/nodes/0/n_id.npy", put(3, other))
    with pytest.raises(PartitionError, match=r"part1/nodes/0/n_id\.npy: damaged: a user id occurs twice"):
        verify_partition(folder, Progress(False))


def test_bounds(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["bounds"][0][1] += 1
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(PartitionError, match=r"manifest\.json: "):
        verify_partition(folder, Progress(False))
