"""The host tier: the hottest rows of the parts that a host maps stay in memory, the others are read from disk for each batch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from glt_lightning.base import DataError, OptionError, PartitionError
from glt_lightning.graph.arrays import open_array
from glt_lightning.graph.cache_choice import Blocks, Candidates, choose, edge_blocks, node_blocks
from glt_lightning.graph.host_memory import RESERVE
from glt_lightning.graph.local_partition import AttributeFiles, LocalPartition
from glt_lightning.graph.manifest import ArrayEntry, Manifest, edge_path, node_path
from glt_lightning.graph.shared_arrays import SharedArrays
from glt_lightning.kernels import DiskFile, ReadSlots, Shards, TieredShards, row_bytes

_log = logging.getLogger(__name__)

# Shows progress: (title, total, unit) -> a context manager whose value is called with the number of units done.
Phase = Callable[[str, int, str], AbstractContextManager[Callable[[int], object]]]


def hottest_rows(partition: LocalPartition, budget: int) -> dict[str, int]:
    """Chooses the rows in memory so that the fewest pages have to be read. Returns for each array of attributes of the mapped
    parts, by its path, the number of its first rows in memory.

    Each access to a row on disk reads all pages that the row lies in, however narrow it is.
    """
    paths, candidates = [], []
    for path, blocks in _attributes(partition):
        entry = partition.manifest.arrays[path]
        if size := row_bytes(entry.dtype, entry.shape[1:]):
            paths.append(path)
            candidates.append(
                Candidates(blocks.ends, blocks.accesses * max(1, size / DiskFile.PAGE), partial(np.multiply, size))
            )
    return dict(zip(paths, choose(candidates, budget), strict=True))


def _attributes(partition: LocalPartition) -> Iterator[tuple[str, Blocks]]:
    """Yields (path, hotness of its rows) of each array of attributes."""
    manifest, schema = partition.manifest, partition.schema
    for p in partition.parts:
        for t in range(len(schema.node_types)):
            if names := manifest.node_attrs(t):
                blocks = node_blocks(partition, p, t)
                yield from ((node_path(p, t, name), blocks) for name in names)
        for r in range(len(schema.edge_types)):
            if names := manifest.edge_attrs(r):
                blocks = edge_blocks(partition, p, r)
                yield from ((edge_path(p, r, name), blocks) for name in names)


# A mapped graph that lacks memory stalls on page faults. With memory for 1.02 of a graph of 1.5 GB, mapped files gave the full
# speed without a fault, with memory for 1.0 of it 0.06; tiers that do not hold all gave 0.06 and 0.13 (benchmarks/pressure.py).
_SPARE = 64  # the part of the available memory that a mapped graph leaves free
# Mapped pages give way to batches in flight, a tier does not: then pages of the topology would be missing.
_BATCHES = 4  # the part that a tier leaves
_LEAST = RESERVE + (
    32 << 20
)  # bytes that it leaves at least: it is refused without the first, and some go until it is made


def _bytes_read(manifest: Manifest, part: int) -> tuple[int, int]:
    """Bytes that batches read of a part: of topology and ids, and of attributes."""
    schema, topology, attributes = manifest.schema, [], []
    for t in range(len(schema.node_types)):
        topology.append(node_path(part, t, "n_id"))
        attributes += [node_path(part, t, name) for name in manifest.node_attrs(t)]
    for r in range(len(schema.edge_types)):
        topology += [edge_path(part, r, name) for name in ("indptr", "indices")]
        attributes += [edge_path(part, r, name) for name in manifest.edge_attrs(r)]
    return sum(manifest.arrays[path].bytes for path in topology), sum(
        manifest.arrays[path].bytes for path in attributes
    )


class HostTier:
    """The first, hottest rows of each array of attributes. One process of a host builds it, its other processes open it by
    ``path``.

    Close it. Files from which a `Shards` reads stay open after that.

    Attributes:
        path: The path at which other processes of the host open it, until its maker closes it.
        nbytes: Bytes of memory.
    """

    def __init__(self, arrays: SharedArrays) -> None:
        self.path, self.nbytes = arrays.path, arrays.nbytes
        self._arrays = arrays
        self._files: dict[str, DiskFile] = {}
        self._lock = threading.Lock()
        self._slots = ReadSlots()

    @staticmethod
    def automatic_budget(
        manifest: Manifest, parts: Sequence[int], available: int, others: Collection[Sequence[int]] = ()
    ) -> int | None:
        """Chooses ``cache.memory`` for ``auto``: the bytes that ``available`` leaves for attributes, beside the topology; None if
        all that batches read of the mapped ``parts`` fits, or a tier of any size would be refused.

        others: parts that other processes of this host map, each with a tier of its own; they take their share.
        """
        mapped = sorted({p for each in (parts, *others) for p in each})
        topology = sum(_bytes_read(manifest, p)[0] for p in mapped)
        attributes = {p: _bytes_read(manifest, p)[1] for p in mapped}
        if available < _LEAST or topology + sum(attributes.values()) <= available - available // _SPARE:
            return None
        mine, theirs = (sum(attributes[p] for each in those for p in each) for those in ([parts], others))
        left = max(available // _BATCHES, _LEAST)
        return max(0, available - left - topology) * mine // max(1, mine + theirs)

    @classmethod
    def create(cls, partition: LocalPartition, budget_bytes: int, progress: Phase | None = None) -> HostTier:
        """Reads the hottest rows of the parts that ``partition`` maps.

        Raises `OptionError` for a budget that exceeds this host's memory, `PartitionError` for a damaged file.
        """
        manifest = partition.manifest
        in_memory = hottest_rows(partition, budget_bytes)
        shapes = {
            path: (np.dtype(manifest.arrays[path].dtype), (rows, *manifest.arrays[path].shape[1:]))
            for path, rows in in_memory.items()
        }
        meta = {"options_hash": manifest.options_hash, "parts": list(partition.parts)}
        try:
            arrays = SharedArrays.create(shapes, meta)
        except MemoryError as error:
            raise OptionError(f"cache.memory: {error}. Lower cache.memory.") from None
        try:
            total = sum(array.nbytes for array in arrays.arrays.values())
            phase = nullcontext(lambda n: None) if progress is None else progress("reading hot rows", total, "B")
            with phase as done:
                for path, array in arrays.arrays.items():
                    _fill(array, partition.directory, path, manifest, done)
            arrays.finish()
            tier = cls(arrays)
            tier._say(partition, {p: _nbytes(manifest.arrays[p]) for p in in_memory})
        except BaseException:
            arrays.close()
            raise
        return tier

    def _say(self, partition: LocalPartition, sizes: dict[str, int]) -> None:
        held = sum(self._arrays.arrays[path].nbytes for path in sizes)
        on_disk = [path for path, size in sizes.items() if self._arrays.arrays[path].nbytes < size]
        if not on_disk:
            _log.info("cache.memory: all %s bytes of attributes are in memory.", f"{held:,}")
            return
        total = sum(sizes.values())
        _log.info(
            "cache.memory: %s of %s bytes of attributes in memory (%.1f%%), the rest is read from disk.",
            *(f"{held:,}", f"{total:,}", 100 * held / total),
        )
        if buffered := [
            path for path in on_disk if not self._file(partition.directory, path, partition.manifest).direct
        ]:
            _log.warning(
                "cache.memory: the file system of %s has no direct reads (O_DIRECT): %d files are read through the page "
                "cache and dropped from it. Put the partition on a local disk, such as ext4 or xfs.",
                *(partition.directory / buffered[0], len(buffered)),
            )

    @classmethod
    def open(cls, path: str | Path) -> HostTier:
        """Maps the tier that another process has made. Raises `DataError` if there is no tier at ``path``."""
        arrays = SharedArrays.open(path)
        arrays.close()  # the map stays
        if "options_hash" not in arrays.meta:
            raise DataError(
                f"{path}: is no host tier (rows of a partition in memory) of this version. Start the run again."
            )
        return cls(arrays)

    def require(self, manifest: Manifest, parts: Sequence[int]) -> None:
        """Raises `PartitionError` if it was filled from a different partition, or without one of ``parts``."""
        meta = self._arrays.meta
        if meta["options_hash"] != manifest.options_hash or not set(parts) <= set(meta["parts"]):
            raise PartitionError(
                f"{self.path}: this host tier was filled from a different partition, or without one of parts {list(parts)}. "
                "Start the run again."
            )

    def holds(self, path: str) -> bool:
        """Tells whether an array of the partition folder belongs to the tier, however many of its rows are in memory."""
        return path in self._arrays.arrays

    def shards(self, attribute: AttributeFiles) -> Shards:
        """Returns the rows of an attribute, in memory and on disk."""
        manifest, bounds, encoding = attribute.manifest, attribute.bounds, attribute.encoding
        shards: list[np.ndarray | None] = []
        files: list[tuple[DiskFile, int] | None] = []
        starts: list[int] = []
        for path, (begin, end) in zip(attribute.paths, pairwise(bounds.tolist()), strict=True):
            rows = None if path is None else self._arrays.arrays[path]
            shards.append(rows)
            starts.append(begin)
            files.append(None)
            if rows is not None and path is not None and len(rows) < end - begin:
                shards.append(None)
                starts.append(begin + len(rows))
                where = manifest.arrays[path].bytes - (end - begin - len(rows)) * row_bytes(rows.dtype, rows.shape[1:])
                files.append((self._file(attribute.directory, path, manifest), where))
        whole = np.array([*starts, bounds[-1]], dtype=np.int64)
        return TieredShards.of_files(shards, files, self._slots, bounds=whole, encoding=encoding)

    def _file(self, directory: Path, path: str, manifest: Manifest) -> DiskFile:
        with self._lock:
            file = self._files.get(path)
            if file is None:
                open_array(directory, path, manifest.arrays[path])  # raises unless the file agrees with the manifest
                file = self._files[path] = DiskFile(directory / path)
            return file

    def close(self) -> None:
        """Closes the tier: other processes can no longer open it. Its memory is freed with its last view. Safe to call twice."""
        self._arrays.close()
        with self._lock:
            self._files.clear()


def _nbytes(entry: ArrayEntry) -> int:
    """Returns the bytes of the rows of a file, without its header."""
    return entry.shape[0] * row_bytes(entry.dtype, entry.shape[1:])


def _fill(array: np.ndarray, directory: Path, path: str, manifest: Manifest, done: Callable[[int], object]) -> None:
    """Reads the first rows of a file."""
    entry = manifest.arrays[path]
    open_array(directory, path, entry)  # raises unless the file agrees with the manifest
    DiskFile(directory / path).read(entry.bytes - _nbytes(entry), array, done)
