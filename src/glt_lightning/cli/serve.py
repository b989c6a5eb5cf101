"""``python -m lightning serve``: runs a graph server for the data of a configuration, or asks a running one."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

from jsonargparse import Namespace
from lightning.pytorch import LightningDataModule

from glt_lightning.base import (
    ClusterOptions,
    GLTError,
    OptionError,
    PartitionError,
    ServingOptions,
    counted,
    parse_address,
)
from glt_lightning.cli.command_line import keep_groups
from glt_lightning.cli.messages import OneLineParser
from glt_lightning.cli.run_line import EndSignals
from glt_lightning.graph import MANIFEST, LocalPartition
from glt_lightning.lightning import GLTDataModule
from glt_lightning.workers import HostedServer, ServerPlan, ask_status, server_gpus

_CLUSTER = ClusterOptions()


_READ = ("data", "cluster")  # groups of a configuration that `serve` reads


_DESCRIPTION = (
    "Serves a graph to trainers with strategy glt_server_client. Reads only data and cluster from the "
    "configuration of fit. Stop it with SIGTERM or Ctrl-C."
)


_ANYWHERE = "127.0.0.1:0"


def run_serve(argv: Sequence[str], prog: str) -> None:
    """Runs the subcommand to its end. Raises `GLTError` for errors, SystemExit for help and wrong options."""
    parser = _parser(prog)
    config = parser.parse_args(keep_groups(argv, _READ))
    cluster: ClusterOptions = parser.instantiate_classes(Namespace(cluster=config.cluster)).cluster
    if config.status is not None:
        _print_status(ask_status(config.status, cluster), as_json=config.json)
    elif config.health is not None:
        _print_health(config.health, cluster)
    else:
        data = parser.instantiate_classes(config).data
        if not isinstance(data, GLTDataModule):
            given = "nothing" if data is None else type(data).__name__
            raise OptionError(f"data: expected a GLTDataModule, got {given}. Give --config of a run, or --data.")
        _serve(data, _plan_of(config, cluster.serving(data.sampling)))


def _parser(prog: str) -> OneLineParser:
    parser = OneLineParser(prog=prog, description=_DESCRIPTION)
    parser.add_argument("--config", action="config", help="Configuration of fit, in YAML.")
    parser.add_argument("--server.rank", type=int, default=0, help="Number of this server in cluster.servers.")
    parser.add_argument(
        "--server.address",
        type=str | None,
        default=None,
        help=f"Where to listen, host:port. Default: the rank-th of cluster.servers, or {_ANYWHERE} (a free port).",
    )
    parser.add_argument(
        "--server.parts",
        type=str | int | list[int] | None,
        default=None,
        help="Parts to map, such as 0,2. Default: each p with p mod servers = rank.",
    )
    parser.add_argument("--status", type=str | None, default=None, help="Show the status of the server at host:port.")
    parser.add_argument("--json", action="store_true", help="With --status: as JSON.")
    parser.add_argument(
        "--health",
        type=str | None,
        default=None,
        help="Exit with 0 if the server at host:port is healthy, else with 1.",
    )
    parser.add_argument("--cluster", type=ClusterOptions, default=_CLUSTER, help="Where the processes of the job run.")
    parser.add_lightning_class_args(LightningDataModule, "data", subclass_mode=True, required=False)
    return parser


# Serving


def _plan_of(config: Namespace, cluster: ServingOptions) -> ServerPlan:
    """The plan of the server, without the folder of the partition."""
    rank, servers = config.server.rank, cluster.servers
    if not 0 <= rank < max(1, len(servers)):
        known = f"cluster.servers has {len(servers)} addresses" if servers else "cluster.servers is empty"
        raise OptionError(f"server.rank: got {rank}, but {known}. List the address of each server there.")
    address = config.server.address or (servers[rank] if servers else _ANYWHERE)
    parse_address("server.address", address)
    return ServerPlan(
        directory="", cluster=cluster, address=address, rank=rank, parts=_parse_parts(config.server.parts)
    )


def _parse_parts(given: str | int | list[int] | None) -> tuple[int, ...] | None:
    if given is None:
        return None
    try:
        numbers = given if isinstance(given, list) else [int(part) for part in str(given).split(",")]
    except ValueError:
        raise OptionError(f"server.parts: expected numbers of parts such as 0,2; got {given!r}.") from None
    return tuple(sorted(set(numbers)))


def _serve(data: GLTDataModule, plan: ServerPlan) -> None:
    with EndSignals() as signals:
        _prepare(data, plan)
        folder = str(data.partition_dir.resolve())
        gpus = server_gpus(folder, data.sampling, data.cache)
        server = HostedServer(
            replace(plan, directory=folder, cache=data.cache, gpus=gpus, picker=data.sampling.draw.picker)
        )
        try:
            signals.wait(lambda: print(_announcement(plan, server), flush=True))
        finally:
            server.close()


def _prepare(data: GLTDataModule, plan: ServerPlan) -> None:
    """Partitions the graph on the host of server 0. Servers on that host wait for it. Raises `PartitionError` on other hosts if
    the folder has no partition."""
    servers = plan.cluster.servers
    if (data.partition_dir / MANIFEST).is_file() or plan.rank == 0 or _same_host(servers[0], servers[plan.rank]):
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


def _announcement(plan: ServerPlan, server: HostedServer) -> str:
    partition: LocalPartition = server.partition
    manifest = partition.manifest
    nodes, edges = sum(manifest.num_nodes), sum(manifest.num_edges)
    name = manifest.made_by.get("source", partition.directory.name)
    return (
        f"server {plan.rank} of {plan.num_servers}: parts {list(partition.parts)} of {name} "
        f"({counted(manifest.num_parts, 'part')}, {counted(nodes, 'node')}, {counted(edges, 'edge')}), "
        f"listening at {server.address}"
    )


# Asking a server


def _print_status(status: Mapping[str, Any], *, as_json: bool) -> None:
    print(json.dumps(status, indent=2) if as_json else status_table(status), flush=True)


def _print_health(address: str, cluster: ClusterOptions) -> NoReturn:
    try:
        status = ask_status(address, cluster)
    except GLTError as error:
        print(f"unhealthy: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
    print(f"healthy: server {status['rank']} at {address}, up for {status['uptime_s']:.0f} s", flush=True)
    sys.exit(0)


# The status of a graph server as text.


_COLUMNS = ("client", "job", "waiting", "making", "ready", "buffered", "batches", "batches/s", "bytes", "silent")


_UNITS = ("B", "kB", "MB", "GB", "TB")


def status_table(status: Mapping[str, Any]) -> str:
    """Writes lines about the server, its samplers and its memory, and a table of its clients."""
    samplers, memory = status["samplers"], status["memory"]
    pids = ", ".join(map(str, samplers["pids"]))
    lines = [
        f"server {status['rank']} at {status['address']}, up for {status['uptime_s']:.0f} s",
        f"partition  {status['partition']} ({status['graph']}), parts {status['parts']} of {status['num_parts']}",
        f"samplers   {len(samplers['pids'])} (pids {pids}), restarted {samplers['restarts']} times",
        f"memory     {_bytes(memory['server_bytes'])} server, "
        f"{', '.join(_bytes(each) for each in memory['sampler_bytes'])} samplers",
        f"rate       {status['batches_per_s']:g} batches/s",
        f"clients    {len(status['clients'])}",
    ]
    if status["clients"]:
        lines += ["", *_table([_COLUMNS, *(_row(client) for client in status["clients"])])]
    return "\n".join(lines)


def _row(client: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        _printable(client["client"]),
        _printable(client["job"]),
        str(client["waiting"]),
        str(client["making"]),
        str(client["ready"]),
        _bytes(client["buffered_bytes"]),
        str(client["batches"]),
        f"{client['batches_per_s']:g}",
        _bytes(client["bytes"]),
        f"{client['silent_s']:.1f} s",
    )


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _printable(text: Any) -> str:
    """Escapes a client's name, which may contain anything, for the terminal."""
    return "".join(c if c.isprintable() else "?" for c in str(text)[:60])


def _bytes(count: float) -> str:
    for unit in _UNITS[:-1]:
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} {_UNITS[-1]}"
