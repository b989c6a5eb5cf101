"""The parts of a partition folder that this process maps."""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from glt_lightning.base import GraphSchema, PartitionError, SamplerError
from glt_lightning.graph.arrays import VERIFY_BYTES, open_array, verify_array
from glt_lightning.graph.graph import (
    EDGE_SPLIT_ARRAYS,
    EdgeSplit,
    Seeds,
    check_user_ids,
    checked_ids,
    choose_seeds,
    existing_ids,
    gids_by_user_id,
    no_edge_split,
    no_split,
)
from glt_lightning.graph.host_memory import available_memory
from glt_lightning.graph.manifest import (
    ArrayEntry,
    Manifest,
    cum_name,
    deleted_path,
    edge_path,
    edge_split_key,
    edge_split_path,
    gid_path,
    node_path,
    node_times_path,
    split_path,
)
from glt_lightning.graph.row_order import TIMES
from glt_lightning.graph.shared_arrays import SharedArrays
from glt_lightning.kernels import (
    EdgeTypeArrays,
    Encoding,
    GraphView,
    LaborIds,
    Overlaid,
    Shards,
    forget_losses,
    guarded,
)

_OPEN_FILES = "/proc"  # where a process of this host opens the memory of another one


@dataclass(frozen=True)
class AttributeFiles:
    """An attribute in a partition folder. paths: that of each part's array, None if it is not mapped.  bounds: int64 [P + 1]."""

    directory: Path
    manifest: Manifest
    paths: Sequence[str | None]
    bounds: np.ndarray
    encoding: Encoding | None


class MemoryRows(Protocol):
    """The interface of a host tier (`HostTier`): the hottest rows of attributes are in memory, the other rows on disk.

    path: the path at which other processes of the host open it.
    """

    @property
    def path(self) -> str: ...

    def require(self, manifest: Manifest, parts: Sequence[int]) -> None:
        """Raises `PartitionError` if it was built from another partition, or without one of ``parts``."""

    def holds(self, path: str) -> bool:
        """Tells whether an array of the partition folder belongs to the tier, however many of its rows are in memory."""

    def shards(self, files: AttributeFiles) -> Shards:
        """Returns the rows of an attribute whose arrays the tier `holds`."""


