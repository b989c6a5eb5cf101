"""Times of edges, by which the entries of a row are ordered: those of the edges, or of their sources."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from glt_lightning.base import DataError, EdgeType, NodeType, OptionError, edge_type_str
from glt_lightning.graph import TIMES, RowOrder
from glt_lightning.kernels import BFLOAT16, from_bfloat16
from glt_lightning.partition.build.edge_types import StoredEdgeType
from glt_lightning.partition.build.normalize import numbered_chunks
from glt_lightning.partition.sources.base import GraphSource, Rows, file_of, near

_NONE = np.iinfo(np.int64).min  # what numpy makes of NaT
_REMEDY = "Give every one a time, or leave out those without."


@dataclass(frozen=True)
class Times:
    """One attribute of integers with times. what: the attribute in errors, with its file."""

    what: str
    rows: Rows

    def converted(self, given: np.ndarray, user_ids: np.ndarray) -> np.ndarray:
        """Returns int64 [n], of rows [n] or [n, 1]. Raises `DataError`, naming the row by its user id, for one without a time."""
        given = given.reshape(-1)
        times = given.astype(np.int64)
        bad = (times == _NONE) | ((given > 0) & (times < 0)) if given.dtype.kind == "u" else times == _NONE
        if bad.any():
            at = int(bad.argmax())
            what = "which is what numpy makes of NaT" if given.dtype.kind == "i" else "which does not fit int64"
            raise DataError(f"{self.what}: row {user_ids[at]} has the time {given[at]}, {what}. {_REMEDY}")
        return times

    def chunks(self) -> Iterator[np.ndarray]:
        """Yields all times, of nodes, a chunk at a time."""
        for ids, given in numbered_chunks(self.rows):
            yield self.converted(given, ids)


class TimeAttr:
    """The attribute ``partition.time_attr``, and the node types or edge types of a source that have it.

    Raises `OptionError` for a name that no type has, that both nodes and edges have, or that is not one integer for each.
    """

    def __init__(self, source: GraphSource, name: str) -> None:
        schema, file = source.schema, file_of(source)
        self.name = name
        nodes = {t: source.node_attrs(t) for t in schema.node_types}
        edges = {e: source.edge_attrs(e) for e in schema.edge_types}
        self._nodes = {t: _one(f"{file}{name} of node type {t!r}", name, a) for t, a in nodes.items() if name in a}
        self._edges = {
            e: _one(f"{file}{name} of edge type {edge_type_str(e)}", name, attrs)
            for e, attrs in edges.items()
            if name in attrs
        }
        if self._nodes and self._edges:
            raise OptionError(
                f"partition.time_attr: node type {next(iter(self._nodes))!r} and edge type "
                f"{edge_type_str(next(iter(self._edges)))} both have an attribute {name!r}; times are those of nodes or those "
                "of edges. Rename one of the attributes."
            )
        if not self._nodes and not self._edges:
            known = sorted({n for attrs in (*nodes.values(), *edges.values()) for n in attrs})
            raise OptionError(
                f"sampling.time_attr, partition.time_attr: no node type and no edge type has an attribute {name!r}; attributes: "
                f"{', '.join(known) or 'none'}.{near(name, known)}"
            )
        for e, attrs in edges.items():
            if TIMES in attrs:
                raise OptionError(
                    f"partition.time_attr: the attribute {TIMES!r} of edge type {edge_type_str(e)} has the name of the file of "
                    "times. Rename the attribute."
                )

    @property
    def of(self) -> Literal["nodes", "edges"]:
        return "nodes" if self._nodes else "edges"

    def row_order(self, stored_types: Sequence[StoredEdgeType]) -> RowOrder:
        return RowOrder(self.name, self.of, tuple(r for r, each in enumerate(stored_types) if self.orders(each)))

    def orders(self, stored_type: StoredEdgeType) -> bool:
        """Tells whether rows of a stored type are in the order of times."""
        return stored_type.edge_type[0] in self._nodes or stored_type.source in self._edges

    def of_edges(
        self, own: StoredEdgeType, columns: np.ndarray, user_columns: np.ndarray, sources: np.ndarray
    ) -> np.ndarray:
        """Returns the times of edges of a stored type that has some, int64 [E]. columns: their columns among the stored edges.
        user_columns: among the user's edges, for errors.  sources: user ids."""
        if (times := self._nodes.get(own.edge_type[0])) is not None:
            return times.converted(times.rows[sources], sources)
        times = self._edges[own.source]
        return times.converted(times.rows[columns], user_columns)

    def of_nodes(self, node_type: NodeType) -> Iterator[np.ndarray] | None:
        """Returns an iterator over the times of the nodes of a type, by user id, a chunk at a time; None if it has none."""
        return self._nodes[node_type].chunks() if node_type in self._nodes else None

    def own_times(self, of: NodeType | EdgeType, name: str) -> Times | None:
        """Returns an attribute of a node type or an edge type, if it is the one by which rows are ordered."""
        if name != self.name:
            return None
        return self._edges.get(of) if isinstance(of, tuple) else self._nodes.get(of)


