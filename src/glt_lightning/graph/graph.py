"""The interface of a graph for loaders: seeds and manifest, wherever the graph is stored."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from glt_lightning.base import DataError, GraphSchema, edge_type_str
from glt_lightning.graph.edge_split import EdgeSplit
from glt_lightning.graph.manifest import Manifest


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
        """Seeds by the user's ids, int [S]; None: every node of the type. Raises `DataError` for an id out of range."""


def seeds_hash(user_ids: np.ndarray) -> str:
    """Hash of the user's ids of seeds, int [S], in their order: the same for every partition of the graph."""
    return hashlib.blake2b(np.ascontiguousarray(user_ids, "<i8"), digest_size=16).hexdigest()


def choose_seeds(schema: GraphSchema, node_type: int, gids: np.ndarray, user_ids: np.ndarray | None) -> Seeds:
    """Seeds by the user's ids, from `data.user_ids.gids_by_user_id`. Raises `DataError` for an id out of range."""
    if user_ids is None:
        return Seeds(node_type, gids)
    return Seeds(node_type, gids[checked_ids("seeds", user_ids, len(gids), schema.node_types[node_type])])


def checked_ids(name: str, given: np.ndarray, count: int, node_type: str) -> np.ndarray:
    """User ids int [S] of seeds: those given, or those of a mask bool [count]. ``name``: what a `DataError` calls them."""
    ids = np.asarray(given)
    if ids.dtype == np.bool_:
        if ids.shape != (count,):
            raise DataError(
                f"{name}: expected a mask [{count}] over the nodes of type {node_type!r}, got {list(ids.shape)}."
            )
        ids = np.flatnonzero(ids)
    if is_integer_mask(ids, count):
        raise DataError(f"{name}: {INTEGER_MASK}")
    if ids.ndim != 1 or (len(ids) and not np.issubdtype(ids.dtype, np.integer)):
        raise DataError(f"{name}: expected a one-dimensional array of node ids, got {ids.dtype} {list(ids.shape)}.")
    bad = np.flatnonzero((ids < 0) | (ids >= count))
    if len(bad):
        raise DataError(
            f"{name}: {ids[bad[0]]} at position {bad[0]} is not a node of type {node_type!r}, whose ids are 0 to "
            f"{count - 1}."
        )
    return ids


INTEGER_MASK = (
    "0 or 1 for each node is a mask, and masks are boolean: give mask.astype(bool). Integers are ids of nodes."
)


def is_integer_mask(ids: np.ndarray, count: int) -> bool:
    """Whether ids [S] of ``count`` nodes are a mask of integers, which would be read as nodes 0 and 1 again and again."""
    return bool(ids.dtype.kind in "iu" and ids.shape == (count,) and count > 2 and ((ids == 0) | (ids == 1)).all())


def no_split(manifest: Manifest, name: str) -> DataError:
    """The error for a split that the graph does not have."""
    known = ", ".join(sorted(manifest.splits)) or "none"
    return DataError(f"split {name!r}: the data set has no such split. It has: {known}.")


def no_edge_split(manifest: Manifest, edge_type: int, name: str) -> DataError:
    """The error for edges to predict that the partition does not store."""
    names = [edge_type_str(e) for e in manifest.schema.edge_types]
    keys = [key.split("/") for key in sorted(manifest.edge_splits)]
    known = [f"{split} of {names[int(index)]}" for index, split in keys]
    return DataError(
        f"edge_splits: the partition has no split {name!r} of {names[edge_type]}. It has: {', '.join(known) or 'none'}."
    )
