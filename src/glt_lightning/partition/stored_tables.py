"""What a partition stores of the user's tables: how columns became features, and the ids of nodes that came after the tables were
converted, as arrays of a version, or of a partition that was made of one."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np

from glt_lightning.base import NodeType
from glt_lightning.graph import ArrayEntry, Manifest, open_array
from glt_lightning.partition.arrays import ArrayWriter

TABLE_ENCODING = "tables/encoding.npy"  # path; uint8 [bytes]: JSON, how columns of tables became features
_ARRAYS = ("numbers", "ends", "bytes")


def stored_names(names: np.ndarray) -> dict[str, np.ndarray]:
    """Returns ids, int64 or text, as arrays by name: ``numbers``, or ``ends`` and ``bytes``."""
    if names.dtype.kind in "iu":
        return {"numbers": names.astype(np.int64)}
    texts = [str(name).encode() for name in names]
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    return {"ends": ends, "bytes": np.frombuffer(b"".join(texts), np.uint8)}


def names_of(stored: Mapping[str, np.ndarray]) -> np.ndarray:
    """The inverse of `stored_names`."""
    if "numbers" in stored:
        return stored["numbers"]
    data, ends = stored["bytes"].tobytes(), stored["ends"].tolist()
    found = np.empty(len(ends) - 1, dtype=object)
    found[:] = [data[b:e].decode() for b, e in pairwise(ends)]
    return found


def save_named(folder: Path, path: str, values: np.ndarray) -> tuple[str, ArrayEntry]:
    """Writes an array. Returns its path and entry."""
    values = np.ascontiguousarray(values)
    with ArrayWriter(folder, path, values.dtype, values.shape[1:]) as writer:
        writer.write(values)
    return path, writer.close()


def _path(node_type: int, name: str) -> str:
    """Relative path of an array in a partition; ``node_type`` is the index in the schema."""
    return f"tables/ids{node_type}_{name}.npy"


def write_later_ids(folder: Path, ids: Mapping[int, np.ndarray]) -> dict[str, ArrayEntry]:
    """Writes the ids of the last nodes of some types into a partition. ids: by index of the type. Returns the entries."""
    arrays = {_path(t, name): a for t, names in ids.items() for name, a in stored_names(names).items()}
    return dict(save_named(folder, path, values) for path, values in arrays.items())


def read_later_ids(folder: Path, manifest: Manifest) -> dict[NodeType, np.ndarray]:
    """Reads what `write_later_ids` wrote, by node type. Raises `PartitionError` for a damaged file."""
    found = {}
    for t, node_type in enumerate(manifest.schema.node_types):
        paths = {name: _path(t, name) for name in _ARRAYS}
        stored = {
            name: open_array(folder, path, manifest.arrays[path])
            for name, path in paths.items()
            if path in manifest.arrays
        }
        if stored:
            found[node_type] = names_of(stored)
    return found
