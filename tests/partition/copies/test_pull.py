"""Copies of partitions: byte for byte, resumed after any end, checked piece by piece."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest

from glt_lightning.cluster.copy_source import open_any_source
from glt_lightning.cluster.files import FileService
from glt_lightning.cluster.graph import GraphService
from glt_lightning.cluster.link import Link
from glt_lightning.cluster.share import SharedFolder
from glt_lightning.data import LocalPartition
from glt_lightning.data.arrays import DATA_OFFSET
from glt_lightning.data.manifest import MANIFEST, Manifest
from glt_lightning.errors import OptionError, PartitionError
from glt_lightning.lightning.cli.command_line import main
from glt_lightning.options import ClusterOptions
from glt_lightning.partition.copies import (
    FolderCopySource,
    PullOptions,
    hash_partition,
    open_copy_source,
    pull_partition,
)
from glt_lightning.partition.copies.ledger import LEDGER
from glt_lightning.partition.copies.rate import Rate
from glt_lightning.partition.verify import verify_partition
from glt_lightning.progress import Progress
from glt_lightning.transport.base import Caller, Service
from glt_lightning.transport.credentials import Credentials
from glt_lightning.transport.flight_transport import FlightTransport
from glt_lightning.transport.message import Message
from tests.helpers.disks import full_soon
from tests.helpers.partitions import partitioned, small_graph

CHUNK = 1 << 10  # bytes, so that small files have many


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    _small_chunks_of(monkeypatch)


def _small_chunks_of(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("data.chunk_hashes", "partition.copies.ledger"):
        monkeypatch.setattr(f"glt_lightning.{module}.CHUNK_BYTES", CHUNK)


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """A partition in three."""
    return Path(partitioned(small_graph(), tmp_path / "source", 3).directory)


class Counted(FolderCopySource):
    """Counts the bytes that are read, and may break them."""

    def __init__(self, folder: Path, breaks=lambda path, offset, data: data) -> None:
        super().__init__(folder)
        self.bytes, self._breaks, self._lock = 0, breaks, threading.Lock()

    def read(self, path: str, offset: int, length: int) -> bytes:
        data = super().read(path, offset, length)
        with self._lock:
            self.bytes += len(data)
            return self._breaks(path, offset, data)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def array_files(folder: Path) -> dict[str, bytes]:
    return {path: data for path, data in contents(folder).items() if path.endswith(".npy")}


@pytest.mark.parametrize("there", [False, True])
def test_files_of_the_user_beside_the_folder_stay(parts: Path, tmp_path: Path, there: bool) -> None:
    if there:
        pull_partition(FolderCopySource(parts), tmp_path / "copy", progress=False)
    (tmp_path / "copy.partial" / "drafts").mkdir(parents=True)
    (tmp_path / "copy.partial" / "drafts" / "thesis.tex").write_text("work of years")
    with pytest.raises(PartitionError, match=r"thesis\.tex: not of a copy that was begun\. Move it"):
        pull_partition(FolderCopySource(parts), tmp_path / "copy", progress=False)
    assert (tmp_path / "copy.partial" / "drafts" / "thesis.tex").read_text() == "work of years"


@pytest.mark.parametrize("streams", [1, 4])
def test_a_copy_is_the_source_byte_for_byte(parts: Path, tmp_path: Path, streams: int) -> None:
    source = Counted(parts)
    pulled = pull_partition(source, tmp_path / "copy", PullOptions(streams=streams), progress=False)
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


def test_some_parts_and_then_others(parts: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    source = Counted(parts)
    pull_partition(source, copy, PullOptions(parts=[1]), progress=False)
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
    assert pull_partition(source, copy, PullOptions(parts=[1]), progress=False).fetched == 0
    pull_partition(source, copy, PullOptions(parts=[0, 2]), progress=False)
    assert source.bytes - before == sum(len(d) for p, d in array_files(parts).items() if p[:5] in ("part0", "part2"))
    assert contents(copy) == contents(parts)


def test_from_an_object_store(parts: Path, tmp_path: Path) -> None:
    store = fsspec.filesystem("memory")
    store.put(str(parts), "/bucket/parts", recursive=True)
    try:
        source = open_copy_source("memory://bucket/parts/")
        pull_partition(source, tmp_path / "copy", progress=False)
        assert contents(tmp_path / "copy") == contents(parts)
        store.rm("/bucket/parts/part1/nodes/0/x.npy")
        with pytest.raises(PartitionError, match=r"part1/nodes/0/x.npy: it cannot be read .*What was copied stays"):
            pull_partition(source, tmp_path / "other", progress=False)
        store.rm(f"/bucket/parts/{MANIFEST}")
        with pytest.raises(PartitionError, match=r"memory://bucket/parts/manifest.json: not found"):
            pull_partition(open_copy_source("memory://bucket/parts"), tmp_path / "third", progress=False)
    finally:
        store.rm("/bucket", recursive=True)
    with pytest.raises(PartitionError, match="nonsense://x: it cannot be opened"):
        open_copy_source("nonsense://x")


def test_a_broken_piece_is_fetched_again(parts: Path, tmp_path: Path) -> None:
    broken = set()

    def flip_once(path: str, offset: int, data: bytes) -> bytes:
        if (path, offset) in broken or not path.endswith("x.npy"):
            return data
        broken.add((path, offset))
        return data[:-1] + bytes([data[-1] ^ 1]) if offset % 2048 else data[:-1]  # damaged, or short

    pulled = pull_partition(Counted(parts, flip_once), tmp_path / "copy", progress=False)
    assert pulled.again == len(broken) > 2
    assert contents(tmp_path / "copy") == contents(parts)


def test_a_damaged_source_is_named_and_the_rest_stays(parts: Path, tmp_path: Path) -> None:
    file = parts / "part1/nodes/0/x.npy"
    good = file.read_bytes()
    begin = Manifest.load(parts).arrays["part1/nodes/0/x.npy"].offset + CHUNK
    file.write_bytes(good[: begin + 5] + bytes([good[begin + 5] ^ 4]) + good[begin + 6 :])
    with pytest.raises(
        PartitionError,
        match=rf"part1/nodes/0/x.npy: the bytes from {begin:,} came broken 3 times \(digest [0-9a-f]+, the",
    ):
        pull_partition(FolderCopySource(parts), tmp_path / "copy", PullOptions(streams=1), progress=False)
    assert not (tmp_path / "copy").exists()
    file.write_bytes(good)
    source = Counted(parts)
    pull_partition(source, tmp_path / "copy", progress=False)
    assert source.bytes < sum(map(len, array_files(parts).values()))  # what came before was kept
    assert contents(tmp_path / "copy") == contents(parts)


def test_a_damaged_header_is_found(parts: Path, tmp_path: Path) -> None:
    file = parts / "splits/train.npy"
    good = file.read_bytes()
    file.write_bytes(good.replace(b"<i8", b"<f8"))
    with pytest.raises(PartitionError, match=r"splits/train.npy: damaged: it is <f8"):
        pull_partition(FolderCopySource(parts), tmp_path / "copy", progress=False)
    file.write_bytes(good)
    pull_partition(FolderCopySource(parts), tmp_path / "copy", progress=False)
    assert contents(tmp_path / "copy") == contents(parts)


class Ending(Counted):
    """A source that is gone after some reads."""

    def __init__(self, folder: Path, reads: int) -> None:
        super().__init__(folder)
        self._left = reads

    def read(self, path: str, offset: int, length: int) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        return super().read(path, offset, length)


@pytest.mark.parametrize("damage", ["a bit", "the header", "cut", "removed"])
def test_damage_in_an_interrupted_copy_is_found(parts: Path, tmp_path: Path, damage: str) -> None:
    """When it goes on: that piece alone is fetched again, of a file that was lost all of them, and the result is the source."""
    copy, entries = tmp_path / "copy", Manifest.load(parts).arrays
    path, entry = max(entries.items(), key=lambda each: len(each[1].chunks or ()))
    assert len(entry.chunks or ()) > 3
    before = sum(max(1, len(e.chunks or ())) for p, e in entries.items() if p <= path)
    interrupted = Ending(parts, before)
    with pytest.raises(PartitionError, match="the same command goes on from there"):
        pull_partition(interrupted, copy, PullOptions(streams=1), progress=False)
    file = tmp_path / "copy.partial" / path
    data, begin = bytearray(file.read_bytes()), entry.offset + 2 * CHUNK
    assert data == (parts / path).read_bytes()
    head, all_of_it = entry.offset + CHUNK, len(entry.chunks or ())
    lost, pieces = {  # a file that is too short has another header, too
        "a bit": (CHUNK, 1),
        "the header": (head, 1),
        "cut": (head + entry.bytes - begin, all_of_it - 1),
        "removed": (entry.bytes, all_of_it),
    }[damage]
    if damage == "removed":
        file.unlink()
    else:
        data[5 if damage == "the header" else begin + 7] ^= 16
        file.write_bytes(data[: begin + 9] if damage == "cut" else data)
    source = Counted(parts)
    pulled = pull_partition(source, copy, progress=False)
    assert contents(copy) == contents(parts)
    total = sum(map(len, array_files(parts).values()))
    assert source.bytes == pulled.fetched == total - interrupted.bytes + lost
    assert pulled.damaged[0] == f"{path} (from byte {begin if damage == 'a bit' else 0:,})"
    assert len(pulled.damaged) == pieces


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
    elif kind == "the ledger":
        (partial / LEDGER).symlink_to(outside / "mine.npy")
    elif kind == "a FIFO as ledger":
        os.mkfifo(partial / LEDGER)
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
        ("the ledger", LEDGER),
        ("a FIFO as ledger", LEDGER),
        ("a folder as file", _PLANTED),
    ],
)
def test_what_was_planted_in_a_copy_is_neither_followed_nor_waited_for(
    parts: Path, tmp_path: Path, kind: str, named: str
) -> None:
    copy, partial, outside = tmp_path / "copy", tmp_path / "copy.partial", tmp_path / "outside"
    _plant(kind, copy, partial, outside)
    with pytest.raises(PartitionError, match=f"{partial / named}: .*Delete it"):
        pull_partition(FolderCopySource(parts), copy, progress=False)
    assert sorted(path.name for path in outside.rglob("*")) == ["mine", "mine.npy"]
    assert (outside / "mine.npy").read_bytes() == b"mine"


def test_a_link_in_a_copy_that_gets_more_parts_is_not_followed(parts: Path, tmp_path: Path) -> None:
    copy, outside = tmp_path / "copy", tmp_path / "outside"
    pull_partition(FolderCopySource(parts), copy, PullOptions(parts=[1]), progress=False)
    outside.mkdir()
    (copy / "part0").symlink_to(outside)
    with pytest.raises(PartitionError, match=f"{copy}/part0/.*: .*Delete it"):
        pull_partition(FolderCopySource(parts), copy, PullOptions(parts=[0]), progress=False)
    assert not [*outside.iterdir()]


def test_a_lock_is_not_made_behind_a_link(parts: Path, tmp_path: Path) -> None:
    (tmp_path / ".copy.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PartitionError, match="symbolic link"):
        pull_partition(FolderCopySource(parts), tmp_path / "copy", progress=False)
    assert not (tmp_path / "elsewhere").exists()


def test_another_partition_is_refused(parts: Path, tmp_path: Path) -> None:
    other = Path(partitioned(small_graph(seed=1), tmp_path / "other", 3).directory)
    pull_partition(FolderCopySource(parts), tmp_path / "copy", progress=False)
    with pytest.raises(PartitionError, match=r"copy: it has another partition than .*Choose another folder"):
        pull_partition(FolderCopySource(other), tmp_path / "copy", progress=False)
    # of an unfinished copy, too
    with pytest.raises(PartitionError, match="cannot be read"):
        pull_partition(Missing(parts), tmp_path / "begun", progress=False)
    with pytest.raises(PartitionError, match=r"begun.partial: it was begun from another partition"):
        pull_partition(FolderCopySource(other), tmp_path / "begun", progress=False)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").touch()
    with pytest.raises(PartitionError, match="full: there is something that is no partition"):
        pull_partition(FolderCopySource(parts), tmp_path / "full", progress=False)


class Missing(FolderCopySource):
    def read(self, path: str, offset: int, length: int) -> bytes:
        raise FileNotFoundError(2, "No such file", path)


def test_a_lying_source_is_refused(parts: Path, tmp_path: Path) -> None:
    raw = json.loads((parts / MANIFEST).read_text())

    class Lying(FolderCopySource):
        def manifest(self):
            return self.said

    source = Lying(parts)
    path = "part0/nodes/0/x.npy"
    for said, why in (
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
        source.said = raw | said
        with pytest.raises(PartitionError, match=why):
            pull_partition(source, tmp_path / "copy", progress=False)
    assert not (tmp_path / "copy.partial").exists()


@pytest.mark.parametrize("wrong", [KeyError("x"), MemoryError(), RuntimeError("two\nlines"), None, 7, "text"])
def test_a_source_that_fails_in_its_own_way_is_named(parts: Path, tmp_path: Path, wrong: Any) -> None:
    class Odd(FolderCopySource):
        def read(self, path: str, offset: int, length: int) -> Any:
            if isinstance(wrong, Exception):
                raise wrong
            return wrong

    with pytest.raises(PartitionError, match=r"source/\S+\.npy: it cannot be read") as found:
        pull_partition(Odd(parts), tmp_path / "copy", progress=False)
    assert len(str(found.value).splitlines()) == 1


def test_a_partition_without_hashes(parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hashed = Manifest.load(parts)
    replace(hashed, arrays={p: replace(e, chunks=None) for p, e in hashed.arrays.items()}).save(parts)
    with pytest.raises(PartitionError, match=r"has no hashes of edge.*|has no hashes of .*partition --hash FOLDER"):
        pull_partition(FolderCopySource(parts), tmp_path / "copy", progress=False)
    main(["partition", "--hash", str(parts)])
    assert f"hashed {len(hashed.arrays)} files" in capsys.readouterr().out
    assert Manifest.load(parts) == hashed
    assert hash_partition(parts, Progress(False)) == 0


def test_a_full_disk(parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said before anything is copied; where it fills up meanwhile, what came before stays."""
    total = sum(map(len, array_files(parts).values()))
    disk, others = tmp_path / "disk", tmp_path / "disk" / "of others"
    with full_soon(disk, size=3 * total):
        with others.open("wb") as file:
            file.write(bytes(int(2.5 * total)))
        if shutil.disk_usage(disk).total < 1 << 30:  # a file system of its own
            with pytest.raises(PartitionError, match=r"bytes are to be copied, [0-9,]+ are free. Free some space"):
                pull_partition(FolderCopySource(parts), disk / "copy", progress=False)
            assert not list((disk / "copy.partial").rglob("*.npy"))
            monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(total, 0, 10 * total))
        else:
            fill_up(monkeypatch)
        with pytest.raises(
            PartitionError, match=r"No space left.*Free some space or copy elsewhere; the same command goes on"
        ):
            pull_partition(FolderCopySource(parts), disk / "copy", PullOptions(streams=1), progress=False)
        monkeypatch.undo()
        _small_chunks_of(monkeypatch)
        others.unlink()
        source = Counted(parts)
        pull_partition(source, disk / "copy", progress=False)
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


