"""Copies a partition, or some of its parts, and checks each piece as it comes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from glt_lightning.data.arrays import check_header, disk_full_speaks
from glt_lightning.data.chunk_hashes import chunk_digest
from glt_lightning.data.manifest import MANIFEST, ArrayEntry, Manifest
from glt_lightning.data.regular_file import open_below, open_folder_below
from glt_lightning.errors import OptionError, PartitionError
from glt_lightning.partition.copies.ledger import LEDGER, Chunk, Ledger, chunks_of, not_ours_speaks, opened_below
from glt_lightning.partition.copies.rate import Rate
from glt_lightning.partition.copies.source import CopySource
from glt_lightning.partition.folder import exclusive
from glt_lightning.partition.parts_folder import LOCK_TIMEOUT_S
from glt_lightning.progress import Progress

_ATTEMPTS = 3  # of a piece that comes broken: more would hide a source that is damaged
_PART = "part"
_MOST_HEADER = 1 << 20  # bytes; our files have 4096, a piece has the header, too, and is read at once


@dataclass(frozen=True)
class PullOptions:
    """What is copied, and how fast.

    Args:
        parts: Numbers of the parts that are wanted; None: all. What all hosts need comes always.
        streams: How many pieces are fetched at once.
        limit: Most bytes per second of all streams together; None: as fast as they come.

    Raises:
        OptionError: For numbers out of range.

    Example:
        >>> PullOptions(parts=[0], streams=2).streams
        2
    """

    parts: Sequence[int] | None = None
    streams: int = 4
    limit: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.streams <= 64:
            raise OptionError(f"streams: expected 1 to 64, got {self.streams}.")
        if self.limit is not None and self.limit < 1:
            raise OptionError(f"limit: expected at least 1 byte per second, got {self.limit}.")


@dataclass
class Pulled:
    """What a copy did.

    Attributes:
        folder: Where it is.
        files: Files that are wanted.
        bytes: Their bytes.
        fetched: Bytes that were read from the source, with those of broken pieces.
        again: Pieces that came broken and were fetched again.
        damaged: Pieces of an interrupted copy that are no longer what was written, as ``path (from byte N)``: fetched again.

    Example:
        >>> pulled = pull_partition(FolderCopySource("parts"), "pulled", progress=False)
        >>> pulled.again, pulled.damaged
        (0, [])
    """

    folder: Path
    files: int = 0
    bytes: int = 0
    fetched: int = 0
    again: int = 0
    damaged: list[str] = field(default_factory=list)


def pull_partition(
    source: CopySource,
    folder: str | Path,
    options: PullOptions | None = None,
    *,
    progress: bool | None = None,
    timeout_s: float = LOCK_TIMEOUT_S,
) -> Pulled:
    """Copies a partition into ``folder``, which appears when it is complete.

    A copy that was ended goes on where it was, in ``FOLDER.partial``, after it has read what is there and compared it with the
    hashes. Into a copy that exists, parts that it lacks are added; files that are there are not read again.

    Args:
        source: Where it is copied from.
        folder: Where to.
        options: What is copied; None: everything.
        progress: Whether to show a progress bar. None: on a terminal.
        timeout_s: How long to wait for another process that writes the same folder, in seconds.

    Returns:
        What was copied.

    Raises:
        PartitionError: For a source that is damaged, lacks hashes or is another partition than that in ``folder``; for a full
            disk; for a piece that came broken three times. What came before stays, and the next call goes on from there.
        OptionError: For parts that there are not.

    Example:
        >>> pulled = pull_partition(FolderCopySource("parts"), "copied", PullOptions(parts=[1]), progress=False)
        >>> LocalPartition.open(pulled.folder, parts=[1]).manifest.num_parts
        2
    """
    options, target = options or PullOptions(), Path(folder)
    manifest = Manifest.parse(source.manifest(), f"{source.name}/{MANIFEST}")
    wanted = wanted_files(manifest, options.parts)
    unhashed = next((path for path, entry in wanted.items() if entry.chunks is None), None)
    if unhashed is not None:
        raise PartitionError(
            f"{source.name}: its manifest has no hashes of {unhashed}, so a copy cannot be checked: an earlier release made it. "
            "Run there: python -m lightning partition --hash FOLDER."
        )
    for path, entry in wanted.items():
        if entry.offset > _MOST_HEADER:
            raise PartitionError(
                f"{source.name}/{path}: the manifest gives it a header of {entry.offset:,} bytes; at most {_MOST_HEADER:,} are "
                "read. Run partition --verify at the source."
            )
    with exclusive(target, timeout_s):
        there = _require_same(manifest, source, target)
        _forget(target)
        _require_ours(_partial_of(target), manifest)
        pulled = Pulled(target, len(wanted), sum(entry.bytes for entry in wanted.values()))
        missing = {path: entry for path, entry in wanted.items() if not _is_there(target, path, entry)}
        if missing or not there:
            _Copy(source, manifest, missing, options, pulled).run(target, there, Progress(progress))
        else:
            _remove_emptied(_partial_of(target))
    return pulled


def wanted_files(manifest: Manifest, parts: Sequence[int] | None) -> dict[str, ArrayEntry]:
    """The files of some parts, and those that all hosts need. Raises `OptionError` for parts that there are not."""
    if parts is None:
        return dict(manifest.arrays)
    unknown = sorted(set(parts) - set(range(manifest.num_parts)))
    if unknown or not parts:
        raise OptionError(f"parts: expected numbers from 0 to {manifest.num_parts - 1}, got {list(parts)}.")
    own = {f"{_PART}{p}" for p in parts}
    heads = {path: path.split("/")[0] for path in manifest.arrays}
    return {
        path: entry
        for path, entry in manifest.arrays.items()
        if heads[path] in own or not heads[path].startswith(_PART)
    }


def _require_same(manifest: Manifest, source: CopySource, target: Path) -> bool:
    """Whether ``target`` has this partition. Raises `PartitionError` if it has something else."""
    if not (target / MANIFEST).exists():
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise PartitionError(f"{target}: there is something that is no partition. Choose another folder.")
        return False
    mine = Manifest.load(target)
    if manifest_hash(mine) != manifest_hash(manifest):
        raise PartitionError(
            f"{target}: it has another partition than {source.name} (options_hash {mine.options_hash[:8]} and "
            f"{manifest.options_hash[:8]}). Choose another folder, or delete this one."
        )
    return True


def manifest_hash(manifest: Manifest) -> str:
    """Hash of the partition with the contents of its files: 32 hexadecimal digits."""
    text = json.dumps(manifest.to_json(), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _forget(target: Path) -> None:
    """Removes the ledger of a copy that is complete; one that was killed right after the rename still has it."""
    (target / LEDGER).unlink(missing_ok=True)


def _partial_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.partial")


def _require_ours(partial: Path, manifest: Manifest) -> None:
    """Raises `PartitionError` for a folder of the user's by this name, which would go with the copy."""
    if partial.is_symlink() or (partial / LEDGER).exists():
        return
    for path in partial.rglob("*"):
        if not path.is_dir() and str(path.relative_to(partial)) not in manifest.arrays:
            raise PartitionError(f"{path}: not of a copy that was begun. Move it, or choose another folder to copy to.")


