"""GraphLearn-for-PyTorch's `DistGraph`: a graph of one part, and which part has each id; and who has the parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from glt_lightning.base import EdgeType, NodeType, OptionError
from glt_lightning.compat.glt.distributed.session import required
from glt_lightning.compat.glt.distributed.worker import all_gather
from glt_lightning.compat.glt.folders import GLTPartitionBook, PartitionBook
from glt_lightning.compat.glt.graph import Graph


class DistGraph:
    """The part of a graph that a process has in memory. Dictionaries by type for a heterogeneous graph.

    num_partitions, partition_idx: number of parts, and which this is.  local_graph: a `Graph`.  node_pb, edge_pb: the part of
    each id: a `PartitionBook`, or int64 [N].

    >>> graph = glt.data.Graph(glt.data.Topology(np.array([[0, 0], [1, 2]])), mode="CPU")
    >>> dist_graph = glt.distributed.DistGraph(2, 0, graph, node_pb=torch.tensor([0, 1, 1]))
    >>> dist_graph.get_node_partitions(torch.tensor([2, 0])), dist_graph.get_local_graph().edge_count
    (tensor([1, 0]), 2)
    """

    def __init__(
        self, num_partitions: int, partition_idx: int, local_graph: Any, node_pb: Any, edge_pb: Any = None
    ) -> None:
        graphs = local_graph.values() if isinstance(local_graph, Mapping) else [local_graph]
        if wrong := [each for each in graphs if not isinstance(each, Graph)]:
            raise OptionError(f"DistGraph: local_graph: expected a Graph, got {type(wrong[0]).__name__}.")
        self.num_partitions, self.partition_idx, self.local_graph = num_partitions, partition_idx, local_graph
        self.data_cls = "hetero" if isinstance(local_graph, Mapping) else "homo"
        self.node_pb, self.edge_pb = as_books(node_pb), as_books(edge_pb)

    def get_local_graph(self, etype: EdgeType | None = None) -> Graph:
        found: Graph = _of(self.local_graph, etype, "etype")
        return found

    def get_node_partitions(self, ids: Tensor, ntype: NodeType | None = None) -> Tensor:
        found: Tensor = _of(self.node_pb, ntype, "ntype")[ids]
        return found

    def get_edge_partitions(self, eids: Tensor, etype: EdgeType | None = None) -> Tensor:
        found: Tensor = _of(self.edge_pb, etype, "etype")[eids]
        return found


class RpcDataPartitionRouter:
    """Which workers have each part. partition2workers: their names, by part.

    >>> glt.distributed.RpcDataPartitionRouter([["worker_0"], ["worker_1"]]).get_to_worker(1)
    'worker_1'
    """

    def __init__(self, partition2workers: Sequence[Sequence[str]]) -> None:
        if missing := [part for part, workers in enumerate(partition2workers) if not workers]:
            raise OptionError(f"RpcDataPartitionRouter: no worker has part {missing[0]}.")
        self.partition2workers = [list(workers) for workers in partition2workers]

    def get_to_worker(self, data_partition_idx: int) -> str:
        """The first of them."""
        return self.partition2workers[data_partition_idx][0]


def rpc_sync_data_partitions(num_data_partitions: int, current_partition_idx: int) -> list[list[str]]:
    """The names of the workers that have each part. A collective call, after `init_rpc`.  num_data_partitions: of all workers.
    current_partition_idx: of this one.

    >>> glt.distributed.init_worker_group(1, 0, "trainers")
    >>> glt.distributed.rpc_sync_data_partitions(1, 0)
    [['trainers_0']]
    >>> glt.distributed.shutdown_rpc()
    """
    required("rpc_sync_data_partitions")
    parts = all_gather([num_data_partitions, current_partition_idx])
    for name, (count, part) in parts.items():
        if count != num_data_partitions or not 0 <= part < count:
            raise OptionError(
                f"rpc_sync_data_partitions: {name} has part {part} of {count}, this process is one of {num_data_partitions}."
            )
    return [[name for name, (_, part) in parts.items() if part == p] for p in range(num_data_partitions)]


def as_books(given: Any) -> Any:
    """Tensors as books, also by type."""
    if isinstance(given, Mapping):
        return {t: as_books(each) for t, each in given.items()}
    return given if given is None or isinstance(given, PartitionBook) else GLTPartitionBook(given)


def _of(given: Any, kind: Any, name: str) -> Any:
    if isinstance(given, Mapping):
        if kind not in given:
            raise OptionError(f"{name}: expected one of {', '.join(map(str, given))}, got {kind!r}.")
        return given[kind]
    if given is None:
        raise OptionError("DistGraph: edge_pb: the parts of edges were not given.")
    return given
