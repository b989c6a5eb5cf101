"""The modes: which options trainers and servers get, and in which networks they run."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glt_lightning import ClusterOptions, GLTDataModule
from glt_lightning.base import DeadlineOptions, SamplingOptions, SecurityOptions
from glt_lightning.workers import ServerPlan, run_certs
from tests.faults import cells
from tests.faults.zygote import Zygote
from tests.helpers import Run, started
from tests.helpers.hosts import Hosts, hosts, why_not
from tests.lightning.serving import free_addresses
from tests.lightning.test_two_ranks import WITH_TESTS
from tests.lightning.tiny import save_graph

_PORT = 18_800
_SERVING, _TRAINING = 0, 1  # hosts of the mode with namespaces
_DEADLINES = DeadlineOptions(
    connect_s=cells.CONNECT_S, call_s=cells.CALL_S, reconnect_s=cells.RECONNECT_S, lease_s=cells.LEASE_S
)


@dataclass(frozen=True)
class Graph:
    """The small graph, in two parts. data: what a `GLTDataModule` is told of it; folder: of the partition."""

    data: Mapping[str, Any]
    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Graph:
        path = save_graph(folder / "tiny.npz")
        data = {"dataset": str(path), "root": str(folder / "root"), "partition": {"num_parts": 2}}
        module = GLTDataModule(num_neighbors=[5, 5], **data)
        module.prepare_data()
        return cls(data, module.partition_dir)


@dataclass(frozen=True)
class World:
    """What all cells share."""

    graph: Graph
    zygote: Zygote


def why_skipped(mode: str, fault: str) -> str | None:
    """Why a cell cannot be run here; None if it can."""
    if fault == "disk full" and os.geteuid() != 0:
        return "mounting a small file system needs root"
    return why_not() if mode == cells.TLS else None


class Place:
    """A mode, ready for processes. Made by `open_place`."""

    def __init__(self, mode: str, world: World, net: Hosts | None, certs: Path) -> None:
        self.mode, self._graph, self._zygote, self._net, self._certs = mode, world.graph, world.zygote, net, certs
        self._ports = free_addresses(2)  # taken for as long as a cell lasts, with luck

    @property
    def strategy(self) -> str:
        return "glt_worker" if self.mode in (cells.HOST, cells.PLACED) else "glt_server_client"

    @property
    def servers(self) -> list[str]:
        """Addresses of those that are started by themselves."""
        if self._net is not None:
            return [f"{self._net.address(_SERVING)}:{_PORT + rank}" for rank in range(2)]
        return self._ports if self.mode == cells.SERVERS else []

    @property
    def cluster(self) -> ClusterOptions:
        return self._cluster(_TRAINING)

    def _cluster(self, host: int) -> ClusterOptions:
        return ClusterOptions(
            servers=self.servers,
            prefetch=2,
            placement="rank" if self.mode == cells.PLACED else "host",
            deadlines=_DEADLINES,
            peer_timeout_s=cells.PEER_TIMEOUT_S,
            peer_silence_s=cells.PEER_SILENCE_S,
            security=self._security(host),
        )

    def _security(self, host: int) -> SecurityOptions:
        if self._net is None:
            return SecurityOptions()
        name = self._net.address(host)
        files = {"ca": "ca.pem", "cert": f"{name}.pem", "key": f"{name}.key", "token_file": "token"}
        return SecurityOptions(**{key: str(self._certs / file) for key, file in files.items()})

    @property
    def data(self) -> dict[str, Any]:
        """Arguments of a trainer's data module."""
        if self.mode in (cells.SERVERS, cells.TLS):
            return {"dataset": None, "sampling": {"timeout_s": cells.SERVER_SAMPLER_TIMEOUT_S}}
        if self.mode == cells.OWN:
            sampling = {"num_workers": 1, "timeout_s": cells.SERVER_SAMPLER_TIMEOUT_S}
            return dict(self._graph.data) | {"sampling": sampling}
        # few batches ahead, so that most of an epoch is still to be sampled in its middle
        sampling = {"num_workers": 1, "concurrency": 2, "timeout_s": cells.SAMPLER_TIMEOUT_S}
        return dict(self._graph.data) | {"sampling": sampling}

    def plan(self, rank: int) -> ServerPlan:
        """Of a server that is started by itself."""
        directory, options = str(self._graph.folder), self._cluster(_SERVING)
        return ServerPlan(
            directory=directory,
            cluster=options.serving(SamplingOptions(num_workers=1)),
            address=self.servers[rank],
            rank=rank,
        )

    @contextlib.contextmanager
    def trainer(self, rank: int, options: str, port: str, folder: Path, temporary: Path) -> Iterator[Run]:
        """A rank, started as a launcher would: its exit status is then known, whatever becomes of the others."""
        env = {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        env |= {"GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(temporary)}
        log = folder.with_name(f"rank{rank}.txt")
        network = None if self._net is None else self._net.names[_TRAINING]
        with self._zygote.fork(options, env=env, cwd=folder, log=log, network=network) as run:
            yield run

    @contextlib.contextmanager
    def server(self, plan: str, folder: Path, temporary: Path) -> Iterator[Run]:
        argv = self._on(_SERVING, [sys.executable, "-m", "tests.faults.server", plan])
        with started(argv, env=WITH_TESTS | {"TMPDIR": str(temporary)}, cwd=folder) as run:
            yield run

    def _on(self, host: int, argv: list[str]) -> list[str]:
        return argv if self._net is None else self._net.command(host, argv)

    def pid_in_network(self, stack: ExitStack) -> int:
        """Of a process that lives in the network of the trainers and outlives them."""
        if self._net is None:
            return os.getpid()
        return stack.enter_context(started(self._on(_TRAINING, ["sleep", "600"]))).popen.pid

    def cut(self) -> None:
        assert self._net is not None
        self._net.cut(_SERVING)

    def heal(self) -> None:
        assert self._net is not None
        self._net.heal(_SERVING)


@contextlib.contextmanager
def open_place(mode: str, world: World, folder: Path) -> Iterator[Place]:
    """folder: for certificates."""
    if mode != cells.TLS:
        yield Place(mode, world, None, folder)
        return
    with hosts(2) as net:
        names = ",".join(net.address(host) for host in (_SERVING, _TRAINING))
        run_certs(["--dir", str(folder / "certs"), "--hosts", names, "--token"])
        yield Place(mode, world, net, folder / "certs")