def test_limit_of_bytes_per_second() -> None:
    now, slept = [0.0], []
    rate = Rate(100, clock=lambda: now[0], sleep=slept.append)
    for _ in range(3):
        rate.take(50)
    assert slept == [0.5, 1.0]
    now[0] = 10.0
    rate.take(50)
    assert slept == [0.5, 1.0]


def test_wrong_options(parts: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"parts: expected numbers from 0 to 2, got \[3\]"):
        pull_partition(FolderCopySource(parts), tmp_path / "copy", PullOptions(parts=[3]), progress=False)
    with pytest.raises(OptionError, match="streams: expected 1 to 64, got 0"):
        PullOptions(streams=0)


def test_the_command(parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["pull", "--from", str(parts), "--to", str(tmp_path / "copy"), "--parts", "0,2", "--limit", "1GB"])
    assert "copy: " in (said := capsys.readouterr().out)
    assert "files, " in said
    assert {p.name for p in (tmp_path / "copy").glob("part*")} == {"part0", "part2"}
    main(["partition", "--verify", str(tmp_path / "copy"), "--parts", "0,2"])
    assert "copy: what a host with the parts 0,2 needs is good. Checked: " in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["pull", "--from", str(tmp_path / "nothere"), "--to", str(tmp_path / "x")])
    assert ended.value.code == 1
    assert "nothere/manifest.json: not found" in capsys.readouterr().err


