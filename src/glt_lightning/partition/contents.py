"""The contents of a finished partition: nodes, edges, seeds and bytes of its parts, and the options it was made with."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from glt_lightning.base import edge_type_str
from glt_lightning.graph import TIMES, LocalPartition, Manifest, edge_path, open_array
from glt_lightning.partition.versions import VersionFacts, list_versions, versions_text

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
        >>> contents = Contents.of(LocalPartition.open("parts"))
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

    @classmethod
    def of(cls, partition: LocalPartition, done: Callable[[int], object] = lambda n: None) -> Contents:
        """Counts nodes, edges, seeds and bytes of a partition; reads the sources of all edges once.

        Args:
            partition: The partition, with all its parts mapped.
            done: Called with numbers of edges that were read, for a progress bar.

        Example:
            >>> contents = Contents.of(LocalPartition.open("parts"))
            >>> [(counts.name, counts.total) for counts in contents.counts]
            [('node', 10), ('node__to__node', 20), ('test', 2), ('train', 6), ('val', 2)]
        """
        manifest = partition.manifest
        return cls(
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

    @property
    def versions_text(self) -> str:
        """The number of versions, and what they added and deleted."""
        return versions_text(self.versions)


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
        seeds = partition.split(name)
        parts = partition.manifest.part_of(seeds.node_type, seeds.gids)
        counts = np.bincount(parts, minlength=partition.manifest.num_parts)
        found.append(Counts(kind="seeds", name=name, parts=tuple(counts.tolist())))
    return found


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
