"""Maps the user's ids of nodes to gids, by the ``n_id`` of a partition's parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from glt_lightning.base import PartitionError
from glt_lightning.graph.manifest import Manifest, node_path


def gids_by_user_id(manifest: Manifest, node_type: int, user_ids: Sequence[np.ndarray], folder: Path) -> np.ndarray:
    """int64 [N]: the gid of each node of a type by the user's id; ``user_ids`` holds each part's by row.

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