class LocalPartition:
    """A memory-mapped partition folder: topology, user ids and attributes of all its parts, or of some.

    Nothing is copied; processes of one host share the page cache. Each file is mapped once, at its first use.
    Open with `LocalPartition.open`, and close it.

    Args:
        directory: The folder.
        manifest: Its manifest.
        parts: Numbers of the mapped parts.
        memory: The host tier, which reads attributes. None: attributes are mapped, too.

    Raises:
        PartitionError: By `open`, naming the file, for a folder that is missing, damaged or of another format.

    Example:
        >>> partition = LocalPartition.open("parts")
        >>> partition.manifest.num_nodes, partition.parts
        ((10,), (0, 1))
        >>> len(partition.split("train").gids)
        6
        >>> partition.close()
    """

    overlaid: Overlaid | None = None  # of a partition with an overlay

    def __init__(
        self, directory: Path, manifest: Manifest, parts: tuple[int, ...], memory: MemoryRows | None = None
    ) -> None:
        self.directory, self.manifest, self.parts, self.memory = directory, manifest, parts, memory
        if memory is not None:
            memory.require(manifest, parts)
        self.schema: GraphSchema = manifest.schema
        self._all_parts = range(manifest.num_parts)
        self._maps = _Maps(directory, manifest)

    @classmethod
    def open(
        cls,
        directory: str | Path,
        *,
        parts: Sequence[int] | None = None,
        verify: bool = False,
        memory: MemoryRows | None = None,
    ) -> LocalPartition:
        """Reads the manifest and maps the arrays of ``parts`` (None: all). Files of other parts need not exist.

        ``verify`` reads every byte and compares checksums. ``memory``: a `HostTier` of these parts.

        Raises `PartitionError`, naming the file, for a folder that is missing, damaged or not one of ours.
        """
        directory = Path(directory)
        if directory.is_relative_to(_OPEN_FILES):
            arrays = SharedArrays.open(directory)
            if "base" not in arrays.meta:
                return cls.in_memory(arrays)
            from glt_lightning.graph.overlay import GrownPartition  # which is made of this class

            return GrownPartition.of_shared(arrays, parts)
        manifest = Manifest.load(directory)
        if verify:
            for path, entry in manifest.arrays.items():
                if (directory / path).exists() or parts is None:
                    verify_array(directory, path, entry)
        partition = cls(directory, manifest, _checked(parts, directory, manifest.num_parts), memory)
        _ = partition.view  # map the topology now, so that a damaged folder is reported here
        for t, count in enumerate(manifest.num_nodes):
            # Up to the size of which checksums are verified: 4 M nodes take 30 ms.
            if count * np.dtype(manifest.id_dtype).itemsize <= VERIFY_BYTES:
                check_user_ids(manifest, t, partition.mapped_user_ids(t), directory)
        return partition

    @classmethod
    def in_memory(cls, arrays: SharedArrays) -> LocalPartition:
        """Makes a partition of one part that lies in memory, in no folder. arrays: its arrays by their paths, and as ``meta`` its
        manifest. Processes of this host open it at `location` while this object lives."""
        partition = cls(Path(arrays.path), Manifest.from_json(arrays.meta), (0,))
        partition._maps = _MemoryMaps(arrays)
        return partition

    def with_rows(self, rows: Mapping[str, np.ndarray]) -> LocalPartition:
        """Returns the partition with further arrays of this process alone, by their paths, which are not copied. Samplers of
        other processes do not see them."""
        entries = {path: ArrayEntry(a.dtype.str, a.shape, a.nbytes, crc32=0) for path, a in rows.items()}
        manifest = replace(self.manifest, arrays={**self.manifest.arrays, **entries})
        partition = LocalPartition(self.directory, manifest, self.parts)
        partition._maps = _MapsAndRows(self._maps, manifest, rows)
        return partition

    @property
    def location(self) -> str:
        """The path at which another process of this host can `open` the partition."""
        return str(self.directory if self.directory.is_relative_to(_OPEN_FILES) else self.directory.resolve())

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for a pickle, which has the path of the folder: the process that loads it maps the files again."""
        if self.memory is not None:
            raise SamplerError(
                f"{self.directory}: a partition with a host tier cannot be pickled. Pickle the partition without it, and open "
                "the tier in the other process."
            )
        return {**self.__dict__, "directory": self.directory.absolute()}

    @property
    def is_in_files(self) -> bool:
        """Whether all of its arrays lie in the files of its folder."""
        return type(self._maps) is _Maps

    def with_memory(self, memory: MemoryRows) -> LocalPartition:
        """Returns the same parts with a `HostTier`."""
        partition = LocalPartition(self.directory, self.manifest, self.parts, memory)
        partition._maps = self._maps
        return partition

    def close(self) -> None:
        """Releases the maps, which end with the last array that views them. Safe to call twice.

        Later calls map the files again. Without this call the maps of a partition that is part of a reference
        cycle, as those of a `Trainer` are, would stay until Python collects it.
        """
        self._maps.forget()

    @property
    def as_stored(self) -> LocalPartition:
        """The same parts, and the same maps, with a `Manifest.as_stored`."""
        partition = LocalPartition(self.directory, self.manifest.as_stored, self.parts, self.memory)
        partition._maps = self._maps
        return partition

    @property
    def identity(self) -> str:
        """The identity of the partition, which hosts compare before they work together: `partition_id`."""
        return partition_id(self.manifest)

    @property
    def with_stored_edges(self) -> LocalPartition:
        """The partition with the stored edges: this one, unless it is an `OtherEdges`, which has other edge types."""
        return self

    @property
    def view(self) -> GraphView:
        """The topology in the form of native calls."""
        return self.weighted(())

    def weighted(self, weights: tuple[str | None, ...]) -> GraphView:
        """Returns the topology for draws by weight. weights: for each edge type the name of an attribute of
        ``Manifest.weights``, or None; empty: no weights. Raises `DataError` for weights that the folder does not have."""
        return self.drawn_by(weights, False)

    def timed(self, weights: tuple[str | None, ...] = ()) -> GraphView:
        """Returns the topology as `weighted`, with the times of the edge types that have some. Raises `DataError` if none has."""
        return self.drawn_by(weights, True)

    def drawn_by(self, weights: tuple[str | None, ...], timed: bool, labor: bool = False) -> GraphView:
        """Returns the topology for draws by these options, as `weighted`, `timed`, and by LABOR. Each is made once."""
        weights = weights if any(weights) else ()
        view = self._maps.views.get((weights, timed, labor))
        if view is None:
            view = self._maps.views[weights, timed, labor] = self.view_of(self._open, weights, timed, labor)
        return view

    def view_of(
        self,
        opened: Callable[[str], np.ndarray],
        weights: tuple[str | None, ...] = (),
        timed: bool = False,
        labor: bool = False,
    ) -> GraphView:
        """Makes the topology of `drawn_by` over other arrays. opened: returns the array for a path in the folder."""
        if timed:
            self.manifest.require_times()
        self.manifest.require_weights(weights)
        schema, manifest = self.schema, self.manifest
        edge_types: list[EdgeTypeArrays | None] = []
        for r in range(len(schema.edge_types)):
            for p in self._all_parts:
                if p not in self.parts:
                    edge_types.append(None)
                    continue
                indptr, indices = opened(edge_path(p, r, "indptr")), opened(edge_path(p, r, "indices"))
                if len(indptr) and (indptr[0] != 0 or indptr[-1] != len(indices)):
                    begin, end = indptr[0], indptr[-1]
                    raise PartitionError(
                        f"{self.directory / edge_path(p, r, 'indptr')}: damaged: rows "
                        + (
                            f"begin at {begin}, not at 0"
                            if begin
                            else f"end at {end}, the part has {len(indices)} edges"
                        )
                        + ". Delete the partition folder and partition again."
                    )
                weight = weights[r] if weights else None
                sums = None if weight is None else opened(edge_path(p, r, cum_name(weight)))
                times = opened(edge_path(p, r, TIMES)) if timed and manifest.is_timed(r) else None
                edge_types.append(EdgeTypeArrays(indptr, indices, sums, times))
        user_ids = [
            opened(node_path(p, t, "n_id")) if p in self.parts else None
            for t in range(len(schema.node_types))
            for p in self._all_parts
        ]
        starts = [o + b[p] for o, b in zip(manifest.offsets, manifest.bounds, strict=False) for p in self._all_parts]
        counts = [[manifest.edges(p, r) for p in self._all_parts] for r in range(len(schema.edge_types))]
        return GraphView(
            np.array([*starts, manifest.total_nodes], dtype=np.int64),
            edge_types,
            user_ids,
            schema.edge_type_keys(),
            schema.source_types(),
            schema.destination_types(),
            np.array(counts, dtype=np.int64).reshape(len(schema.edge_types), manifest.num_parts),
            self._labor_ids() if labor else None,
            self.overlaid,
        )

    def _labor_ids(self) -> LaborIds:
        sources = set(self.schema.source_types())
        ids = [self.user_ids(t) if t in sources else None for t in range(len(self.schema.node_types))]
        return LaborIds(self.schema.node_type_keys(), ids)

    def pointers(self, edge_type: int, part: int) -> np.ndarray:
        """Maps the row pointers of a mapped part, integers [rows + 1]: the position of each row's first edge."""
        return self._open(edge_path(part, edge_type, "indptr"))

    def sources(self, edge_type: int, part: int) -> np.ndarray:
        """Maps the gids of the sources of a mapped part's edges, integers [edges]."""
        return self._open(edge_path(part, edge_type, "indices"))

    def node_shards(self, node_type: int, name: str) -> Shards:
        """Returns a node attribute, addressed by gid."""
        first = node_type * self.manifest.num_parts
        bounds = self.view.bounds[first : first + self.manifest.num_parts + 1]
        paths = [node_path(p, node_type, name) for p in self._all_parts]
        return self._shards(paths, bounds, self.manifest.decoded_by("nodes", node_type, name))

    def edge_shards(self, edge_type: int, name: str) -> Shards:
        """Returns an edge attribute (or ``edge_ids``), addressed by edge row."""
        paths = [edge_path(p, edge_type, name) for p in self._all_parts]
        encoding = self.manifest.decoded_by("edges", edge_type, name)
        return self._shards(paths, self.view.edge_bounds[edge_type], encoding)

    def _shards(self, paths: list[str], bounds: np.ndarray, encoding: Encoding | None) -> Shards:
        """Returns the arrays of all mapped parts, from the host tier if it holds them."""
        mapped = [path if p in self.parts else None for p, path in enumerate(paths)]
        if self.memory is not None and self.memory.holds(paths[self.parts[0]]):
            return self.memory.shards(AttributeFiles(self.directory, self.manifest, mapped, bounds, encoding))
        arrays = [None if path is None else self._open(path) for path in mapped]
        return Shards(arrays, bounds=bounds, encoding=encoding)

    @guarded()
    def split(self, name: str) -> Seeds:
        """The seeds of a split. Raises `DataError` naming the splits there are."""
        entry = self.manifest.splits.get(name)
        if entry is None:
            raise no_split(self.manifest, name)
        # A copy: loaders keep seeds for longer than the maps may live. The order of an epoch takes several times as much.
        return Seeds(self.schema.node_index(entry.node_type), np.array(self._open(split_path(name))))

    def gids(self, node_type: int) -> np.ndarray:
        """Maps the gid of each node of a type by the user's id, ids [N], for all parts, also those that are not mapped.

        Raises `PartitionError` for a folder of an earlier release, which lacks them.
        """
        path = gid_path(node_type)
        if path not in self.manifest.arrays:
            raise PartitionError(
                f"{self.directory}: an earlier release wrote this partition folder, without {path}, which negatives and "
                "sampling.method labor are drawn with. Delete the folder and partition again."
            )
        return self._open(path)

    def gids_of(self, node_type: int, user_ids: np.ndarray) -> np.ndarray:
        """Returns int64 [n]: the gids of nodes by the user's ids, which are not checked."""
        found: np.ndarray = self.gids(node_type)[user_ids]
        return found.astype(np.int64)

    def user_ids(self, node_type: int) -> np.ndarray:
        """Returns the user's id of each node of a type, ids [N], by gid from the type's first on, for all parts.

        It is the inverse of `gids`. For a graph in several parts it lies in the memory of this process. Raises `PartitionError`
        as `gids`, unless all parts are mapped."""
        found = self._maps.user_ids.get(node_type)
        if found is None:
            if len(self.parts) == self.manifest.num_parts:
                arrays = self.user_ids_by_part(node_type)
                found = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
            else:
                gids = self.gids(node_type)
                found = np.empty(len(gids), dtype=gids.dtype)
                found[gids - self.manifest.offsets[node_type]] = np.arange(len(gids), dtype=gids.dtype)
            self._maps.user_ids[node_type] = found
        return found

    def deleted(self, node_type: int) -> np.ndarray:
        """Returns the user ids of the nodes of a type that are deleted, int64 [n], ascending: they are no seeds and no negatives,
        and have no edges."""
        path = deleted_path(node_type)
        return self._open(path) if path in self.manifest.arrays else np.empty(0, np.int64)

    def node_times(self, node_type: int) -> np.ndarray | None:
        """Maps the time of each node of a type by the user's id, int64 [N], for all parts; None if nodes have no times."""
        path = node_times_path(node_type)
        return self._open(path) if path in self.manifest.arrays else None

    @guarded()
    def edge_split(self, edge_type: int, name: str) -> EdgeSplit:
        """The edges to predict of an edge type, by its index. Raises `DataError` naming the splits there are."""
        if edge_split_key(edge_type, name) not in self.manifest.edge_splits:
            raise no_edge_split(self.manifest, edge_type, name)
        paths = {array: edge_split_path(edge_type, name, array) for array in EDGE_SPLIT_ARRAYS}
        # Copies, as in `split`.
        found = {array: np.array(self._open(path)) for array, path in paths.items() if path in self.manifest.arrays}
        return EdgeSplit(**found)

    @guarded()
    def seeds(self, node_type: int, user_ids: np.ndarray | None = None) -> Seeds:
        """Seeds by the user's ids, int [S]; None: every node of the type. Raises `DataError` for an id out of range, and for a
        deleted node."""
        deleted = self.deleted(node_type)
        if user_ids is not None and node_type in self._maps.checked:  # a few seeds cost no look at all nodes
            name = self.schema.node_types[node_type]
            ids = existing_ids(checked_ids("seeds", user_ids, self.manifest.num_nodes[node_type], name), deleted, name)
            return Seeds(node_type, self.gids(node_type)[ids].astype(np.int64))
        gids = gids_by_user_id(self.manifest, node_type, self.user_ids_by_part(node_type), self.directory)
        if gid_path(node_type) in self.manifest.arrays:
            self._maps.checked.add(node_type)
        return choose_seeds(self.schema, node_type, gids, user_ids, deleted)

    def user_ids_by_part(self, node_type: int) -> list[np.ndarray]:
        """Returns each part's array of user ids by row. Raises `PartitionError` if a part is not mapped."""
        arrays = self.mapped_user_ids(node_type)
        missing = [p for p in self._all_parts if arrays[p] is None]
        if missing:
            raise PartitionError(
                f"{self.directory}: part {missing[0]} is not mapped in this process, "
                "but the user ids of all parts are needed. Open all parts."
            )
        return [a for a in arrays if a is not None]

    def mapped_user_ids(self, node_type: int) -> list[np.ndarray | None]:
        """Returns each part's array of user ids by row, None for a part that is not mapped."""
        return self._node_arrays(node_type, "n_id")

    def _node_arrays(self, node_type: int, name: str) -> list[np.ndarray | None]:
        return [self._open(node_path(p, node_type, name)) if p in self.parts else None for p in self._all_parts]

    def _open(self, path: str) -> np.ndarray:
        return self._maps.open(path)


