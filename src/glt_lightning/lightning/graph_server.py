"""Opens a graph server for the graph of a data module: for `serve`, and for an actor of Ray."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import replace

from glt_lightning.base import OptionError, PartitionError, parse_address
from glt_lightning.lightning.datamodule import GLTDataModule
from glt_lightning.partition import Versions
from glt_lightning.workers import HostedServer, ServerPlan


def serve_graph(data: GLTDataModule, plan: ServerPlan) -> HostedServer:
    """Opens a graph server in this process. Close it.

    data: its graph and samplers.  plan: the rest; the folder of the partition is filled in.
    Raises `PartitionError` where the graph is not partitioned and this is not the host of server 0.
    """
    if data.new is not None:
        raise OptionError(
            "data.new: graph servers serve the rows of partition.version. Append these rows, or leave them out."
        )
    _prepare(data, plan)
    folder = str(data.partition_dir.resolve())
    gpus = ServerPlan.sampling_gpus(folder, data.sampling, data.cache)
    plan = replace(plan, directory=folder, version=Versions(folder).number(data.partition.version))
    return HostedServer(replace(plan, cache=data.cache, gpus=gpus, picker=data.sampling.draw.picker))


def _prepare(data: GLTDataModule, plan: ServerPlan) -> None:
    """Partitions the graph on the host of server 0. Servers on that host wait for it. Raises `PartitionError` on other hosts if
    the folder has no partition."""
    servers = plan.cluster.servers
    if data.is_partitioned or plan.rank == 0 or _same_host(servers[0], servers[plan.rank]):
        data.prepare_data()
        return
    raise PartitionError(
        f"{data.partition_dir}: this folder holds no partition. Server 0 ({servers[0]}) creates it on its own "
        "host: copy the folder here when it has finished, or put data.root on storage that all hosts share, and "
        "start this server again."
    )


def _same_host(a: str, b: str) -> bool:
    return _host_addresses(a) & _host_addresses(b) != set()


def _host_addresses(address: str) -> set[str]:
    host, port = parse_address("cluster.servers", address)
    with suppress(OSError):
        return {str(info[4][0]) for info in socket.getaddrinfo(host, port)}
    return {host}
