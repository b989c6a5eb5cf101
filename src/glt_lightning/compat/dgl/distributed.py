"""`dgl.distributed`: graphs, tensors and loaders that several processes share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed
from torch import Tensor

from glt_lightning import tensors
from glt_lightning.base import ClusterOptions, EdgeType, NodeType, at_least, lazy_names
from glt_lightning.compat.dgl import optim
from glt_lightning.compat.dgl.graph import DistGraph, GraphPartitionBook, current_graph
from glt_lightning.compat.dgl.hosts import STATE, hosts_of_script
from glt_lightning.compat.dgl.loaders import DistDataLoader, DistEdgeDataLoader, DistNodeDataLoader
from glt_lightning.compat.dgl.partition import partition_graph
from glt_lightning.compat.dgl.sampling import sample_neighbors
from glt_lightning.compat.dgl.tensors import DistEmbedding, DistTensor, SparseAdagrad, SparseAdam


def initialize(
    ip_config: str | Path | None = None, num_workers: int = 0, *, cluster: ClusterOptions | None = None
) -> None:
    """To be called first. There are no servers: the ranks of a host map its parts, and serve them to those of other hosts.

    Args:
        ip_config: A file with a line for each host, ``address`` or ``address port``, in the order of their node ranks. Part p is
            on host p mod hosts. None: the hosts of ``launch``, or this one alone.
        num_workers: Sampler processes of each trainer, for the loaders of this process.
        cluster: Certificates, deadlines and the address of this host, where there are several. None: what ``launch`` says.

    Raises:
        OptionError: For a file that is missing, and one that does not name this host.

    Example:
        >>> import glt_lightning.compat.dgl as dgl
        >>> dgl.distributed.initialize()
    """
    at_least("initialize: num_workers", num_workers, 0)
    STATE.hosts = hosts_of_script(ip_config, cluster)
    STATE.num_workers = num_workers


def get_num_clients() -> int:
    """Number of trainers."""
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def node_split(
    nodes: Any,
    partition_book: GraphPartitionBook | None = None,
    ntype: NodeType | None = None,
    rank: int | None = None,
    force_even: bool = True,
) -> Tensor:
    """The rows of the selected nodes that one rank trains on, int64 [n].

    Args:
        nodes: A mask, also as a `DistTensor`, or rows.
        partition_book: Of the graph. None: that of the mask, or the graph that was made last.
        ntype: Node type. None: that of the mask, or the only one.
        rank: None: this one.
        force_even: All ranks get equally many, or one less.
    """
    return tensors.node_split(nodes, _graph_of(partition_book, nodes), ntype, rank, force_even)


def edge_split(
    edges: Any,
    partition_book: GraphPartitionBook | None = None,
    etype: EdgeType | str | None = None,
    rank: int | None = None,
    force_even: bool = True,
) -> Tensor:
    """The rows of the selected edges that one rank trains on, int64 [n]. Arguments as of `node_split`."""
    return tensors.edge_split(edges, _graph_of(partition_book, edges), etype, rank, force_even)


def _graph_of(book: GraphPartitionBook | None, selected: Any) -> tensors.DistGraph | None:
    """None: that of a mask."""
    if book is None:
        return None if isinstance(selected, tensors.DistTensor) else current_graph()
    return book.graph


_RPC = "{name}: no code and no requests of one's own are sent between processes. Use DistTensor, or torch.distributed."
_SERVERS = "{name}: there are no servers to start; `glt-lightning launch` starts the trainers, which have the graph."
_FILES = "{name}: open a partition with DistGraph(name, part_config); LocalPartition.open(folder) has the arrays of its parts."
_REFUSED = (
    dict.fromkeys(
        (
            *("Request", "Response", "register_service", "remote_call", "remote_call_to_machine", "send_request"),
            *("send_request_to_machine", "send_response", "recv_request", "recv_response", "fast_pull"),
            *("KVClient", "KVServer", "PartitionPolicy"),
        ),
        _RPC,
    )
    | dict.fromkeys(
        (
            *("DistGraphServer", "ServerState", "start_server", "connect_to_server", "connect_receiver"),
            *("create_receiver", "create_sender", "finalize_receiver", "finalize_sender", "wait_for_senders"),
            *("set_machine_id", "set_num_client", "set_num_machines", "set_rank", "get_group_id", "read_ip_config"),
            *("DistConnectError", "copy_data_to_shared_memory", "SERVER_EXIT", "MAX_QUEUE_SIZE", "shutdown_servers"),
        ),
        _SERVERS,
    )
    | dict.fromkeys(("load_partition", "load_partition_book", "load_partition_feats"), _FILES)
    | {
        "dgl_partition_to_graphbolt": "{name}: `glt-lightning partition --from dgl DIR --to FOLDER` converts a partition of DGL.",
        "client_barrier": "{name}: use g.barrier().",
        "exit_client": "{name}: use g.barrier(); g.close(), or end the script.",
        "find_edges": "{name}: use g.find_edges(edges).",
        "get_machine_id": "{name}: part p is on host p mod hosts: g.get_partition_book().partid % hosts.",
        "get_num_client": "{name}: use get_num_clients().",
        "get_num_machines": "{name}: the hosts are the lines of ip_config.",
        "get_rank": "{name}: use g.rank().",
        "in_subgraph": "{name}: use sample_neighbors(g, nodes, -1).",
        "sample_etype_neighbors": "{name}: sample_neighbors(g, nodes, fanout) takes a number for each edge type.",
    }
)

__all__ = [
    "DistDataLoader",
    "DistEdgeDataLoader",
    "DistEmbedding",
    "DistGraph",
    "DistNodeDataLoader",
    "DistTensor",
    "GraphPartitionBook",
    "SparseAdagrad",
    "SparseAdam",
    "edge_split",
    "get_num_clients",
    "initialize",
    "node_split",
    "optim",
    "partition_graph",
    "sample_neighbors",
]

__getattr__, __dir__ = lazy_names(__name__, {}, _REFUSED)
