"""A graph server with everything it needs: its local parts, the owners of the remote parts, its caches and the server itself."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glt_lightning.base import CacheOptions, OptionError, PeerError, PickerSpec, SamplingOptions, ServingOptions
from glt_lightning.graph import LocalPartition, Manifest
from glt_lightning.partition import open_version
from glt_lightning.sampling import DeviceSource, RemoteRows
from glt_lightning.workers.cluster.cache import NOTHING_TO_CACHE, CacheMaker
from glt_lightning.workers.cluster.graph import (
    ClusterGraph,
    DistContext,
    GraphService,
    Role,
    placed_parts,
    served_parts,
)
from glt_lightning.workers.cluster.link import Link
from glt_lightning.workers.cluster.owner import Owner, OwnerAddresses, connect_owners
from glt_lightning.workers.producer.base import Ranks
from glt_lightning.workers.producer.host_parts import HostParts
from glt_lightning.workers.server.server import GraphServer
from glt_lightning.workers.transport.base import CallHandler

_AGAIN_S = 1.0  # between attempts to fill the cache; each waits for other servers as long as the deadlines allow
_log = logging.getLogger(__name__)


class _Filling:
    """Fills the cache of a server that serves already: it may start before the other servers. Close it after the connections
    to them, or `close` would wait for their deadlines."""

    def __init__(self, partition: LocalPartition, options: CacheOptions) -> None:
        self._maker = CacheMaker(partition, options) if options.keeps_rows else None
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def begin(self, remote: RemoteRows, keep: Callable[[Mapping[str, Any]], object]) -> None:
        if self._maker is not None:
            args = (self._maker, remote, keep)
            self._thread = threading.Thread(target=self._run, args=args, name="glt-cache", daemon=True)
            self._thread.start()

    def _run(self, maker: CacheMaker, remote: RemoteRows, keep: Callable[[Mapping[str, Any]], object]) -> None:
        while not self._closed.is_set():
            try:
                handle = maker.make(remote)
            except PeerError as error:
                if not self._closed.wait(_AGAIN_S):
                    _log.warning("cache: not filled yet, trying again: %s", error)
            except OptionError as error:
                _log.error("%s This server runs without the cache.", error)
                return
            else:
                keep(handle)
                return

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        if self._maker is not None:
            self._maker.close()


class HostedServer:
    """Runs a `GraphServer` with its partition, caches and connections in this process. Close it.

    calls: further operations that the server offers.

    Raises `OptionError` for an address or parts that cannot be used, `PartitionError` for an incomplete folder.
    """

    def __init__(self, plan: ServerPlan, calls: Mapping[str, CallHandler] | None = None) -> None:
        self._closing = ExitStack()
        try:
            self._open(plan, calls or {})
        except BaseException:
            self._closing.close()
            raise

    def _open(self, plan: ServerPlan, calls: Mapping[str, CallHandler]) -> None:
        base = open_parts(plan)
        self._closing.callback(base.close)
        mapped = open_version(base, plan.version)
        self._closing.callback(mapped.close)
        options, manifest = plan.cluster, mapped.manifest
        link = Link(
            job="",
            role="server",
            name=f"server {plan.rank} (pid {os.getpid()} on {socket.gethostname()})",
            graph=mapped.identity,
            token=plan.token,
            security=options.security,
            deadlines=options.deadlines,
            limits=options.limits,
        )
        parts = HostParts(mapped, plan.cache, plan.gpus, Ranks(name=link.name))
        self._closing.callback(parts.close)
        self.partition = partition = parts.partition
        transport = link.open_transport()
        whole = len(partition.parts) == manifest.num_parts
        owners = [] if whole else plan.other_servers(manifest)
        self.context = DistContext(
            role=Role.SERVER,
            rank=plan.rank,
            world_size=plan.num_servers,
            num_servers=plan.num_servers,
            num_clients=None,
            parts=partition.parts,
            peers=tuple(address for rank, address in enumerate(options.servers) if rank != plan.rank),
        )
        self.graph = graph = ClusterGraph(partition)
        if whole and plan.cache.keeps_rows:
            _log.warning("%s", NOTHING_TO_CACHE)
        filling = None if whole else _Filling(partition, plan.cache)
        if filling is not None:
            self._closing.callback(filling.close)
            graph.remote = connect_owners(partition, owners, link, transport)
            self._closing.callback(graph.remote.close)
        owner = Owner(partition, options.limits.reply_bytes, picker=plan.picker)
        self._closing.callback(owner.close)
        source = parts.source(None if whole else link, owners=tuple(owners), picker=plan.picker)
        self.server = GraphServer(
            partition,
            options,
            transport,
            plan.address,
            rank=plan.rank,
            source=source,
            services={**owner.calls, **GraphService(graph, partition.parts).calls, **calls},
            greet=link.greet,
        )
        self._closing.callback(self.server.close)
        if filling is not None and graph.remote is not None:
            filling.begin(graph.remote, self.server.keep)

    @property
    def address(self) -> str:
        """The address at which it listens, with the actual port."""
        return self.server.address

    def close(self) -> None:
        """Ends the server, its samplers and its connections. Safe to call twice."""
        self._closing.close()


# The options of a graph server.


_CACHE = CacheOptions()


@dataclass(frozen=True, kw_only=True)
class ServerPlan:
    """The options of a graph server. Plain values, so that they can be sent to a child process.

    directory: the partition folder.  version: its version, 0 for the partition itself.  rank: number among ``cluster.servers``.
    address: where to listen.
    parts: the parts to map; None: those of `placed_parts`.
    token: the secret, if it does not come from ``security.token_file``.
    gpus: the GPUs that sample; None: the CPU samples.
    picker: the picker (``sampling.picker``) that clients may ask for; None: none.
    """

    directory: str
    cluster: ServingOptions
    address: str
    version: int = 0
    rank: int = 0
    parts: tuple[int, ...] | None = None
    token: str | None = None
    cache: CacheOptions = _CACHE
    gpus: DeviceSource | None = None
    picker: PickerSpec | None = None

    @staticmethod
    def sampling_gpus(directory: str, sampling: SamplingOptions, cache: CacheOptions) -> DeviceSource | None:
        """Returns the GPUs of ``sampling.worker_devices``, prepared to sample by the weights and times of ``sampling`` and with
        edge ids, which clients may request; None without such GPUs.

        Raises `OptionError` for weights and times that the graph in ``directory`` does not have.
        """
        if not sampling.worker_devices:
            return None
        return DeviceSource.of_devices(
            sampling.worker_devices, sampling, cache, Manifest.load(Path(directory)), edges=True
        )

    @property
    def num_servers(self) -> int:
        return max(1, len(self.cluster.servers))

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values. Send them over private channels only: the token is among them."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> ServerPlan:
        parts = None if raw["parts"] is None else tuple(raw["parts"])
        changed = {"cluster": ServingOptions(**raw["cluster"]), "parts": parts, "cache": CacheOptions(**raw["cache"])}
        gpus = None if raw["gpus"] is None else DeviceSource.from_json(raw["gpus"])
        picker = None if raw["picker"] is None else PickerSpec.from_wire(raw["picker"])
        return cls(**dict(raw) | changed | {"gpus": gpus, "picker": picker})

    def other_servers(self, manifest: Manifest) -> list[OwnerAddresses]:
        """Returns the other servers of the job as owners; servers with the same parts are one owner."""
        found: dict[tuple[int, ...], list[int]] = {}
        for rank in range(len(self.cluster.servers)):
            if rank != self.rank:
                found.setdefault(served_parts(rank, self.num_servers, manifest), []).append(rank)
        return [
            OwnerAddresses(
                " / ".join(f"server {r}" for r in ranks), parts, tuple(self.cluster.servers[r] for r in ranks)
            )
            for parts, ranks in found.items()
        ]


def open_parts(plan: ServerPlan) -> LocalPartition:
    """Maps the parts of this server. Raises `OptionError` if other servers would look for parts that it does not have."""
    num_parts = Manifest.load(plan.directory).num_parts
    expected = placed_parts(plan.rank, plan.num_servers, num_parts)
    parts = expected if plan.parts is None else plan.parts
    if unknown := sorted(set(parts) - set(range(num_parts))):
        raise OptionError(f"server.parts: {plan.directory} has the parts 0 to {num_parts - 1}, got {unknown}.")
    if missing := sorted(set(expected) - set(parts)):
        raise OptionError(
            f"server.parts: {list(parts)} lacks {missing}, which the other servers request from server {plan.rank} of "
            f"{plan.num_servers} (part p is at server p mod {plan.num_servers}). Add them, or remove server.parts."
        )
    return LocalPartition.open(plan.directory, parts=parts)
