"""Copies of partitions: byte for byte, resumed after any end, checked piece by piece."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from glt_lightning.base import OptionError, PartitionError, Progress
from glt_lightning.cli import main
from glt_lightning.graph import MANIFEST, LocalPartition, Manifest
from glt_lightning.partition import (
    CopySource,
    Versions,
    append_rows,
    delete_rows,
    hash_partition,
    open_version,
    pull_partition,
    verify_partition,
)
from glt_lightning.partition.delta import digest_of
from tests.helpers.disks import full_soon
from tests.helpers.grown import two_versions
from tests.helpers.partitions import partitioned, small_graph

CHUNK = 1 << 10  # bytes, so that small files have many


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    _small_chunks_of(monkeypatch)


def _small_chunks_of(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("graph.manifest_checks", "partition.arrays"):
        monkeypatch.setattr(f"glt_lightning.{module}.CHUNK_BYTES", CHUNK)


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """A partition in three."""
    return Path(partitioned(small_graph(), tmp_path / "source", 3).directory)


Change = Callable[[str, int, bytes], bytes]  # (path, begin, data) -> what arrives


class Counted:
    """Counts the bytes that are read, and may change them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.bytes, self.change = 0, unchanged
        self._lock, real = threading.Lock(), CopySource.read

        def read(store: CopySource, path: str, begin: int, end: int) -> bytes:
            with self._lock:
                data = self.change(path, begin, real(store, path, begin, end))
                self.bytes += len(data)
                return data

        patch.setattr(CopySource, "read", read)


def unchanged(path: str, begin: int, data: bytes) -> bytes:
    return data


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glt_lightning.partition.copies._STREAMS", 1)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def array_files(folder: Path) -> dict[str, bytes]:
    return {path: data for path, data in contents(folder).items() if path.endswith(".npy")}


@pytest.mark.parametrize("there", [False, True])
def test_files_of_the_user_beside_the_folder_stay(parts: Path, tmp_path: Path, there: bool) -> None:
    if there:
        pull_partition(parts, tmp_path / "copy", progress=False)
    (tmp_path / "copy.partial" / "drafts").mkdir(parents=True)
    (tmp_path / "copy.partial" / "drafts" / "thesis.tex").write_text("work of years")
    with pytest.raises(PartitionError, match=r"thesis\.tex: not of a copy that was begun\. Move it"):
        pull_partition(parts, tmp_path / "copy", progress=False)
    assert (tmp_path / "copy.partial" / "drafts" / "thesis.tex").read_text() == "work of years"


@pytest.mark.parametrize("form", ["{}", "{}/", "file://{}"])
def test_a_copy_is_the_source_byte_for_byte(parts: Path, tmp_path: Path, source: Counted, form: str) -> None:
    pulled = pull_partition(form.format(parts), tmp_path / "copy", progress=False)
    assert contents(tmp_path / "copy") == contents(parts)
    assert source.bytes == pulled.fetched == pulled.bytes == sum(map(len, array_files(parts).values()))
    verify_partition(tmp_path / "copy", Progress(False))
    assert not (tmp_path / "copy.partial").exists()


def test_hashes_are_those_of_the_data(parts: Path) -> None:
    import hashlib

    manifest = Manifest.load(parts)
    for path, entry in manifest.arrays.items():
        data = (parts / path).read_bytes()[entry.offset :]
        pieces = [data[i : i + CHUNK] for i in range(0, len(data), CHUNK)]
        assert entry.chunks == tuple(hashlib.sha256(piece).hexdigest()[:32] for piece in pieces)
    assert max(len(entry.chunks or ()) for entry in manifest.arrays.values()) > 3


