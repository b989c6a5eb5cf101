"""Checks every byte of a partition folder (opening a partition checks less, because this takes too long), and adds the hashes
that folders of earlier releases lack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from glt_lightning.base import PartitionError, Progress, counted, size
from glt_lightning.graph import (
    TIMES,
    ArrayEntry,
    Manifest,
    cum_name,
    edge_path,
    edge_split_path,
    gid_path,
    node_path,
    node_times_path,
    open_array,
    split_path,
    verify_array,
)
from glt_lightning.partition.arrays import hash_array
from glt_lightning.partition.folder import LOCK_TIMEOUT_S, exclusive
from glt_lightning.partition.versions import VersionFacts, Versions, list_versions, versions_text

_LEAST_TIME = -(2**63)
_CHUNK = 1 << 22  # entries checked at once: 32 MiB of 64-bit ids


@dataclass(frozen=True)
class Verified:
    """Counts of the verified folder: files and their bytes; nodes, edges and seeds in them; entries of rankings; and what its
    versions added."""

    files: int
    bytes: int
    nodes: int
    edges: int
    seeds: int
    hot: int
    versions: tuple[VersionFacts, ...] = ()

    def text(self, folder: Path, parts: str | None) -> str:
        """What was verified, as lines for people. parts: those of the host, as given; None: all."""
        what = "good" if parts is None else f"what a host with the parts {parts} needs is good"
        lines = [
            f"{folder}: {what}. Checked: size, dtype, shape and checksum of {counted(self.files, 'file')} ({size(self.bytes)}); "
            f"{counted(self.nodes, 'user id')}, each once; rows and sources of {counted(self.edges, 'edge')}; "
            f"{counted(self.seeds, 'seed')}; "
            f"{self.hot:,} entries of rankings of remote rows; the bounds of the parts."
        ]
        if self.versions:
            files, total = (sum(getattr(each, name) for each in self.versions) for name in ("files", "bytes"))
            lines.append(f"{folder}: {versions_text(self.versions)}: good, {counted(files, 'file')} ({size(total)}).")
        return "\n".join(lines)


def verify_partition(folder: Path, progress: Progress, parts: Sequence[int] | None = None) -> Verified:
    """Verifies all files, or the files of a host with some parts: these parts, and the files that all hosts need; and those of
    all versions.

    Raises `PartitionError` with the first damaged file and its damage, `OptionError` for parts that do not exist.
    """
    manifest = Manifest.load(folder)  # bounds, shapes and sums of counts are checked here
    files = manifest.files_of(parts)
    here = tuple(range(manifest.num_parts)) if parts is None else tuple(sorted(set(parts)))
    total = sum(entry.bytes for entry in files.values())
    with progress.phase("verifying files", total, "B") as done:
        for path, entry in files.items():
            verify_array(folder, path, entry)
            done(entry.bytes)
    check = _Check(folder, manifest, here, files)
    types = range(len(manifest.num_nodes))
    edges = sum(manifest.edges(p, r) for p in here for r in range(len(manifest.schema.edge_types)))
    with progress.phase("verifying the graph", edges, "edges") as done:
        check.nodes()
        check.edges(done)
        hot = check.rankings()
        check.splits()
        check.edge_splits()
    seeds = sum(split.count for split in manifest.splits.values())
    seeds += sum(split.count for split in manifest.edge_splits.values())
    nodes = sum(manifest.rows(p, t) for p in here for t in types)
    listed = list_versions(folder)
    with progress.phase("verifying versions", sum(each.bytes for each in listed), "B") as done:
        versions = tuple(Versions(folder).verify(done))
    return Verified(len(files), total, nodes, edges, seeds, hot, versions)


def hash_partition(folder: str | Path, progress: Progress, timeout_s: float = LOCK_TIMEOUT_S) -> int:
    """Adds the hashes of chunks to the manifest of a finished partition; returns the number of files that lacked them.

    Each file is compared with its checksum. Nothing else of the manifest changes, so processes that use the folder go on.
    timeout_s: the wait for another process that writes the folder.  Raises `PartitionError` for a file that is missing or
    damaged, or a folder that is not writable.
    """
    target = Path(folder)
    Manifest.load(target)  # before a lock is made beside something that is no partition
    with exclusive(target, timeout_s):
        manifest = Manifest.load(target)
        missing = {path: entry for path, entry in manifest.arrays.items() if entry.chunks is None}
        with progress.phase("hashing files", sum(entry.bytes for entry in missing.values()), "B") as done:
            for path, entry in missing.items():
                missing[path] = replace(entry, chunks=hash_array(target, path, entry))
                done(entry.bytes)
        if missing:
            replace(manifest, arrays={**manifest.arrays, **missing}).save(target)
    return len(missing)


class _Check:
    """Checks of the contents of files whose checksums match the manifest. parts, files: the existing ones."""

    def __init__(
        self, folder: Path, manifest: Manifest, parts: tuple[int, ...], files: Mapping[str, ArrayEntry]
    ) -> None:
        self._folder, self._manifest, self._parts, self._files = folder, manifest, parts, files

    def nodes(self) -> None:
        """Requires that the user ids of a node type, over all parts, are 0 to N - 1, each once, and its gids their inverse."""
        for t, count in enumerate(self._manifest.num_nodes):
            seen = np.zeros(count, dtype=bool)
            for p in self._parts:
                path = node_path(p, t, "n_id")
                for _, ids in self._chunks(path):
                    self._in_range(path, ids, 0, count, "user ids")
                    once = np.unique(ids)
                    if len(once) < len(ids) or seen[once].any():
                        self._damaged(path, "a user id occurs twice, in this part or in it and an earlier one")
                    seen[once] = True
            if gid_path(t) in self._manifest.arrays:
                self._gids(t)
            if node_times_path(t) in self._manifest.arrays:
                self._node_times(t)

    def _gids(self, node_type: int) -> None:
        path, first = gid_path(node_type), self._manifest.offsets[node_type]
        gids = self._open(path)
        for p in self._parts:
            begin = first + self._manifest.bounds[node_type][p]
            for row, ids in self._chunks(node_path(p, node_type, "n_id")):
                wrong = gids[ids] != np.arange(begin + row, begin + row + len(ids))
                if wrong.any():
                    user_id = ids[int(wrong.argmax())]
                    self._damaged(path, f"{gids[user_id]} is not the gid of the node with the user id {user_id}")

    def _node_times(self, node_type: int) -> None:
        manifest, path = self._manifest, node_times_path(node_type)
        times = self._open(path)
        assert manifest.row_order is not None
        for p in self._parts:
            attribute = node_path(p, node_type, manifest.row_order.time_attr)
            rows = self._open(attribute)
            for row, ids in self._chunks(node_path(p, node_type, "n_id")):
                own = rows[row : row + len(ids)].reshape(-1)
                wrong = times[ids] != own
                if wrong.any():
                    at = int(wrong.argmax())
                    self._damaged(path, f"the node {ids[at]} has the time {times[ids[at]]}, in {attribute} {own[at]}")

    def edges(self, done: Callable[[int], object]) -> None:
        """Requires that row pointers ascend from 0 to the number of edges, sources are nodes of the source type, and edge ids
        are not negative; prefix sums of weights ascend within each row, from at least 0, and times from any value."""
        schema = self._manifest.schema
        for r, source in enumerate(schema.source_types()):
            first, end = self._manifest.offsets[source : source + 2]
            for p in self._parts:
                self._row_pointers(edge_path(p, r, "indptr"), self._manifest.edges(p, r))
                path = edge_path(p, r, "indices")
                for _, ids in self._chunks(path):
                    self._in_range(path, ids, first, end, f"nodes of type {schema.node_types[source]!r}")
                    done(len(ids))
                path = edge_path(p, r, "edge_ids")
                for _, ids in self._chunks(path):
                    self._in_range(path, ids, 0, np.iinfo(ids.dtype).max, "edge ids")
                for name in self._manifest.weights(r):
                    self._ascends(edge_path(p, r, cum_name(name)), edge_path(p, r, "indptr"), 0, "prefix sums")
                if self._manifest.is_timed(r):
                    self._ascends(edge_path(p, r, TIMES), edge_path(p, r, "indptr"), _LEAST_TIME, "times")

    def _ascends(self, path: str, indptr_path: str, least: int, what: str) -> None:
        """Requires that the values of a row ascend, from at least ``least``."""
        indptr, last = self._open(indptr_path), least
        for begin, values in self._chunks(path):
            before = np.concatenate([[last], values[:-1]])
            first, end = np.searchsorted(indptr, (begin, begin + len(values)))
            before[indptr[first:end] - begin] = least  # a row begins
            falls = np.flatnonzero(values < before)
            if len(falls):
                self._damaged(path, f"{what} of a row descend at position {begin + falls[0]}")
            last = int(values[-1])

    def _row_pointers(self, path: str, edges: int) -> None:
        last = 0
        for begin, pointers in self._chunks(path):
            if begin == 0 and pointers[0] != 0:
                self._damaged(path, f"the first row pointer is {pointers[0]}, not 0")
            falls = np.flatnonzero(np.diff(pointers, prepend=last) < 0)
            if len(falls):
                self._damaged(path, f"row pointers descend at position {begin + falls[0]}")
            last = int(pointers[-1])
        if last != edges:
            self._damaged(path, f"the last row pointer is {last}, but the part has {counted(edges, 'edge')}")

    def splits(self) -> None:
        """Requires that seeds are nodes of the split's node type."""
        for name, split in self._manifest.splits.items():
            t = self._manifest.schema.node_index(split.node_type)
            first, end = self._manifest.offsets[t : t + 2]
            for _, gids in self._chunks(split_path(name)):
                self._in_range(split_path(name), gids, first, end, f"nodes of type {split.node_type!r}")

    def edge_splits(self) -> None:
        """Requires that edges to predict, and negatives, are nodes of the ends of their edge type."""
        schema = self._manifest.schema
        for key in self._manifest.edge_splits:
            index, split = key.split("/")
            ends = schema.edge_types[int(index)][::2]
            counts = [self._manifest.num_nodes[schema.node_index(t)] for t in ends]
            for name, least in (("edge", 0), ("negative_edges", 0), ("negatives", -1), ("source_negatives", 0)):
                path = edge_split_path(int(index), split, name)
                if path not in self._manifest.arrays:
                    continue
                array = self._open(path)
                of_one_end = {"negatives": counts[1], "source_negatives": counts[0]}
                sides = [(array, of_one_end[name])] if name in of_one_end else zip(array, counts, strict=True)
                for ids, count in sides:
                    self._in_range(path, ids.reshape(-1), least, count, "user ids")

    def rankings(self) -> int:
        """Requires that rankings name remote nodes, each once, hottest first. Returns their number of entries."""
        entries = 0
        for path in self._files:
            part, _, rest = path.partition("/hot/")
            if not rest:
                continue
            array = self._open(path)
            if path.endswith("/hotness.npy"):
                if len(array) > 1 and not (array[1:] <= array[:-1]).all():
                    self._damaged(path, "hotness is not in descending order")
                continue
            self._hot_nodes(path, array, int(part.removeprefix("part")), int(rest.split("/")[1]))
            entries += len(array)
        return entries

    def _hot_nodes(self, path: str, gids: np.ndarray, part: int, node_type: int) -> None:
        manifest = self._manifest
        first, end = manifest.offsets[node_type : node_type + 2]
        self._in_range(path, gids, first, end, f"nodes of type {manifest.schema.node_types[node_type]!r}")
        own = [first + bound for bound in manifest.bounds[node_type][part : part + 2]]
        if ((gids >= own[0]) & (gids < own[1])).any():
            self._damaged(path, "it lists nodes of its own part")
        if len(np.unique(gids)) < len(gids):
            self._damaged(path, "it lists a node twice")

    def _open(self, path: str) -> np.ndarray:
        return open_array(self._folder, path, self._manifest.arrays[path])

    def _chunks(self, path: str) -> Iterator[tuple[int, np.ndarray]]:
        """Yields (position of the first entry, entries) of an array, a chunk at a time."""
        array = self._open(path)
        for begin in range(0, len(array), _CHUNK):
            yield begin, array[begin : begin + _CHUNK]

    def _in_range(self, path: str, ids: np.ndarray, first: int, end: int, what: str) -> None:
        bad = (ids < first) | (ids >= end)
        if bad.any():
            self._damaged(path, f"{ids[int(bad.argmax())]} is out of range: {what} are {first} to {end - 1}")

    def _damaged(self, path: str, what: str) -> None:
        raise PartitionError(
            f"{self._folder / path}: damaged: {what}. Delete the partition folder and partition again."
        )
