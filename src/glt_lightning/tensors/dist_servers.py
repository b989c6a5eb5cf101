"""Opening of the graph that a `DistGraph` reads: a partition folder, or graph servers for a script without a Trainer."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

from glt_lightning.base import ClusterOptions, OptionError
from glt_lightning.graph import LocalPartition
from glt_lightning.tensors.reader import GraphReader
from glt_lightning.workers import Link, ServedGraph

GraphSource: TypeAlias = str | Path | LocalPartition | ClusterOptions | GraphReader


def open_reader(graph: GraphSource, rank: int, closing: ExitStack) -> GraphReader:
    """Opens a partition folder or connects to graph servers. closing: closes what is opened here.

    Raises `PartitionError` for a folder that is missing or damaged, `OptionError` without servers, or for files of
    ``cluster.security`` that cannot be used.
    """
    if isinstance(graph, GraphReader):
        return graph
    if isinstance(graph, ClusterOptions):
        return GraphReader.of(_graph_of_servers(graph, rank, closing))
    if isinstance(graph, (str, Path)):
        graph = LocalPartition.open(graph)
        closing.callback(graph.close)
    return GraphReader.of(graph)


def _graph_of_servers(cluster: ClusterOptions, rank: int, closing: ExitStack) -> ServedGraph:
    if not cluster.servers:
        raise OptionError(
            "DistGraph: cluster.servers: empty. Give host:port of each graph server, or a partition folder."
        )
    link = Link(
        job="",
        role="client",
        name=f"rank {rank} (pid {os.getpid()} on {socket.gethostname()})",
        security=cluster.security,
        deadlines=cluster.deadlines,
        limits=cluster.limits,
    )
    transport = link.open_transport()
    servers = []
    for number, address in enumerate(cluster.servers):
        servers.append(link.peer(f"server {number}", [address], transport))
        closing.callback(servers[-1].close)
    return ServedGraph(servers[rank % len(servers)], cluster, servers=servers)  # spreads the ranks over the servers