def test_some_parts_and_then_others(parts: Path, tmp_path: Path, source: Counted) -> None:
    copy = tmp_path / "copy"
    pull_partition(parts, copy, [1], progress=False)
    assert {p.name for p in copy.glob("part*")} == {"part1"}
    assert LocalPartition.open(copy, parts=[1]).manifest == Manifest.load(parts)
    total = sum(map(len, array_files(copy).values()))
    assert verify_partition(copy, Progress(False), [1]).bytes == total
    file = copy / "part1/nodes/0/x.npy"
    good = file.read_bytes()
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(PartitionError, match=r"part1/nodes/0/x.npy: damaged: checksum"):
        verify_partition(copy, Progress(False), [1])
    file.write_bytes(good)
    with pytest.raises(PartitionError, match=r"part0/.*: not found"):
        verify_partition(copy, Progress(False))
    before = source.bytes
    assert pull_partition(parts, copy, [1], progress=False).fetched == 0
    pull_partition(parts, copy, [0, 2], progress=False)
    assert source.bytes - before == sum(len(d) for p, d in array_files(parts).items() if p[:5] in ("part0", "part2"))
    assert contents(copy) == contents(parts)


@pytest.mark.usefixtures("in_order")
def test_other_parts_than_those_of_a_copy_that_was_begun(parts: Path, tmp_path: Path, source: Counted) -> None:
    """Its unfinished files do not become part of a copy that is complete."""
    source.change = gone_after(8)
    with pytest.raises(PartitionError):
        pull_partition(parts, tmp_path / "copy", [0], progress=False)
    assert list((tmp_path / "copy.partial" / "part0").rglob("*.npy"))
    source.change = unchanged
    pull_partition(parts, tmp_path / "copy", [1], progress=False)
    assert {p.name for p in (tmp_path / "copy").glob("part*")} == {"part1"}
    pull_partition(parts, tmp_path / "copy", progress=False)
    assert contents(tmp_path / "copy") == contents(parts)


def test_from_an_object_store(parts: Path, tmp_path: Path) -> None:
    store = fsspec.filesystem("memory")
    store.put(str(parts), "/bucket/parts", recursive=True)
    try:
        url = "memory://bucket/parts/"
        pull_partition(url, tmp_path / "copy", progress=False)
        assert contents(tmp_path / "copy") == contents(parts)
        store.rm("/bucket/parts/part1/nodes/0/x.npy")
        with pytest.raises(PartitionError, match=r"part1/nodes/0/x.npy: it cannot be read .*What was copied stays"):
            pull_partition(url, tmp_path / "other", progress=False)
        store.rm(f"/bucket/parts/{MANIFEST}")
        with pytest.raises(PartitionError, match=r"memory://bucket/parts/manifest.json: not found"):
            pull_partition(url, tmp_path / "third", progress=False)
    finally:
        store.rm("/bucket", recursive=True)
    with pytest.raises(PartitionError, match="nonsense://x: it cannot be opened"):
        pull_partition("nonsense://x", tmp_path / "copy")


def test_a_broken_piece_is_fetched_again(parts: Path, tmp_path: Path, source: Counted) -> None:
    broken = set()

    def flip_once(path: str, begin: int, data: bytes) -> bytes:
        if (path, begin) in broken or not path.endswith("x.npy"):
            return data
        broken.add((path, begin))
        return data[:-1] + bytes([data[-1] ^ 1]) if begin % 2048 else data[:-1]  # damaged, or short

    source.change = flip_once
    pulled = pull_partition(parts, tmp_path / "copy", progress=False)
    assert len(broken) > 2
    assert pulled.fetched > pulled.bytes
    assert contents(tmp_path / "copy") == contents(parts)


