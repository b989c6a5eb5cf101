"""Weights of edges, as integer prefix sums within each row: what a weighted sampler draws from.

Integers, so that every device and every partitioning draws the same edges. A boolean mask is a weight of 0 or 1.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from glt_lightning.base import DataError, EdgeType, OptionError, edge_type_str
from glt_lightning.kernels import BFLOAT16, from_bfloat16
from glt_lightning.partition.sources.base import GraphSource, Rows, file_of

_MOST = 2**31 - 1  # of a row: draws are 32 bits wide
_LONGEST = 2**29  # entries of a row: each takes up to two units of the resolution of floats away


@dataclass(frozen=True)
class WeightSums:
    """How the prefix sums of one edge attribute are made. what: the attribute, as errors name it, with its file."""

    what: str

    def require_weights(self, weights: np.ndarray, ids: np.ndarray) -> None:
        """Raises `DataError`, naming the id of the edge, for a weight that is negative, NaN or infinite. weights: [n] or [n, 1]
        as the user gives them; ids: int [n], of the edges."""
        values = _as_numbers(weights)
        bad = values < 0 if values.dtype.kind in "iu" else ~((values >= 0) & (values < np.inf))
        if bad.any():
            at = int(bad.argmax())
            raise DataError(
                f"{self.what}: edge {ids[at]} has the weight {values[at]}. Weights are finite numbers >= 0, and an edge of "
                "weight 0 is never sampled. Correct the data, or drop this attribute from partition.weights."
            )

    def prefix_sums(self, weights: np.ndarray, indptr: np.ndarray, ids: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """int32 [E]: the sum of the weights of a row up to and with each entry.

        weights: [E] or [E, 1] in canonical order.  indptr: int64 [rows + 1] from 0.  ids: int [E], of the edges.
        nodes: int [rows], user ids of the rows' nodes.

        Integers and booleans are taken as they are. Floats are scaled, so that a row's sum is close to 2^31, by the row's sum in
        canonical order, which no partitioning changes; a positive weight stays positive.

        Raises `DataError`, naming the edge or the node, for a weight or a row that cannot be sampled from.
        """
        self.require_weights(weights, ids)
        values, lengths = _as_numbers(weights), np.diff(indptr)
        self._require_rows(
            lengths < _LONGEST, nodes, lengths, f"edges lead to it. At most {_LONGEST - 1} can be weighted"
        )
        row = np.repeat(np.arange(len(lengths)), lengths)
        if values.dtype.kind in "iu":
            heaviest = np.minimum(values, values.dtype.type(min(_MOST + 1, np.iinfo(values.dtype).max)))
            units = heaviest.astype(np.int64)
        else:
            sums = np.bincount(row, values, len(lengths))  # in the order of the entries, one by one
            self._require_rows(
                np.isfinite(sums), nodes, sums, "is the sum of its weights. Divide all weights by a constant"
            )
            with np.errstate(invalid="ignore", divide="ignore"):
                units = np.floor(values / sums[row] * (_MOST - 2 * lengths)[row])
            units = np.where(values > 0, np.maximum(units, 1), 0).astype(np.int64)
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(units)])
        totals = ends[indptr[1:]] - ends[indptr[:-1]]
        rule = f"is the sum of its weights, or more. As integers it can be {_MOST}: divide them, or give floats, which are scaled"
        self._require_rows(totals <= _MOST, nodes, totals, rule)
        within: np.ndarray = ends[1:] - ends[indptr[:-1]][row]
        return within.astype(np.int32)

    def _require_rows(self, good: np.ndarray, nodes: np.ndarray, found: np.ndarray, rule: str) -> None:
        if not good.all():
            at = int(good.argmin())
            raise DataError(f"{self.what}: node {nodes[at]}: {found[at]} {rule}.")


def weights_by_type(source: GraphSource, names: Collection[str]) -> dict[EdgeType, dict[str, WeightSums]]:
    """For each edge type of a source those attributes of ``names`` (``partition.weights``) that it has.

    Raises `OptionError` for a name that no edge type has, or for an attribute that is not one number for each edge.
    """
    attrs = {e: source.edge_attrs(e) for e in source.schema.edge_types}
    known = sorted({name for each in attrs.values() for name in each})
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise OptionError(
                f"partition.weights: no edge type has an attribute {name!r}; attributes of edges: {', '.join(known) or 'none'}."
                f"{hint}"
            )
    return {
        e: {name: _one(source, e, name, each[name]) for name in sorted(set(names)) if name in each}
        for e, each in attrs.items()
    }


def _one(source: GraphSource, edge_type: EdgeType, name: str, rows: Rows) -> WeightSums:
    what = f"{name} of edge type {edge_type_str(edge_type)}"
    if tuple(rows.shape[1:]) not in ((), (1,)):
        raise OptionError(
            f"partition.weights: {what} is {rows.dtype} {list(rows.shape)}; a weight is one number for each edge. Store it as "
            "an attribute of its own."
        )
    return WeightSums(file_of(source) + what)


def _as_numbers(weights: np.ndarray) -> np.ndarray:
    """[n] integers, or float64."""
    weights = weights.reshape(len(weights))
    if weights.dtype == BFLOAT16:
        weights = from_bfloat16(weights.view("<u2"))
    if weights.dtype.kind == "b":
        return weights.astype(np.int64)
    return weights if weights.dtype.kind in "iu" else weights.astype(np.float64)
