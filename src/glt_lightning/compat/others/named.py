"""Arrays by name, as other systems keep them with a type, as a `GraphSource`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from glt_lightning.base import DataError, EdgeType, GraphSchema, NodeType, edge_type_str
from glt_lightning.partition import ArraySource, array_fingerprint, classes_of, pick_target, split_ids, split_keys

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
            keys = split_keys(given)
            masks = {name: np.asarray(a, bool) if name.endswith("_mask") else a for name, a in given.items()}
            for split, names in keys.items():
                if split in splits:
                    raise DataError(
                        f"{self.name}: node types {splits[split][0]!r} and {t!r} both have a split {split!r}."
                    )
                splits[split] = t, split_ids(f"{self.name}: {t}/", names, masks.__getitem__, count)
            taken = {each for names in keys.values() for each in names}
            node[t] = _named({name: array for name, array in given.items() if name not in taken}, count, f"{t}/")
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
        labelled = [t for t in node if "y" in node[t]]
        target = pick_target(labelled, {t for t, ids in splits.values() if len(ids)}, self.name)
        y = None if target is None else node[target].get("y")
        source = ArraySource(
            name=self.name,
            fingerprint="",
            schema=GraphSchema(tuple(self.num_nodes), tuple(self.edges), self.homogeneous),
            num_nodes=dict(self.num_nodes),
            edge_index=self.edges,
            node=node,
            edge=edge,
            splits={name: each for name, each in splits.items() if len(each[1])},
            target_type=target,
            num_classes=None if y is None else classes_of(y),
        )
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