@pytest.mark.usefixtures("in_order")
def test_a_damaged_source_is_named_and_the_rest_stays(parts: Path, tmp_path: Path, source: Counted) -> None:
    file = parts / "part1/nodes/0/x.npy"
    good = file.read_bytes()
    begin = Manifest.load(parts).arrays["part1/nodes/0/x.npy"].offset + CHUNK
    file.write_bytes(good[: begin + 5] + bytes([good[begin + 5] ^ 4]) + good[begin + 6 :])
    with pytest.raises(
        PartitionError,
        match=rf"part1/nodes/0/x.npy: the bytes from {begin:,} came broken 3 times \(with another digest; the",
    ):
        pull_partition(parts, tmp_path / "copy", progress=False)
    assert not (tmp_path / "copy").exists()
    file.write_bytes(good)
    source.bytes = 0
    pull_partition(parts, tmp_path / "copy", progress=False)
    assert source.bytes < sum(map(len, array_files(parts).values()))  # what came before was kept
    assert contents(tmp_path / "copy") == contents(parts)


def test_a_damaged_header_is_found(parts: Path, tmp_path: Path) -> None:
    file = parts / "splits/train.npy"
    good = file.read_bytes()
    file.write_bytes(good.replace(b"<i8", b"<f8"))
    with pytest.raises(PartitionError, match=r"splits/train.npy: damaged: it is <f8"):
        pull_partition(parts, tmp_path / "copy", progress=False)
    file.write_bytes(good)
    pull_partition(parts, tmp_path / "copy", progress=False)
    assert contents(tmp_path / "copy") == contents(parts)


def gone_after(reads: int) -> Change:
    """A source that is gone after some reads."""
    left = [reads]

    def change(path: str, begin: int, data: bytes) -> bytes:
        left[0] -= 1
        if left[0] < 0:
            raise PartitionError("it is gone")
        return data

    return change


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("damage", ["a bit", "the header", "cut", "removed"])
def test_damage_in_an_interrupted_copy_is_found(parts: Path, tmp_path: Path, source: Counted, damage: str) -> None:
    """When it goes on: that piece alone is fetched again, of a file that was lost all of them, and the result is the source."""
    copy, entries = tmp_path / "copy", Manifest.load(parts).arrays
    path, entry = max(entries.items(), key=lambda each: len(each[1].chunks or ()))
    assert len(entry.chunks or ()) > 3
    order = list(entries)
    source.change = gone_after(sum(max(1, len(entries[p].chunks or ())) for p in order[: order.index(path) + 1]))
    with pytest.raises(PartitionError, match="it is gone"):
        pull_partition(parts, copy, progress=False)
    file = tmp_path / "copy.partial" / path
    data, begin = bytearray(file.read_bytes()), entry.offset + 2 * CHUNK
    assert data == (parts / path).read_bytes()
    head = entry.offset + CHUNK
    lost = {  # a file that is too short has another header, too
        "a bit": CHUNK,
        "the header": head,
        "cut": head + entry.bytes - begin,
        "removed": entry.bytes,
    }[damage]
    if damage == "removed":
        file.unlink()
    else:
        data[5 if damage == "the header" else begin + 7] ^= 16
        file.write_bytes(data[: begin + 9] if damage == "cut" else data)
    before, source.change = source.bytes, unchanged
    pulled = pull_partition(parts, copy, progress=False)
    assert contents(copy) == contents(parts)
    total = sum(map(len, array_files(parts).values()))
    assert source.bytes - before == pulled.fetched == total - before + lost


_PLANTED = "part0/nodes/0/x.npy"