KILLED = """
import os, random, sys
from glt_lightning.data import chunk_hashes
from glt_lightning.partition.copies import FolderCopySource, PullOptions, ledger, pull_partition

chunk_hashes.CHUNK_BYTES = ledger.CHUNK_BYTES = int(sys.argv[1])
left, kept = int(sys.argv[4]), [0]

def step(name):
    real = getattr(os, name)
    def call(*args, **kwargs):
        kept[0] += 1
        if kept[0] == left:
            os.kill(os.getpid(), 9)
        return real(*args, **kwargs)
    setattr(os, name, call)

for name in ("pwrite", "fdatasync", "truncate", "rename", "replace", "unlink"):
    step(name)
if sys.argv[2].startswith("127.0.0.1:"):
    from glt_lightning.cluster.copy_source import open_any_source
    from glt_lightning.options import ClusterOptions

    source = open_any_source(sys.argv[2], ClusterOptions())
else:
    source = FolderCopySource(sys.argv[2])
pull_partition(source, sys.argv[3], PullOptions(streams=3), progress=False)
print(kept[0])
"""


def killed(parts: Path | str, copy: Path, left: int) -> int | None:
    """Copies, and is killed at the ``left``-th file operation; else how many there were."""
    command = [sys.executable, "-c", KILLED, str(CHUNK), str(parts), str(copy), str(left)]
    ended = subprocess.run(command, timeout=60, check=False, stdout=subprocess.PIPE)
    assert ended.returncode in (0, -signal.SIGKILL)
    return int(ended.stdout) if ended.returncode == 0 else None


