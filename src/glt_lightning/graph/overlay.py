"""A partition with an overlay: rows that came after it was made, laid over its immutable arrays.

An overlay of a graph in P parts is P more parts in memory. Part P + p has the new nodes that were placed in part p, with
their rows, and for each edge type whole rows of nodes of part p that got further edges (**replaced** rows), which are read
in place of those of part p; whoever has part p has it, too. So every reader of a partition reads an overlay: native calls
find the row of a node by ``kernels.graph.Overlaid``, all arrays have twice the parts, and nothing else asks whether there is
an overlay. A process that maps some parts makes the arrays of their parts of the overlay alone, and knows of the others what
`OverlayFacts` says.

New nodes follow the old ones of their type, by user id and by gid. Gids of later types thus move up: stored sources are
shifted when they are read (``Overlaid.source_shift``), and seeds and gids here. `partition.add_rows` makes the arrays.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from glt_lightning.base import DataError, SamplerError
from glt_lightning.graph.graph import EdgeSplit, Seeds, checked_ids, existing_ids, seeds_hash
from glt_lightning.graph.local_partition import LocalPartition, _MapsAndRows, partition_id
from glt_lightning.graph.manifest import (
    ArrayEntry,
    EdgeColumns,
    EdgeSplitEntry,
    Manifest,
    deleted_path,
    edge_split_path,
    gid_path,
    node_times_path,
    split_path,
)
from glt_lightning.graph.shared_arrays import SharedArrays
from glt_lightning.kernels import LaborIds, Overlaid, ReplacedRows, Shards

_NONE = np.empty(0, np.int64)
_HEADER = 4096  # of a file


@dataclass(frozen=True)
class OverlayFacts:
    """What every process knows of an overlay, also one that maps some parts alone.

    digest: a hash of the rows that it adds and of the overlay below it.  num_edges: number of edges of each edge type, with the
    new ones.  edges: for each edge type the number of edges in each part of the overlay.
    """

    digest: str
    num_edges: tuple[int, ...]
    edges: tuple[tuple[int, ...], ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> OverlayFacts:
        return cls(str(raw["digest"]), tuple(raw["num_edges"]), tuple(tuple(each) for each in raw["edges"]))


@dataclass(frozen=True)
class Overlay:
    """What is laid over a partition.

    Attributes:
        placed: For each node type int32 [n]: the part in which each new node was placed, by user id.
        arrays: The arrays of the overlay's parts that are here, by their paths. Row pointers have the rows of new nodes first, by
            user id, then the replaced rows, by gid. Stored sources are gids less `GrownNumbers.shift`.
        replaced: For each edge type int64 [n], ascending: gids of the nodes whose rows are replaced.
        facts: What every process knows of it.
        edge_columns: As in the manifest, with the new edges.
        times: Times of the new nodes of a type by user id, for types that have times.
        changed: (node type, attribute) -> gids of old nodes, ascending, and their rows as stored.
        deleted: Node type -> int64 [n], user ids of deleted nodes, ascending, whose edges no row has.
        deleted_edges: Edge type of the user's -> int64 [2, n], ends of deleted edges, user ids.
        version: Number of the version; 0: rows of this process alone.
    """

    placed: tuple[np.ndarray, ...]
    arrays: Mapping[str, np.ndarray]
    replaced: Sequence[np.ndarray]
    facts: OverlayFacts
    edge_columns: tuple[EdgeColumns, ...]
    times: Mapping[int, np.ndarray] = field(default_factory=dict)
    changed: Mapping[tuple[int, str], tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    deleted: Mapping[int, np.ndarray] = field(default_factory=dict)
    deleted_edges: Mapping[int, np.ndarray] = field(default_factory=dict)
    version: int = 0

    @property
    def num_new(self) -> tuple[int, ...]:
        """Number of new nodes of each type."""
        return tuple(map(len, self.placed))

    def shared(self, base: LocalPartition) -> SharedArrays:
        """Copies the overlay into memory that other processes of the host can map."""
        given = {f"array/{path}": array for path, array in self.arrays.items()}
        given |= {f"replaced/{r}": gids for r, gids in enumerate(self.replaced)}
        given |= {f"times/{t}": times for t, times in self.times.items()}
        given |= {f"deleted/{t}": ids for t, ids in self.deleted.items()}
        given |= {f"deleted_edges/{r}": ends for r, ends in self.deleted_edges.items()}
        for (t, name), (gids, rows) in self.changed.items():
            given |= {f"gids/{t}/{name}": gids, f"rows/{t}/{name}": rows}
        given |= {f"placed/{t}": parts for t, parts in enumerate(self.placed)}
        meta = {
            "base": base.location,
            "num_parts": base.manifest.num_parts,
            "facts": self.facts.to_json(),
            "version": self.version,
            "edge_columns": [asdict(each) for each in self.edge_columns],
        }
        found = SharedArrays.create({name: (a.dtype, a.shape) for name, a in given.items()}, meta)
        for name, array in given.items():
            found.arrays[name][...] = array
        found.finish()
        return found

    @classmethod
    def of_shared(cls, shared: SharedArrays) -> Overlay:
        """The inverse of `shared`."""
        kinds: dict[str, dict[str, np.ndarray]] = {}
        for name, array in shared.arrays.items():
            kind, _, rest = name.partition("/")
            kinds.setdefault(kind, {})[rest] = array
        meta = shared.meta
        facts = OverlayFacts.from_json(meta["facts"])
        pairs = [(key.partition("/"), gids, kinds["rows"][key]) for key, gids in kinds.get("gids", {}).items()]
        return cls(
            placed=tuple(kinds["placed"][str(t)] for t in range(len(kinds["placed"]))),
            arrays=kinds.get("array", {}),
            replaced=[kinds["replaced"][str(r)] for r in range(len(facts.num_edges))],
            facts=facts,
            edge_columns=tuple(EdgeColumns(**each) for each in meta["edge_columns"]),
            times={int(t): times for t, times in kinds.get("times", {}).items()},
            changed={(int(t), name): (gids, rows) for (t, _, name), gids, rows in pairs},
            deleted={int(t): ids for t, ids in kinds.get("deleted", {}).items()},
            deleted_edges={int(r): ends for r, ends in kinds.get("deleted_edges", {}).items()},
            version=meta["version"],
        )


class GrownNumbers:
    """The numbers of nodes once new ones are placed in parts.

    base: the manifest without the new nodes.  placed: as in `Overlay`.
    """

    def __init__(self, base: Manifest, placed: Sequence[np.ndarray]) -> None:
        self._base, self._placed = base, placed

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest with the new nodes in the parts of an overlay, without the arrays of these."""
        bounds = []
        for old, count, parts in zip(self._base.bounds, self._base.num_nodes, self._placed, strict=True):
            ends = count + np.cumsum(np.bincount(parts, minlength=self._base.num_parts))
            bounds.append((*old, *ends.tolist()))
        num_nodes = tuple(each[-1] for each in bounds)
        return replace(self._base, num_parts=2 * self._base.num_parts, num_nodes=num_nodes, bounds=tuple(bounds))

    def shift(self, node_type: int) -> int:
        """Returns the number of new nodes of the types before a type: it is added to the gids of the type's old nodes."""
        return sum(map(len, self._placed[:node_type]))

    @cached_property
    def new_gids(self) -> list[np.ndarray]:
        """For each node type int64 [n]: the gids of its new nodes, by user id. Within a type they are numbered part by part."""
        found = []
        for t, placed in enumerate(self._placed):
            numbers = np.empty(len(placed), np.int64)
            numbers[np.argsort(placed, kind="stable")] = np.arange(len(placed))
            found.append(self.manifest.offsets[t] + self._base.num_nodes[t] + numbers)
        return found

    def new_user_ids(self, node_type: int) -> np.ndarray:
        """Returns int64 [n]: the user ids of the new nodes of a type by gid."""
        return self._base.num_nodes[node_type] + np.argsort(self._placed[node_type], kind="stable")

    def gids(self, base: LocalPartition, node_type: int, user_ids: np.ndarray) -> np.ndarray:
        """Returns int64 [n]: the gids of nodes by user id. base: the partition without the new nodes."""
        count = self._base.num_nodes[node_type]
        if not len(self._placed[node_type]):
            found = base.gids_of(node_type, user_ids)
            found += self.shift(node_type)
            return found
        found, old = np.empty(len(user_ids), np.int64), user_ids < count
        found[~old] = self.new_gids[node_type][user_ids[~old] - count]
        if old.any():
            found[old] = base.gids_of(node_type, user_ids[old]) + self.shift(node_type)
        return found


