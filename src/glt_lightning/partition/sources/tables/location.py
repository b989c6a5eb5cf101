"""Where the files of tables are: on this host, or in a store that fsspec reads."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa

from glt_lightning.base import DataError

_READ_AHEAD = 4 << 20  # bytes that are asked of a store at once


class _Stat(NamedTuple):
    st_size: int
    st_mtime_ns: str  # what a store changes with the contents


class Url:
    """A file in a store, with the methods of a path that tables use.

    files: the file system of fsspec.  path: of the file, there.
    """

    def __init__(self, files: Any, path: str) -> None:
        self._files, self._path = files, path
        self.name = PurePosixPath(path).name

    def __str__(self) -> str:
        return str(self._files.unstrip_protocol(self._path))

    def absolute(self) -> Url:
        return self

    def stat(self) -> _Stat:
        return _Stat(int(self._files.size(self._path)), str(self._files.ukey(self._path)))

    def read_bytes(self) -> bytes:
        return bytes(self._files.cat_file(self._path))

    def open(self) -> Any:
        return self._files.open(self._path, "rb", block_size=_READ_AHEAD, cache_type="readahead")


File = Path | Url


def open_binary(file: File) -> BinaryIO:
    stream: BinaryIO = file.open() if isinstance(file, Url) else open(file, "rb", buffering=0)  # noqa: SIM115
    return stream


def for_arrow(file: File) -> Any:
    """Returns a file as pyarrow takes it. Text may be compressed."""
    if isinstance(file, Path):
        return file
    stream = pa.PythonFile(file.open(), mode="r")
    return pa.CompressedInputStream(stream, "gzip") if file.name.endswith(".gz") else stream


def find_files(each: str, extensions: Sequence[str]) -> tuple[list[File], bool]:
    """Returns the files that a path, a glob, a folder or a URL stands for, sorted by name; and whether it is a folder, of which
    files with these extensions count."""
    if re.match(r"([A-Za-z][A-Za-z0-9+.-]+::)*[A-Za-z][A-Za-z0-9+.-]+://", each):
        return _find_urls(each, extensions)
    given = Path(each).expanduser()
    if given.is_dir():
        return [file for file in sorted(given.iterdir()) if _counts(file.name, extensions)], True
    if given.exists():
        return [given], False
    return [Path(file) for file in sorted(glob.glob(str(given), recursive=True))], False


def _find_urls(each: str, extensions: Sequence[str]) -> tuple[list[File], bool]:
    import fsspec  # type: ignore[import-untyped]

    _check_url(each)
    try:
        files, path = fsspec.core.url_to_fs(each)
        if files.isdir(path):
            inside = sorted(files.ls(path, detail=False))
            return [Url(files, file) for file in inside if _counts(PurePosixPath(file).name, extensions)], True
        if files.exists(path):
            return [Url(files, path)], False
        return [Url(files, file) for file in sorted(files.glob(path))], False
    except Exception as error:  # each store has its own: of its network, its credentials, its client
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise DataError(f"{each}: it cannot be opened ({reason}).") from error


def _check_url(given: str) -> None:
    """Raises `DataError` for a URL that names several file systems, or has a password or a query."""
    shown = re.sub(r"(?<=://)[^/@]*:[^/@]*@", "", given)
    signed = re.search(r"https?://[^?]*(?=\?)", shown)  # elsewhere ? is part of a glob
    shown = signed[0] if signed else shown
    if "::" in given:
        raise DataError(
            f"{shown}: chains of file systems (::) are not supported. Give the URL of the store itself: each file is read in "
            "large blocks, so a cache before it gains nothing; unpack archives."
        )
    if signed:
        raise DataError(
            f"{shown}: was given with a query. If that is a signature, it would be written down beside the converted tables, and "
            "end some day. Give the URL of the store (s3://, gs://), and credentials where its client looks for them."
        )
    if shown != given:
        raise DataError(
            f"{shown}: was given with a password, which would be written down beside the converted tables. Leave it out, and set "
            "it where fsspec looks for it: FSSPEC_<PROTOCOL>_PASSWORD in the environment, or a file in ~/.config/fsspec."
        )


def _counts(name: str, extensions: Sequence[str]) -> bool:
    return name.endswith(tuple(extensions)) and not name.startswith((".", "_"))
