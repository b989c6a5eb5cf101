"""Where a partition is copied from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from glt_lightning.data.manifest import MANIFEST
from glt_lightning.data.manifest_checks import read_json
from glt_lightning.data.regular_file import open_regular, parse_json
from glt_lightning.errors import PartitionError
from glt_lightning.partition.copies.arrow_store import Cat, arrow_store


class CopySource(Protocol):
    """A partition to read from, by any number of threads at once.

    Attributes:
        name: What errors call it.

    Example:
        >>> source = FolderCopySource("parts")
        >>> len(source.read("splits/train.npy", 0, 10))
        10
    """

    name: str

    def manifest(self) -> Mapping[str, Any]:
        """`manifest.json`, unchecked. Raises `PartitionError` where there is none."""

    def read(self, path: str, offset: int, length: int) -> bytes | memoryview:
        """Bytes of a file of the manifest; fewer at its end. Raises OSError where that fails, and trying again may help."""

    def close(self) -> None:
        """Ends what reading needed."""


class FolderCopySource:
    """A folder that this host reaches: a local one, or a shared file system.

    Args:
        folder: The folder of the partition.

    Example:
        >>> FolderCopySource("parts").manifest()["num_parts"]
        2
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self.name = str(folder)

    def manifest(self) -> Mapping[str, Any]:
        raw: Mapping[str, Any] = read_json(self._folder / MANIFEST)
        return raw

    def read(self, path: str, offset: int, length: int) -> bytes:
        with open_regular(self._folder / path) as stream:
            stream.seek(offset)
            return stream.read(length)

    def close(self) -> None:
        """Nothing is open between calls."""


class StoreCopySource:
    """An object store or web server, by a URL of fsspec (``s3://bucket/parts``), with the credentials of the store's package.
    Without that package (such as s3fs) pyarrow reads the stores that it knows, with its own parameters of the URL.

    Args:
        url: The folder of the partition.

    Raises:
        PartitionError: For a URL that neither of them knows.

    Example:
        >>> import os
        >>> StoreCopySource(f"file://{os.getcwd()}/parts").manifest()["num_parts"]
        2
    """

    def __init__(self, url: str) -> None:
        import fsspec  # type: ignore[import-untyped]  # a requirement of torch and Lightning

        self.name = url
        try:
            store, folder = fsspec.core.url_to_fs(url.rstrip("/"))
            self._cat: Cat = store.cat_file
        except ImportError as error:
            self._cat, folder = arrow_store(url, error)
            self.name = f"{url.partition('://')[0]}://{folder}"  # without what pyarrow takes in the URL: keys, too
        except ValueError as error:
            raise PartitionError(f"{url}: it cannot be opened ({error}).") from None
        self._folder = folder

    def manifest(self) -> Mapping[str, Any]:
        path = f"{self.name}/{MANIFEST}"
        try:
            raw: Mapping[str, Any] = parse_json(self._cat(f"{self._folder}/{MANIFEST}"))
        except FileNotFoundError:
            raise PartitionError(f"{path}: not found; the folder is not a partition. Check the URL.") from None
        except ValueError as error:
            raise PartitionError(f"{path}: not readable as JSON ({error}).") from None
        except Exception as error:  # each store has its own: of its network, its credentials, its client
            raise PartitionError(f"{path}: it cannot be read ({type(error).__name__}: {error}).") from error
        return raw

    def read(self, path: str, offset: int, length: int) -> bytes:
        try:
            data: bytes = self._cat(f"{self._folder}/{path}", start=offset, end=offset + length)
        except OSError:
            raise
        except Exception as error:  # as above
            raise OSError(f"{type(error).__name__}: {error}") from error
        return data

    def close(self) -> None:
        """fsspec keeps and ends its connections itself."""


def open_copy_source(given: str | Path) -> CopySource:
    """The source that a folder or a URL names.

    Args:
        given: A folder, or a URL of fsspec.

    Raises:
        PartitionError: For a URL that cannot be opened.

    Example:
        >>> type(open_copy_source("parts")).__name__
        'FolderCopySource'
    """
    return StoreCopySource(str(given)) if "://" in str(given) else FolderCopySource(given)
