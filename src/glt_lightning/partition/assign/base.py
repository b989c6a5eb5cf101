"""The interface of assigners, and their view of the graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from glt_lightning.base import DataError, NodeType, OptionError, PartitionOptions, Progress
from glt_lightning.partition.sources.base import GraphSource

if TYPE_CHECKING:
    from glt_lightning.partition.build.hotness import Hotness
    from glt_lightning.partition.build.topology import GraphTopology

Assignment = Mapping[NodeType, np.ndarray]


@dataclass(frozen=True)
class GraphToPartition:
    """The graph to partition, and the user's options.

    Attributes:
        source: The user's data, for attributes.
        topology: Its edges, by user id; built when first read.
        splits: Name of a split -> (node type, int64 user ids).
        options: All options of the partition.
        progress: Shows the progress of long work.

    Example:
        >>> class ByWeight(Assigner):
        ...     def assign(self, graph):
        ...         print(graph.num_parts, graph.num_nodes, graph.weights().shape)
        ...         return {t: np.arange(n) % graph.num_parts for t, n in graph.num_nodes.items()}
        >>> source, options = open_source("graph.npz", "data"), PartitionOptions(num_parts=2)
        >>> _ = partition_graph(source, "weighed", options, assigner=ByWeight(), progress=False)
        2 {'node': 10} (10, 4)
    """

    source: GraphSource
    topology: GraphTopology
    splits: Mapping[str, tuple[NodeType, np.ndarray]]
    options: PartitionOptions
    progress: Progress

    @property
    def num_nodes(self) -> Mapping[NodeType, int]:
        return self.topology.num_nodes

    @property
    def num_parts(self) -> int:
        return self.options.num_parts

    def weights(self, *, without: str | None = None) -> np.ndarray:
        """Returns int32 [nodes of all types, C]: the weight of each node in each constraint of ``partition.balance``.

        ``nodes`` makes a column per node type, ``seeds`` one per split, ``edges`` one in all.
        without: a constraint to leave out.

        Raises `OptionError` if no column is left, or ``partition.node_weight`` names no attribute.
        """
        columns = [np.zeros((self.topology.total, 0), np.int32)]
        balance = [name for name in self.options.balance if name != without]
        if "nodes" in balance:
            columns += [self._of_type(t, self._node_weight(t)) for t in self.num_nodes if self.num_nodes[t]]
        if "seeds" in balance:
            columns += [self._seeds(*split) for split in self.splits.values() if len(split[1])]
        if "edges" in balance:
            columns.append(self._in_degrees())
        if len(columns) == 1 and without is None:
            raise OptionError(
                f"partition.balance: {balance}: the graph has nothing to balance by that. Name at least one of nodes, seeds, "
                "edges of which it has some."
            )
        return np.column_stack(columns)

    def _of_type(self, node_type: NodeType, values: np.ndarray) -> np.ndarray:
        column = np.zeros(self.topology.total, np.int32)
        self.topology.split(column)[node_type][:] = values
        return column

    def _node_weight(self, node_type: NodeType) -> np.ndarray:
        name, attrs = self.options.node_weight, self.source.node_attrs(node_type)
        if name is None or name not in attrs:
            if name is not None and not any(name in self.source.node_attrs(t) for t in self.num_nodes):
                known = sorted({attr for t in self.num_nodes for attr in self.source.node_attrs(t)})
                raise OptionError(
                    f"partition.node_weight: no node type has an attribute {name!r}; the attributes are "
                    f"{', '.join(known) or 'none'}."
                )
            return np.ones(self.num_nodes[node_type], np.int32)
        weights = attrs[name][: self.num_nodes[node_type]]
        if weights.ndim != 1 or weights.dtype.kind not in "iub" or (weights.size and not weights.min() >= 0):
            raise DataError(
                f"partition.node_weight: {name} of node type {node_type!r}: expected integers >= 0 of shape "
                f"[{self.num_nodes[node_type]}], got {weights.dtype} {list(weights.shape)}"
                + (f" with the minimum {weights.min()}." if weights.size and weights.dtype.kind in "iub" else ".")
            )
        if weights.size and weights.max() >= 2**31:
            raise DataError(
                f"partition.node_weight: {name} of node type {node_type!r}: the largest weight is {weights.max():,}, but weights "
                "must be below 2^31. Scale them down."
            )
        return weights.astype(np.int32)

    def _seeds(self, node_type: NodeType, ids: np.ndarray) -> np.ndarray:
        return self._of_type(node_type, np.bincount(ids, minlength=self.num_nodes[node_type]))

    def _in_degrees(self) -> np.ndarray:
        column = np.zeros(self.topology.total, np.int64)
        by_type = self.topology.split(column)
        for stored_type in self.topology.stored_types:
            by_type[stored_type.edge_type[2]][:] += self.topology.degrees.in_degree(stored_type)
        return np.minimum(column, 2**31 - 1).astype(np.int32)

    def capacity(self, weights: np.ndarray, parts: int, imbalance: float) -> np.ndarray:
        """Returns int64 [C]: the largest weight allowed for each of ``parts`` parts; at least its even share, rounded up."""
        total = weights.sum(axis=0, dtype=np.int64)
        most: np.ndarray = np.maximum(-(-total // parts), (total * (1 + imbalance) / parts).astype(np.int64))
        return most


class Assigner(ABC):
    """Assigns nodes to parts: subclass it and name the subclass in ``partition.algorithm``.

    Example:
        >>> class AllToTheFirst(Assigner):
        ...     def assign(self, graph):
        ...         return {t: np.zeros(n, int) for t, n in graph.num_nodes.items()}
        >>> source, options = open_source("graph.npz", "data"), PartitionOptions(num_parts=2)
        >>> partition_graph(source, "first", options, assigner=AllToTheFirst(), progress=False).bounds
        ((0, 10, 10),)
    """

    #: Whether the same input gives the same parts on every machine and with every version of the libraries.
    deterministic = True
    #: The rows of the topology that it is sure to read. None: unknown, as of a user's class, which may read any or none.
    reads: Literal["nothing", "sampled", "neighbors"] | None = None
    #: The largest number of nodes that it supports. None: unlimited.
    most_nodes: int | None = None

    @abstractmethod
    def assign(self, graph: GraphToPartition) -> Assignment:
        """Node type -> integers [N of the type], the part of each node by user id, each in 0 .. num_parts - 1."""

    @property
    def made_by(self) -> Mapping[str, Any]:
        """JSON values for the manifest's ``made_by``: everything that the assignment depends on besides options and data."""
        return {}

    def hotness(self, topology: GraphTopology) -> Hotness | None:
        """Hotness of each node for each part, if the user's assigner provides it; None: it is computed."""
        return None


