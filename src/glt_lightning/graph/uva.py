"""The graph and the attributes in memory of the host that GPUs read in place (UVA): one copy for all processes of the host."""

from __future__ import annotations

import io
import logging
from collections.abc import Collection
from pathlib import Path

import numpy as np

from glt_lightning.base import OptionError, PartitionError
from glt_lightning.graph.arrays import open_array
from glt_lightning.graph.device_choice import bus_stride
from glt_lightning.graph.local_partition import LocalPartition
from glt_lightning.graph.placement import BatchArrays
from glt_lightning.graph.shared_arrays import SharedArrays
from glt_lightning.kernels import row_bytes

_log = logging.getLogger(__name__)

_CHUNK = 64 << 20


def copy_for_uva(batch: BatchArrays, what: Collection[str]) -> SharedArrays:
    """Copies arrays of the mapped parts, by their paths in the folder, into shared memory. Other processes open them by their
    `SharedArrays.path`. Close them.

    what: ``topology``, ``features`` or both.
    Rows get padding if that saves reads over the bus (`bus_stride`).
    Raises `OptionError`, before anything is copied, if the host has too little memory; `PartitionError` for a damaged file.
    """
    partition, entries = batch.partition, batch.partition.manifest.arrays
    paths = list(batch.topology_paths()) if "topology" in what else []
    paths += batch.feature_paths() if "features" in what else []
    shapes = {path: (np.dtype(entries[path].dtype), entries[path].shape) for path in paths}
    try:
        arrays = SharedArrays.create(shapes, _meta(batch, what), strides=_strides(partition, paths))
    except MemoryError as error:
        raise OptionError(
            f"sampling.{', sampling.'.join(sorted(what))}: not enough host memory for the arrays that the GPU "
            f"reads there: {error}. Choose device or cpu, or partition for more hosts."
        ) from None
    _log.info(
        "copying %.1f MB (%s) into this host's memory, where GPUs read them.", arrays.nbytes / 1e6, ", ".join(what)
    )
    try:
        for path, out in arrays.arrays.items():
            _fill(out, partition, path)
        arrays.finish()
    except BaseException:
        arrays.close()
        raise
    return arrays


def open_uva(batch: BatchArrays, what: Collection[str], path: str | Path) -> SharedArrays:
    """Opens the arrays that another process of the host has copied. Raises `PartitionError` if they are those of other parts or
    options."""
    arrays = SharedArrays.open(path, writable=True)
    mine, meta = _meta(batch, what), arrays.meta
    same = all(meta.get(key) == mine[key] for key in ("options_hash", "parts"))
    if not same or not set(what) <= set(meta["what"]) or batch.edges > meta["edges"]:
        arrays.close()
        raise PartitionError(f"{path}: holds another graph, or other parts of it: {meta}; expected {mine}.")
    return arrays


def _meta(batch: BatchArrays, what: Collection[str]) -> dict[str, object]:
    parts, made_by = list(batch.partition.parts), batch.partition.manifest.options_hash
    return {"options_hash": made_by, "parts": parts, "what": sorted(what), "edges": batch.edges} | (
        {"weights": list(batch.weights)} if any(batch.weights) else {}
    )


def _strides(partition: LocalPartition, paths: Collection[str]) -> dict[str, int]:
    """Returns the strides of the arrays whose rows get padding. Arrays of the topology have single numbers as rows, and none."""
    entries = partition.manifest.arrays
    sizes = {path: row_bytes(entries[path].dtype, entries[path].shape[1:]) for path in paths}
    return {path: stride for path, size in sizes.items() if (stride := bus_stride(size)) != size}


def _fill(out: np.ndarray, partition: LocalPartition, path: str) -> None:
    entry = partition.manifest.arrays[path]
    size = row_bytes(entry.dtype, entry.shape[1:])
    open_array(partition.directory, path, entry)  # raises unless the file agrees with the manifest
    with open(partition.directory / path, "rb", buffering=0) as stream:
        stream.seek(entry.bytes - entry.shape[0] * size)
        if out.flags.c_contiguous:
            return _read(stream, out)
        step = max(1, _CHUNK // size)
        for begin in range(0, len(out), step):
            rows = np.empty((min(step, len(out) - begin), *out.shape[1:]), out.dtype)
            _read(stream, rows)
            out[begin : begin + step] = rows


def _read(stream: io.FileIO, out: np.ndarray) -> None:
    left = memoryview(out.reshape(-1).view(np.uint8))
    while len(left):
        got = stream.readinto(left[:_CHUNK])
        if not got:
            raise PartitionError(f"{stream.name}: damaged: it was truncated while in use. Partition again.")
        left = left[got:]