def test_killed_at_any_moment_and_resumed(parts: Path, tmp_path: Path) -> None:
    copy, draw = tmp_path / "copy", random.Random(0)
    for _ in range(4):
        killed(parts, copy, draw.randint(60, 120))
    source = Counted(parts)
    pull_partition(source, copy, progress=False)
    assert contents(copy) == contents(parts)
    assert source.bytes < sum(map(len, array_files(parts).values()))
    assert not list(tmp_path.glob("*partial*"))


@pytest.mark.slow
def test_killed_twenty_times_and_resumed_from_a_server(parts: Path, tmp_path: Path) -> None:
    """No byte is sent twice, but for the pieces that were on their way."""
    copy, draw, sent = tmp_path / "copy", random.Random(0), []
    true = FileService(SharedFolder.open(parts)).calls["file"]

    def counted(message: Message, caller: Caller) -> Message:
        answer = true(message, caller)
        sent.append(len(answer.body))
        return answer

    calls = {**GraphService(LocalPartition.open(parts), (0, 1, 2)).calls, "file": counted}
    transport = FlightTransport(Credentials())
    with closing(
        transport.serve("127.0.0.1:0", Service(Link(job="", role="server", name="s").greet, calls, {}))
    ) as server:
        kills = sum(killed(server.address, copy, draw.randint(8, 18)) is None for _ in range(20))
        source = open_any_source(server.address, ClusterOptions())
        with closing(source):
            pull_partition(source, copy, progress=False)
    assert kills == 20
    assert contents(copy) == contents(parts)
    total = sum(map(len, array_files(parts).values()))
    assert sum(sent) <= total + kills * 3 * (CHUNK + DATA_OFFSET)


