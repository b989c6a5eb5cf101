"""Versions of a graph: rows that were appended to a partition, one immutable folder for each append.

Version 0 is the partition. Version n is it with the rows of the folders 1 to n of ``<partition>.versions``. Each is written
beside its place and renamed when it is complete, so that a reader sees it whole or not at all, and its ``delta.json`` has the
checksums of its arrays and the hash of the version before: versions form a chain, and a folder of another graph is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from glt_lightning.base import DataError, EdgeType, NodeType, OptionError, PartitionError, counted
from glt_lightning.graph import (
    ArrayEntry,
    LocalPartition,
    Manifest,
    OverlayFacts,
    deleted_path,
    open_array,
    partition_id,
    verify_array,
)
from glt_lightning.partition.additions import (
    Additions,
    ChangedNodes,
    Deleted,
    NewEdges,
    NewNodes,
    StoredAttributes,
    checked_changes,
    checked_edges,
    require_alive,
)
from glt_lightning.partition.deletions import find_deleted
from glt_lightning.partition.delta import DELTA, Delta, read_header, write_delta
from glt_lightning.partition.folder import LOCK_TIMEOUT_S, exclusive, whole_folder
from glt_lightning.partition.grow import add_rows, check_rows, require_growable
from glt_lightning.partition.stored_tables import read_later_ids

LATEST = "latest"
Version = int | str | None
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Appended:
    """The rows of some versions, joined.

    Attributes:
        version: Number of the last one.
        additions: The rows.
        ids: Node type -> what the user's tables call the last nodes, which the converted tables lack; types with ids alone.
        num_nodes: Node type -> number of all nodes.
        digest: Of the last version; "" for no rows.
        recorded: Facts of the overlay that they make; None for no rows, and of an earlier release.
        deleted: Node type -> user ids of all deleted nodes, those of the partition among them.
    """

    version: int
    additions: Additions
    ids: Mapping[NodeType, np.ndarray]
    num_nodes: Mapping[NodeType, int]
    deleted: Mapping[NodeType, np.ndarray]
    digest: str = ""
    recorded: OverlayFacts | None = None

    def followed_by(self, later: Additions, manifest: Manifest) -> Additions:
        """Returns these rows and later ones, which may leave out what `add_rows` lets them. manifest: that of the partition.

        Raises as `completed`."""
        return _joined([self.additions, self.completed(later, manifest)], manifest)

    def completed(self, later: Additions, manifest: Manifest) -> Additions:
        """Returns later rows with all attributes, those that may be left out as well: all versions have the same.

        Raises `DataError` for rows that do not fit the graph, as far as their numbers among all rows would say something else.
        """
        schema, new = manifest.schema, later.num_new(manifest)
        num_nodes = {t: self.num_nodes[t] + count for t, count in zip(schema.node_types, new, strict=True)}
        nodes, edges = {}, {}
        for t, some in later.nodes.items():
            stored = StoredAttributes(manifest, "nodes", schema.node_index(t))
            nodes[t] = NewNodes(some.count, stored.completed(some.attrs, some.count))
        for e, each in later.edges.items():
            index = checked_edges(manifest, e, each, num_nodes)
            require_alive(e, index, self.deleted)
            stored = StoredAttributes(manifest, "edges", schema.edge_index(e))
            edges[e] = NewEdges(index, stored.completed(each.attrs, index.shape[1]))
        for t, changed in later.changed.items():
            if not isinstance(changed, ChangedNodes):
                raise DataError(
                    f"changed nodes of type {t!r}: expected one `ChangedNodes`; append one after the other."
                )
            checked_changes(manifest, t, changed, num_nodes[t])
        return replace(later, nodes=nodes, edges=edges)

    def added_to(self, partition: LocalPartition) -> LocalPartition:
        """Returns a partition with these rows, as `open_version`."""
        if self.version == 0:
            return partition
        if self.recorded is None and len(partition.parts) < partition.manifest.num_parts:
            raise PartitionError(
                f"{Versions(partition.directory).place(self.version)}: an earlier release appended this version, which is read "
                "where all parts are mapped. Append further rows with this release, or compact it."
            )
        return add_rows(partition, self.additions, self.version, self.recorded)


class Versions:
    """The versions of a partition. folder: of the partition.

    Attribute ``root``: the folder that has a folder for each version.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.root = self.folder.with_name(f"{self.folder.name}.versions")

    def place(self, number: int) -> Path:
        """Returns the folder of a version, whether it exists or not."""
        return self.root / str(number)

    def number(self, version: Version) -> int:
        """Returns a version as a number: ``latest``, None (the partition itself) or a number. Raises `PartitionError` for one
        that does not exist, `OptionError` for anything else."""
        latest = 0
        while (self.place(latest + 1) / DELTA).is_file():
            latest += 1
        if version in (None, 0):
            return 0
        if version == LATEST:
            return latest
        if isinstance(version, bool) or not isinstance(version, int) or version < 0:
            raise OptionError(f"partition.version: expected a number or {LATEST}, got {version!r}.")
        if version > latest:
            raise PartitionError(f"{self.folder}: there is no version {version}; the latest is {latest}.")
        return version

    def read(self, manifest: Manifest, version: Version) -> Appended:
        """Reads the rows of all versions up to one. manifest: of the partition.

        Raises `PartitionError`, naming the file, for a folder that is damaged or of another graph."""
        number, found, facts = self.number(version), list[Additions](), None
        ids: list[Mapping[NodeType, np.ndarray]] = [read_later_ids(self.folder, manifest)]
        previous = partition_id(manifest)
        for n in range(1, number + 1):
            place = self.place(n)
            delta = Delta.load(place)
            if delta.previous != previous:
                raise PartitionError(
                    f"{place / DELTA}: this version was appended to another graph, or to another version before it. Delete "
                    f"{self.root}, or bring back the partition that it belongs to."
                )
            previous, facts = delta.digest, delta.facts
            found.append(delta.additions)
            ids.append(delta.ids)
        joined = {t: np.concatenate(names) for t, names in sorted(_by_type(ids).items())}
        rows = _joined(found, manifest)
        deleted = deleted_nodes(self.folder, manifest)
        for t, gone in rows.deleted.nodes.items():
            deleted[t] = np.append(deleted.get(t, gone[:0]), gone)
        return Appended(number, rows, joined, rows.num_nodes(manifest), deleted, previous if number else "", facts)

    def verify(self, done: Callable[[int], object] = lambda n: None) -> list[VersionFacts]:
        """Compares all files of all versions with their checksums, and each version with the one before it.

        done: called with numbers of bytes that were read. Returns what was verified. Raises `PartitionError` with the first
        damage.
        """
        found = list_versions(self.folder)
        for each in found:
            place = self.place(each.number)
            for path, entry in read_header(place)["arrays"].items():
                verify_array(place, path, entry)
                done(entry.bytes)
        if found:
            self.read(Manifest.load(self.folder), LATEST)
        return found

    def manifest_at(self, manifest: Manifest, version: Version) -> Manifest:
        """Returns the manifest with the numbers of nodes of a version; its arrays are those of the partition."""
        counts = dict(zip(manifest.schema.node_types, manifest.num_nodes, strict=True))
        for n in range(1, self.number(version) + 1):
            for t, count in read_header(self.place(n))["nodes"].items():
                counts[t] += count
        return replace(manifest, num_nodes=tuple(counts.values()))