def by_time(times: np.ndarray, indptr: np.ndarray, sources: np.ndarray, merge: bool) -> tuple[np.ndarray, np.ndarray]:
    """Sorts the entries of rows by (time, previous order). Returns (order int64 [kept], row pointers int64 [rows + 1]).

    times, sources: [E]; indptr: int64 [rows + 1] from 0.  merge: of the entries of a row with equal time and source, keep
    only the first.
    """
    row = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    order = np.lexsort((times, row))  # stable
    if not merge or not len(order):
        return order, indptr
    same = np.ones(len(order), bool)
    same[0] = False
    for values in (row, times, sources):
        same[1:] &= values[order][1:] == values[order][:-1]
    order = order[~same]
    return order, np.concatenate([[0], np.cumsum(np.bincount(row[order], minlength=len(indptr) - 1))])


def _one(what: str, name: str, attrs: Mapping[str, Rows]) -> Times:
    rows = attrs[name]
    if rows.dtype.kind not in "iu" or tuple(rows.shape[1:]) not in ((), (1,)):
        raise OptionError(
            f"partition.time_attr: {what} is {rows.dtype} {list(rows.shape)}; a time is one integer, such as seconds or "
            "microseconds since 1970. Convert it to int64 (floats round, so that two times may become one)."
        )
    return Times(what, rows)


# Weights of edges, as integer prefix sums within each row: what a weighted sampler draws from.


_MOST = 2**31 - 1  # of a row: draws are 32 bits wide
_LONGEST = 2**29  # entries of a row: each takes up to two units of the resolution of floats away


@dataclass(frozen=True)
class WeightSums:
    """Makes the prefix sums of one edge attribute. what: the attribute in errors, with its file."""

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
        """Returns int32 [E]: the sum of the weights of a row up to and including each entry.

        weights: [E] or [E, 1] in canonical order.  indptr: int64 [rows + 1] from 0.  ids: int [E], of the edges.
        nodes: int [rows], user ids of the rows' nodes.

        Integers and booleans are used unchanged. Floats are scaled, so that a row's sum is close to 2^31. The scale depends on
        the row's sum in canonical order, which is the same for every number of parts, so that draws are, too; a positive
        weight stays positive.

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
    """Returns for each edge type of a source its attributes among ``names`` (``partition.weights``).

    Raises `OptionError` for a name that no edge type has, or for an attribute that is not one number for each edge.
    """
    attrs = {e: source.edge_attrs(e) for e in source.schema.edge_types}
    known = sorted({name for each in attrs.values() for name in each})
    for name in names:
        if name not in known:
            raise OptionError(
                f"sampling.weight_attr, partition.weights: no edge type has an attribute {name!r}; attributes of edges: "
                f"{', '.join(known) or 'none'}.{near(name, known)}"
            )
    return {
        e: {name: _weights_one(source, e, name, each[name]) for name in sorted(set(names)) if name in each}
        for e, each in attrs.items()
    }


def _weights_one(source: GraphSource, edge_type: EdgeType, name: str, rows: Rows) -> WeightSums:
    what = f"{name} of edge type {edge_type_str(edge_type)}"
    if tuple(rows.shape[1:]) not in ((), (1,)):
        raise OptionError(
            f"partition.weights: {what} is {rows.dtype} {list(rows.shape)}; a weight is one number for each edge. Store it as "
            "an attribute of its own."
        )
    return WeightSums(file_of(source) + what)


def _as_numbers(weights: np.ndarray) -> np.ndarray:
    """Returns weights as [n] integers, or as float64."""
    weights = weights.reshape(len(weights))
    if weights.dtype == BFLOAT16:
        weights = from_bfloat16(weights.view("<u2"))
    if weights.dtype.kind == "b":
        return weights.astype(np.int64)
    return weights if weights.dtype.kind in "iu" else weights.astype(np.float64)