def _plant(kind: str, copy: Path, partial: Path, outside: Path) -> None:
    """Puts what somebody else may have put where a copy is to be."""
    (outside / "mine").mkdir(parents=True)
    (outside / "mine.npy").write_bytes(b"mine")
    place = partial / _PLANTED
    if kind == "the folder":
        partial.symlink_to(outside)
        return
    place.parent.parent.mkdir(parents=True)
    if kind == "a folder below":
        place.parent.symlink_to(outside / "mine")
        return
    place.parent.mkdir()
    if kind == "a file":
        place.symlink_to(outside / "mine.npy")
    elif kind == "a file that is not there":
        place.symlink_to(outside / "none.npy")
    elif kind == "a hard link":
        place.hardlink_to(outside / "mine.npy")
    elif kind == "a FIFO":
        os.mkfifo(place)
    elif kind == "a folder as file":
        place.mkdir()


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("the folder", ""),
        ("a folder below", "part0/nodes/0/.*.npy"),
        ("a file", _PLANTED),
        ("a file that is not there", _PLANTED),
        ("a hard link", _PLANTED),
        ("a FIFO", _PLANTED),
        ("a folder as file", _PLANTED),
    ],
)
def test_what_was_planted_in_a_copy_is_neither_followed_nor_waited_for(
    parts: Path, tmp_path: Path, kind: str, named: str
) -> None:
    copy, partial, outside = tmp_path / "copy", tmp_path / "copy.partial", tmp_path / "outside"
    _plant(kind, copy, partial, outside)
    with pytest.raises(PartitionError, match=f"{partial / named}: .*Delete it"):
        pull_partition(parts, copy, progress=False)
    assert sorted(path.name for path in outside.rglob("*")) == ["mine", "mine.npy"]
    assert (outside / "mine.npy").read_bytes() == b"mine"


def test_a_link_in_a_copy_that_gets_more_parts_is_not_followed(parts: Path, tmp_path: Path) -> None:
    copy, outside = tmp_path / "copy", tmp_path / "outside"
    pull_partition(parts, copy, [1], progress=False)
    outside.mkdir()
    (copy / "part0").symlink_to(outside)
    with pytest.raises(PartitionError, match=f"{copy}/part0/.*: .*Delete it"):
        pull_partition(parts, copy, [0], progress=False)
    assert not [*outside.iterdir()]


