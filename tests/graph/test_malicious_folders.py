"""A folder that somebody made to do harm is refused in one line that names the file and what is wrong in it."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glt_lightning.base import DataError, PartitionError
from glt_lightning.graph import LocalPartition, Manifest, gids_by_user_id
from glt_lightning.lightning.facts import read_split
from tests.helpers.partitions import partitioned, small_graph

MANIFEST, IDS0, IDS1 = "manifest.json", "part0/nodes/0/n_id.npy", "part1/nodes/0/n_id.npy"
INDPTR = "part0/edges/0/indptr.npy"

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return partitioned(small_graph(), tmp_path_factory.mktemp("good"), 2).directory


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "folder"))


def fifo(file: str) -> Callable[[Path], None]:
    def put(folder: Path) -> None:
        (folder / file).unlink()
        os.mkfifo(folder / file)

    return put


def text(change: Callable[[str], str]) -> Callable[[Path], None]:
    return lambda folder: (folder / MANIFEST).write_text(change((folder / MANIFEST).read_text())) and None


def field(value: Any, *keys: str) -> Callable[[Path], None]:
    def put(folder: Path) -> None:
        raw = inner = json.loads((folder / MANIFEST).read_text())
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        (folder / MANIFEST).write_text(json.dumps(raw))

    return put


def array(file: str, at: int, value: int) -> Callable[[Path], None]:
    """Changes one entry; the checksum in the manifest says what is there then."""

    def put(folder: Path) -> None:
        changed = np.load(folder / file, mmap_mode="r+")
        changed[at] = value
        changed.flush()
        field(zlib.crc32(np.array(changed).tobytes()), "arrays", file, "crc32")(folder)

    return put


@pytest.mark.parametrize(
    ("damage", "file", "said"),
    [
        (fifo(MANIFEST), MANIFEST, "it is not a regular file"),
        (fifo(IDS0), IDS0, "it is not a regular file"),
        (text(lambda _: "[" * 200_000), MANIFEST, "cannot be read as JSON .it is nested too deep"),
        (text(lambda _: '{"a":' * 200_000), MANIFEST, "nested too deep"),
        (
            text(lambda all: all.replace('"num_parts": 2', '"num_parts": 2' + "0" * 10_000)),
            MANIFEST,
            "Exceeds the limit",
        ),
        (field(["int32"], "id_dtype"), MANIFEST, "id_dtype: expected 'int32' or 'int64', found "),
        (field({}, "edge_id_dtype"), MANIFEST, "edge_id_dtype: expected 'int32' or 'int64', found {}"),
        (field(10**12, "num_classes"), MANIFEST, "num_classes: expected a count up to 2147483647 or null"),
        (field({}, "arrays", "part٣/nodes/0/x.npy"), MANIFEST, "is not a path of this format"),
        (field("<f4,,", "arrays", IDS0, "dtype"), MANIFEST, "the entry of part0/nodes/0/n_id.npy is damaged"),
        (field(["x"], "splits", "train", "ids_hash"), MANIFEST, "splits: the entry of 'train' is damaged"),
        (array(INDPTR, 0, 7), INDPTR, "damaged: rows begin at 7, not at 0"),
        (array(IDS1, 5, -3), IDS1, "damaged: position 5 holds the user id -3; those of this node type are 0 to 299"),
        (array(IDS1, 5, 300), IDS1, "damaged: position 5 holds the user id 300"),
    ],
)
def test_refused(folder: Path, damage: Callable[[Path], None], file: str, said: str) -> None:
    damage(folder)
    with pytest.raises(PartitionError, match=said) as caught:
        LocalPartition.open(folder)
    assert str(folder / file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_user_id_that_is_there_twice(folder: Path) -> None:
    """Of the same part, and of an earlier one; found when ids are looked up, too, as they are in large graphs."""
    ids = [np.load(folder / file) for file in (IDS0, IDS1)]
    array(IDS1, 7, int(ids[1][2]))(folder)
    with pytest.raises(
        PartitionError, match=rf"{IDS1}: damaged: position 7 holds the user id {ids[1][2]}, which occurs before"
    ):
        LocalPartition.open(folder)
    LocalPartition.open(folder, parts=[0]).close()
    for value in (ids[1][2], ids[0][4]):
        ids[1][7] = value
        with pytest.raises(
            PartitionError, match=rf"{IDS1}: damaged: position 7 holds the user id {value}, which occurs before"
        ):
            gids_by_user_id(Manifest.load(folder), 0, ids, folder)


def test_too_few_user_ids(good: Path) -> None:
    """As an owner of a part may answer."""
    manifest = Manifest.load(good)
    ids = [np.load(good / IDS0), np.load(good / IDS1)[:-1]]
    with pytest.raises(PartitionError, match=rf"{IDS1}: damaged: it has \[\d+\] user ids, the manifest says"):
        gids_by_user_id(manifest, 0, ids, good)


@pytest.mark.parametrize("suffix", [".npy", ".pt", ".txt"])
def test_split_that_is_a_fifo(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"train{suffix}"
    os.mkfifo(path)
    with pytest.raises(DataError, match=r"splits\.train: .*it is not a regular file"):
        read_split("train", str(path))
