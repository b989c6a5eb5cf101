"""Where predictions go, complete or not at all: a folder, or a folder of an object store."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from glt_lightning.errors import OptionError, WriteError
from glt_lightning.lightning.callbacks.prediction_files import (
    MANIFEST,
    PredictionFile,
    file_name,
    manifest_text,
    open_store,
)

_COPY_BYTES = 16 << 20


class Place(Protocol):
    """name: as users know it.  scratch: the folder for files that are not complete.  remedy: what helps where it is full.

    Methods raise `WriteError`, or OSError with what the file system says.
    """

    name: str
    scratch: Path

    @property
    def remedy(self) -> str: ...

    def open(self) -> None:
        """Before anything is predicted, on the first rank of each host: finds out whether files can be written."""

    def prepare(self) -> None:
        """Before files are published, on the first rank of each host."""

    def publish(self, file: PredictionFile, rank: int) -> None:
        """Puts the file of a rank into the place, where nobody reads it yet."""

    def complete(self, counts: Sequence[int], facts: Mapping[str, Any]) -> None:
        """Has readers find the files, in place of earlier ones; on rank 0. counts: rows of each rank."""

    def complete_host(self, counts: Sequence[int], facts: Mapping[str, Any]) -> None:
        """The same on the first rank of each other host, after that."""

    def clean(self, leads_host: bool) -> None:
        """Takes away what was published, when the run has failed. No rank writes any more."""


def place_of(path: str, token: str) -> Place:
    """The place that a path or a URL of fsspec names. token: of this run, the same on all ranks."""
    return StorePlace(path, token) if "://" in path else FolderPlace(Path(path))


class FolderPlace:
    """A folder, which is renamed when it is complete."""

    def __init__(self, folder: Path) -> None:
        self.name, self._folder, self.scratch = str(folder), folder, folder.parent
        self._part = folder.with_name(f".{folder.name}.part")

    @property
    def remedy(self) -> str:
        free = shutil.disk_usage(self.scratch).free
        return (
            f"{free:,} bytes are free there. Free some space or give PredictionWriter another path, then predict again"
        )

    def open(self) -> None:
        with self._named():
            self.scratch.mkdir(parents=True, exist_ok=True)

    def prepare(self) -> None:
        shutil.rmtree(self._part, ignore_errors=True)
        with self._named():
            self._part.mkdir(parents=True, exist_ok=True)  # another host may share the file system

    def publish(self, file: PredictionFile, rank: int) -> None:
        file.publish(self._part / file_name(rank))

    def complete(self, counts: Sequence[int], facts: Mapping[str, Any]) -> None:
        files = {file_name(rank): count for rank, count in enumerate(counts)}
        here = {name: count for name, count in files.items() if (self._part / name).exists()}  # not of other hosts
        try:
            (self._part / MANIFEST).write_bytes(manifest_text(here, facts))
        except OSError as error:
            raise WriteError(
                f"{self.name}: cannot write the predictions manifest ({error.strerror}). Free some space, then predict "
                "again; earlier predictions in that folder are untouched."
            ) from error
        old = self._folder.with_name(f".{self._folder.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if self._folder.exists():
            os.rename(self._folder, old)
        os.rename(self._part, self._folder)
        shutil.rmtree(old, ignore_errors=True)

    def complete_host(self, counts: Sequence[int], facts: Mapping[str, Any]) -> None:
        if self._part.exists():  # on a file system that hosts share, rank 0 has published the files of all of them
            self.complete(counts, facts)

    def clean(self, leads_host: bool) -> None:
        if leads_host:
            shutil.rmtree(self._part, ignore_errors=True)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise WriteError(
                f"{self.name}: cannot create this folder for predictions ({error.strerror}). Give PredictionWriter another path."
            ) from error


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
            raise WriteError(f"{self.name}: predictions cannot be written there ({error}); {self.remedy}.") from error

    def prepare(self) -> None:
        """Nothing lies in the way of files with names of their own."""

    def publish(self, file: PredictionFile, rank: int) -> None:
        path = f"{self._folder}/{self._file(rank)}"
        self._published.append(path)
        with _as_os_error(), file.completed() as stream, self._store.open(path, "wb") as out:
            shutil.copyfileobj(stream, out, _COPY_BYTES)

    def complete(self, counts: Sequence[int], facts: Mapping[str, Any]) -> None:
        files = {self._file(rank): count for rank, count in enumerate(counts)}
        with _as_os_error():
            self._store.pipe_file(f"{self._folder}/{MANIFEST}", manifest_text(files, facts))
        with contextlib.suppress(
            Exception
        ):  # the files of earlier runs, which no reader of the manifest finds any more
            self._store.invalidate_cache()
            for path in self._store.ls(self._folder, detail=False):
                name = str(path).rsplit("/", 1)[-1]
                if name.startswith("rank") and name.endswith(".parquet") and name not in files:
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
