"""Where predictions go, complete or not at all: a folder, or a folder of an object store.

Both places have the same methods, called in this order: `open` before anything is predicted, and `prepare` before files are
published, both on the first rank of each host; `publish` on every rank, which puts its file where nobody reads it yet;
`complete` on rank 0, from which on readers find the files in place of earlier ones; `complete_host` on the first rank of each
other host; after a failure, `clean`. They raise `WriteError`, or OSError with the text of the file system.

`name` is the place as users know it, `scratch` the folder for files that are not complete, `remedy` helps where it is full.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from glt_lightning.base import OptionError, WriteError
from glt_lightning.graph import open_regular, parse_json
from glt_lightning.lightning.callbacks.prediction_files import (
    MANIFEST,
    PredictionFile,
    file_name,
    listed_files,
    manifest_text,
    open_store,
)

_COPY_BYTES = 16 << 20
# Names in a folder that was there before. No manifest lists them where a run was killed as it completed.
_OUR_FILE = re.compile(r"rank\d+-[0-9a-f]{12}\.parquet")
_REPLACES = "replaces"  # files of earlier predictions, which were removed after the manifest was there
_OUR_PART = re.compile(r"\.part-[0-9a-f]{12}")
_TRIALS = 100  # to lock a folder, 10 ms apart


def place_of(path: str, token: str, inside: bool = False) -> FolderPlace | StorePlace:
    """The place that a path or a URL of fsspec names. token: of this run, the same on all ranks, 12 hexadecimal digits.
    inside: whether a folder is there already, the same on all ranks."""
    return StorePlace(path, token) if "://" in path else FolderPlace(Path(path), token, inside)


def folder_of(path: str) -> Path:
    """The absolute path of a folder; if it is a link itself, that of the link."""
    given = Path(path)
    return given.resolve() if given.name in ("", "..") else given.parent.resolve() / given.name


def require_ours(folder: Path) -> None:
    """Raises `OptionError` unless predictions may be written to this folder: it is absent, empty, or has earlier ones alone."""
    advice = "Choose a new folder, an empty one, or one of earlier predictions alone"
    if folder.is_symlink():
        raise OptionError(f"{folder}: a link; expected a folder. {advice}; nothing was changed.")
    if not folder.exists():
        return
    if not folder.is_dir():
        raise OptionError(f"{folder}: a file; expected a folder. {advice}; nothing was changed.")
    listed = _listed_in(folder)
    other = sorted(each.name for each in os.scandir(folder) if not _is_ours(each, listed))
    if other:
        more = f" and {len(other) - 1:,} more" if len(other) > 1 else ""
        raise OptionError(
            f"{folder}: has {other[0]}{more}, which no manifest of predictions lists. {advice}; nothing was changed."
        )


def _listed_in(folder: Path) -> set[str]:
    """The names of the files of earlier predictions, and of their manifest; none where there is no manifest of ours."""
    with contextlib.suppress(OSError, ValueError), open_regular(folder / MANIFEST) as stream:
        text = stream.read()
        return {MANIFEST, *listed_files(text), *parse_json(text).get(_REPLACES, ())}
    return set()


def _is_ours(entry: os.DirEntry[str], listed: set[str]) -> bool:
    if entry.is_dir(follow_symlinks=False):
        return entry.name == "lost+found" or _OUR_PART.fullmatch(entry.name) is not None
    return entry.is_file(follow_symlinks=False) and (
        entry.name in listed or _OUR_FILE.fullmatch(entry.name) is not None
    )


class FolderPlace:
    """A folder. A new one is renamed when it is complete. In one that is there, which may be a mount point, files get names of
    their own run, then the manifest is replaced, then the files go that the earlier one listed: nothing else is removed.

    token, inside: as of `place_of`.
    """

    def __init__(self, folder: Path, token: str, inside: bool) -> None:
        self.name, self._folder, self._token = str(folder), folder, token
        self.scratch = folder if inside else folder.parent
        self._part = folder / f".part-{token}" if inside else folder.with_name(f".{folder.name}.part-{token}")
        self._lock = ExitStack()

    @property
    def remedy(self) -> str:
        free = shutil.disk_usage(self.scratch).free
        return f"{free:,} bytes are free there. Free some space or choose another folder, then run it again"

    def open(self) -> None:
        require_ours(self._folder)
        with self._named():
            self.scratch.mkdir(parents=True, exist_ok=True)
        for folder, prefix in ((self._folder, ""), (self._folder.parent, f".{self._folder.name}")):
            named = re.compile(re.escape(prefix) + _OUR_PART.pattern)
            with contextlib.suppress(OSError):  # no such folder, or none to read
                for name in filter(named.fullmatch, os.listdir(folder)):
                    _remove_left(folder / name)

    def prepare(self) -> None:
        for _ in range(_TRIALS):
            with self._named():
                self._part.mkdir(parents=True, exist_ok=True)  # another host may share the file system
            try:
                self._lock.enter_context(_locked(self._part, fcntl.LOCK_SH))
            except (BlockingIOError, FileNotFoundError):
                time.sleep(0.01)  # another run takes it for what is left of a killed one, before it is locked
            except OSError:
                return  # where there are no locks, what is left stays
            else:
                if self._part.exists():
                    return
                self._lock.close()
        raise WriteError(
            f"{self._part}: other runs remove this folder before it is locked. Predict into a folder of its own."
        )

    def publish(self, file: PredictionFile, rank: int) -> None:
        file.publish(self._part / file_name(rank))

    def complete(self, counts: Sequence[int], facts: Mapping[str, Any]) -> None:
        here = {
            rank: count
            for rank, count in enumerate(counts)
            if (self._part / file_name(rank)).exists()  # not of other hosts
        }
        fresh = not self._folder.exists()
        names = {rank: file_name(rank if fresh else f"{rank}-{self._token}") for rank in here}
        earlier = set() if fresh else _listed_in(self._folder)
        if not fresh:
            self._require_own_manifest(earlier)
        try:
            replaces = {_REPLACES: sorted(earlier - {MANIFEST})} if earlier else {}
            files = {names[rank]: count for rank, count in here.items()}
            (self._part / MANIFEST).write_bytes(manifest_text(files, {**facts, **replaces}))
            if fresh:
                os.rename(self._part, self._folder)
            else:
                self._fill(names, earlier, manifest_text(files, facts))
            self._lock.close()
        except OSError as error:
            raise WriteError(
                f"{self.name}: cannot be completed ({error.strerror}). Free some space or choose another folder, then run it "
                "again; earlier predictions in that folder are untouched."
            ) from error

    def _require_own_manifest(self, earlier: set[str]) -> None:
        """Raises `WriteError` where a manifest of something else has come since `open` looked."""
        if os.path.lexists(self._folder / MANIFEST) and MANIFEST not in earlier:
            raise WriteError(
                f"{self.name}: {MANIFEST} came while predictions were made, and is none of ours. Move it, or choose another "
                "folder, then run it again; nothing was changed."
            )

    def _fill(self, names: Mapping[int, str], earlier: set[str], settled: bytes) -> None:
        """Moves the files into the folder. An end in the middle leaves the earlier predictions or these, and files of ours.

        settled: the manifest when the earlier files are gone: from then on their names are the user's.
        """
        for rank, name in names.items():
            os.rename(self._part / file_name(rank), self._folder / name)
        os.replace(self._part / MANIFEST, self._folder / MANIFEST)
        left = [each for each in os.scandir(self._folder) if _is_ours(each, earlier) and not each.is_dir()]
        for each in left:
            if each.name not in (MANIFEST, *names.values()):
                os.unlink(each)
        (self._part / MANIFEST).write_bytes(settled)
        os.replace(self._part / MANIFEST, self._folder / MANIFEST)
        self._part.rmdir()

    def complete_host(self, counts: Sequence[int], facts: Mapping[str, Any]) -> None:
        if self._part.exists():  # on a file system that hosts share, rank 0 has published the files of all of them
            self.complete(counts, facts)
        self._lock.close()

    def clean(self, leads_host: bool) -> None:
        self._lock.close()
        if leads_host:
            shutil.rmtree(self._part, ignore_errors=True)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise WriteError(
                f"{self.name}: this folder cannot be created ({error.strerror}). Choose another folder."
            ) from error


@contextmanager
def _locked(folder: Path, how: int) -> Iterator[None]:
    """Holds a lock of a folder, which goes with the process. Raises OSError where another process's excludes it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _remove_left(part: Path) -> None:
    """Removes what a killed run left of its files; those of one that is alive, or of a system without locks, stay."""
    with contextlib.suppress(OSError), _locked(part, fcntl.LOCK_EX):
        shutil.rmtree(part)


