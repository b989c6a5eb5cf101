"""The lists of a partition folder that say which rows of others a part's batches want, hottest first."""

from __future__ import annotations

import re

import numpy as np

from glt_lightning.data.arrays import open_array
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.data.manifest import Manifest, hot_path

_LISTS = re.compile(r"part0/hot/(\w+)/\d+/gids\.npy")


def stored_policies(manifest: Manifest) -> tuple[str, ...]:
    """The policies of which the folder has lists, in the order of the manifest."""
    listed = {found[1] for path in manifest.arrays if (found := _LISTS.fullmatch(path))}
    return tuple(policy for policy in manifest.hotness if policy in listed)


def hot_list(partition: LocalPartition, policy: str, part: int, node_type: int) -> tuple[np.ndarray, np.ndarray]:
    """Gids [K] of a type and their hotness, float32 [K]; empty where the folder has no such list."""
    found = []
    for name, dtype in (("gids", np.int64), ("hotness", np.float32)):
        path = hot_path(part, policy, node_type, name)
        entry = partition.manifest.arrays.get(path)
        found.append(np.empty(0, dtype) if entry is None else open_array(partition.directory, path, entry))
    return found[0], found[1]
