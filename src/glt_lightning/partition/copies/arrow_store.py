"""Object stores by pyarrow, for which no package of fsspec is installed."""

from __future__ import annotations

from collections.abc import Callable

from glt_lightning.errors import PartitionError

Cat = Callable[..., bytes]  # takes a path, and ``start`` and ``end`` in bytes


def arrow_store(url: str, missing: ImportError) -> tuple[Cat, str]:
    """A reader of files, and the folder, by pyarrow. missing: why fsspec cannot.

    Raises `PartitionError` for a URL that pyarrow does not know either.
    """
    from pyarrow import ArrowException, fs  # its clients of stores take long to load

    try:
        store, folder = fs.FileSystem.from_uri(url)
    except (ArrowException, OSError, ValueError) as error:
        scheme, _, rest = url.partition("://")  # which may begin with a key
        raise PartitionError(
            f"{scheme}://{rest.rpartition('@')[2]}: it cannot be opened ({missing}; by pyarrow: {error})."
        ) from None

    def cat(path: str, start: int = 0, end: int | None = None) -> bytes:
        with store.open_input_file(path) as file:
            data: bytes = file.read_at((file.size() if end is None else end) - start, start)
            return data

    return cat, folder.rstrip("/")
