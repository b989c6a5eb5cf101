"""Times of edges, by which the entries of a row are ordered: those of the edges, or of their sources."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from glt_lightning.base import DataError, EdgeType, NodeType, OptionError, edge_type_str
from glt_lightning.graph import TIMES, RowOrder
from glt_lightning.partition.build.edge_types import StoredEdgeType
from glt_lightning.partition.build.normalize import numbered_chunks
from glt_lightning.partition.edge_splits.kept import user_columns
from glt_lightning.partition.sources.base import EdgeList, GraphSource, Rows, file_of

_NONE = np.iinfo(np.int64).min  # what numpy makes of NaT
_REMEDY = "Give every one a time, or leave out those without."


@dataclass(frozen=True)
class _Times:
    """One attribute of integers. what: the attribute, as errors name it, with its file."""

    what: str
    rows: Rows

    def converted(self, given: np.ndarray, user_ids: np.ndarray) -> np.ndarray:
        """int64 [n], of rows [n] or [n, 1]. Raises `DataError`, naming the row by its user id, for one without a time."""
        given = given.reshape(-1)
        times = given.astype(np.int64)
        bad = (times == _NONE) | ((given > 0) & (times < 0)) if given.dtype.kind == "u" else times == _NONE
        if bad.any():
            at = int(bad.argmax())
            what = "which is what numpy makes of NaT" if given.dtype.kind == "i" else "which does not fit int64"
            raise DataError(f"{self.what}: row {user_ids[at]} has the time {given[at]}, {what}. {_REMEDY}")
        return times

    def chunks(self, edges: EdgeList | None = None) -> Iterator[np.ndarray]:
        """All of them, a chunk at a time. edges: those that they are the times of; None: of nodes."""
        for ids, given in numbered_chunks(self.rows):
            yield self.converted(given, ids if edges is None else user_columns(edges, ids))


@dataclass(frozen=True)
class EdgeTimes:
    """The times of the edges of one stored type: ``of_nodes`` [N], by the user id of the source; else those of the columns."""

    edges: _Times | None
    of_nodes: np.ndarray | None

    def __call__(self, columns: np.ndarray, user_columns: np.ndarray, sources: np.ndarray) -> np.ndarray:
        """int64 [E]. columns: of the kept edges; user_columns: of the user's; sources: user ids."""
        if self.of_nodes is not None:
            times: np.ndarray = self.of_nodes[sources]
            return times
        assert self.edges is not None
        return self.edges.converted(self.edges.rows[columns], user_columns)


class TimeAttr:
    """``partition.time_attr``: the types that have it, of the nodes or of the edges of a source.

    Raises `OptionError` for a name that no type has, that nodes and edges have, or that is not one integer for each.
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
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise OptionError(
                f"partition.time_attr: no node type and no edge type has an attribute {name!r}; attributes: "
                f"{', '.join(known) or 'none'}.{hint}"
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
        """Whether rows of a stored type are in the order of times."""
        return stored_type.edge_type[0] in self._nodes or stored_type.source in self._edges

    def times(self, stored_type: StoredEdgeType) -> EdgeTimes | None:
        """Times of a stored type, those of its source nodes in memory; None if it has none."""
        if (of_nodes := self.of_nodes(stored_type.edge_type[0])) is not None:
            return EdgeTimes(None, np.concatenate([np.empty(0, np.int64), *of_nodes]))
        of_edges = self._edges.get(stored_type.source)
        return None if of_edges is None else EdgeTimes(of_edges, None)

    def of_nodes(self, node_type: NodeType) -> Iterator[np.ndarray] | None:
        """The times of the nodes of a type, by the user's id, a chunk at a time; None if it has none."""
        return self._nodes[node_type].chunks() if node_type in self._nodes else None

    def check_values(self, edges: Mapping[EdgeType, EdgeList]) -> None:
        """Raises `DataError` for one without a time. Reads all of them."""
        chunks = [of_nodes.chunks() for of_nodes in self._nodes.values()]
        chunks += [of_edges.chunks(edges[e]) for e, of_edges in self._edges.items()]
        for each in chunks:
            for _ in each:
                pass


def by_time(times: np.ndarray, indptr: np.ndarray, sources: np.ndarray, merge: bool) -> tuple[np.ndarray, np.ndarray]:
    """(order int64 [kept], row pointers int64 [rows + 1]): entries of rows by (time, the order they had).

    times, sources: [E]; indptr: int64 [rows + 1] from 0.  merge: keep one of the entries of a row with equal time and source,
    the first.
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


def _one(what: str, name: str, attrs: Mapping[str, Rows]) -> _Times:
    rows = attrs[name]
    if rows.dtype.kind not in "iu" or tuple(rows.shape[1:]) not in ((), (1,)):
        raise OptionError(
            f"partition.time_attr: {what} is {rows.dtype} {list(rows.shape)}; a time is one integer, such as seconds or "
            "microseconds since 1970. Convert it to int64 (floats round, so that two times may become one)."
        )
    return _Times(what, rows)
