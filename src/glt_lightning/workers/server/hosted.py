"""A graph server with everything it needs: its local parts, the owners of the remote parts, its caches and the server itself."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from glt_lightning.base import CacheOptions, OptionError, PeerError
from glt_lightning.graph import LocalPartition
from glt_lightning.sampling import RemoteRows
from glt_lightning.workers.cluster.cache import NOTHING_TO_CACHE, CacheMaker
from glt_lightning.workers.cluster.context import DistContext, Role
from glt_lightning.workers.cluster.graph import ClusterGraph, GraphService
from glt_lightning.workers.cluster.link import Link
from glt_lightning.workers.cluster.owner import Owner
from glt_lightning.workers.cluster.owner_server import connect_owners
from glt_lightning.workers.producer.host_parts import HostParts
from glt_lightning.workers.producer.ranks import Ranks
from glt_lightning.workers.server.plan import ServerPlan, open_parts
from glt_lightning.workers.server.server import GraphServer
from glt_lightning.workers.transport.base import CallHandler

_AGAIN_S = 1.0  # between attempts to fill the cache; each waits for other servers as long as the deadlines allow
_log = logging.getLogger(__name__)


class _Filling:
    """Fills the cache of a server while it serves already: the other servers may start later. Close it after the
    connections to them, or `close` would wait for their deadlines."""

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
    """A `GraphServer` with its partition, caches and connections, in this process. Close it.

    calls: further operations that it offers.

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
        mapped = open_parts(plan)
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
        owners = [] if whole else plan.other_servers(manifest.num_parts)
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
