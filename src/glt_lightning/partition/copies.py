"""Copies partition folders from any place that fsspec reads, and checks every piece by its hash in the manifest.

A copy is written to ``FOLDER.partial``, which is renamed when it is complete. There is no record of its progress: a copy that is
resumed reads the pieces on disk and fetches those whose hashes differ from the manifest's. So a piece that was cut off by a kill,
or damaged since, is always found.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path, PurePath
from typing import TypeVar

from glt_lightning.base import OptionError, PartitionError, Progress
from glt_lightning.graph import MANIFEST, ArrayEntry, Manifest, check_header, parse_json, partition_id
from glt_lightning.partition.arrays import chunk_digest, chunk_ranges, write_at
from glt_lightning.partition.delta import DELTA, parse_header, read_header
from glt_lightning.partition.folder import (
    LOCK_TIMEOUT_S,
    NOT_OURS,
    disk_full_speaks,
    exclusive,
    open_below,
    open_folder_below,
)
from glt_lightning.partition.versions import LATEST, Versions

_STREAMS = 4  # pieces that are fetched at once
_ADVICE = "copy elsewhere; the same command goes on from what is here"  # if the disk is full
_ATTEMPTS = 3  # of a piece that comes broken: more would hide a source that is damaged
_MOST_HEADER = 1 << 20  # bytes; our files have 4096. The first piece of a file has its header, too, and is read at once
_GRAPH_SERVER = re.compile(r"(grpc(\+\w+)?://.*|(\[[0-9a-fA-F:]+\]|[^\s/:]+):\d+)")  # host:port
_T = TypeVar("_T")


@dataclass(frozen=True)
class Pulled:
    """The result of a copy. files, bytes: number and size of the requested files.  fetched: bytes read from the source, broken
    pieces included.  version: the last version that the copy has."""

    folder: Path
    files: int
    bytes: int
    fetched: int
    version: int = 0


def pull_partition(
    source: str | Path,
    folder: str | Path,
    parts: Sequence[int] | None = None,
    *,
    version: int | str = LATEST,
    progress: bool | None = None,
    timeout_s: float = LOCK_TIMEOUT_S,
) -> Pulled:
    """Copies a partition and its versions into ``folder`` and ``FOLDER.versions``, which appear when they are complete.

    A copy that was interrupted is resumed. To a copy that exists, missing parts and versions are added; its own files are not
    read again.

    Args:
        source: A folder, or a URL of fsspec.
        folder: Folder of the copy.
        parts: Numbers of the parts to copy; None: all. Files that all hosts need are always copied.
        version: The last version to copy, with those before it; 0: none.
        progress: Whether to show a progress bar. None: on a terminal.
        timeout_s: How long to wait for another process that writes the same folder, in seconds.

    Raises:
        PartitionError: For a source that is damaged, lacks hashes or the version, or has other rows than ``folder`` or a
            version beside it; for a full disk; for a piece that arrived broken three times. Complete pieces stay, and the next
            call goes on from there.
        OptionError: For parts that do not exist, for what is no version, or the address of a graph server.
    """
    if version != LATEST and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
        raise OptionError(f"version: expected a number or {LATEST}, got {version!r}.")
    store, target = CopySource(source), Path(folder)
    manifest = store.manifest()
    wanted = manifest.files_of(parts)
    _check_entries(store.name, wanted)
    with exclusive(target, timeout_s):
        # Under the lock: another process may have completed the copy while this one waited.
        there = _require_same(manifest, store.name, target)
        begun = _Copy(store, target.with_name(f"{target.name}.partial"))
        begun.require_ours(manifest)
        missing = {path: entry for path, entry in wanted.items() if not (there and _has(target, path, entry))}
        if missing:
            begun.run(missing, Progress(progress))
        if not there:
            begun.become(target, missing, manifest.save)
        else:
            begun.move_into(target, missing)
    deltas = [*_pull_versions(store, target, manifest, version, Progress(progress), timeout_s)]
    entries = [*wanted.values(), *(entry for files, _ in deltas for entry in files.values())]
    fetched = begun.fetched + sum(each for _, each in deltas)
    return Pulled(target, len(entries), sum(entry.bytes for entry in entries), fetched, len(deltas))


def _pull_versions(
    store: CopySource, target: Path, manifest: Manifest, version: int | str, progress: Progress, timeout_s: float
) -> Iterator[tuple[dict[str, ArrayEntry], int]]:
    """Copies the versions that are missing beside ``target``, one after the other, each of which belongs to the one before.

    Yields of each version its files, and the bytes that were fetched for it."""
    versions, previous = Versions(target), partition_id(manifest)
    for number in count(1) if version == LATEST else range(1, int(version) + 1):
        source, place = store.version(number), versions.place(number)
        text = source.read_all(DELTA, " To copy no versions: --version 0.")
        if text is None:
            if version == LATEST:
                return
            raise PartitionError(f"{store.name}: there is no version {version}; the latest is {number - 1}.")
        raw = parse_header(text, f"{source.name}/{DELTA}")
        if raw["previous"] != previous:
            raise PartitionError(
                f"{source.name}/{DELTA}: this version was appended to another graph, or to another version before it."
            )
        previous, entries, fetched = raw["digest"], raw["arrays"], 0
        with exclusive(versions.root, timeout_s):
            if place.exists():
                if read_header(place)["digest"] != previous:
                    raise PartitionError(
                        f"{place}: it has other rows than {source.name}. Choose another folder, or delete {versions.root}."
                    )
            else:
                _check_entries(source.name, entries)
                versions.root.mkdir(exist_ok=True)
                begun = _Copy(source, place.with_name(f"{number}.partial"))
                begun.run(entries, progress)
                begun.become(place, entries, partial(_write, text=text))
                fetched = begun.fetched
        yield entries, fetched


def _write(folder: Path, text: bytes) -> None:
    with (folder / DELTA).open("xb") as stream:
        stream.write(text)
        os.fsync(stream.fileno())


class CopySource:
    """A folder that fsspec reads: local, in an object store, on another host. Thread-safe."""

    def __init__(self, source: str | Path) -> None:
        import fsspec  # type: ignore[import-untyped]

        self.check_url(str(source))
        self.name = re.sub(r"(?<=://)[^/@]*@", "", str(source).rstrip("/"))  # without a password
        try:
            self._files, self._folder = fsspec.core.url_to_fs(str(source).rstrip("/"))
        except Exception as error:  # each store has its own: of its network, its credentials, its client
            raise PartitionError(f"{self.name}: it cannot be opened ({_one_line(error)}).") from error

    @staticmethod
    def check_url(given: str) -> None:
        """Raises `OptionError` for the address of a graph server: servers gave their files in earlier releases."""
        if _GRAPH_SERVER.fullmatch(given) is not None and not Path(given).exists():
            raise OptionError(
                f"{given}: graph servers do not give files. Copy from a folder that this host sees, or from a URL of fsspec "
                "such as sftp://HOST/FOLDER or s3://BUCKET/FOLDER."
            )

    def manifest(self) -> Manifest:
        """Reads the manifest. Raises `PartitionError` if there is none."""
        path, text = f"{self.name}/{MANIFEST}", self.read_all(MANIFEST)
        if text is None:
            raise PartitionError(f"{path}: not found; the folder is not a partition. Check the URL.")
        try:
            raw = parse_json(text)
        except ValueError as error:
            raise PartitionError(f"{path}: not readable as JSON ({error}).") from None
        return Manifest.parse(raw, path)

    def version(self, number: int) -> CopySource:
        """Returns the folder of a version of this one."""
        found = copy(self)
        found.name, found._folder = f"{self.name}.versions/{number}", f"{self._folder}.versions/{number}"
        return found

    def read_all(self, path: str, advice: str = "") -> bytes | None:
        """Reads a file; None if there is none. Raises `PartitionError`, with the advice."""
        try:
            return self._read(path)
        except FileNotFoundError:
            return None
        except Exception as error:  # as above
            raise self._unreadable(path, error, advice) from error

    def read(self, path: str, begin: int, end: int) -> bytes:
        """Reads the bytes [begin, end) of a file; fewer at its end. Raises `PartitionError`."""
        try:
            return self._read(path, start=begin, end=end)
        except Exception as error:  # as above
            advice = " What was copied stays; the same command goes on from there."
            raise self._unreadable(path, error, advice) from error

    def _read(self, path: str, **piece: int) -> bytes:
        return bytes(self._files.cat_file(f"{self._folder}/{path}", **piece))

    def _unreadable(self, path: str, error: Exception, advice: str) -> PartitionError:
        return PartitionError(f"{self.name}/{path}: it cannot be read ({_one_line(error)}).{advice}")


def _one_line(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
    return " ".join(text.split())


def _check_entries(name: str, wanted: dict[str, ArrayEntry]) -> None:
    for path, entry in wanted.items():
        if entry.chunks is None:
            raise PartitionError(
                f"{name}: its manifest has no hashes of {path}, so a copy cannot be checked: an earlier release made it. Run "
                "there: python -m lightning partition --hash FOLDER."
            )
        if entry.offset > _MOST_HEADER:
            raise PartitionError(
                f"{name}/{path}: the manifest gives it a header of {entry.offset:,} bytes; at most {_MOST_HEADER:,} are read. "
                "Run partition --verify at the source."
            )


def _require_same(manifest: Manifest, name: str, target: Path) -> bool:
    """Tells whether ``target`` exists and has this partition. Raises `PartitionError` if it has other contents."""
    if not (target / MANIFEST).exists():
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise PartitionError(f"{target}: there is something that is no partition. Choose another folder.")
        return False
    mine = Manifest.load(target)
    if mine != manifest:
        raise PartitionError(
            f"{target}: it has another partition than {name} (options_hash {mine.options_hash[:8]} and "
            f"{manifest.options_hash[:8]}). Choose another folder, or delete this one."
        )
    return True


def _has(folder: Path, path: str, entry: ArrayEntry) -> bool:
    if not (folder / path).exists():
        return False
    check_header(folder, path, entry)
    return True


@dataclass(frozen=True)
class _Piece:
    """Bytes ``begin`` to ``end`` of a file. The first piece has ``skip`` bytes of header, which are not part of the digest."""

    path: str
    entry: ArrayEntry
    begin: int
    end: int
    skip: int
    digest: str | None  # None: of a file without data

    @property
    def size(self) -> int:
        return self.end - self.begin

    def is_right(self, data: bytes) -> bool:
        right = self.digest is None or chunk_digest(memoryview(data)[self.skip :]) == self.digest
        return right and len(data) == self.size


def _pieces(files: dict[str, ArrayEntry]) -> Iterator[_Piece]:
    for path, entry in files.items():
        ranges = chunk_ranges(entry.bytes - entry.offset) or [(0, 0)]
        for (begin, end), digest in zip(ranges, entry.chunks or (None,), strict=True):
            skip = 0 if begin else entry.offset
            yield _Piece(path, entry, begin + entry.offset - skip, end + entry.offset, skip, digest)


@contextmanager
def _not_ours_speaks(file: Path) -> Iterator[None]:
    """Turns the error of `open_below` for links and other foreign files into a `PartitionError`."""
    try:
        yield
    except OSError as error:
        if error.errno != NOT_OURS:
            raise
        raise PartitionError(f"{file}: {error.strerror}, and a copy writes nowhere else. Delete it.") from None


class _Copy:
    """The unfinished copy in ``folder``, which several threads write."""

    def __init__(self, store: CopySource, folder: Path) -> None:
        self._store, self._folder = store, folder
        self.fetched = 0
        self._lock = threading.Lock()  # of `fetched`

    def require_ours(self, manifest: Manifest) -> None:
        """Raises `PartitionError` for a folder of the user's with this name, which the copy would delete."""
        if self._folder.is_symlink():
            return  # `run` refuses it
        for path in self._folder.rglob("*"):
            name = str(path.relative_to(self._folder))
            if not path.is_dir() and name not in manifest.arrays and not name.startswith(Path(MANIFEST).stem):
                raise PartitionError(
                    f"{path}: not of a copy that was begun. Move it, or choose another folder to copy to."
                )

    def run(self, files: dict[str, ArrayEntry], progress: Progress) -> None:
        """Fetches the missing pieces of all ``files``."""
        with suppress(FileExistsError):
            self._folder.mkdir()
        with _not_ours_speaks(self._folder):
            os.close(open_folder_below(self._folder, (), make=False))
        left = self._left(files, progress)
        needed = sum(piece.size for piece in left)
        free = shutil.disk_usage(self._folder).free
        if needed > free:
            raise PartitionError(
                f"{self._folder.parent}: {needed:,} bytes are to be copied, {free:,} are free. Free some space, choose another "
                "folder, or copy fewer parts."
            )
        # Files get their full size first, so that threads may write pieces at any offset. Pieces that are not written yet
        # are zeros, whose digests do not match, so a resumed copy fetches them.
        with disk_full_speaks(self._folder, needed, _ADVICE), progress.phase("copying", needed, "B") as done:
            self._set_sizes(files)

            def fetch(piece: _Piece) -> None:
                self._fetch(piece)
                done(piece.size)

            _in_threads(fetch, left)
        for path, entry in files.items():
            self._check_header(path, entry)  # which no digest covers

    def _left(self, files: dict[str, ArrayEntry], progress: Progress) -> list[_Piece]:
        """Returns the pieces that are missing on disk, or differ from their digests."""
        pieces = list(_pieces(files))
        there = [piece for piece in pieces if os.path.lexists(self._folder / piece.path)]
        with progress.phase("checking what is there", sum(piece.size for piece in there), "B") as done:

            def check(piece: _Piece) -> bool:
                right = self._is_here(piece)
                done(piece.size)
                return right

            right = {piece for piece, is_right in zip(there, _in_threads(check, there), strict=True) if is_right}
        return [piece for piece in pieces if piece not in right]

    def _check_header(self, path: str, entry: ArrayEntry) -> None:
        check_header(self._folder, path, entry, lambda _: io.BufferedReader(open_below(self._folder, path)))

    def _is_here(self, piece: _Piece) -> bool:
        try:
            if piece.skip:
                self._check_header(piece.path, piece.entry)
            with open_below(self._folder, piece.path) as stream:
                return piece.is_right(os.pread(stream.fileno(), piece.size, piece.begin))
        except (OSError, PartitionError):
            return False

    def _set_sizes(self, files: dict[str, ArrayEntry]) -> None:
        for path, entry in files.items():
            with _not_ours_speaks(self._folder / path), open_below(self._folder, path, os.O_RDWR | os.O_CREAT) as file:
                file.truncate(entry.bytes)

    def _fetch(self, piece: _Piece) -> None:
        for _ in range(_ATTEMPTS):
            data = self._store.read(piece.path, piece.begin, piece.end)
            with self._lock:
                self.fetched += len(data)
            if piece.is_right(data):
                self._write(piece, memoryview(data))
                return
        came = f"{len(data):,} of {piece.size:,} bytes" if len(data) != piece.size else "with another digest"
        raise PartitionError(
            f"{self._store.name}/{piece.path}: the bytes from {piece.begin:,} came broken {_ATTEMPTS} times ({came}; the "
            f"manifest says {piece.digest}). The file is damaged or was changed: run partition --verify at the source."
        )

    def _write(self, piece: _Piece, data: memoryview) -> None:
        with (
            _not_ours_speaks(self._folder / piece.path),
            open_below(self._folder, piece.path, os.O_RDWR) as stream,
        ):
            write_at(stream.fileno(), data, piece.begin, self._folder, _ADVICE)
            os.fdatasync(stream.fileno())  # a power cut after the rename must not leave a whole folder with empty files

    def become(self, target: Path, files: dict[str, ArrayEntry], save: Callable[[Path], object]) -> None:
        """Renames the folder, in which ``files`` are complete, to ``target``. save: writes their description into the folder."""
        for path in [each for each in self._folder.rglob("*") if not each.is_dir()]:
            # Others belong to other parts, or to a copy that was killed in its last step.
            if str(path.relative_to(self._folder)) not in files:
                path.unlink()
                with suppress(OSError):
                    os.removedirs(path.parent)  # those that are empty
        save(self._folder)
        if target.exists():
            target.rmdir()  # it is empty
        os.rename(self._folder, target)

    def move_into(self, target: Path, files: dict[str, ArrayEntry]) -> None:
        """Moves ``files`` into a copy that exists, and removes this folder."""
        for path in files:
            *above, name = PurePath(path).parts
            with _not_ours_speaks(target / path):
                into = open_folder_below(target, above, make=True)
                try:
                    os.rename(self._folder / path, name, dst_dir_fd=into)
                finally:
                    os.close(into)
        if self._folder.is_dir() and not self._folder.is_symlink():
            shutil.rmtree(self._folder)


def _in_threads(work: Callable[[_Piece], _T], pieces: Iterable[_Piece]) -> list[_T]:
    """Works on all pieces. The first error, or Ctrl-C, ends the others, which `map` cancels."""
    with ThreadPoolExecutor(_STREAMS, thread_name_prefix="glt-pull") as pool:
        return list(pool.map(work, pieces))
