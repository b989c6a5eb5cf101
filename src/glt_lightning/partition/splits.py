"""The splits to store: the seed nodes of training, validation and test."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from itertools import combinations

import numpy as np

from glt_lightning.base import DataError, NodeType, counted
from glt_lightning.graph import refuse_integer_mask
from glt_lightning.kernels import BFLOAT16, from_bfloat16
from glt_lightning.partition.build.degrees import known_nodes
from glt_lightning.partition.build.normalize import is_float, numbered_chunks
from glt_lightning.partition.sources.base import (
    GraphSource,
    Rows,
    classes_of,
    counted_by,
    file_of,
    lacking_rows,
    name_of,
)

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
    refuse_integer_mask(f"{file_of(source)}splits: {name}", ids, count)
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


# A model with this many outputs costs little, whatever the labels are.
_FEW_CLASSES = 1000


# Largest accepted ratio of classes (largest label + 1) to labels that occur. Years used as labels reach about a hundred, one
# stray label a million; in the published data sets every class occurs, which is a ratio of 1.
_CLASSES_PER_LABEL = 10


def check_labels(source: GraphSource, node_type: NodeType, allow: Collection[str]) -> None:
    """Raises `DataError` for labels that are text, NaN or infinite, or of far more classes than occur.

    allow: ``partition.allow``, which can permit the last two.
    """
    y = source.node_attrs(node_type).get("y")
    if y is None:
        return
    what = f"{file_of(source)}y of node type {node_type!r}"
    if y.dtype.kind in "USO":
        raise DataError(
            f"{what}: the labels are text ({y.dtype}), but classes are integers from 0. Convert them: names, y = "
            "numpy.unique(text, return_inverse=True). Only in tables of nodes may labels be text."
        )
    if is_float(y):
        if "nonfinite_labels" not in allow:
            _require_finite(y, what)
    elif node_type == source.target_type and len(y.shape) == 1 and "sparse_labels" not in allow:
        _require_dense(y, what)


def _require_finite(y: Rows, what: str) -> None:
    for ids, chunk in numbered_chunks(y):
        values = from_bfloat16(chunk.view("<u2")) if y.dtype == BFLOAT16 else chunk
        bad = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
        if bad.any():
            at = int(bad.argmax())
            kind = "NaN" if np.isnan(values[at]).any() else "infinite"
            raise DataError(
                f"{what}: the label of node {ids[at]} is {kind}. Give nodes without a label the integer label -1 and leave "
                "them out of the splits. If your module handles such labels, set partition.allow: [nonfinite_labels]."
            )


def _require_dense(y: Rows, what: str) -> None:
    classes = max((classes_of(chunk) or 0 for _, chunk in numbered_chunks(y)), default=0)
    if classes <= _FEW_CLASSES:
        return
    occur = len(y)
    if classes <= _CLASSES_PER_LABEL * occur:
        seen = np.zeros(classes, bool)
        for _, chunk in numbered_chunks(y):
            seen[chunk[chunk >= 0]] = True
        occur = int(np.count_nonzero(seen))
    if classes > _CLASSES_PER_LABEL * occur:
        node = next(ids[chunk.argmax()] for ids, chunk in numbered_chunks(y) if chunk.max() == classes - 1)
        raise DataError(
            f"{what}: the largest label is {classes - 1:,} (node {node}), which makes {classes:,} classes, of which at most "
            f"{occur:,} occur. Renumber the labels (numpy.unique(y, return_inverse=True)), convert them to floats for a "
            "regression, or set partition.allow: [sparse_labels]."
        )


def check_seed_labels(
    source: GraphSource, splits: Mapping[str, tuple[NodeType, np.ndarray]], allow: Collection[str]
) -> None:
    """Raises `DataError` for training nodes without a label, unless ``allow`` (``partition.allow``) permits them. Warns of such
    nodes in other splits, where they may be meant for prediction."""
    for name, (node_type, ids) in splits.items():
        y = source.node_attrs(node_type).get("y")
        if y is None or not len(ids) or len(y.shape) > 1 or y.dtype.kind not in "if":
            continue
        labels = y[ids]
        missing = np.isnan(labels) if y.dtype.kind == "f" else labels < 0
        if not missing.any():
            continue
        at = int(missing.argmax())
        missing_of = f"{np.count_nonzero(missing):,} of {counted(len(ids), 'node')}"
        example = _label_of(source, node_type, int(ids[at]), labels[at])
        finding = f"{file_of(source)}splits: {name}: no label for {missing_of} ({example})"
        if name == "train" and "unlabelled_seeds" not in allow:
            raise DataError(f"{finding}. Remove them from the split, or set partition.allow: [unlabelled_seeds].")
        _log.warning("%s. Ignore this if they are there to be predicted.", finding)


def _label_of(source: GraphSource, node_type: NodeType, node: int, label: object) -> str:
    if hasattr(source, "user_ids"):  # a table, where the label of such a node is negative or an empty cell
        return f"for example node {name_of(source, node_type, node)}"
    return f"y of node {node} is {label}"
