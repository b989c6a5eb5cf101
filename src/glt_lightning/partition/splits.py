"""The splits to store: the seed nodes of training, validation and test."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from itertools import combinations

import numpy as np

from glt_lightning.base import DataError, NodeType, counted
from glt_lightning.graph import INTEGER_MASK, is_integer_mask
from glt_lightning.partition.build.degrees import known_nodes
from glt_lightning.partition.sources.base import GraphSource, counted_by, file_of, lacking_rows, name_of

_log = logging.getLogger(__name__)


def resolve_splits(source: GraphSource, given: Mapping[str, object] | None) -> dict[str, tuple[NodeType, np.ndarray]]:
    """The splits to store, name -> (node type, int64 user ids [S]): ``given``, or if None, those of the source.

    given: name -> ids or boolean mask of the target type, or (node type, ids or mask).

    Raises `DataError` for unusable names, unknown node types, and ids out of range.
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
            f"splits: {name}: the node type is ambiguous, since the graph has {', '.join(node_types)}. Give (node type, ids)."
        )
    return target, np.asarray(value)


def _split_ids(name: str, node_type: NodeType, ids: np.ndarray, source: GraphSource) -> np.ndarray:
    if not name.isidentifier() or not name.isascii():
        raise DataError(f"splits: {name!r} is not usable as the name of a split. Use letters, digits and underscores.")
    if node_type not in source.schema.node_types:
        raise DataError(
            f"splits: {name}: unknown node type {node_type!r}. The graph has {', '.join(source.schema.node_types)}."
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
        if (short := lacking_rows(source, node_type, int(ids[at]))) is not None:
            raise DataError(f"{file_of(source)}{short}")
        raise DataError(
            f"{file_of(source)}splits: {name}: position {at} has node {ids[at]}, but "
            f"{known_nodes(node_type, count)}{counted_by(source, node_type)}."
        )
    return ids.astype(np.int64)


def check_overlap(
    splits: Mapping[str, tuple[NodeType, np.ndarray]], allow: Collection[str], source: GraphSource | None = None
) -> None:
    """Raises `DataError` for training nodes that are also in ``val`` or ``test``, unless ``allow`` (``partition.allow``)
    permits them. Warns of nodes that are in both ``val`` and ``test``.

    splits: node numbers >= 0; user ids if ``source`` is given, which the message then names.
    """
    for first, second in combinations([name for name in ("train", "val", "test") if name in splits], 2):
        (first_type, ids), (second_type, later) = splits[first], splits[second]
        if first_type != second_type or not len(ids) or not len(later):
            continue
        mask = np.zeros(max(ids.max(), later.max()) + 1, bool)
        mask[ids] = True
        both = later[mask[later]]
        if not len(both):
            continue
        finding = f"splits: {first} and {second} share {counted(len(np.unique(both)), 'node')}"
        if source is not None:
            finding = f"{file_of(source)}{finding} (for example node {name_of(source, first_type, int(both[0]))})"
        if first == "train" and "overlapping_splits" not in allow:
            raise DataError(
                f"{finding}. The model would be evaluated on nodes it was trained on. Remove them from one of the two splits, "
                "or set partition.allow: [overlapping_splits]."
            )
        _log.warning("%s. Metrics of the two splits are then not independent.", finding)