class GrownPartition(LocalPartition):
    """A partition with an overlay, in this process.

    base: the partition, which may have an overlay of its own.  overlay: what is laid over it.
    """

    def __init__(self, base: LocalPartition, overlay: Overlay, *, as_stored: bool = False) -> None:
        if base.memory is not None:
            raise SamplerError(f"{base.directory}: a host tier (cache.memory) has no room for new rows. Leave it out.")
        self.base, self.overlay = base, overlay
        self._numbers = GrownNumbers(base.manifest, overlay.placed)
        manifest, num_parts = _with_arrays(base, self._numbers.manifest, overlay), base.manifest.num_parts
        manifest = _with_splits(manifest, base, overlay)
        deleted = _all_deleted(base, overlay)
        manifest = replace(manifest, arrays={**manifest.arrays, **{path: _entry(ids) for path, ids in deleted.items()}})
        parts = (*base.parts, *(p + num_parts for p in base.parts))
        super().__init__(base.directory, manifest.as_stored if as_stored else manifest, parts)
        self._maps = _OverlaidMaps(base, manifest, {**overlay.arrays, **deleted}, overlay.times, self._numbers)
        replaced = []
        for r, (t, gids) in enumerate(zip(self.schema.destination_types(), overlay.replaced, strict=True)):
            part = _parts_of_replaced(base.manifest, manifest, overlay, r)
            new = np.bincount(overlay.placed[t], minlength=num_parts)
            below = None if base.overlaid is None else base.overlaid.replaced[r].behind(self._numbers.shift(t))
            replaced.append(ReplacedRows(gids, part, new, manifest.total_nodes, below))
        self.overlaid = Overlaid(replaced, [self.shifts[t] for t in self.schema.source_types()])

        self._shared: SharedArrays | None = None

    @cached_property
    def shifts(self) -> list[int]:
        """For each node type what is added to the gids of its old nodes in the partition, below all overlays."""
        below = self.base.shifts if isinstance(self.base, GrownPartition) else [0] * len(self.manifest.num_nodes)
        return [self._numbers.shift(t) + before for t, before in enumerate(below)]

    @property
    def location(self) -> str:
        if self._shared is None:
            self._shared = self.overlay.shared(self.base)
            weakref.finalize(self, self._shared.close)
        return self._shared.path

    def close(self) -> None:
        """Releases the overlay. The partition below it stays open: it belongs to who opened it."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.close()
        super().close()

    @classmethod
    def of_shared(cls, arrays: SharedArrays, parts: Sequence[int] | None) -> GrownPartition:
        """Opens the partition of another process of this host, by `location`. parts: those to map; None: all."""
        old = None if parts is None else [p for p in parts if p < arrays.meta["num_parts"]]
        return cls(LocalPartition.open(arrays.meta["base"], parts=old), Overlay.of_shared(arrays))

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalPartition.open, (self.location,)

    @property
    def as_stored(self) -> LocalPartition:
        found = GrownPartition(self.base, self.overlay, as_stored=True)
        found._maps = self._maps
        return found

    def split(self, name: str) -> Seeds:
        seeds = _seeds_left(self.base, self.overlay, name)
        return Seeds(seeds.node_type, seeds.gids + self._numbers.shift(seeds.node_type))

    def edge_split(self, edge_type: int, name: str) -> EdgeSplit:
        return _edges_left(self.base, self.overlay, edge_type, name)

    def seeds(self, node_type: int, user_ids: np.ndarray | None = None) -> Seeds:
        if user_ids is None:
            return super().seeds(node_type)
        count, name = self.manifest.num_nodes[node_type], self.schema.node_types[node_type]
        ids = existing_ids(checked_ids("seeds", user_ids, count, name), self.deleted(node_type), name)
        return Seeds(node_type, self.gids_of(node_type, ids))

    def gids_of(self, node_type: int, user_ids: np.ndarray) -> np.ndarray:
        """Returns int64 [n]: the gids of nodes by the user's ids, which are not checked, without a look at all nodes."""
        return self._numbers.gids(self.base, node_type, user_ids)

    def _labor_ids(self) -> LaborIds:
        """Leaves the ids of old nodes where they are: a request copies those of its new nodes alone."""
        below, sources = self.base, set(self.schema.source_types())
        old = [below.user_ids(t) if t in sources else None for t in range(len(self.schema.node_types))]
        new = [None if ids is None else self._numbers.new_user_ids(t).astype(ids.dtype) for t, ids in enumerate(old)]
        return LaborIds(self.schema.node_type_keys(), old, new)

    def node_shards(self, node_type: int, name: str) -> Shards:
        found = super().node_shards(node_type, name)
        changed = self._changed(node_type, name)
        return found if changed is None else found.with_rows(*changed)

    def _changed(self, node_type: int, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Returns the gids of old nodes, ascending, with another value of an attribute, and their rows as stored."""
        here = self.overlay.changed.get((node_type, name))
        below = self.base._changed(node_type, name) if isinstance(self.base, GrownPartition) else None
        if below is None:
            return here
        gids, rows = below[0] + self._numbers.shift(node_type), below[1]
        if here is None:
            return gids, rows
        kept = ~np.isin(gids, here[0])
        gids, rows = np.append(gids[kept], here[0]), np.concatenate([rows[kept], here[1]])
        order = np.argsort(gids)
        return gids[order], rows[order]


def _all_deleted(base: LocalPartition, overlay: Overlay) -> dict[str, np.ndarray]:
    """Returns `deleted_path` -> the user ids of all deleted nodes, for types that have some."""
    found = {}
    for t in range(len(base.manifest.num_nodes)):
        here, before = overlay.deleted.get(t, _NONE), base.deleted(t)
        if len(here) or len(before):
            # A request deletes nothing, and need not sort what a version has deleted.
            found[deleted_path(t)] = np.union1d(here, before) if len(here) and len(before) else np.append(here, before)
    return found


def _seeds_left(base: LocalPartition, overlay: Overlay, name: str) -> Seeds:
    """Returns the seeds of a split that are not deleted, gids of the partition below."""
    seeds = base.split(name)
    gone = overlay.deleted.get(seeds.node_type, _NONE)
    gone = gone[gone < base.manifest.num_nodes[seeds.node_type]]
    return Seeds(
        seeds.node_type, seeds.gids[~np.isin(seeds.gids, base.gids(seeds.node_type)[gone])] if len(gone) else seeds.gids
    )


def _edges_left(base: LocalPartition, overlay: Overlay, edge_type: int, name: str) -> EdgeSplit:
    """Returns the edges to predict of a split that are not deleted, and whose ends are not."""
    found, schema, columns = base.edge_split(edge_type, name), base.schema, base.manifest.edge_columns
    types = schema.source_types()[edge_type], schema.destination_types()[edge_type]
    gone = [overlay.deleted.get(t, _NONE) for t in types]

    def alive(pairs: np.ndarray) -> np.ndarray:
        good = ~(np.isin(pairs[0], gone[0]) | np.isin(pairs[1], gone[1]))
        width = base.manifest.num_nodes[types[1]] + overlay.num_new[types[1]]
        ends = overlay.deleted_edges.get(edge_type, np.empty((2, 0), np.int64))
        keys = ends[0] * width + ends[1]
        if columns is not None and columns[edge_type].reverse_of == edge_type:
            keys = np.concatenate([keys, ends[1] * width + ends[0]])
        return good & ~np.isin(pairs[0] * width + pairs[1], keys)

    kept = alive(found.edge)
    if found.source_negatives is not None and np.isin(found.source_negatives, gone[0]).any():
        raise DataError(
            f"edge_splits: {name}: some of its source_negatives are nodes of type {schema.node_types[types[0]]!r} that are "
            "deleted. Partition anew without these rows."
        )
    arrays = {n: a[:, kept] if n == "edge" else a[kept] for n, a in found.arrays.items() if n != "negative_edges"}
    if "negatives" in arrays:
        arrays["negatives"] = np.where(np.isin(arrays["negatives"], gone[1]), -1, arrays["negatives"])
    if found.negative_edges is not None:
        bad = np.isin(found.negative_edges[0], gone[0]) | np.isin(found.negative_edges[1], gone[1])
        arrays["negative_edges"] = found.negative_edges[:, ~bad]
    return EdgeSplit(**arrays)


def _with_splits(manifest: Manifest, base: LocalPartition, overlay: Overlay) -> Manifest:
    """Returns the manifest with the splits without deleted rows."""
    if not any(map(len, overlay.deleted.values())) and not overlay.deleted_edges:
        return manifest
    splits, edge_splits, arrays = dict(manifest.splits), dict(manifest.edge_splits), dict(manifest.arrays)
    for name, entry in manifest.splits.items():
        seeds = _seeds_left(base, overlay, name)
        ids = base.user_ids(seeds.node_type)[seeds.gids - base.manifest.offsets[seeds.node_type]]
        splits[name] = replace(entry, count=len(ids), ids_hash=None if entry.ids_hash is None else seeds_hash(ids))
        arrays[split_path(name)] = _entry(seeds.gids)
    for key in edge_splits:
        r, _, name = key.partition("/")
        found = _edges_left(base, overlay, int(r), name)
        edge_splits[key] = EdgeSplitEntry(len(found), found.digest)
        arrays |= {edge_split_path(int(r), name, each): _entry(array) for each, array in found.arrays.items()}
    return replace(manifest, splits=splits, edge_splits=edge_splits, arrays=arrays)


class _OverlaidMaps(_MapsAndRows):
    """The maps of a partition and the arrays of its overlay. Arrays over all nodes are made when they are asked for."""

    def __init__(
        self,
        base: LocalPartition,
        manifest: Manifest,
        arrays: Mapping[str, np.ndarray],
        times: Mapping[int, np.ndarray],
        numbers: GrownNumbers,
    ) -> None:
        super().__init__(base._maps, manifest, arrays)
        types = range(len(manifest.num_nodes))
        self._gids = {gid_path(t): t for t in types}
        self._times = {node_times_path(t): later for t, later in times.items()}
        self._numbers = numbers

    def open(self, path: str) -> np.ndarray:
        t = self._gids.get(path)
        if path not in self._rows and t is not None:
            old = self._others.open(path)
            new = self._numbers.new_gids[t].astype(old.dtype)
            self._rows[path] = np.concatenate([old + old.dtype.type(self._numbers.shift(t)), new])
        elif path not in self._rows and path in self._times:
            self._rows[path] = np.concatenate([self._others.open(path), self._times[path]])
        return super().open(path)


def _with_arrays(base: LocalPartition, manifest: Manifest, overlay: Overlay) -> Manifest:
    """Returns the manifest of a partition with an overlay, whose digest makes its identity another one, and which is the same
    in all processes, whatever parts they map. manifest: of `GrownNumbers`."""
    old, facts = base.manifest, overlay.facts
    here = old.num_parts + base.parts[0]
    own = {path.partition("/")[2]: array for path, array in overlay.arrays.items() if path.startswith(f"part{here}/")}
    arrays, dst = dict(old.arrays), old.schema.destination_types()
    replaced = [
        np.bincount(_parts_of_replaced(old, manifest, overlay, r), minlength=old.num_parts).tolist()
        for r in range(len(dst))
    ]
    for p in range(old.num_parts):
        for path, array in own.items():
            kind, of, name = path.split("/")
            rows = manifest.rows(old.num_parts + p, int(of)) if kind == "nodes" else facts.edges[int(of)][p]
            if name == "indptr.npy":
                rows = manifest.rows(old.num_parts + p, dst[int(of)]) + replaced[int(of)][p] + 1
            arrays[f"part{old.num_parts + p}/{path}"] = _entry_of(array.dtype, (rows, *array.shape[1:]))
    for t, count in enumerate(manifest.num_nodes):
        for path in (gid_path(t), node_times_path(t)):
            if path in arrays:
                arrays[path] = _entry_of(np.dtype(arrays[path].dtype), (count,))
    return replace(
        manifest,
        arrays=arrays,
        num_edges=facts.num_edges,
        edge_columns=overlay.edge_columns,
        made_by={**old.made_by, "overlay": facts.digest, "base": old.made_by.get("base") or partition_id(old)},
        of_version=overlay.version,
    )


def _parts_of_replaced(base: Manifest, manifest: Manifest, overlay: Overlay, edge_type: int) -> np.ndarray:
    """Returns int64 [n]: the part of the base of each replaced row of an edge type. manifest: with the new nodes."""
    t = base.schema.destination_types()[edge_type]
    return base.part_of(t, overlay.replaced[edge_type] - manifest.offsets[t] + base.offsets[t])


def _entry(array: np.ndarray) -> ArrayEntry:
    return _entry_of(array.dtype, array.shape)


def _entry_of(dtype: np.dtype, shape: tuple[int, ...]) -> ArrayEntry:
    """Returns the entry of an array that no file has, as if one had it."""
    return ArrayEntry(dtype.str, shape, _HEADER + dtype.itemsize * math.prod(shape), crc32=0)