def deleted_nodes(folder: Path, manifest: Manifest) -> dict[NodeType, np.ndarray]:
    """Returns the user ids of the deleted nodes of a partition, without its versions, by type."""
    paths = {t: deleted_path(n) for n, t in enumerate(manifest.schema.node_types)}
    arrays = manifest.arrays
    return {t: open_array(folder, path, arrays[path]) for t, path in paths.items() if path in arrays}


def append_rows(
    folder: str | Path,
    additions: Additions,
    ids: Mapping[NodeType, np.ndarray] | None = None,
    timeout_s: float = LOCK_TIMEOUT_S,
    after: int | None = None,
) -> int:
    """Appends rows to the latest version of a partition. Returns the number of the new version.

    Args:
        folder: The partition, which stays as it is.
        additions: The rows; changed nodes may be of earlier versions.
        ids: For each node type what the user's table calls the new nodes, int64 or text.
        timeout_s: How long to wait for another append, in seconds.
        after: The version that the rows were made for; None: any.

    Raises:
        DataError: For rows that do not fit the graph.
        PartitionError: If the folder cannot be written, another append takes too long, or came first.

    Example:
        >>> new = Additions(nodes={"node": NewNodes(1, {"x": np.ones((1, 3), np.float32)})})
        >>> import shutil
        >>> _ = shutil.copytree("parts", "growing")
        >>> append_rows("growing", new), append_rows("growing", new)
        (1, 2)
        >>> partition = LocalPartition.open("growing")
        >>> open_version(partition, "latest").manifest.num_nodes
        (12,)
        >>> partition.close()
    """
    return _append(folder, lambda base, before: (additions, ids or {}), timeout_s, after)