def checked(assignment: object, graph: GraphToPartition, name: str) -> dict[NodeType, np.ndarray]:
    """Checks an assignment, and returns it as int32 arrays [N] by node type. Raises `DataError` unless each node has a part in
    0 .. num_parts - 1.

    name: the algorithm, as errors name it.

    Example:
        >>> class Strange(Assigner):
        ...     def assign(self, graph):
        ...         return checked({"node": np.full(10, 7)}, graph, "Strange")
        >>> source, options = open_source("graph.npz", "data"), PartitionOptions(num_parts=2)
        >>> partition_graph(source, "strange", options, assigner=Strange(), progress=False)
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.DataError: partition.algorithm: ...
    """
    parts = {}
    if not isinstance(assignment, Mapping):
        raise DataError(
            f"partition.algorithm: {name}: assign() must return a dict of node type -> part of each node, but it returned "
            f"{type(assignment).__name__}."
        )
    for node_type, count in graph.num_nodes.items():
        if node_type not in assignment:
            raise DataError(
                f"partition.algorithm: {name}: no array for node type {node_type!r}; found "
                f"{', '.join(map(str, assignment)) or 'none'}. Give one array of part numbers per node type."
            )
        given = np.asarray(assignment[node_type])
        what = f"partition.algorithm: {name}: parts of node type {node_type!r}"
        if given.shape != (count,) or given.dtype.kind not in "iu":
            raise DataError(f"{what}: expected integers of shape [{count}], got {given.dtype} {list(given.shape)}.")
        bad = (given < 0) | (given >= graph.num_parts)
        if bad.any():
            at = int(bad.argmax())
            raise DataError(
                f"{what}: node {at} is assigned to part {given[at]}, but with partition.num_parts: {graph.num_parts} parts are "
                f"numbered 0..{graph.num_parts - 1}."
            )
        parts[node_type] = given.astype(np.int32)
    return parts
