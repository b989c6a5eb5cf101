"""The hosts of a script with DGL's names, and a graph whose parts lie on several of them."""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import ReferenceType

from glt_lightning.base import CacheOptions, ClusterOptions, OptionError, SamplingOptions, at_least
from glt_lightning.graph import LocalPartition, Manifest
from glt_lightning.launch import launched_script
from glt_lightning.tensors import Reach
from glt_lightning.workers import HostsGraph, Link, Producer, ProducerSetup, Ranks, end_by_deadline, placed_parts


@dataclass(frozen=True)
class ScriptHosts:
    """addresses: of the hosts that train.  number: of this one.  cluster: how their processes communicate."""

    addresses: tuple[str, ...]
    number: int
    cluster: ClusterOptions

    @property
    def own(self) -> str:
        return self.cluster.host or self.addresses[self.number]


def hosts_of_script(ip_config: str | Path | None, cluster: ClusterOptions | None) -> ScriptHosts | None:
    """The hosts that a file or ``launch`` names; None for one host. Raises `OptionError`."""
    launched = launched_script()
    addresses = () if launched is None else launched.hosts
    if ip_config is not None:
        addresses = _read(ip_config)
    if cluster is None:
        cluster = ClusterOptions() if launched is None else launched.cluster
    return None if len(addresses) < 2 else ScriptHosts(addresses, _own(addresses, cluster.host), cluster)


def _read(path: str | Path) -> tuple[str, ...]:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        raise OptionError(
            f"initialize: ip_config: cannot read {str(path)!r} ({error.strerror}). `launch` copies it to the hosts if it is "
            "among its files; without ip_config, its hosts are those of `launch`."
        ) from None
    addresses = tuple(dict.fromkeys(line.split()[0] for line in lines if line.strip() and line.strip()[0] != "#"))
    if not addresses:
        raise OptionError(f"initialize: ip_config: {path} names no host. Write a line `address port` for each.")
    return addresses


def _own(addresses: tuple[str, ...], host: str | None) -> int:
    """Number of the address that this host has."""
    for number, address in enumerate(addresses):
        if address == host if host is not None else _is_here(address):
            return number
    given = "no interface of this host has one of them" if host is None else f"cluster.host {host!r} is none of them"
    raise OptionError(
        f"initialize: ip_config: the hosts are {', '.join(addresses)}, and {given}. Give cluster=ClusterOptions(host=...), the "
        "address in the file that is this host's."
    )


def _is_here(address: str) -> bool:
    try:
        family, kind, _, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(where)  # succeeds for addresses of this host alone
    except OSError:
        return False
    return True


class JoinedHosts:
    """A graph of which each host maps some parts, and whose ranks sample for each other. A collective call. Close it when no
    other rank needs the rows of this host.

    reach: how tensors reach other hosts.
    """

    def __init__(self, folder: Path, hosts: ScriptHosts, ranks: Ranks, num_workers: int) -> None:
        if ranks.world_size < len(hosts.addresses):
            raise OptionError(
                f"DistGraph: ip_config names {len(hosts.addresses)} hosts, and there are {ranks.world_size} ranks. Call "
                "torch.distributed.init_process_group on all hosts first, and start a rank on each."
            )
        options, own = hosts.cluster, hosts.own
        job = ranks.exchange(secrets.token_hex(8))[0]
        name = f"rank {ranks.rank} (pid {os.getpid()} on {socket.gethostname()})"
        link = Link(
            job=job,
            role="worker",
            name=name,
            security=options.security,
            deadlines=options.deadlines,
            limits=options.limits,
        )
        self.cluster, self.sampling = options, SamplingOptions(num_workers=num_workers)
        with ExitStack() as opened:
            self.partition = ranks.all_or_none(lambda: _open(folder, hosts), lambda opened: opened.close())
            opened.callback(self.partition.close)
            end = end_by_deadline(name, options.peer_timeout_s, "cluster.peer_timeout_s")
            self.graph = HostsGraph(self.partition, link, own, end, options.peer_silence_s)
            setup = ProducerSetup(ranks=ranks, sampling=self.sampling, cache=CacheOptions())
            self.lent = LentGraph(self.graph, self.graph.open_producer(setup, opened)[0])
            self.close = opened.pop_all().close
        address = f"[{own}]:0" if ":" in own else f"{own}:0"
        self.reach = Reach(f"host {hosts.number}", link, lambda: address, link.open_transport)

    def require(self, sampling: SamplingOptions) -> SamplingOptions:
        """As a loader may have it: its samplers are those that joined."""
        if sampling.num_workers != self.sampling.num_workers:
            raise OptionError(
                f"num_workers: on several hosts the samplers of all loaders start with the graph; got {sampling.num_workers}, "
                f"and initialize said {self.sampling.num_workers}. Give num_workers to initialize alone."
            )
        return replace(sampling, num_workers=0)


class LentGraph:
    """A graph whose producer stays open when a session that uses it is closed."""

    def __init__(self, graph: HostsGraph, producer: Producer) -> None:
        self._producer = producer
        self.manifest, self.schema = graph.manifest, graph.schema
        self.split, self.edge_split, self.seeds = graph.split, graph.edge_split, graph.seeds
        self.deleted = graph.deleted

    def open_producer(self, setup: ProducerSetup, opened: ExitStack) -> tuple[Producer, None]:
        """The producer, which the graph closes."""
        return self._producer, None


def _open(folder: Path, hosts: ScriptHosts) -> LocalPartition:
    parts = placed_parts(hosts.number, len(hosts.addresses), Manifest.load(folder).num_parts)
    return LocalPartition.open(folder, parts=parts)


# The settings of `initialize` and `seed` for the script of this process: the one state of a module, since DGL's names have it.


@dataclass
class ScriptState:
    """num_workers: sampler processes of each trainer, for loaders without a number of their own.  hosts: None for one.
    seed: of all draws.  graph: the `DistGraph` that was made last, which tensors belong to."""

    num_workers: int = 0
    hosts: ScriptHosts | None = None
    seed: int = 0
    graph: ReferenceType[Any] | None = None


STATE = ScriptState()


def seed(value: int) -> None:
    """Sets the seed of the graphs, loaders and draws that are made from here on; the same ``value`` on every rank.

    Example:
        >>> import glt_lightning.compat.dgl as dgl
        >>> dgl.seed(0)
    """
    at_least("seed", value, 0)
    STATE.seed = value
