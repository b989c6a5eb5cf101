"""The files of predictions: Parquet, one per rank, and a manifest that lists them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from glt_lightning.data.regular_file import open_regular, parse_json
from glt_lightning.errors import DataError

KEY = "n_id"
MANIFEST = "manifest.json"
_FORMAT, _VERSION = "glt_lightning.predictions", 1
_ROW_GROUP = 65_536
_SHAPE = b"shape"  # of a row with more than one dimension

Column = np.ndarray | list[list[str]]


def file_name(rank: int) -> str:
    return f"rank{rank}.parquet"


def write_rows(path: Path, rows: Mapping[str, Column], facts: Mapping[str, str]) -> int:
    """Writes columns with one row per node; ``facts`` go into the metadata of the schema. Returns the number of rows."""
    arrays = {name: _to_arrow(values) for name, values in rows.items()}
    fields = [pa.field(name, array.type, nullable=False, metadata=_shape(rows[name])) for name, array in arrays.items()]
    schema = pa.schema(fields, metadata={f"glt_lightning.{key}": value for key, value in facts.items()})
    table = pa.table(list(arrays.values()), schema=schema)
    with open(path, "wb") as stream:
        pq.write_table(table, stream, row_group_size=_ROW_GROUP, compression="zstd", compression_level=1)
    return int(table.num_rows)


def write_manifest(folder: Path, files: Mapping[str, int], facts: Mapping[str, Any]) -> None:
    """``files``: name -> number of rows."""
    about = {"format": _FORMAT, "version": _VERSION, "files": dict(files), **facts}
    (folder / MANIFEST).write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", "utf-8")


def read_predictions(path: str | Path) -> dict[str, np.ndarray]:
    """What `PredictionWriter` wrote: arrays with one row per node, in the order of ``n_id``. Text is objects that are ``str``.

    Reads the ``.npz`` files of earlier releases, too. Raises `DataError` where files are missing or damaged.
    """
    folder = Path(path)
    parts = _read_parquet(folder) if (folder / MANIFEST).exists() else _read_npz(folder)
    parts = [part for part in parts if part]
    if not parts:
        return {}
    merged = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(merged[KEY], kind="stable")
    return {name: rows[order] for name, rows in merged.items()}


def _read_parquet(folder: Path) -> list[dict[str, np.ndarray]]:
    place = folder / MANIFEST
    try:
        with open_regular(place) as stream:
            about: Any = parse_json(stream.read())
        if about["format"] != _FORMAT or about["version"] != _VERSION:
            raise ValueError(f"format {about['format']!r}, version {about['version']!r}")
        listed = {str(name): int(count) for name, count in about["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{place}: expected the list of a folder of predictions ({error}). Predict again.") from None
    return [_read_file(folder / Path(name).name, count) for name, count in sorted(listed.items())]


def _read_file(path: Path, count: int) -> dict[str, np.ndarray]:
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({error}). Predict again.") from None
    if table.num_rows != count:
        raise DataError(f"{path}: has {table.num_rows} rows, {MANIFEST} says {count}. Predict again.")
    return {field.name: _to_numpy(table.column(field.name), field) for field in table.schema}


def _read_npz(folder: Path) -> list[dict[str, np.ndarray]]:
    files = sorted(folder.glob("rank*.npz"))
    if not files:
        raise DataError(f"{folder}: no predictions are there ({MANIFEST}, or rank*.npz of an earlier release).")
    return [dict(np.load(file, allow_pickle=False)) for file in files]


def _to_arrow(values: Column) -> pa.Array:
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