def test_a_lock_is_not_made_behind_a_link(parts: Path, tmp_path: Path) -> None:
    (tmp_path / ".copy.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PartitionError, match="symbolic link"):
        pull_partition(parts, tmp_path / "copy", progress=False)
    assert not (tmp_path / "elsewhere").exists()


def test_another_partition_is_refused(parts: Path, tmp_path: Path, source: Counted) -> None:
    other = Path(partitioned(small_graph(seed=1), tmp_path / "other", 3).directory)
    pull_partition(parts, tmp_path / "copy", progress=False)
    with pytest.raises(PartitionError, match=r"copy: it has another partition than .*Choose another folder"):
        pull_partition(other, tmp_path / "copy", progress=False)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").touch()
    with pytest.raises(PartitionError, match="full: there is something that is no partition"):
        pull_partition(parts, tmp_path / "full", progress=False)
    # nothing of a copy that was begun stays in one of another partition
    source.change = gone_after(20)
    with pytest.raises(PartitionError, match="it is gone"):
        pull_partition(other, tmp_path / "begun", progress=False)
    source.change = unchanged
    pull_partition(parts, tmp_path / "begun", progress=False)
    assert contents(tmp_path / "begun") == contents(parts)


def test_a_lying_source_is_refused(parts: Path, tmp_path: Path) -> None:
    raw = json.loads((parts / MANIFEST).read_text())
    path = "part0/nodes/0/x.npy"
    for changed, why in (
        ({"arrays": raw["arrays"] | {"../x.npy": raw["arrays"][path]}}, "'../x.npy' is not a path of this format"),
        (
            {"arrays": raw["arrays"] | {path: raw["arrays"][path] | {"chunks": ["00"]}}},
            "chunks of part0/.* are damaged",
        ),
        ({"arrays": raw["arrays"] | {path: raw["arrays"][path] | {"shape": [2**62, 3]}}}, "its shape .* needs more"),
        ({"arrays": raw["arrays"] | {path: raw["arrays"][path] | {"chunks": None}}}, "has no hashes of part0"),
        (
            {"arrays": raw["arrays"] | {path: raw["arrays"][path] | {"bytes": 40_000_000_000}}},
            "x.npy: the manifest gives it a header of 39,999,9.* bytes",
        ),
    ):
        (parts / MANIFEST).write_text(json.dumps(raw | changed))
        with pytest.raises(PartitionError, match=why):
            pull_partition(parts, tmp_path / "copy", progress=False)
    (parts / MANIFEST).write_text("{")
    with pytest.raises(PartitionError, match=r"manifest.json: not readable as JSON"):
        pull_partition(parts, tmp_path / "copy", progress=False)
    assert not (tmp_path / "copy.partial").exists()


@pytest.mark.parametrize("wrong", [KeyError("x"), MemoryError(), RuntimeError("two\nlines"), OSError(5, "no\ndisk")])
def test_a_source_that_fails_in_its_own_way_is_named(
    parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Exception
) -> None:
    real = fsspec.implementations.local.LocalFileSystem.cat_file

    def read(store: Any, path: str, start: int | None = None, end: int | None = None, **more: Any) -> bytes:
        if path.endswith(".npy"):
            raise wrong
        return real(store, path, start, end, **more)

    monkeypatch.setattr(fsspec.implementations.local.LocalFileSystem, "cat_file", read)
    with pytest.raises(PartitionError, match=r"source/\S+\.npy: it cannot be read .*What was copied stays") as found:
        pull_partition(parts, tmp_path / "copy", progress=False)
    assert len(str(found.value).splitlines()) == 1


@pytest.mark.parametrize("address", ["node0:18700", "[::1]:18700", "grpc://node0:18700", "grpc+tls://node0:1"])
def test_the_address_of_a_graph_server_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(OptionError, match=r"graph servers do not give files\. .* sftp://HOST/FOLDER"):
        pull_partition(address, tmp_path / "copy")


def test_a_password_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(PartitionError, match=r"^nonsense://host/parts: it cannot be opened"):
        pull_partition("nonsense://me:secret@host/parts", tmp_path / "copy")


def test_a_partition_without_hashes(parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hashed = Manifest.load(parts)
    replace(hashed, arrays={p: replace(e, chunks=None) for p, e in hashed.arrays.items()}).save(parts)
    with pytest.raises(PartitionError, match=r"has no hashes of edge.*|has no hashes of .*partition --hash FOLDER"):
        pull_partition(parts, tmp_path / "copy", progress=False)
    main(["partition", "--hash", str(parts)])
    assert f"hashed {len(hashed.arrays)} files" in capsys.readouterr().out
    assert Manifest.load(parts) == hashed
    assert hash_partition(parts, Progress(False)) == 0


@pytest.mark.usefixtures("in_order")
def test_a_full_disk(parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said before anything is copied; where it fills up meanwhile, what came before stays."""
    total = sum(map(len, array_files(parts).values()))
    disk, others = tmp_path / "disk", tmp_path / "disk" / "of others"
    with full_soon(disk, size=3 * total):
        with others.open("wb") as file:
            file.write(bytes(int(2.5 * total)))
        if shutil.disk_usage(disk).total < 1 << 30:  # a file system of its own
            with pytest.raises(PartitionError, match=r"bytes are to be copied, [0-9,]+ are free. Free some space"):
                pull_partition(parts, disk / "copy", progress=False)
            assert not list((disk / "copy.partial").rglob("*.npy"))
            monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(total, 0, 10 * total))
        else:
            fill_up(monkeypatch)
        with pytest.raises(
            PartitionError, match=r"No space left.*Free some space or copy elsewhere; the same command goes on"
        ):
            pull_partition(parts, disk / "copy", progress=False)
        monkeypatch.undo()
        _small_chunks_of(monkeypatch)
        others.unlink()
        source = Counted(monkeypatch)
        pull_partition(parts, disk / "copy", progress=False)
        assert contents(disk / "copy") == contents(parts)
        assert source.bytes < total


def fill_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """For users who may not mount file systems: the twentieth write finds no space."""
    real, left = os.pwrite, [20]

    def write(*args: Any) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args)

    monkeypatch.setattr(os, "pwrite", write)


def test_parts_that_there_are_not(parts: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"parts: expected numbers from 0 to 2, got \[3\]"):
        pull_partition(parts, tmp_path / "copy", [3], progress=False)


def test_the_command(parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["pull", str(parts), str(tmp_path / "copy"), "--parts", "0,2"])
    assert re.search(r"copy: [\d,]+ files, .*; copied ", capsys.readouterr().out)
    assert {p.name for p in (tmp_path / "copy").glob("part*")} == {"part0", "part2"}
    main(["partition", "--verify", str(tmp_path / "copy"), "--parts", "0,2"])
    assert "copy: what a host with the parts 0,2 needs is good. Checked: " in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["pull", str(tmp_path / "nothere"), str(tmp_path / "x")])
    assert ended.value.code == 1
    assert "nothere/manifest.json: not found" in capsys.readouterr().err


KILLED = """
import os, sys
from glt_lightning.graph import manifest_checks
from glt_lightning.partition import arrays, copies

manifest_checks.CHUNK_BYTES = arrays.CHUNK_BYTES = int(sys.argv[1])
left, kept = int(sys.argv[4]), [0]

def step(name):
    real = getattr(os, name)
    def call(*args, **kwargs):
        kept[0] += 1
        if kept[0] == left:
            os.kill(os.getpid(), 9)
        return real(*args, **kwargs)
    setattr(os, name, call)

for name in ("pwrite", "fdatasync", "rename", "replace", "unlink"):
    step(name)
copies.pull_partition(sys.argv[2], sys.argv[3], progress=False)
print(kept[0])
"""


def killed(parts: Path, copy: Path, left: int) -> int | None:
    """Copies, and is killed at the ``left``-th file operation; else how many there were."""
    command = [sys.executable, "-c", KILLED, str(CHUNK), str(parts), str(copy), str(left)]
    ended = subprocess.run(command, timeout=60, check=False, stdout=subprocess.PIPE)
    assert ended.returncode in (0, -signal.SIGKILL)
    return int(ended.stdout) if ended.returncode == 0 else None


def test_killed_at_any_moment_and_resumed(parts: Path, tmp_path: Path, source: Counted) -> None:
    """No piece that was on disk is fetched again."""
    copy, draw = tmp_path / "copy", random.Random(0)
    for _ in range(4):
        assert killed(parts, copy, draw.randint(20, 40)) is None
    pull_partition(parts, copy, progress=False)
    assert contents(copy) == contents(parts)
    assert source.bytes < sum(map(len, array_files(parts).values()))
    assert not list(tmp_path.glob("*partial*"))


def test_killed_in_the_last_steps_and_resumed(parts: Path, tmp_path: Path, source: Counted) -> None:
    """When all pieces are there, and the manifest and the names are left."""
    copy = tmp_path / "copy"
    operations = killed(parts, copy, 0)
    assert operations is not None
    shutil.rmtree(copy)
    for left in range(operations - 6, operations + 1):
        assert killed(parts, copy, left) is None
        source.bytes = 0
        pull_partition(parts, copy, progress=False)
        assert contents(copy) == contents(parts)
        assert source.bytes <= 4 * (CHUNK + 4096)
        shutil.rmtree(copy)


@pytest.mark.slow
def test_killed_while_parts_are_added(parts: Path, tmp_path: Path) -> None:
    """Also after the last file has been moved: nothing of it stays beside the copy."""
    begun, copy = tmp_path / "begun", tmp_path / "copy"
    pull_partition(parts, begun, [1], progress=False)
    shutil.copytree(begun, copy)
    operations = killed(parts, copy, 0)
    assert operations is not None
    left_behind = []
    for left in (operations - 40, *range(operations - 3, operations + 1)):
        shutil.rmtree(copy)
        shutil.copytree(begun, copy)
        assert killed(parts, copy, left) is None
        left_behind.append({path.suffix for path in (tmp_path / "copy.partial").rglob("*") if path.is_file()})
        pull_partition(parts, copy, progress=False)
        assert contents(copy) == contents(parts)
        assert not list(tmp_path.glob("*partial*"))
    assert {".npy"} in left_behind
    assert set() in left_behind  # folders alone, of files that have all been moved


# Versions: what was appended to the partition is copied with it.


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    """A partition in two with two versions."""
    two = two_versions(np.random.default_rng(1))
    two.partition(two.base, tmp_path / "source", 2).close()
    append_rows(tmp_path / "source", two.additions)
    delete_rows(tmp_path / "source", nodes={"node": np.array([0])})
    return tmp_path / "source"


def below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_versions_are_copied(
    growing: Path, source: Counted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, of_source = tmp_path / "copy", growing.with_name("source.versions")
    pulled = pull_partition(growing, copy, [1], version=1, progress=False)
    assert (pulled.version, pulled.fetched, pulled.bytes) == (1, source.bytes, source.bytes)
    assert sorted(path.name for path in Path(f"{copy}.versions").iterdir()) == ["1"]
    main(["pull", str(growing), str(copy), "--parts", "1"])
    assert f"{copy}: version 2, " in capsys.readouterr().out
    assert below(Path(f"{copy}.versions")) == below(of_source)
    assert not (copy / "part0").exists()
    before = source.bytes
    assert pull_partition(growing, copy, [1], progress=False).version == 2
    assert source.bytes == before
    with closing(LocalPartition.open(copy, parts=[1])) as base, closing(open_version(base, "latest")) as version:
        assert version.deleted(0).tolist() == [0]
    assert pull_partition(growing, tmp_path / "none", version=0, progress=False).version == 0
    assert not (tmp_path / "none.versions").exists()
    with pytest.raises(PartitionError, match="source: there is no version 3; the latest is 2"):
        pull_partition(growing, tmp_path / "third", version=3, progress=False)
    with pytest.raises(OptionError, match="version: expected a number or latest, got 'newest'"):
        pull_partition(growing, tmp_path / "fourth", version="newest", progress=False)


def test_an_interrupted_copy_of_a_version_goes_on(growing: Path, source: Counted, tmp_path: Path) -> None:
    copy = tmp_path / "copy"

    def stop(path: str, begin: int, data: bytes) -> bytes:
        if path.startswith("deleted"):
            raise KeyboardInterrupt
        return data

    source.change = stop
    with pytest.raises(KeyboardInterrupt):
        pull_partition(growing, copy, progress=False)
    assert Versions(copy).number("latest") == 1  # whole
    source.change = unchanged
    assert pull_partition(growing, copy, progress=False).version == 2
    assert below(Path(f"{copy}.versions")) == below(growing.with_name("source.versions"))


def test_versions_that_are_damaged_or_of_other_rows_are_refused(growing: Path, source: Counted, tmp_path: Path) -> None:
    source.change = lambda path, begin, data: data[:-1] + b"\x07" if path.startswith("edges/") else data
    with pytest.raises(PartitionError, match=r"versions/1/edges/.* came broken 3 times"):
        pull_partition(growing, tmp_path / "copy", progress=False)
    source.change = unchanged
    pull_partition(growing, tmp_path / "other", version=0, progress=False)
    delete_rows(tmp_path / "other", nodes={"node": np.array([0])})
    with pytest.raises(PartitionError, match=r"other.versions/1: it has other rows than .*source.versions/1"):
        pull_partition(growing, tmp_path / "other", progress=False)
    path = growing.with_name("source.versions") / "1" / "delta.json"
    raw = json.loads(path.read_text())
    for change, text in (
        ({"previous": "another"}, "this version was appended to another graph"),
        ({"arrays": {"nodes/../x.npy": next(iter(raw["arrays"].values()))}}, "is not a path of this format"),
    ):
        path.write_text(json.dumps(raw | change | {"digest": digest_of(raw | change)}))
        with pytest.raises(PartitionError, match=text):
            pull_partition(growing, tmp_path / "third", progress=False)