def delete_rows(
    folder: str | Path,
    nodes: Mapping[NodeType, np.ndarray] | None = None,
    edges: Mapping[EdgeType, np.ndarray] | None = None,
    timeout_s: float = LOCK_TIMEOUT_S,
    after: int | None = None,
    name: Callable[[NodeType, int], object] = lambda _, node: node,
) -> int:
    """Deletes rows from the latest version of a partition, by mark. Returns the number of the new version.

    From that version on they are in no batch. Ids of deleted nodes are not used again.

    Args:
        folder: The partition, which stays as it is.
        nodes: User ids of nodes by type. Their edges are deleted with them.
        edges: Integers [2, E], user ids of the ends of edges, by type of the user's edges. All parallel edges are deleted, and
            where ``undirected`` added the other direction, that too.
        timeout_s, after: As of `append_rows`.
        name: Returns what errors call a node, by its type and user id, such as its id in a table.

    Raises:
        DataError: For rows that the version does not have.
        PartitionError: As `append_rows`.

    Example:
        >>> import shutil
        >>> _ = shutil.copytree("parts", "shrinking")
        >>> delete_rows("shrinking", nodes={"node": [3]})
        1
        >>> partition = LocalPartition.open("shrinking")
        >>> open_version(partition, "latest").deleted(0)
        array([3])
        >>> partition.close()
    """

    def find(base: LocalPartition, before: Appended) -> tuple[Additions, Mapping[NodeType, np.ndarray]]:
        found = find_deleted(base, before.additions, nodes or {}, edges or {}, name)
        return Additions(deleted=found), {}

    return _append(folder, find, timeout_s, after)


_Rows = Callable[[LocalPartition, Appended], tuple[Additions, Mapping[NodeType, np.ndarray]]]


def _append(folder: str | Path, make: _Rows, timeout_s: float, after: int | None) -> int:
    """make: returns the rows of the new version, and the ids of tables."""
    versions = Versions(folder)
    root = versions.root
    with exclusive(root, timeout_s):
        manifest = Manifest.load(folder)
        # Not `open`: of a small graph that reads all edges, and most appends need row pointers alone.
        base = LocalPartition(Path(folder), manifest, tuple(range(manifest.num_parts)))
        try:
            before = versions.read(manifest, LATEST)
            if after is not None and after != before.version:
                raise PartitionError(
                    f"{root}: another append made version {before.version} meanwhile, which these rows do not know. Append again."
                )
            require_growable(base, Additions())
            additions, ids = make(base, before)
            rows, number = before.completed(additions, manifest), before.version + 1
            facts = check_rows(base, _joined([before.additions, rows], manifest))
            previous = partition_id(manifest) if number == 1 else Delta.load(versions.place(number - 1)).digest
            root.mkdir(exist_ok=True)
            with whole_folder(versions.place(number)) as temporary:
                write_delta(temporary, number, previous, rows, ids, facts)
        finally:
            base.close()
    return number


def open_version(partition: LocalPartition, version: Version) -> LocalPartition:
    """Returns a version of a partition: version 0 is the partition itself. Where some parts are mapped, the version has these.
    Raises as `Versions.read`, and for a version that an earlier release appended if not all parts are mapped.

    Example:
        >>> partition = LocalPartition.open("parts")
        >>> open_version(partition, 0) is partition
        True
        >>> partition.close()
    """
    return Versions(partition.directory).read(partition.manifest, version).added_to(partition)


@dataclass(frozen=True)
class VersionFacts:
    """What a version added: numbers of nodes and edges by type, files and their bytes; and what it deleted."""

    number: int
    nodes: Mapping[str, int]
    edges: Mapping[str, int]
    files: int
    bytes: int
    deleted_nodes: Mapping[str, int] = field(default_factory=dict)
    deleted_edges: Mapping[str, int] = field(default_factory=dict)