def test_killed_in_the_last_steps_and_resumed(parts: Path, tmp_path: Path) -> None:
    """When all pieces are there, and the manifest and the names are left."""
    copy = tmp_path / "copy"
    operations = killed(parts, copy, 0)
    assert operations is not None
    shutil.rmtree(copy)
    for left in range(operations - 6, operations + 1):
        assert killed(parts, copy, left) is None
        source = Counted(parts)
        pull_partition(source, copy, progress=False)
        assert contents(copy) == contents(parts)
        assert source.bytes <= 4 * (CHUNK + 4096)
        shutil.rmtree(copy)


@pytest.mark.slow
def test_killed_while_parts_are_added(parts: Path, tmp_path: Path) -> None:
    """Also after the last file has been moved: nothing of it stays beside the copy."""
    begun, copy = tmp_path / "begun", tmp_path / "copy"
    pull_partition(FolderCopySource(parts), begun, PullOptions(parts=[1]), progress=False)
    shutil.copytree(begun, copy)
    operations = killed(parts, copy, 0)
    assert operations is not None
    left_behind = []
    for left in (operations - 40, *range(operations - 3, operations + 1)):
        shutil.rmtree(copy)
        shutil.copytree(begun, copy)
        assert killed(parts, copy, left) is None
        left_behind.append({path.suffix for path in (tmp_path / "copy.partial").rglob("*") if path.is_file()})
        pull_partition(FolderCopySource(parts), copy, progress=False)
        assert contents(copy) == contents(parts)
        assert not list(tmp_path.glob("*partial*"))
    assert {".npy", ".chunks"} in left_behind
    assert {".chunks"} in left_behind  # the ledger alone, of files that have all been moved
