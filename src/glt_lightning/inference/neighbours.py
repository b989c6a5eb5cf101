"""Nearest neighbours among embeddings, by faiss, which is an optional package."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from glt_lightning.base import DataError, OptionError, one_of

METRICS = ("cosine", "dot", "l2")
INDEXES = ("exact", "hnsw")
_HNSW_LINKS, _HNSW_SEARCH = 32, 128  # of each row, and rows that a search looks at, unless more are asked for
_NO_FAISS = (
    "neighbours: the package faiss is needed, which is not installed. pip install 'glt-lightning[neighbours]', or "
    "pip install faiss-cpu."
)


def nearest(
    rows: np.ndarray, queries: np.ndarray, k: int, *, metric: str = "cosine", index: str = "exact"
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the nearest of rows [N, D] to each of queries [Q, D]. Returns their positions int64 [Q, k], nearest first, and
    float32 [Q, k], the values of the metric.

    metric: ``cosine`` or ``dot``, of which greater is nearer, or ``l2``, the Euclidean distance.  index: ``exact`` compares all
    rows; ``hnsw`` searches a graph of them, which is faster for many queries and misses a few rows.
    Raises `OptionError` for another metric or index, and if faiss is not installed; `DataError` for values that are no numbers.
    """
    one_of("metric", metric, METRICS)
    one_of("index", index, INDEXES)
    if type(k) is not int or k < 1:
        raise OptionError(f"k: expected an integer >= 1, got {k!r}.")
    faiss = _faiss()
    rows, queries = (_prepared(each, metric) for each in (rows, queries))
    made: Any
    kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
    if index == "exact":
        made = faiss.IndexFlat(rows.shape[1], kind)
    else:
        made = faiss.IndexHNSWFlat(rows.shape[1], _HNSW_LINKS, kind)
        made.hnsw.efSearch = max(_HNSW_SEARCH, 2 * k)
    made.add(rows)
    near, positions = made.search(queries, min(k, len(rows)))
    return positions, np.sqrt(np.maximum(near, 0)) if metric == "l2" else near


def approximate_index(rows: np.ndarray, least: int) -> Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]:
    """Builds an HNSW index of rows [N, D] by inner products. Returns a search: (queries [Q, D], k) to positions [Q, k], -1 where
    it finds none, and values. least: rows that a search looks at. Raises as `nearest`."""
    faiss = _faiss()
    rows = _prepared(rows, "dot")
    made: Any = faiss.IndexHNSWFlat(rows.shape[1], _HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
    made.add(rows)

    def search(queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        made.hnsw.efSearch = max(_HNSW_SEARCH, least, 2 * k)
        values, positions = made.search(_prepared(queries, "dot"), k)
        return positions, values

    return search


def _prepared(rows: np.ndarray, metric: str) -> np.ndarray:
    rows = np.ascontiguousarray(rows, dtype=np.float32)
    if rows.ndim != 2 or not rows.shape[1] or not np.isfinite(rows).all():
        raise DataError(
            f"neighbours: expected finite embeddings [N, D], got {list(rows.shape)} or values that are not."
        )
    if metric == "cosine":
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return rows


def _faiss() -> Any:
    try:
        return importlib.import_module("faiss")
    except ImportError as error:
        raise OptionError(_NO_FAISS) from error