def list_versions(folder: str | Path) -> list[VersionFacts]:
    """Returns what each version of a partition added, without the partition itself. Raises `PartitionError` for one that is
    damaged, or whose number is not the next one."""
    versions, found = Versions(folder), list[VersionFacts]()
    for n in range(1, versions.number(LATEST) + 1):
        raw = read_header(versions.place(n))
        entries: dict[str, ArrayEntry] = raw["arrays"]
        edges = {name: entries[f"edges/{name}/ends.npy"].shape[1] for name in raw["edges"]}
        size = sum(entry.bytes for entry in entries.values())
        gone = [
            {name: entries[f"{place}/{name}/ids.npy"].shape[0] for name in raw["deleted"][kind]}
            for place, kind in (("deleted", "nodes"), ("deleted_edges", "edges"))
        ]
        found.append(VersionFacts(n, dict(raw["nodes"]), edges, len(entries), size, *gone))
    names = {path.parent.name for path in versions.root.glob(f"*/{DELTA}")}
    stray = sorted(int(name) for name in names if name.isdecimal() and int(name) > len(found))
    if stray:
        raise PartitionError(
            f"{versions.place(stray[0])}: version {len(found) + 1} is missing, which comes before it. Bring it back."
        )
    return found


def versions_text(versions: Sequence[VersionFacts]) -> str:
    """Returns how many versions there are, and what they added and deleted."""
    names = ("nodes", "edges", "deleted_nodes", "deleted_edges")
    nodes, edges, *gone = (sum(sum(getattr(each, name).values()) for each in versions) for name in names)
    without = f", less {counted(gone[0], 'node')} and {counted(gone[1], 'edge')}" if any(gone) else ""
    return f"{counted(len(versions), 'version')} after it, with {counted(nodes, 'node')} and {counted(edges, 'edge')}{without}"


# Rows of several versions.


def _joined(each: Sequence[Additions], manifest: Manifest) -> Additions:
    """Joins rows that were appended one after the other. Later values of an attribute of a node come in place of earlier ones."""
    nodes = {
        t: NewNodes(sum(one.count for one in some), _attrs_of(some))
        for t, some in _by_type(rows.nodes for rows in each).items()
    }
    edges = {
        e: NewEdges(_end_to_end([one.edge_index for one in some], axis=1), _attrs_of(some))
        for e, some in _by_type(rows.edges for rows in each).items()
    }
    deleted = Deleted()
    changes = defaultdict[tuple[NodeType, str], list[tuple[np.ndarray, np.ndarray]]](list)
    for rows in each:
        deleted = deleted.joined(rows.deleted)
        for t, changed in rows.changes():
            for name, values in changed.attrs.items():
                changes[t, name].append((changed.ids, values))
    counts = dict(zip(manifest.schema.node_types, manifest.num_nodes, strict=True))
    old = defaultdict[NodeType, list[ChangedNodes]](list)
    for (t, name), given in changes.items():
        all_ids, all_values = (np.concatenate(arrays) for arrays in zip(*given, strict=True))
        ids, at = np.unique(all_ids[::-1], return_index=True)  # the last value of each
        values, later = all_values[::-1][at], ids >= counts.get(t, 0)
        if later.any() and t in nodes and name in nodes[t].attrs:
            rows_of = np.array(nodes[t].attrs[name])
            rows_of[ids[later] - counts[t]] = values[later]
            nodes[t] = NewNodes(nodes[t].count, {**nodes[t].attrs, name: rows_of})
            ids, values = ids[~later], values[~later]
        if len(ids):
            old[t].append(ChangedNodes(ids, {name: values}))
    return Additions(nodes, edges, old, deleted)


def _by_type(each: Iterable[Mapping[_Key, _Value]]) -> dict[_Key, list[_Value]]:
    found = defaultdict[_Key, list[_Value]](list)
    for of_type in each:
        for key, some in of_type.items():
            found[key].append(some)
    return found


def _attrs_of(rows: Sequence[NewNodes] | Sequence[NewEdges]) -> dict[str, np.ndarray]:
    return {name: _end_to_end([each.attrs[name] for each in rows]) for name in rows[0].attrs}


def _end_to_end(arrays: Sequence[np.ndarray], axis: int = 0) -> np.ndarray:
    """Joins arrays; a single one stays as it is, such as a map of a file."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis)
