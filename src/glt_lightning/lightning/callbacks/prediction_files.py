"""The files of predictions: Parquet, one per rank, and a manifest that lists them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from glt_lightning.base import DataError, GLTError
from glt_lightning.graph import open_regular, parse_json

if TYPE_CHECKING:
    import pyarrow as pa  # below, where it is used: every command imports this module, and few write predictions

KEY = "n_id"
MANIFEST = "_manifest.json"  # pyarrow, pandas and Spark skip such names when they read a folder of Parquet files
_FORMAT, _VERSION = "glt_lightning.predictions", 1
ROW_GROUP = 65_536
_SHAPE = b"shape"  # of a row with more than one dimension

Column = np.ndarray | list[list[str]]


def file_name(rank: int | str) -> str:
    return f"rank{rank}.parquet"


def open_store(url: str, refused: type[GLTError]) -> tuple[Any, str]:
    """(file system of fsspec, path of the folder in it). Raises ``refused`` for a URL that cannot be opened."""
    import fsspec  # type: ignore[import-untyped]  # a requirement of torch and Lightning

    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(url.rstrip("/"))
    except (ValueError, ImportError) as error:
        raise refused(f"{url}: it cannot be opened ({error}).") from None
    return found


class PredictionFile:
    """The Parquet file of one rank, written by row groups. It has no name until `publish`, so whatever ends the process
    earlier, ``kill -9`` too, leaves nothing on the disk.

    folder: of the file system where it is to lie.  facts: go into the metadata of the schema.
    """

    def __init__(self, folder: Path, facts: Mapping[str, str]) -> None:
        self._folder, self._facts = folder, facts
        self._stream = _open_nameless(folder)
        self._writer: Any = None
        self.num_rows = 0

    def write(self, rows: Mapping[str, Column]) -> None:
        """Adds columns with one row per node; every call has the same columns, types and shapes."""
        table = _to_table(rows, self._facts)
        if self._writer is None:
            self._writer = _writer(self._stream, table.schema)
        self._writer.write_table(table, row_group_size=ROW_GROUP)
        self.num_rows += table.num_rows

    def drop(self, name: str) -> None:
        """Takes a column out of all that is written."""
        import pyarrow.parquet as pq

        self._writer.close()
        with self._stream as old:
            written = pq.ParquetFile(old)
            schema = written.schema_arrow
            schema = schema.remove(schema.get_field_index(name))
            self._stream = _open_nameless(self._folder)
            self._writer = _writer(self._stream, schema)
            for group in range(written.num_row_groups):
                self._writer.write_table(written.read_row_group(group, schema.names).cast(schema))

    def publish(self, path: Path) -> None:
        """Completes the file and gives it a name."""
        with self.completed() as stream:
            _give_name(stream, path)

    @contextlib.contextmanager
    def completed(self) -> Iterator[IO[bytes]]:
        """The whole file, from its beginning; afterwards it is closed."""
        if self._writer is None:
            self.write({})  # a rank that was given no batch
        self._writer.close()
        self._stream.flush()
        self._stream.seek(0)
        yield self._stream
        self.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.is_open = False  # else its end writes a footer, which a full disk refuses once more
        with contextlib.suppress(
            OSError
        ):  # of what is still to be written, on a full disk; the file is closed all the same
            self._stream.close()


def _writer(stream: IO[bytes], schema: pa.Schema) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetWriter(stream, schema, compression="zstd", compression_level=1)


def _open_nameless(folder: Path) -> IO[bytes]:
    try:
        return os.fdopen(os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666), "w+b")
    except OSError:  # NFS, for one, has no such files
        return tempfile.TemporaryFile(dir=folder)


def _give_name(stream: IO[bytes], path: Path) -> None:
    try:  # with src_dir_fd Python calls linkat(), which alone follows this link
        os.link(f"/proc/self/fd/{stream.fileno()}", path, src_dir_fd=stream.fileno(), follow_symlinks=True)
    except OSError:  # the file system cannot do it
        stream.seek(0)
        with open(path, "wb") as copy:
            shutil.copyfileobj(stream, copy)


def _to_table(rows: Mapping[str, Column], facts: Mapping[str, str]) -> pa.Table:
    import pyarrow as pa

    arrays = {name: _to_arrow(values) for name, values in rows.items()}
    fields = [pa.field(name, array.type, nullable=False, metadata=_shape(rows[name])) for name, array in arrays.items()]
    schema = pa.schema(fields, metadata={f"glt_lightning.{key}": value for key, value in facts.items()})
    return pa.table(list(arrays.values()), schema=schema)


def manifest_text(files: Mapping[str, int], facts: Mapping[str, Any]) -> bytes:
    """The manifest. files: name -> number of rows."""
    about = {"format": _FORMAT, "version": _VERSION, "files": dict(files), **facts}
    return (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode()


def listed_files(text: bytes) -> dict[str, int]:
    """The inverse of `manifest_text`: name -> number of rows. Raises ValueError for a text that is no such manifest."""
    try:
        about: Any = parse_json(text)
        if about["format"] != _FORMAT or about["version"] != _VERSION:
            raise ValueError(f"format {about['format']!r}, version {about['version']!r}")
        return {str(name): int(count) for name, count in about["files"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(str(error)) from None


def read_predictions(path: str | Path) -> dict[str, np.ndarray]:
    """Reads the folder that `PredictionWriter` wrote: arrays with one row per node, in the order of ``n_id``.

    Text is arrays of objects that are ``str``.

    Args:
        path: The folder, or a URL of fsspec.

    Raises:
        DataError: If files are missing or damaged.

    Example:
        >>> trainer = Trainer(callbacks=[PredictionWriter("predictions")])
        >>> _ = trainer.predict(model, datamodule, return_predictions=False)
        >>> predictions = read_predictions("predictions")
        >>> {name: rows.shape for name, rows in predictions.items()}
        {'n_id': (10,), 'pred': (10,), 'logits': (10, 2)}
    """
    parts = [part for part in (_read_store(str(path)) if "://" in str(path) else _read_folder(Path(path))) if part]
    if not parts:
        return {}
    # names of classes are missing in the file of a rank with a prediction that is none of them
    names = [name for name in parts[0] if all(name in part for part in parts)]
    merged = {name: np.concatenate([part[name] for part in parts]) for name in names}
    order = np.argsort(merged[KEY], kind="stable")
    return {name: rows[order] for name, rows in merged.items()}


_Open = Callable[[str], Any]  # a file of the folder, by its name


def _read_folder(folder: Path) -> list[dict[str, np.ndarray]]:
    if not (folder / MANIFEST).exists():
        raise DataError(f"{folder}: found no predictions in this folder ({MANIFEST}).")
    return _read_parquet(f"{folder}", lambda name: open_regular(folder / name))


def _read_store(url: str) -> list[dict[str, np.ndarray]]:
    store, folder = open_store(url, DataError)

    def opened(name: str) -> Any:
        try:
            return store.open(f"{folder}/{name}", "rb")
        except OSError:
            raise
        except Exception as error:  # each store has its own: of its network, its credentials, its client
            raise OSError(f"{type(error).__name__}: {error}") from error

    return _read_parquet(url.rstrip("/"), opened)


def _read_parquet(folder: str, opened: _Open) -> list[dict[str, np.ndarray]]:
    try:
        with opened(MANIFEST) as stream:
            listed = listed_files(stream.read())
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}/{MANIFEST}: not a valid predictions manifest ({error}). Predict again.") from None
    return [_read_file(folder, Path(name).name, count, opened) for name, count in sorted(listed.items())]


def _read_file(folder: str, name: str, count: int, opened: _Open) -> dict[str, np.ndarray]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = f"{folder}/{name}"
    try:
        with opened(name) as stream:
            table = pq.read_table(stream)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({error}). Predict again.") from None
    if table.num_rows != count:
        raise DataError(f"{path}: has {table.num_rows} rows, the manifest says {count}. Predict again.")
    return {field.name: _to_numpy(table.column(field.name), field) for field in table.schema}


def _to_arrow(values: Column) -> pa.Array:
    import pyarrow as pa

    if isinstance(values, list):
        return pa.array(values, pa.list_(pa.string()))
    if values.dtype == object:
        return pa.array(values.tolist(), pa.large_string())
    if values.ndim == 1:
        return pa.array(values)
    width = int(np.prod(values.shape[1:]))
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(values).reshape(-1)), width)


def _shape(values: Column) -> dict[bytes, bytes] | None:
    if isinstance(values, list) or values.ndim < 3:
        return None
    return {_SHAPE: json.dumps(values.shape[1:]).encode()}


def _to_numpy(column: pa.ChunkedArray, field: pa.Field) -> np.ndarray:
    import pyarrow as pa

    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # no chunk at all
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], field.type)
    if pa.types.is_fixed_size_list(field.type):
        shape = json.loads((field.metadata or {}).get(_SHAPE, b"null")) or [field.type.list_size]
        return array.flatten().to_numpy(zero_copy_only=False).reshape(-1, *shape)
    if pa.types.is_list(field.type):
        found = np.empty(len(array), object)
        found[:] = array.to_pylist()
        return found
    return array.to_numpy(zero_copy_only=False)
