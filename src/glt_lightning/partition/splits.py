"""The splits to store: which nodes are seeds of training, validation and test."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from itertools import combinations

import numpy as np

from glt_lightning.data.graph import INTEGER_MASK, is_integer_mask
from glt_lightning.errors import DataError
from glt_lightning.page import numbers
from glt_lightning.partition.sources.base import GraphSource, counted_by, file_of, name_of
from glt_lightning.types import NodeType

_log = logging.getLogger(__name__)


def resolve_splits(source: GraphSource, given: Mapping[str, object] | None) -> dict[str, tuple[NodeType, np.ndarray]]:
    """The splits to store: the user's own where given, else those of the data; ids are checked.

    given: name -> ids or boolean mask of the target type, or (node type, ids or mask).
    """
    splits = source.splits if given is None else {name: _typed(name, value, source) for name, value in given.items()}
    return {name: (t, _split_ids(name, t, ids, source)) for name, (t, ids) in sorted(splits.items())}


def _typed(name: str, value: object, source: GraphSource) -> tuple[NodeType, np.ndarray]:
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        return value[0], np.asarray(value[1])
    node_types = source.schema.node_types
    target = node_types[0] if len(node_types) == 1 else source.target_type
    if target is None:
        raise DataError(
            f"splits: {name}: which node type it is for is not clear; give (node type, ids), types: {node_types}."
        )
    return target, np.asarray(value)


def _split_ids(name: str, node_type: NodeType, ids: np.ndarray, source: GraphSource) -> np.ndarray:
    if not name.isidentifier() or not name.isascii():
        raise DataError(f"splits: {name!r} cannot be used as a name; use letters, digits and underscores.")
    if node_type not in source.schema.node_types:
        raise DataError(
            f"splits: {name}: unknown node type {node_type!r}; known: {', '.join(source.schema.node_types)}."
        )
    count = source.num_nodes[node_type]
    if ids.dtype == np.bool_ and ids.shape == (count,):
        ids = np.flatnonzero(ids)
    if is_integer_mask(ids, count):
        raise DataError(f"{file_of(source)}splits: {name}: {INTEGER_MASK}")
    if ids.size == 0:
        ids = np.zeros(0, np.int64)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise DataError(
            f"splits: {name}: expected node ids [S] or a mask [{count}], got {ids.dtype} {list(ids.shape)}."
        )
    bad = (ids < 0) | (ids >= count)
    if bad.any():
        at = int(bad.argmax())
        raise DataError(
            f"{file_of(source)}splits: {name}: position {at} holds {ids[at]}, but node type {node_type!r} has nodes "
            f"0..{count - 1}{counted_by(source, node_type)}."
        )
    return ids.astype(np.int64)


def check_overlap(
    splits: Mapping[str, tuple[NodeType, np.ndarray]], allow: Collection[str], source: GraphSource | None = None
) -> None:
    """Raises `DataError` for training nodes that evaluation sees again, unless ``partition.allow`` has it; says so of
    nodes that are in ``val`` and in ``test``.

    splits: numbers >= 0 of nodes, the user's if the ``source`` is given that they are of.
    """
    for first, second in combinations([name for name in ("train", "val", "test") if name in splits], 2):
        (first_type, ids), (second_type, others) = splits[first], splits[second]
        if first_type != second_type or not len(ids) or not len(others):
            continue
        mask = np.zeros(max(ids.max(), others.max()) + 1, bool)
        mask[ids] = True
        both = others[mask[others]]
        if not len(both):
            continue
        count = len(np.unique(both))
        said = f"splits: {numbers.counted(count, 'node')} of {first} {'is' if count == 1 else 'are'} also in {second}"
        if source is not None:
            said = f"{file_of(source)}{said} (node {name_of(source, first_type, int(both[0]))} is one)"
        if first == "train" and "overlapping_splits" not in allow:
            raise DataError(
                f"{said}. A model is then judged by nodes that it was trained on. Leave them out of one of the two, or "
                "allow it: partition.allow: [overlapping_splits]."
            )
        _log.warning("%s.", said)
