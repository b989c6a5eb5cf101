"""Splits beside a graph: arrays of node ids, or masks over all nodes, under the names that people give them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from glt_lightning.base import DataError

SPLIT_KEYS = {"train_idx": "train", "valid_idx": "val", "val_idx": "val", "test_idx": "test"}
MASK_KEYS = {"train_mask": "train", "valid_mask": "val", "val_mask": "val", "test_mask": "test"}
_EDGE_ARRAYS = {"": "edge", "_label": "label", "_time": "time", "_negatives": "negatives"}
# train_edge, train_edge_label, ...: edges to predict -> (split, array of it)
EDGE_SPLIT_KEYS = {
    f"{given}_edge{suffix}": (split, name)
    for given, split in (("train", "train"), ("valid", "val"), ("val", "val"), ("test", "test"))
    for suffix, name in _EDGE_ARRAYS.items()
}


def split_keys(keys: Collection[str], further: Mapping[str, str] = MappingProxyType({})) -> dict[str, list[str]]:
    """Split -> which of the keys give it, ids before masks. further: other keys of ids -> split."""
    found: dict[str, list[str]] = {}
    for key, split in {**further, **SPLIT_KEYS, **MASK_KEYS}.items():
        if key in keys:
            found.setdefault(split, []).append(key)
    return found


def split_ids(file: str, keys: Sequence[str], read: Callable[[str], np.ndarray], count: int) -> np.ndarray:
    """Ids of a split's nodes. Raises `DataError` for what is no mask [count], and for arrays that say different things.

    keys: of `split_keys`.  file: what messages begin with.
    """
    each = [_mask_ids(f"{file}{key}", read(key), count) if key in MASK_KEYS else read(key) for key in keys]
    for key, ids in zip(keys[1:], each[1:], strict=True):
        if not np.array_equal(np.unique(_ids(ids)), np.unique(_ids(each[0]))):
            raise DataError(
                f"{file}{keys[0]} and {key} are two different definitions of one split. Remove one of them."
            )
    return each[0]


def _mask_ids(what: str, mask: np.ndarray, count: int) -> np.ndarray:
    """Of a mask [N], or of the first of S masks [N, S]."""
    first = mask[:, 0] if mask.ndim == 2 and mask.shape[1] else mask
    if first.shape != (count,) or not (first.dtype == np.bool_ or (first.dtype.kind in "iu" and _is_binary(first))):
        raise DataError(
            f"{what}: expected a mask [{count}] of booleans or of 0 and 1, got {mask.dtype} {list(mask.shape)}. Ids of nodes "
            f"are called {what.rpartition(' ')[2].replace('mask', 'idx')}."
        )
    return np.flatnonzero(first)


def _is_binary(mask: np.ndarray) -> bool:
    return bool(((mask == 0) | (mask == 1)).all())


def _ids(split: np.ndarray) -> np.ndarray:
    return np.flatnonzero(split) if split.dtype == np.bool_ else split


def edge_columns(what: str, edge_index: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """[2, S]: the edges in these columns. Raises `DataError` for columns that are not there."""
    count = edge_index.shape[1]
    if (
        columns.ndim != 1
        or columns.dtype.kind not in "iu"
        or (len(columns) and not 0 <= columns.min() <= columns.max() < count)
    ):
        raise DataError(f"{what}: expected columns of edge_index, 0 to {count - 1}.")
    return edge_index[:, columns]
