"""What the processes of a job on a Ray cluster share: an authority that signs their certificates, and graph servers as actors.

Keys stay where they are made. Each process makes its own, in memory, and asks the authority, an actor beside the driver, to
sign for it; requests and certificates are all that Ray moves. A graph server has a node of its own in a placement group. An
actor that Ray starts again opens its server at the addresses that are known; if its node is another one, the ranks, which end
with the lost server and start again, give all servers the new addresses (`RayJob.reach_servers`).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from glt_lightning.base import ClusterOptions, OptionError, PeerError, SecurityOptions, at_least
from glt_lightning.lightning.datamodule import GLTDataModule
from glt_lightning.lightning.graph_server import serve_graph
from glt_lightning.partition import CopySource, pull_partition
from glt_lightning.workers import HostedServer, JobAuthority, ServerPlan, placed_parts

_SERVER_PORT = 18800  # as of `launch` on other clusters
_DEADLINES = ClusterOptions().deadlines
_COPY_S = 86_400.0  # a server may copy its parts first; as limits.copy_s of `launch`
_ONE_CPU: Mapping[str, float] = {"CPU": 1}


@dataclass(frozen=True, kw_only=True)
class RayNode:
    """The node of a process of the job.

    Attributes:
        number: Number of the node among ``count`` that train, or of the graph server among all.
        count: Number of these nodes, or of graph servers.
        cluster: Addresses and certificates, for a data module.
    """

    number: int
    count: int
    cluster: ClusterOptions

    def pull(self, source: str | Path, folder: str | Path) -> Path:
        """Copies the parts that this node owns, those that it lacks, and returns ``folder``. Processes of a node wait for each
        other. source: as `pull_partition`."""
        parts = placed_parts(self.number, self.count, CopySource(source).manifest().num_parts)
        return pull_partition(source, folder, parts, progress=False).folder

    def serve(self, data: GLTDataModule) -> HostedServer:
        """Opens the graph server of this number in this process. data: its graph and samplers; it needs no ``cluster``."""
        options = self.cluster.serving(data.sampling)
        address = self.cluster.servers[self.number]
        return serve_graph(data, ServerPlan(directory="", cluster=options, address=address, rank=self.number))


@dataclass(frozen=True)
class RayJob:
    """The shared part of a job, as `ray_job` yields it. Hand it to workers. name: of its actors.  servers: their number."""

    name: str
    servers: int = 0

    def actor(self, which: str | int) -> Any:
        """A graph server by its number, or ``authority``."""
        return ray_module("ray").get_actor(f"{self.name}-{which}")

    @contextmanager
    def certified(self, host: str) -> Iterator[SecurityOptions]:
        """Makes a key of this process and has it signed, for a ``with`` block. The files are in memory, and end with the
        process."""
        key, request = JobAuthority.request(host)
        ca, cert = _get(self.actor("authority").sign.remote(request), "the authority of the job")
        with ExitStack() as closing:
            paths = [closing.enter_context(_in_memory(data)) for data in (ca, cert, key)]
            yield SecurityOptions(ca=paths[0], cert=paths[1], key=paths[2])

    def reach_servers(self) -> list[str]:
        """Opens the graph servers that do not serve yet, and returns the addresses of all. Waits for those that start again."""
        if not self.servers:
            return []
        servers = [self.actor(number) for number in range(self.servers)]
        addresses: list[str] = _get([each.address.remote() for each in servers], "graph servers of the job")
        _get(self.actor("authority").know.remote(addresses), "the authority of the job")
        _get([each.open.remote(addresses) for each in servers], "graph servers of the job", _COPY_S)
        return addresses


@contextmanager
def ray_job(
    serve: Callable[[RayNode], HostedServer] | None = None,
    servers: int = 0,
    *,
    port: int = _SERVER_PORT,
    resources: Mapping[str, float] = _ONE_CPU,
) -> Iterator[RayJob]:
    """Starts the shared part of a job on a Ray cluster, and its graph servers, for a ``with`` block in the driver.

    Args:
        serve: Opens a graph server in an actor, with `RayNode.serve`. Needed for servers.
        servers: Number of graph servers, each on a node of its own.
        port: Port of the graph servers.
        resources: What Ray reserves for each server. A resource of your own finds the nodes that hold parts.

    Raises:
        OptionError: Without Ray, or if the cluster has no room for the servers.

    Example:
        >>> def fit(train, make_data):
        ...     with ray_job(lambda node: node.serve(make_data()), servers=2) as job:
        ...         return TorchTrainer(train, train_loop_config={"job": job}).fit()
    """
    at_least("servers", servers, 0)
    if servers and serve is None:
        raise OptionError(
            f"serve: {servers} graph servers need a function that opens one. Give serve=lambda node: node.serve(data)."
        )
    ray, strategies = ray_module("ray"), ray_module("ray.util.scheduling_strategies")
    beside = strategies.NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    job = RayJob(f"glt-{secrets.token_hex(4)}", servers)
    with ExitStack() as closing:
        authority = (
            ray.remote(num_cpus=0)(_authority())
            .options(name=f"{job.name}-authority", scheduling_strategy=beside)
            .remote()
        )
        closing.callback(ray.kill, authority)
        if servers:
            group = _place(servers, resources)
            closing.callback(ray_module("ray.util").remove_placement_group, group)
        server = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_GraphServer)
        for number in range(servers):
            bundle = strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
            options = {"name": f"{job.name}-{number}", "scheduling_strategy": bundle}
            closing.callback(ray.kill, server.options(**options).remote(job, serve, number, port))
        job.reach_servers()
        yield job


def _authority() -> type[JobAuthority]:
    """The class of an actor. A class of a function goes to Ray by its code, so the actor imports no torch."""

    class Authority(JobAuthority):
        """The authority, and the addresses of the graph servers, for those that start again."""

        addresses: Sequence[str] = ()

        def know(self, addresses: Sequence[str]) -> None:
            self.addresses = addresses

        def known(self) -> Sequence[str]:
            return self.addresses

    return Authority


class _GraphServer:
    """An actor: a graph server, which is opened when the addresses of all are known."""

    def __init__(self, job: RayJob, serve: Callable[[RayNode], HostedServer], number: int, port: int) -> None:
        self._serve, self._number, self._count = serve, number, job.servers
        self._host, self._port = ray_module("ray.util").get_node_ip_address(), port
        self._closing = ExitStack()  # with this process
        self._security = self._closing.enter_context(job.certified(self._host))
        self._addresses: Sequence[str] = ()
        self._server: HostedServer | None = None
        known = _get(job.actor("authority").known.remote(), "the authority of the job")
        if known and known[number] == self.address():
            self.open(known)

    def address(self) -> str:
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    def open(self, addresses: Sequence[str]) -> None:
        if addresses == self._addresses:
            return
        if self._server is not None:  # the address of another one has changed
            self._addresses = ()
            self._server.close()
        cluster = ClusterOptions(host=self._host, servers=list(addresses), security=self._security)
        self._server = self._serve(RayNode(number=self._number, count=self._count, cluster=cluster))
        self._addresses = addresses


def _place(servers: int, resources: Mapping[str, float]) -> Any:
    """A node for each server. Raises `OptionError` if the cluster has no room."""
    util = ray_module("ray.util")
    group = util.placement_group([dict(resources)] * servers, strategy="STRICT_SPREAD")
    if not group.wait(_DEADLINES.start_s):
        util.remove_placement_group(group)
        raise OptionError(
            f"servers: {servers} graph servers need as many nodes of Ray, each with {dict(resources)} free, and found no room "
            f"within {_DEADLINES.start_s:g} s. Start nodes, or ask for fewer servers."
        )
    return group


def _get(asked: Any, whom: str, limit_s: float = _DEADLINES.join_s) -> Any:
    """The answers of actors. Raises `PeerError` if there are none in time, and errors of ours as they were."""
    ray, errors = ray_module("ray"), ray_module("ray.exceptions")
    try:
        return ray.get(asked, timeout=limit_s)
    except errors.GetTimeoutError:
        raise PeerError(f"{whom}: no answer within {limit_s:g} s. Is a node of Ray missing?") from None
    except errors.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None
    except errors.RayActorError as error:
        raise PeerError(f"{whom}: {str(error).strip().splitlines()[-1]}") from None


@contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    """The path of a file that is only in memory, and readable to this user's processes until this one ends."""
    fd = os.memfd_create("glt-certificate")
    try:
        os.fchmod(fd, 0o600)
        os.write(fd, data)
        yield f"/proc/{os.getpid()}/fd/{fd}"
    finally:
        os.close(fd)


def ray_module(name: str) -> ModuleType:
    """Imports a module of Ray, when it is needed. Raises `OptionError` without Ray."""
    try:
        return import_module(name)
    except ImportError as error:
        raise OptionError(f"Ray: {error}. Install it: pip install 'glt-lightning[ray-train]'.") from None
