"""The interface of a graph for loaders: seeds and manifest, for graphs in this process and in others."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Protocol

import numpy as np

from glt_lightning.base import DataError, GraphSchema, PartitionError, edge_type_str
from glt_lightning.graph.manifest import Manifest, node_path


@dataclass(frozen=True)
class Seeds:
    """Seed nodes of one node type.

    Attributes:
        node_type: Index of the type in the schema.
        gids: int64 [S], in the user's order; positions in it are the ``input_id`` of batches.

    Example:
        >>> partition = LocalPartition.open("parts")
        >>> seeds = partition.split("train")
        >>> seeds.node_type, len(seeds.gids)
        (0, 6)
    """

    node_type: int
    gids: np.ndarray


class AnyGraph(Protocol):
    """A partitioned graph: mapped in this process (`LocalPartition`), or served by other processes."""

    @property
    def manifest(self) -> Manifest: ...

    @property
    def schema(self) -> GraphSchema: ...

    def split(self, name: str) -> Seeds:
        """The seeds of a split. Raises `DataError` naming the splits there are."""

    def edge_split(self, edge_type: int, name: str) -> EdgeSplit:
        """The edges to predict of an edge type, by its index. Raises `DataError` naming the splits there are."""

    def seeds(self, node_type: int, user_ids: np.ndarray | None = None) -> Seeds:
        """Seeds by the user's ids, int [S]; None: every node of the type that is not deleted. Raises `DataError` for an id out of
        range, and for a deleted node."""

    def deleted(self, node_type: int) -> np.ndarray:
        """The user ids of the nodes of a type that are deleted, int64 [n], ascending: they are no seeds and no negatives, and
        have no edges."""


def seeds_hash(user_ids: np.ndarray) -> str:
    """Returns a hash of the user's ids of seeds, int [S], in their order: the same for every partition of the graph."""
    return hashlib.blake2b(np.ascontiguousarray(user_ids, "<i8"), digest_size=16).hexdigest()


def choose_seeds(
    schema: GraphSchema, node_type: int, gids: np.ndarray, user_ids: np.ndarray | None, deleted: np.ndarray
) -> Seeds:
    """Seeds by the user's ids, from `graph.gids_by_user_id`. deleted: as of `AnyGraph`. Raises `DataError` for an id out of
    range, and for a deleted node."""
    if user_ids is None:
        return Seeds(node_type, np.delete(gids, deleted) if len(deleted) else gids)
    name = schema.node_types[node_type]
    return Seeds(node_type, gids[existing_ids(checked_ids("seeds", user_ids, len(gids), name), deleted, name)])


