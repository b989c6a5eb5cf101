"""``python -m lightning serve``: runs a graph server for the data of a configuration, or asks a running one."""

from __future__ import annotations

from collections.abc import Sequence

from jsonargparse import Namespace
from lightning.pytorch import LightningDataModule

from glt_lightning.base import (
    ClusterOptions,
    OptionError,
    ServingOptions,
    counted,
    parse_address,
)
from glt_lightning.cli.command_line import TrainerParser, require_data
from glt_lightning.cli.messages import keep_groups
from glt_lightning.cli.run_line import EndSignals
from glt_lightning.cli.server_status import add_questions, answer
from glt_lightning.graph import LocalPartition
from glt_lightning.lightning import serve_graph
from glt_lightning.workers import HostedServer, ServerPlan

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
    if config.status is not None or config.health is not None:
        answer(config, parser.instantiate_classes(Namespace(cluster=config.cluster)).cluster)
        return
    with EndSignals() as signals:
        server, plan = _open(parser, config)
        try:
            signals.wait(lambda: print(_announcement(plan, server), flush=True))
        finally:
            server.close()


def open_server(argv: Sequence[str], prog: str) -> HostedServer:
    """Opens the server of a command line in this process. Close it."""
    parser = _parser(prog)
    return _open(parser, parser.parse_args(keep_groups(argv, _READ)))[0]


def _open(parser: TrainerParser, config: Namespace) -> tuple[HostedServer, ServerPlan]:
    cluster: ClusterOptions = parser.instantiate_classes(Namespace(cluster=config.cluster)).cluster
    data = require_data(parser.instantiate_classes(config).data)
    plan = _plan_of(config, cluster.serving(data.sampling))
    return serve_graph(data, plan), plan


def _parser(prog: str) -> TrainerParser:
    parser = TrainerParser(prog=prog, description=_DESCRIPTION)
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
    add_questions(parser)
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


def _announcement(plan: ServerPlan, server: HostedServer) -> str:
    partition: LocalPartition = server.partition
    manifest = partition.manifest
    nodes, edges = sum(manifest.num_nodes), sum(manifest.num_edges)
    name = manifest.made_by.get("source", partition.directory.name)
    parts = [p for p in partition.parts if p < manifest.base_parts]
    version = f", version {manifest.of_version}" if manifest.of_version else ""
    return (
        f"server {plan.rank} of {plan.num_servers}: parts {parts} of {name}{version} "
        f"({counted(manifest.base_parts, 'part')}, {counted(nodes, 'node')}, {counted(edges, 'edge')}), "
        f"listening at {server.address}"
    )