_LARGE_FILE = 16 << 20  # bytes
# Random rows of cold files take 0.8 of the time in large pages, but of a graph beyond memory each fault would read 2 MB for one
# row. Other processes map other parts.
_SURELY = 4  # the part of the available memory


class _Maps:
    """The maps of a folder, shared by all `LocalPartition`s of it that differ only in their `HostTier`."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self._directory, self._manifest = directory, manifest
        self._arrays: dict[str, np.ndarray] = {}
        self.views: dict[tuple[tuple[str | None, ...], bool, bool], GraphView] = {}
        self.user_ids: dict[int, np.ndarray] = {}
        self.checked: set[int] = set()  # node types whose user ids were compared with each other

    def __reduce__(self) -> tuple[type[_Maps], tuple[Path, Manifest]]:
        """Pickles the path, not the bytes: another process of the host maps the same files."""
        return _Maps, (self._directory.absolute(), self._manifest)

    def open(self, path: str) -> np.ndarray:
        array = self._arrays.get(path)
        if array is None:
            entry = self._manifest.arrays.get(path)
            if entry is None:
                raise PartitionError(f"{self._directory}: the manifest has no array {path}. Partition again.")
            array = self._arrays[path] = open_array(self._directory, path, entry, large_pages=self._fits(entry.bytes))
        return array

    def _fits(self, nbytes: int) -> bool:
        """Tells whether a large file surely fits into memory, with those that are mapped: reading it by large pages then costs
        nothing."""
        arrays = [*self._arrays.values()]  # a copy, as other threads open arrays meanwhile
        mapped = sum(array.nbytes for array in arrays)
        return nbytes >= _LARGE_FILE and mapped + nbytes <= available_memory() // _SURELY

    def forget(self) -> None:
        for array in self._arrays.values():
            forget_losses(array)
        self._arrays, self.views, self.user_ids, self.checked = {}, {}, {}, set()


class _MemoryMaps(_Maps):
    """The maps of a partition that lies in memory."""

    def __init__(self, arrays: SharedArrays) -> None:
        super().__init__(Path(arrays.path), Manifest.from_json(arrays.meta))
        self._in_memory = arrays.arrays
        weakref.finalize(self, arrays.close)

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_memory, (str(self._directory),)

    def open(self, path: str) -> np.ndarray:
        if path not in self._in_memory:
            raise PartitionError(f"{self._directory}: the graph in memory has no array {path}.")
        return self._in_memory[path]

    def forget(self) -> None:
        self.views, self.user_ids = {}, {}


class _MapsAndRows(_Maps):
    """The maps of a partition, and further arrays of this process."""

    def __init__(self, maps: _Maps, manifest: Manifest, rows: Mapping[str, np.ndarray]) -> None:
        super().__init__(maps._directory, manifest)
        self._others, self._rows = maps, dict(rows)

    def open(self, path: str) -> np.ndarray:
        return self._rows[path] if path in self._rows else self._others.open(path)

    def forget(self) -> None:
        self.views, self.user_ids = {}, {}


def _open_memory(path: str) -> _MemoryMaps:
    return _MemoryMaps(SharedArrays.open(path))


def _checked(parts: Sequence[int] | None, directory: Path, num_parts: int) -> tuple[int, ...]:
    if parts is None:
        return tuple(range(num_parts))
    if not parts or not all(0 <= p < num_parts for p in parts):
        raise PartitionError(f"{directory}: expected some of the parts 0 to {num_parts - 1}, got {list(parts)}.")
    return tuple(sorted(set(parts)))


# Whether two hosts have the same partition, by what their manifests say: the options it was made with, and all its files.


_COPY = "Copy one partition folder, with its versions, to all hosts, or partition with the same options and seed"


def files_hash(manifest: Manifest) -> str:
    """Returns a hash of the names, shapes and checksums of all files, 32 hexadecimal digits. It reads no file but the manifest,
    and does not depend on hashes of chunks, which manifests of earlier releases lack."""
    listed = [[path, e.dtype, list(e.shape), e.bytes, e.crc32] for path, e in sorted(manifest.arrays.items())]
    return hashlib.blake2b(json.dumps(listed).encode(), digest_size=16).hexdigest()


def partition_id(manifest: Manifest) -> str:
    """Returns the identity of a partition, which hosts compare before they work together."""
    return f"{manifest.options_hash} {files_hash(manifest)}"


def difference(theirs: object, ours: str) -> str:
    """Explains how a partition of another process differs from the one here, and what to do. theirs, ours: `partition_id`."""
    (options, _, files), (own, _, own_files) = str(theirs)[:100].partition(" "), ours.partition(" ")
    if options != own:
        return f"options_hash in manifest.json is {options!r} there and {own!r} here. {_COPY}."
    return (
        f"they were made with the same options, and their files differ (hash {files!r} there, {own_files!r} here). {_COPY}; "
        "`partition --verify` finds a file that was changed."
    )