def _remove_emptied(partial: Path) -> None:
    """Of a copy that was killed after it had moved its last file."""
    if partial.is_dir() and not partial.is_symlink() and not any(partial.rglob("*.npy")):
        shutil.rmtree(partial)


def _is_there(folder: Path, path: str, entry: ArrayEntry) -> bool:
    if not (folder / path).exists():
        return False
    check_header(folder, path, entry)
    return True


class _Copy:
    """One copy, by several threads."""

    def __init__(
        self,
        source: CopySource,
        manifest: Manifest,
        missing: dict[str, ArrayEntry],
        options: PullOptions,
        pulled: Pulled,
    ) -> None:
        self._source, self._manifest, self._missing = source, manifest, missing
        self._options, self._pulled = options, pulled
        self._rate = Rate(options.limit)
        self._stop = threading.Event()
        self._lock = threading.Lock()  # of the counts in `pulled`, which all streams raise

    def run(self, target: Path, there: bool, progress: Progress) -> None:
        partial = _partial_of(target)
        with suppress(FileExistsError):
            partial.mkdir()
        with not_ours_speaks(partial):
            os.close(open_folder_below(partial, (), make=False))
        chunks = chunks_of(self._manifest.arrays)
        ledger = Ledger(partial, manifest_hash(self._manifest), sum(map(len, chunks.values())))
        try:
            self._recheck(partial, [chunk for path in self._missing for chunk in chunks[path]], ledger, progress)
            left = [chunk for path in self._missing for chunk in chunks[path] if not ledger.has(chunk)]
            self._require_room(partial, sum(chunk.length for chunk in left))
            with self._files(partial), progress.phase("copying", sum(c.length for c in left), "B") as done:

                def fetch(chunk: Chunk) -> None:
                    if not self._stop.is_set():
                        self._fetch(chunk, partial)
                        ledger.add(chunk)
                        done(chunk.length)

                self._all(fetch, left)
            for path, entry in self._missing.items():
                self._check(partial, path, entry, chunks[path][0], ledger)
        finally:
            ledger.close()
        self._place(partial, target, there)

    def _recheck(self, partial: Path, chunks: list[Chunk], ledger: Ledger, progress: Progress) -> None:
        """Reads what an interrupted copy has: its disk may have been damaged, or its files changed, since then."""
        there = [chunk for chunk in chunks if ledger.has(chunk)]
        with progress.phase("checking what is there", sum(chunk.length for chunk in there), "B") as done:

            def check(chunk: Chunk) -> None:
                if not self._stop.is_set():
                    if not _is_whole(partial, chunk, self._missing[chunk.path]):
                        ledger.remove(chunk)
                    done(chunk.length)

            self._all(check, there)
        self._pulled.damaged += [f"{c.path} (from byte {c.begin:,})" for c in there if not ledger.has(c)]

    def _require_room(self, partial: Path, needed: int) -> None:
        free = shutil.disk_usage(partial).free
        if needed > free:
            raise PartitionError(
                f"{partial.parent}: {needed:,} bytes are to be copied, {free:,} are free. Free some space, choose another "
                "folder, or copy fewer parts."
            )

    @contextmanager
    def _files(self, partial: Path) -> Iterator[None]:
        """The files in their full size, without contents where nothing was copied yet."""
        for path, entry in self._missing.items():
            with opened_below(partial, path, os.O_RDWR | os.O_CREAT) as stream:
                if os.fstat(stream.fileno()).st_size != entry.bytes:
                    os.truncate(stream.fileno(), entry.bytes)
        with disk_full_speaks(
            partial, self._pulled.bytes, "copy elsewhere; the same command goes on from what is here"
        ):
            yield

    def _all(self, work: Callable[[Chunk], None], chunks: list[Chunk]) -> None:
        """Fetches or checks all pieces; the first error ends the others."""
        with ThreadPoolExecutor(self._options.streams, thread_name_prefix="glt-pull") as pool:
            futures = [pool.submit(work, chunk) for chunk in chunks]
            try:
                for future in futures:
                    future.result()
            except BaseException:  # Ctrl-C, too
                self._stop.set()
                for future in futures:
                    future.cancel()
                raise

    def _fetch(self, chunk: Chunk, partial: Path) -> None:
        for attempt in range(_ATTEMPTS):
            self._rate.take(chunk.length)
            data, found = self._read(chunk)
            with self._lock:
                self._pulled.fetched += len(data)
                self._pulled.again += attempt > 0
            if len(data) == chunk.length and found == chunk.digest:
                with opened_below(partial, chunk.path, os.O_RDWR) as stream:
                    _write(stream.fileno(), data, chunk.begin)
                    os.fdatasync(stream.fileno())
                return
        what = f"{len(data):,} of {chunk.length:,} bytes" if len(data) != chunk.length else f"digest {found}"
        raise PartitionError(
            f"{self._source.name}/{chunk.path}: the bytes from {chunk.begin:,} came broken {_ATTEMPTS} times ({what}, the "
            f"manifest says {chunk.digest}). The file is damaged or was changed: run partition --verify at the source."
        )

    def _read(self, chunk: Chunk) -> tuple[bytes | memoryview, str | None]:
        try:
            data = self._source.read(chunk.path, chunk.begin, chunk.length)
            return data, None if chunk.digest is None else chunk_digest(memoryview(data)[chunk.skip :])
        except PartitionError:
            raise
        except Exception as error:  # of a source of one's own, too, and of what it gave
            reason = error.strerror or error if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            raise PartitionError(
                f"{self._source.name}/{chunk.path}: it cannot be read ({' '.join(str(reason).split())}). What was copied stays; "
                "the same command goes on from there."
            ) from error

    def _check(self, partial: Path, path: str, entry: ArrayEntry, first: Chunk, ledger: Ledger) -> None:
        """The header, which no digest covers; its piece is fetched again by the next call if it is damaged."""
        try:
            check_header(partial, path, entry, links=False)
        except PartitionError:
            ledger.remove(first)
            raise

    def _place(self, partial: Path, target: Path, there: bool) -> None:
        if not there:
            for left in partial.glob(f"{Path(MANIFEST).stem}.tmp-*"):  # of a copy that was killed in `Manifest.save`
                left.unlink()
            self._manifest.save(partial)
            if target.exists():
                target.rmdir()  # it is empty
            os.rename(partial, target)
            _forget(target)
            return
        for path in self._missing:
            *above, name = PurePath(path).parts
            with not_ours_speaks(target / path):
                source = open_folder_below(partial, above, make=False)
                try:
                    into = open_folder_below(target, above, make=True)
                    try:
                        os.rename(name, name, src_dir_fd=source, dst_dir_fd=into)
                    finally:
                        os.close(into)
                finally:
                    os.close(source)
        shutil.rmtree(partial)


def _is_whole(partial: Path, chunk: Chunk, entry: ArrayEntry) -> bool:
    """Whether a piece on disk is what its digest, and the header before the first piece, say."""
    try:
        if chunk.skip:
            check_header(partial, chunk.path, entry, links=False)
        with open_below(partial, chunk.path) as stream:
            data = _read_all(stream.fileno(), chunk)
    except (OSError, PartitionError):
        return False
    return len(data) == chunk.length and (chunk.digest is None or chunk_digest(data[chunk.skip :]) == chunk.digest)


def _read_all(file: int, chunk: Chunk) -> memoryview:
    """The bytes of a piece; fewer where the file ends."""
    data = memoryview(bytearray(chunk.length))
    at = 0
    while at < chunk.length and (count := os.preadv(file, [data[at:]], chunk.begin + at)):
        at += count
    return data[:at]


def _write(file: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written
