"""The contents of the parts of a partition, and the options it was made with."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from glt_lightning.base import counted, edge_type_str
from glt_lightning.graph import (
    TIMES,
    LocalPartition,
    Manifest,
    edge_path,
    node_path,
    open_array,
    rank_stored,
    rows_of_share,
)
from glt_lightning.kernels import row_bytes
from glt_lightning.partition import VersionFacts, list_versions
from glt_lightning.sampling import node_names

_CHUNK = 1 << 22  # sources looked at together


_MADE_BY_HASH = {"fingerprint", "package_version"}  # says nothing to people


_HOT = re.compile(r"part(\d+)/(?:hot/\w+/\d+/\w+|nodes/\d+/hotness)\.npy")


_FILE = re.compile(r"part(\d+)/(nodes|edges)/(\d+)/(\w+)(\.cum)?\.npy")


_TOPOLOGY = {"indptr", "indices", "n_id"}


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Counts per part of the nodes, edges or seeds of one type.

    kind: nodes, edges or seeds.  name: node type, edge type or split.  parts: P counts.
    """

    kind: str
    name: str
    parts: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.parts)

    @property
    def balance(self) -> float | None:
        """Largest count of a part divided by the mean; 1 is perfectly balanced. None if there are none."""
        return max(self.parts) * len(self.parts) / self.total if self.total else None


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Cut edges of a type (``name``): those whose source belongs to another part than their destination.

    parts: P counts of cut edges.  edges: P counts of all edges.
    """

    name: str
    parts: tuple[int, ...]
    edges: tuple[int, ...]

    @property
    def total(self) -> float | None:
        """Share of all edges of the type, 0 to 1."""
        return sum(self.parts) / sum(self.edges) if sum(self.edges) else None

    @property
    def shares(self) -> tuple[float | None, ...]:
        """The share of cut edges of each part, 0 to 1; None for a part without edges."""
        return tuple(cut / n if n else None for cut, n in zip(self.parts, self.edges, strict=True))


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of files that a host with one part maps.

    topology: row pointers, sources, prefix sums of weights, times and user ids.  edge_attrs: attributes and ids of edges.
    hot_lists: hotness of all rows, with rankings.  splits: splits of all parts, and the gids of all nodes.
    """

    topology: int = 0
    node_attrs: int = 0
    edge_attrs: int = 0
    hot_lists: int = 0
    splits: int = 0

    @property
    def total(self) -> int:
        return self.topology + self.node_attrs + self.edge_attrs + self.hot_lists + self.splits


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The contents of a partition: all of a report that needs no sampling.

    Attributes:
        folder: Folder of the partition.
        num_parts: Number of parts P.
        made_by: How the partition was made, from its manifest.
        hotness: How the hotness of the folder was computed, by policy.
        package_version: Version that made the partition.
        counts: Nodes, edges and seeds of each part, in the order of the types.
        cuts: Edges between parts, in the order of the edge types.
        memory: Bytes of the mapped files, per part.
        versions: What versions added to the partition; nothing of it is in the other numbers.

    Example:
        >>> contents = collect_contents(LocalPartition.open("parts"))
        >>> contents.num_parts, round(contents.edge_cut, 2)  # six edges of ten come from the other part
        (2, 0.6)
    """

    folder: str
    num_parts: int
    made_by: Mapping[str, Any]
    hotness: Mapping[str, Any]
    package_version: str
    counts: tuple[Counts, ...]
    cuts: tuple[Cut, ...]
    memory: tuple[Memory, ...]
    versions: tuple[VersionFacts, ...] = ()

    @property
    def edge_cut(self) -> float | None:
        """Share of all stored edges whose source belongs to another part."""
        edges = sum(sum(cut.edges) for cut in self.cuts)
        return sum(sum(cut.parts) for cut in self.cuts) / edges if edges else None


def collect_contents(partition: LocalPartition, done: Callable[[int], object] = lambda n: None) -> Contents:
    """Counts nodes, edges, seeds and bytes of a partition; reads the sources of all edges once.

    Args:
        partition: The partition, with all its parts mapped.
        done: Called with numbers of edges that were read, for a progress bar.

    Example:
        >>> contents = collect_contents(LocalPartition.open("parts"))
        >>> [(counts.name, counts.total) for counts in contents.counts]
        [('node', 10), ('node__to__node', 20), ('test', 2), ('train', 6), ('val', 2)]
    """
    manifest = partition.manifest
    return Contents(
        folder=str(partition.directory),
        num_parts=manifest.num_parts,
        made_by={k: v for k, v in manifest.made_by.items() if k not in _MADE_BY_HASH and v is not None},
        hotness=dict(manifest.hotness),
        package_version=str(manifest.made_by.get("package_version", "unknown")),
        counts=(*_nodes(manifest), *_edges(manifest), *_seeds(partition)),
        cuts=tuple(_cut(partition, r, done) for r in range(len(manifest.schema.edge_types))),
        memory=mapped_memory(manifest),
        versions=tuple(list_versions(partition.directory)),
    )


def versions_text(versions: Sequence[VersionFacts]) -> str:
    """Returns how many versions there are, and what they added and deleted."""
    names = ("nodes", "edges", "deleted_nodes", "deleted_edges")
    nodes, edges, *gone = (sum(sum(getattr(each, name).values()) for each in versions) for name in names)
    without = f", less {counted(gone[0], 'node')} and {counted(gone[1], 'edge')}" if any(gone) else ""
    return f"{counted(len(versions), 'version')} after it, with {counted(nodes, 'node')} and {counted(edges, 'edge')}{without}"


def _nodes(manifest: Manifest) -> list[Counts]:
    sizes = [tuple(end - begin for begin, end in pairwise(bounds)) for bounds in manifest.bounds]
    return [Counts(kind="nodes", name=t, parts=n) for t, n in zip(manifest.schema.node_types, sizes, strict=True)]


def _edges(manifest: Manifest) -> list[Counts]:
    parts = range(manifest.num_parts)
    return [
        Counts(kind="edges", name=edge_type_str(e), parts=tuple(manifest.edges(p, r) for p in parts))
        for r, e in enumerate(manifest.schema.edge_types)
    ]


def _seeds(partition: LocalPartition) -> list[Counts]:
    found = []
    for name in partition.manifest.splits:
        parts = part_of(partition.manifest, *_split(partition, name))
        counts = np.bincount(parts, minlength=partition.manifest.num_parts)
        found.append(Counts(kind="seeds", name=name, parts=tuple(counts.tolist())))
    return found


def _split(partition: LocalPartition, name: str) -> tuple[int, np.ndarray]:
    seeds = partition.split(name)
    return seeds.node_type, seeds.gids


def part_of(manifest: Manifest, node_type: int, gids: np.ndarray) -> np.ndarray:
    """Returns int64 [n]: the parts that own nodes of a type."""
    bounds = np.asarray(manifest.bounds[node_type][1:-1], dtype=np.int64) + manifest.offsets[node_type]
    return np.searchsorted(bounds, gids, side="right")


def _cut(partition: LocalPartition, edge_type: int, done: Callable[[int], object]) -> Cut:
    manifest = partition.manifest
    source = manifest.schema.source_types()[edge_type]
    offset, bounds = manifest.offsets[source], manifest.bounds[source]
    cut = []
    for p, (begin, end) in enumerate(pairwise(bounds)):
        path, remote = edge_path(p, edge_type, "indices"), 0
        indices = open_array(partition.directory, path, manifest.arrays[path])
        for first in range(0, len(indices), _CHUNK):
            some = indices[first : first + _CHUNK]
            remote += int(np.count_nonzero((some < offset + begin) | (some >= offset + end)))
            done(len(some))
        cut.append(remote)
    edges = tuple(manifest.edges(p, edge_type) for p in range(manifest.num_parts))
    return Cut(name=edge_type_str(manifest.schema.edge_types[edge_type]), parts=tuple(cut), edges=edges)


def mapped_memory(manifest: Manifest) -> tuple[Memory, ...]:
    """Bytes of the mapped files of each part."""
    sums = [dict.fromkeys(("topology", "node_attrs", "edge_attrs", "hot_lists"), 0) for _ in range(manifest.num_parts)]
    splits = 0
    for path, entry in manifest.arrays.items():
        if (hot := _HOT.fullmatch(path)) is not None:
            sums[int(hot[1])]["hot_lists"] += entry.bytes
        elif (file := _FILE.fullmatch(path)) is not None:
            times = file[2] == "edges" and file[4] == TIMES and manifest.is_timed(int(file[3]))
            what = "topology" if file[4] in _TOPOLOGY or file[5] or times else f"{file[2].removesuffix('s')}_attrs"
            sums[int(file[1])][what] += entry.bytes
        else:
            splits += entry.bytes
    return tuple(Memory(**each, splits=splits) for each in sums)


# The remote rows that a cache of a part would hold, hottest first.


PRESAMPLED = "presampled"


class RemoteRanking:
    """The remote nodes to cache for one part, per node type, hottest first.

    lists: T arrays of gids [K_t].
    """

    def __init__(self, manifest: Manifest, lists: Sequence[np.ndarray]) -> None:
        self._manifest, self._lists = manifest, lists
        self._none = np.iinfo(np.int32).max
        self._rank = []  # position of each node of a type in the list
        for n, gids, first in zip(manifest.num_nodes, lists, manifest.offsets, strict=False):
            rank = np.full(n, self._none, dtype=np.int32)
            rank[np.asarray(gids) - first] = np.arange(len(gids), dtype=np.int32)
            self._rank.append(rank)

    def cached(self, node_type: int, gids: np.ndarray, ratio: float) -> np.ndarray:
        """Returns bool [n]: whether nodes of a type are in a cache with this share of the nodes of each type."""
        ranks = self._rank[node_type][gids - self._manifest.offsets[node_type]]
        found: np.ndarray = ranks < self.sizes(ratio)[node_type]
        return found

    def sizes(self, ratio: float) -> list[int]:
        """Number of nodes of each type in a cache of this share; fewer if the list is shorter."""
        return [
            rows_of_share(ratio, n, len(gids)) for n, gids in zip(self._manifest.num_nodes, self._lists, strict=True)
        ]


def stored_lists(partition: LocalPartition, policy: str, parts: tuple[int, ...]) -> RemoteRanking:
    """Reads the rankings that the partitioner has written, for a host with ``parts``."""
    ranked = rank_stored(LocalPartition(partition.directory, partition.manifest, parts), policy)
    assert ranked is not None, "the folder has lists of this policy"
    return RemoteRanking(partition.manifest, [each.gids for each in ranked])


def presampled_lists(
    manifest: Manifest, parts: Sequence[int], counts: Sequence[np.ndarray], ratio: float
) -> RemoteRanking:
    """Ranks the nodes of other parts than ``parts`` by how many batches they were in, then as their parts rank them.

    counts: T arrays int32 [N_t], batches by number in the type.  ratio: the lists are long enough for such a cache.
    """
    lists = []
    for seen, bounds, offset in zip(counts, manifest.bounds, manifest.offsets, strict=False):
        nodes = np.arange(len(seen), dtype=np.int64)
        row = nodes - np.repeat(bounds[:-1], np.diff(bounds))  # the hottest of a part come first
        remote = np.delete(nodes, np.concatenate([nodes[bounds[p] : bounds[p + 1]] for p in parts]))
        hottest = np.lexsort((row[remote], -seen[remote]))[: rows_of_share(ratio, len(seen), len(remote))]
        lists.append(remote[hottest] + offset)
    return RemoteRanking(manifest, lists)


def cached_widths(manifest: Manifest) -> list[int]:
    """Bytes of a node's row in a remote cache, by type: its id and attributes."""
    widths = []
    for t, names in enumerate(node_names(manifest)):
        entries = [manifest.arrays[node_path(0, t, name)] for name in ("n_id", *names)]
        widths.append(sum(row_bytes(entry.dtype, entry.shape[1:]) for entry in entries))
    return widths
