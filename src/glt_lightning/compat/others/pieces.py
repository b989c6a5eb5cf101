"""The parts of another system's partition, put together: what each part has of nodes and edges, by id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from glt_lightning.base import DataError, EdgeType, GraphSchema, NodeType, edge_type_str
from glt_lightning.partition import (
    ArraySource,
    Assigner,
    GraphToPartition,
    array_fingerprint,
    take_splits,
)

ENDS = "edge_index"


@dataclass(frozen=True)
class PartRows:
    """Some nodes or edges of a type: int64 ids [n], and arrays [n, ...] by name; of edges also ``edge_index`` [n, 2]."""

    ids: np.ndarray
    arrays: Mapping[str, np.ndarray]

    def __post_init__(self) -> None:
        for name, array in self.arrays.items():
            rows = len(array) if array.ndim else -1
            if self.ids.ndim != 1 or self.ids.dtype.kind not in "iu" or rows != len(self.ids):
                raise DataError(
                    f"{name}: expected an id for each of {max(0, rows)} rows, got {self.ids.dtype} {list(self.ids.shape)}."
                )


@dataclass
class ForeignPartition:
    """What another system's folder has.

    parts: node type -> part of each node, by id.  nodes: node type -> pieces of its attributes.  edges: edge type -> pieces with
    the ends.  more: edge type -> pieces of attributes alone.  homogeneous: without names of types.
    """

    name: str
    num_parts: int
    homogeneous: bool
    parts: dict[NodeType, np.ndarray] = field(default_factory=dict)
    nodes: dict[NodeType, list[PartRows]] = field(default_factory=dict)
    edges: dict[EdgeType, list[PartRows]] = field(default_factory=dict)
    more: dict[EdgeType, list[PartRows]] = field(default_factory=dict)

    def source(self, labels: Mapping[NodeType, np.ndarray], *, turned: bool = False) -> ArraySource:
        """The whole graph. labels: by node type, in place of its own.  turned: sources and destinations change places, and the
        relation is called ``rev_``.... Raises `DataError` where ids are missing or twice."""
        for t, parts in self.parts.items():
            if parts.ndim != 1 or parts.dtype.kind not in "iu":
                raise DataError(
                    f"{self.name}: nodes of {t!r}: expected the number of a part for each node, found {parts.dtype} "
                    f"{list(parts.shape)}."
                )
        counts = {t: len(parts) for t, parts in self.parts.items()}
        node = {t: _whole(self.nodes.get(t, []), count, f"{self.name}: nodes of {t!r}") for t, count in counts.items()}
        for t, values in labels.items():
            if t not in counts:
                raise DataError(f"labels: there is no node type {t!r}; the partition has {', '.join(counts)}.")
            node[t]["y"] = values
        ends, edge = {}, {}
        for e, pieces in self.edges.items():
            where, count = f"{self.name}: edges of {edge_type_str(e)}", sum(len(piece.ids) for piece in pieces)
            found = _whole(pieces, count, where, every=True)
            stored = _turned(e) if turned and not self.homogeneous else e
            ends[stored] = found.pop(ENDS, np.empty((0, 2), np.int64)).T[:: -1 if turned else 1]
            edge[stored] = found | _whole(self.more.get(e, []), count, where)
        return NamedArrays(self.name, counts, ends, node, edge, self.homogeneous).source()


class GivenParts(Assigner):
    """Leaves every node in its part. parts: node type -> integers [N]."""

    def __init__(self, kind: str, parts: Mapping[NodeType, np.ndarray]) -> None:
        self.kind, self.parts = kind, parts

    @property
    def made_by(self) -> dict[str, str]:
        return {"algorithm": f"parts of {self.kind}"}

    def assign(self, graph: GraphToPartition) -> Mapping[NodeType, np.ndarray]:
        return self.parts


def _turned(edge_type: EdgeType) -> EdgeType:
    source, relation, destination = edge_type
    return destination, f"rev_{relation}", source


def _whole(pieces: Sequence[PartRows], count: int, where: str, every: bool = False) -> dict[str, np.ndarray]:
    """Arrays [count, ...] of all ids. every: also without any array, each id has to be there once."""
    if not pieces or not (every or any(piece.arrays for piece in pieces)):
        return {}
    ids = np.concatenate([piece.ids.astype(np.int64, copy=False) for piece in pieces])
    fits = ids.min(initial=0) >= 0 and ids.max(initial=0) < max(1, count)
    times = np.bincount(ids, minlength=count) if fits else np.zeros(0)
    if len(times) != count or (times != 1).any():
        wrong = np.flatnonzero(times != 1)
        which = f"id {wrong[0]} is there {int(times[wrong[0]])} times" if len(wrong) else "there are other ids"
        raise DataError(f"{where}: expected the ids 0 to {count - 1}, each in one part; {which}.")
    names = {frozenset(piece.arrays) for piece in pieces if len(piece.ids)}
    if len(names) > 1:
        raise DataError(f"{where}: the parts have different data: {', '.join(str(sorted(each)) for each in names)}.")
    found = {}
    for name in next(iter(names), ()):
        arrays = [piece.arrays[name] for piece in pieces if len(piece.ids)]
        joined = np.concatenate(arrays)
        found[name] = np.empty_like(joined)
        found[name][ids] = joined
    return found


# Arrays by name, as other systems keep them with a type, as a `GraphSource`.


Attributes = Mapping[str, np.ndarray]


# Names of features and labels in the data sets of others, best first
_NAMES = {"x": ("x", "feat", "features"), "y": ("y", "label", "labels")}


@dataclass(frozen=True)
class NamedArrays:
    """A graph as others hold it.

    num_nodes: node type -> N.  edges: edge type -> int64 [2, E], row 0 the sources.  node: node type -> name -> [N, ...], of
    which masks (``train_mask``) and ids (``train_idx``) are splits.  edge: edge type -> name -> [E, ...].
    homogeneous: it has one node type and one edge type, without names.
    """

    name: str
    num_nodes: Mapping[NodeType, int]
    edges: Mapping[EdgeType, np.ndarray]
    node: Mapping[NodeType, Attributes] = field(default_factory=dict)
    edge: Mapping[EdgeType, Attributes] = field(default_factory=dict)
    homogeneous: bool = False

    def source(self) -> ArraySource:
        """Raises `DataError` for arrays that do not fit the numbers of nodes and edges."""
        splits: dict[str, tuple[NodeType, np.ndarray]] = {}
        node: dict[NodeType, Attributes] = {}
        for t, count in self.num_nodes.items():
            given = self.node.get(t, {})
            arrays = {name: np.asarray(a, bool) if name.endswith("_mask") else a for name, a in given.items()}
            found, others = take_splits(f"{self.name}: {t}/", arrays, count)
            if again := sorted(set(found) & set(splits)):
                raise DataError(
                    f"{self.name}: node types {splits[again[0]][0]!r} and {t!r} both have a split {again[0]!r}."
                )
            splits |= {split: (t, ids) for split, ids in found.items()}
            node[t] = _named(others, count, f"{t}/")
        edge = {
            e: _named(self.edge.get(e, {}), ends.shape[1], f"{edge_type_str(e)}/") for e, ends in self.edges.items()
        }
        return self._source(node, edge, splits)

    def _source(
        self,
        node: Mapping[NodeType, Attributes],
        edge: Mapping[EdgeType, Attributes],
        splits: Mapping[str, tuple[NodeType, np.ndarray]],
    ) -> ArraySource:
        source = ArraySource(
            name=self.name,
            fingerprint="",
            schema=GraphSchema(tuple(self.num_nodes), tuple(self.edges), self.homogeneous),
            num_nodes=dict(self.num_nodes),
            edge_index=self.edges,
            node=node,
            edge=edge,
            splits={name: each for name, each in splits.items() if len(each[1])},
        ).with_target()
        return replace(source, fingerprint=_fingerprint(source))


def _named(given: Attributes, count: int, where: str) -> dict[str, np.ndarray]:
    """Attributes under our names. Raises `DataError` for one with another number of rows."""
    names = dict.fromkeys(given)
    found = {}
    for ours, theirs in _NAMES.items():
        first = next((name for name in theirs if name in given), None)
        if first is not None and not where.count("__"):  # edges have no x and y
            found[ours] = given[first]
            names.pop(first)
    found |= {name: given[name] for name in names}
    for name, array in found.items():
        if not array.ndim or len(array) != count:
            raise DataError(f"{where}{name}: expected {count} rows, got the shape {list(array.shape)}.")
    return {name: array.astype(np.uint8) if array.dtype == np.bool_ else array for name, array in found.items()}


def _fingerprint(source: ArraySource) -> str:
    arrays = {f"{edge_type_str(e)}/edge_index": array for e, array in source.edge_index.items()}
    by_type = dict(source.node) | {edge_type_str(e): attributes for e, attributes in source.edge.items()}
    for label, attributes in by_type.items():
        arrays |= {f"{label}/{name}": np.asarray(array) for name, array in attributes.items()}
    arrays |= {f"split/{name}/{t}": ids for name, (t, ids) in source.splits.items()}
    return array_fingerprint(arrays.items())
