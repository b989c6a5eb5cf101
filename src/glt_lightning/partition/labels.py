"""Checks of labels that a model would train on without a word."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from glt_lightning.errors import DataError
from glt_lightning.ops.encoding import BFLOAT16, from_bfloat16
from glt_lightning.page import numbers
from glt_lightning.partition.build.normalize import row_chunks
from glt_lightning.partition.sources.base import GraphSource, Rows, classes_of, file_of, name_of
from glt_lightning.types import NodeType

_log = logging.getLogger(__name__)

# A model with so many outputs costs little, whatever the labels are.
_FEW_CLASSES = 1000
# Years as labels have about a hundred, one stray label of a million more. Parts of published graphs have all their classes.
_CLASSES_PER_LABEL = 10


def check_labels(source: GraphSource, node_type: NodeType, allow: Collection[str]) -> None:
    """Raises `DataError` for text, for NaN and infinite labels, and for far more classes than labels that occur."""
    y = source.node_attrs(node_type).get("y")
    if y is None:
        return
    what = f"{file_of(source)}y of node type {node_type!r}"
    if y.dtype.kind in "USO":
        raise DataError(
            f"{what}: the labels are text ({y.dtype}). Classes are integers from 0: names, y = numpy.unique(text, "
            "return_inverse=True) makes them. In tables of nodes labels may be text."
        )
    if y.dtype.kind == "f" or y.dtype == BFLOAT16:
        if "nonfinite_labels" not in allow:
            _require_finite(y, what)
    elif node_type == source.target_type and len(y.shape) == 1 and "sparse_labels" not in allow:
        _require_dense(y, what)


def _require_finite(y: Rows, what: str) -> None:
    for begin, chunk in _numbered(y):
        values = from_bfloat16(chunk.view("<u2")) if y.dtype == BFLOAT16 else chunk
        bad = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
        if bad.any():
            at = int(bad.argmax())
            kind = "a NaN" if np.isnan(values[at]).any() else "an infinite"
            raise DataError(
                f"{what}: node {begin + at} has {kind} label. Give nodes without a label an integer label of -1 and leave "
                "them out of the splits. Where the module knows what NaN means, allow it: partition.allow: "
                "[nonfinite_labels]."
            )


def _require_dense(y: Rows, what: str) -> None:
    classes = max((classes_of(chunk) or 0 for _, chunk in _numbered(y)), default=0)
    if classes <= _FEW_CLASSES:
        return
    occur = len(y)
    if classes <= _CLASSES_PER_LABEL * occur:
        seen = np.zeros(classes, bool)
        for _, chunk in _numbered(y):
            seen[chunk[chunk >= 0]] = True
        occur = int(np.count_nonzero(seen))
    if classes > _CLASSES_PER_LABEL * occur:
        node = next(begin + int(np.argmax(chunk)) for begin, chunk in _numbered(y) if chunk.max() == classes - 1)
        raise DataError(
            f"{what}: the largest label is {classes - 1:,} (node {node}), which makes {classes:,} classes, of which at most "
            f"{occur:,} occur. Renumber the labels (numpy.unique(y, return_inverse=True)), make them floats for a "
            "regression, or allow it: partition.allow: [sparse_labels]."
        )


def check_seed_labels(
    source: GraphSource, splits: Mapping[str, tuple[NodeType, np.ndarray]], allow: Collection[str]
) -> None:
    """Raises `DataError` for training nodes without a label. Of other splits it is said: they may be there to predict."""
    for name, (node_type, ids) in splits.items():
        y = source.node_attrs(node_type).get("y")
        if y is None or not len(ids) or len(y.shape) > 1 or y.dtype.kind not in "if":
            continue
        labels = y[ids]
        missing = np.isnan(labels) if y.dtype.kind == "f" else labels < 0
        if not missing.any():
            continue
        at = int(missing.argmax())
        count = int(np.count_nonzero(missing))
        have = "has" if count == 1 else "have"
        said = (
            f"{file_of(source)}splits: {name}: {count:,} of {numbers.counted(len(ids), 'node')} {have} no label "
            f"({_label_of(source, node_type, int(ids[at]), labels[at])})"
        )
        if name == "train" and "unlabelled_seeds" not in allow:
            raise DataError(f"{said}. Leave them out, or allow it: partition.allow: [unlabelled_seeds].")
        _log.warning("%s.", said)


def _label_of(source: GraphSource, node_type: NodeType, node: int, label: object) -> str:
    if hasattr(source, "user_ids"):  # a table, where the label of such a node is negative or an empty cell
        return f"node {name_of(source, node_type, node)} is one"
    return f"y of node {node} is {label}"


def _numbered(rows: Rows) -> Iterator[tuple[int, np.ndarray]]:
    """Chunks of the rows, and the number of the first of each."""
    begin = 0
    for chunk in row_chunks(rows):
        yield begin, chunk
        begin += len(chunk)