class StorePlace:
    """A folder of an object store, by a URL of fsspec. Files have names of their own run, and the manifest, which lists those
    that count, is written last: until then readers find the earlier ones.

    Raises `OptionError` for a URL that fsspec does not know, and one whose package (such as s3fs) is not installed.
    """

    remedy = "check its credentials and its quota, then predict again"

    def __init__(self, url: str, token: str) -> None:
        self.name, self._token, self.scratch = url, token, Path(tempfile.gettempdir())
        self._store, self._folder = open_store(url, OptionError)
        self._published: list[str] = []

    def open(self) -> None:
        probe = f"{self._folder}/_probe-{self._token}-{os.getpid()}"
        try:
            with _as_os_error():
                self._store.makedirs(self._folder, exist_ok=True)
                self._store.pipe_file(probe, b"")
                self._store.rm_file(probe)
        except OSError as error:
            raise WriteError(f"{self.name}: it cannot be written there ({error}); {self.remedy}.") from error
        self._earlier()

    def _earlier(self) -> set[str]:
        """The names of the files of earlier predictions. Raises `OptionError` for a manifest that is not ours."""
        with _as_os_error():
            self._store.invalidate_cache()
            if not self._store.exists(path := f"{self._folder}/{MANIFEST}"):
                return set()
            text = self._store.cat_file(path)
        try:
            return set(listed_files(text))
        except ValueError as error:
            raise OptionError(
                f"{self.name}: has a {MANIFEST} that is not of predictions ({error}). Choose another folder; nothing was changed."
            ) from None

    def prepare(self) -> None:
        """Nothing lies in the way of files with names of their own."""

    def publish(self, file: PredictionFile, rank: int) -> None:
        path = f"{self._folder}/{self._file(rank)}"
        self._published.append(path)
        with _as_os_error(), file.completed() as stream, self._store.open(path, "wb") as out:
            shutil.copyfileobj(stream, out, _COPY_BYTES)

    def complete(self, counts: Sequence[int], facts: Mapping[str, Any]) -> None:
        files = {self._file(rank): count for rank, count in enumerate(counts)}
        earlier = self._earlier()
        with _as_os_error():
            self._store.pipe_file(f"{self._folder}/{MANIFEST}", manifest_text(files, facts))
        with contextlib.suppress(
            Exception
        ):  # the files of earlier runs, which no reader of the manifest finds any more
            self._store.invalidate_cache()
            for path in self._store.ls(self._folder, detail=False):
                name = str(path).rsplit("/", 1)[-1]
                if name not in files and (name in earlier or _OUR_FILE.fullmatch(name)):
                    self._store.rm_file(f"{self._folder}/{name}")

    def complete_host(self, counts: Sequence[int], facts: Mapping[str, Any]) -> None:
        """Rank 0 has listed the files of all hosts."""

    def clean(self, leads_host: bool) -> None:
        for path in self._published:
            with contextlib.suppress(Exception):
                self._store.rm_file(path)

    def _file(self, rank: int) -> str:
        return file_name(f"{rank}-{self._token}")


@contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # each store has its own: of its network, its credentials, its client
        raise OSError(f"{type(error).__name__}: {error}") from error