def among(ids: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    """Returns bool [n]: whether each id is one of others, which ascend. A few ids cost no look at all of these."""
    if not len(ascending):
        return np.zeros(len(ids), bool)
    found: np.ndarray = ascending[np.minimum(np.searchsorted(ascending, ids), len(ascending) - 1)] == ids
    return found


def existing_ids(ids: np.ndarray, deleted: np.ndarray, node_type: str, what: str = "seeds") -> np.ndarray:
    """Returns user ids int [S]. Raises `DataError`, beginning with ``what``, if one of them is deleted. deleted: ascending."""
    if len(bad := np.flatnonzero(among(ids, deleted))):
        raise DataError(f"{what}: {ids[bad[0]]} at position {bad[0]} is a node of type {node_type!r} that is deleted.")
    return ids


def checked_ids(name: str, given: np.ndarray, count: int, node_type: str) -> np.ndarray:
    """Returns user ids int [S] of seeds, given as such or as a mask bool [count]. name: the ids in a `DataError`."""
    ids = np.asarray(given)
    if ids.dtype == np.bool_:
        if ids.shape != (count,):
            raise DataError(
                f"{name}: expected a mask [{count}] over the nodes of type {node_type!r}, got {list(ids.shape)}."
            )
        ids = np.flatnonzero(ids)
    refuse_integer_mask(name, ids, count)
    if ids.ndim != 1 or (len(ids) and not np.issubdtype(ids.dtype, np.integer)):
        raise DataError(f"{name}: expected a one-dimensional array of node ids, got {ids.dtype} {list(ids.shape)}.")
    bad = np.flatnonzero((ids < 0) | (ids >= count))
    if len(bad):
        raise DataError(
            f"{name}: {ids[bad[0]]} at position {bad[0]} is not a node of type {node_type!r}, whose ids are 0 to "
            f"{count - 1}."
        )
    return ids


def refuse_integer_mask(name: str, ids: np.ndarray, count: int) -> None:
    """Raises `DataError` if ids [S] of ``count`` nodes are a mask of integers, which would be read as nodes 0 and 1 again and
    again."""
    if ids.dtype.kind in "iu" and ids.shape == (count,) and count > 2 and ((ids == 0) | (ids == 1)).all():
        raise DataError(
            f"{name}: 0 or 1 for each node is a mask, and masks are boolean: give mask.astype(bool). Integers are ids of nodes."
        )


def no_split(manifest: Manifest, name: str) -> DataError:
    """Makes the error for a split that the graph does not have."""
    known = ", ".join(sorted(manifest.splits)) or "none"
    return DataError(f"split {name!r}: the data set has no such split. It has: {known}.")


def no_edge_split(manifest: Manifest, edge_type: int, name: str) -> DataError:
    """Makes the error for edges to predict that the partition does not store."""
    names = [edge_type_str(e) for e in manifest.schema.edge_types]
    keys = [key.split("/") for key in sorted(manifest.edge_splits)]
    known = [f"{split} of {names[int(index)]}" for index, split in keys]
    return DataError(
        f"edge_splits: the partition has no split {name!r} of {names[edge_type]}. It has: {', '.join(known) or 'none'}."
    )


# Maps the user's ids of nodes to gids, by the ``n_id`` of a partition's parts.


def gids_by_user_id(manifest: Manifest, node_type: int, user_ids: Sequence[np.ndarray], folder: Path) -> np.ndarray:
    """Returns int64 [N]: the gid of each node of a type by the user's id. user_ids: for each part the user ids by row.

    Raises `PartitionError`, as `check_user_ids`, unless each id occurs once. The check costs little: 20 M nodes take 385 ms
    with it and 359 ms without.
    """
    gids = np.full(manifest.num_nodes[node_type], -1, dtype=np.int64)
    for p, part_ids in enumerate(user_ids):
        begin = manifest.offsets[node_type] + manifest.bounds[node_type][p]
        _check_range(manifest, node_type, p, part_ids, folder)
        gids[part_ids] = np.arange(begin, begin + len(part_ids))
    if (
        len(gids) and gids.min() < 0
    ):  # there are as many ids as nodes, so one that is missing means that another occurs twice
        _raise_repeated(manifest, node_type, user_ids, folder)
    return gids


def check_user_ids(manifest: Manifest, node_type: int, user_ids: Sequence[np.ndarray | None], folder: Path) -> None:
    """Raises `PartitionError`, with the file and the first bad position, unless each user id of a type, 0 to N - 1,
    occurs once. user_ids: None for parts that are not mapped; then ids may be missing, but not occur twice."""
    seen = np.zeros(manifest.num_nodes[node_type], dtype=bool)
    total = 0
    for p, part_ids in enumerate(user_ids):
        if part_ids is not None:
            _check_range(manifest, node_type, p, part_ids, folder)
            seen[part_ids] = True
            total += len(part_ids)
    if np.count_nonzero(seen) < total:
        _raise_repeated(manifest, node_type, user_ids, folder)


def _check_range(manifest: Manifest, node_type: int, part: int, ids: np.ndarray, folder: Path) -> None:
    count, rows = manifest.num_nodes[node_type], manifest.rows(part, node_type)
    if ids.shape != (rows,):
        raise _damaged(folder, part, node_type, f"it has {list(ids.shape)} user ids, the manifest says [{rows}]")
    if len(ids) and (ids.min() < 0 or ids.max() >= count):
        at = int(((ids < 0) | (ids >= count)).argmax())
        reason = f"position {at} holds the user id {ids[at]}; those of this node type are 0 to {count - 1}"
        raise _damaged(folder, part, node_type, reason)


def _raise_repeated(manifest: Manifest, node_type: int, user_ids: Sequence[np.ndarray | None], folder: Path) -> None:
    seen = np.zeros(manifest.num_nodes[node_type], dtype=bool)
    for p, part_ids in enumerate(user_ids):
        if part_ids is None:
            continue
        again = np.ones(len(part_ids), dtype=bool)
        again[np.unique(part_ids, return_index=True)[1]] = False
        again |= seen[part_ids]
        if again.any():
            at = int(again.argmax())
            reason = (
                f"position {at} holds the user id {part_ids[at]}, which occurs before, in this part or an earlier one"
            )
            raise _damaged(folder, p, node_type, reason)
        seen[part_ids] = True


def _damaged(folder: Path, part: int, node_type: int, reason: str) -> PartitionError:
    return PartitionError(
        f"{folder / node_path(part, node_type, 'n_id')}: damaged: {reason}. Delete the partition folder and partition again."
    )


# The edges of a split of a link task, as a partition stores them.


@dataclass(frozen=True, kw_only=True)
class EdgeSplit:
    """Edges to predict, of one edge type and one split. All ids are the user's.

    Attributes:
        edge: int64 [2, S], sources and destinations; positions in it are the ``input_id`` of batches.
        label: Numbers [S, ...], or None.
        time: int64 [S], or None.
        negatives: int64 [S, K], destinations that make no edge with the source of each edge; -1: draw one. None: not given.
        source_negatives: int64 [S, K], sources that make no edge with the destination of each edge; beside ``negatives``. None:
            not given.
        negative_edges: int64 [2, M], pairs without an edge. None: not given.
        attr, codes: float32 [S, D] and int64 [S, C], ``edge_attr`` and ``edge_codes`` of edges with labels. None: not given.

    Example:
        >>> split = EdgeSplit(edge=np.array([[0, 1], [1, 2]]))
        >>> len(split), sorted(split.arrays)
        (2, ['edge'])
    """

    edge: np.ndarray
    label: np.ndarray | None = None
    time: np.ndarray | None = None
    negatives: np.ndarray | None = None
    source_negatives: np.ndarray | None = None
    negative_edges: np.ndarray | None = None
    attr: np.ndarray | None = None
    codes: np.ndarray | None = None

    def __len__(self) -> int:
        return int(self.edge.shape[1])

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The given arrays, by name."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: array for name, array in found.items() if array is not None}

    @property
    def digest(self) -> str:
        """A hash of the arrays: the same for every partition of the graph."""
        digest = hashlib.blake2b(digest_size=16)
        for name, array in self.arrays.items():
            digest.update(f"{name}:{array.dtype.str}:{array.shape}:".encode())
            for piece in (array[:1], array[1:]):  # of the two rows of edges in a file each lies whole
                digest.update(np.ascontiguousarray(piece))
        return digest.hexdigest()


EDGE_SPLIT_ARRAYS = tuple(each.name for each in fields(EdgeSplit))


# Edge attribute of a graph that also stores the edges of validation: which edges carry messages in training.
IN_TRAINING = "in_training"
