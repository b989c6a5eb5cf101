"""`GLTServerClientStrategy`: graph servers make the batches, trainers have no graph."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from glt_lightning.base import CacheOptions, OptionError, PartitionError, PeerError, SamplingOptions, SecurityOptions
from glt_lightning.graph import LocalPartition, difference, partition_id
from glt_lightning.lightning.strategies.base import GLTStrategy
from glt_lightning.partition import Versions
from glt_lightning.workers import (
    DistContext,
    Peer,
    Role,
    SampledGraph,
    ServedGraph,
    ServerPlan,
    ServerProcess,
)

_SAMPLING, _CACHE = SamplingOptions(), CacheOptions()


class GLTServerClientStrategy(GLTStrategy):
    """DDP whose ranks get their batches from graph servers.

    Registered as ``glt_server_client``. The servers are ``cluster.servers``, which run before and after this job and
    serve others too; without any, and with all ranks on one host, rank 0 starts one and ends it with the run.
    `GLTStrategy` has the arguments.

    Example:
        >>> cluster = ClusterOptions(servers=["127.0.0.1:7000"])  # where `python -m lightning serve` runs
        >>> strategy = GLTServerClientStrategy(cluster)
        >>> trainer = Trainer(strategy=strategy, devices=1)
        >>> strategy.servers
        ['127.0.0.1:7000']
    """

    strategy_name = "glt_server_client"
    description = "DDP; graph servers sample, trainers have no graph"

    _server: ServerProcess | None = None
    _role = Role.CLIENT.value
    _peers: Sequence[Peer] = ()
    _addresses: tuple[str, ...] = ()
    _dead_server = ""

    @property
    def servers(self) -> list[str]:
        return self.options.servers

    @property
    def context(self) -> DistContext:
        servers = tuple(self.options.servers) or self._addresses
        return DistContext(
            role=Role.CLIENT,
            rank=self.global_rank,
            world_size=self.world_size,
            num_servers=max(1, len(servers)),
            num_clients=self.world_size,
            peers=servers,
        )

    def open_graph(
        self,
        folder: str | Path | None,
        sampling: SamplingOptions = _SAMPLING,
        cache: CacheOptions = _CACHE,
        version: int | str | None = None,
    ) -> ServedGraph:
        """The graph as the server of this rank tells it. ``folder``: of the partition, for a server that rank 0 starts.
        Raises `PartitionError` where the servers of two ranks have different partitions."""
        self._close_graph()
        found: list[ServedGraph] = []

        def find() -> str:
            found.append(self._find_graph())
            return partition_id(found[0].manifest)

        if not self.options.servers:
            self._start_server(folder, sampling, cache, version)
        hashes = self._gather_found(find)
        for rank, theirs in enumerate(hashes):
            if theirs != hashes[0]:
                raise PartitionError(
                    f"cluster.servers: the server of rank {rank} (there) serves a different partition than the server of "
                    f"rank 0 (here): {difference(theirs, hashes[0])}"
                )
        return found[0]

    def _samplers(self, sampling: SamplingOptions, ranks: int) -> int:
        return (
            0 if self.options.servers else self.options.serving(sampling).num_workers
        )  # of the server that this run starts

    def _find_graph(self) -> ServedGraph:
        options = self.options
        if options.servers:
            chosen = options.server_rank
            number = self.global_rank % len(options.servers) if chosen == "auto" else int(chosen)
            link, addresses = self._link(self._role, None), options.servers
        else:
            number, addresses = 0, list(self._addresses)
            link = replace(self._link(self._role, self._secret()), security=_local(options.security))
        transport = link.open_transport()
        self._peers = [link.peer(f"server {n}", [address], transport) for n, address in enumerate(addresses)]
        return ServedGraph(self._peers[number], options, servers=self._peers)

    def _start_server(
        self, folder: str | Path | None, sampling: SamplingOptions, cache: CacheOptions, version: int | str | None
    ) -> None:
        """Rank 0 starts a server for all ranks. A collective call."""
        if self.num_nodes > 1:
            raise OptionError(
                f"cluster.servers: needed on {self.num_nodes} hosts. Start `python -m lightning serve --config F.yaml "
                "--server.rank R` where the graph is, and list the addresses: cluster.servers: [host:port, ...]."
            )
        self._link(self._role, None)  # agrees on the job before anyone may fail
        found = self._gather_found(
            lambda: self._start_here(folder, sampling, cache, version) if self.global_rank == 0 else ""
        )
        self._addresses = (found[0],)

    def _start_here(
        self, folder: str | Path | None, sampling: SamplingOptions, cache: CacheOptions, version: int | str | None
    ) -> str:
        if folder is None:
            raise OptionError(
                "dataset: not given, and neither is cluster.servers nor a finished partition.dir. Give one of them."
            )
        options = self.options
        cluster = replace(options, servers=[], server_rank="auto", security=_local(options.security))
        directory = os.path.abspath(folder)
        plan = ServerPlan(
            directory=directory,
            cluster=cluster.serving(sampling),
            address="127.0.0.1:0",
            version=Versions(folder).number(version),
            token=self._secret(),
            cache=cache,
            gpus=ServerPlan.sampling_gpus(directory, sampling, cache),
            picker=sampling.draw.picker,
        )
        self._server = ServerProcess(plan, sampling.max_restarts, self._give_up)
        return self._server.address

    def _give_up(self, reason: str) -> None:
        """The server of this run is gone for good: whatever waits for it ends now."""
        self._dead_server = reason
        print(f"error: {reason}", file=sys.stderr, flush=True)
        self._end_waits()

    def _end_waits(self) -> None:
        for peer in self._peers:
            peer.close()

    def _of_partition(self, partition: LocalPartition) -> SampledGraph:
        raise OptionError(
            "strategy glt_server_client: expected the graph that strategy.open_graph() returned, got "
            f"{type(partition).__name__}."
        )

    def on_exception(self, exception: BaseException) -> None:
        super().on_exception(exception)
        if self._dead_server and exception.__cause__ is None:
            exception.__cause__ = PeerError(self._dead_server)

    def _leave_together(self) -> None:
        # evaluation and prediction end at different times; rank 0 ends the server, and hosts have rows of tensors
        if not self.options.servers or self.num_nodes > 1:
            self._ranks.exchange("")

    def _close_graph(self) -> None:
        peers, self._peers = self._peers, ()
        server, self._server = self._server, None
        self._addresses, self._dead_server = (), ""
        try:
            for peer in peers:
                peer.close()
        finally:
            if server is not None:
                server.close()


def _local(security: SecurityOptions) -> SecurityOptions:
    """Within one host a secret does; a certificate would have to name the loopback address."""
    return SecurityOptions(token_file=security.token_file)
