"""The current context of a script: which process this is, whom it has met, and what is open and has to be closed at its end.

This is the only state of a process in the package, because GraphLearn-for-PyTorch's functions take no context.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import multiprocessing.util
import os
import secrets
import socket
import sys
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol

from glt_lightning.base import ClusterOptions, OptionError, PeerError
from glt_lightning.compat.glt.distributed.meeting import Group, MeetingPoint, say_gone
from glt_lightning.compat.glt.distributed.options import CollocatedDistSamplingWorkerOptions
from glt_lightning.tensors import end_group_at_exit
from glt_lightning.workers import Link, Peer, Ranks

_log = logging.getLogger(__name__)
_ATTEMPT_S = 1.0  # of the meeting point: who waits for it repeats the question anyway
_CALL_S = 180.0


class Closeable(Protocol):
    def close(self) -> None: ...


@dataclass
class Membership:
    """What `get_context` stands for. opened: loaders, in the order in which they were made."""

    context: DistContext
    cluster: ClusterOptions
    timeout_s: float
    group: Group | None = None
    job: str = ""
    opened: list[Closeable] = field(default_factory=list)
    ends: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    peers: list[Any] = field(default_factory=list)  # of the servers, for a client
    served: Any = None  # the server that this process is
    failed: bool = False
    loaders: int = 0  # made so far
    _addresses: tuple[str, str] = ("", "")
    _meeting: Peer | None = None

    @property
    def name(self) -> str:
        return f"{self.context.worker_name} (pid {os.getpid()} on {socket.gethostname()})"

    def link(self, role: str, **changes: Any) -> Link:
        """How this process introduces itself."""
        options = self.cluster
        given: dict[str, Any] = {
            "security": options.security,
            "deadlines": options.deadlines,
            "limits": options.limits,
        }
        return Link(**{"job": self.job, "role": role, "name": self.name} | given | changes)

    def meet(self, host: str, port: int, group: str, rank: int, world: int, *, is_master: bool) -> Group:
        """Joins the other processes at ``host:port``, where the master listens."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        deadlines = self.cluster.deadlines
        once = replace(deadlines, reconnect_s=_ATTEMPT_S)
        link = self.link("tool", job="", deadlines=once)
        if is_master and not self._addresses[0]:
            point = MeetingPoint(link, address)
            self.ends.callback(point.close)
        elif not self._addresses[0]:
            last = self.link("tool", job="", deadlines=replace(once, call_s=5.0, connect_s=2.0))
            self.ends.callback(say_gone, last, address)
        self._addresses = (address, host)
        peer = link.peer(f"the meeting point at {address}", [address], link.open_transport())
        self.ends.callback(peer.close)
        self._meeting = peer
        return Group(group, rank, world, peer, self.timeout_s, deadlines.join_s)

    def join_workers(self, host: str, port: int) -> None:
        """Meets the other workers, once. A collective call."""
        if self.group is not None or self.context.world_size == 1:
            return
        rank, world = self.context.rank, self.context.world_size
        self.group = self.meet(host, port, self.context.group_name, rank, world, is_master=rank == 0)
        self.job = self.group.exchange(secrets.token_hex(8))[0]

    def ranks(self) -> Ranks:
        """This process and its collective calls, for loaders."""
        context, group = self.context, self.group
        if group is None:
            return Ranks(context.rank if context.world_size == 1 else 0, 1)
        return Ranks(context.rank, context.world_size, group.exchange, group.gather_counts)

    def own_host(self) -> str:
        """Name or address of this host for processes on others."""
        if self.cluster.host is not None:
            return self.cluster.host
        return address_towards(self._addresses[1])

    def close(self, *, failed: bool = False) -> None:
        """Waits for the other processes to come here, too, as they may need rows of this one; then closes all."""
        group, self.group, self.failed = self.group, None, failed
        with contextlib.ExitStack() as then:
            then.callback(self.ends.close)
            for each in self.opened:
                then.callback(each.close)
            if group is not None and not failed and not self.context.is_server():  # servers end when clients have
                try:
                    group.exchange("leaving", self.timeout_s)
                except PeerError as error:
                    _log.warning("%s ends without waiting for the others: %s", self.name, error)
        self.opened.clear()


def address_towards(host: str) -> str:
    """The address of this host that leads to ``host``."""
    try:
        family, _, _, _, where = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)  # sends nothing; tells which of our addresses leads there
            return str(probe.getsockname()[0])
    except OSError as error:
        raise OptionError(
            f"master_addr: {host!r} cannot be resolved ({error}). Give the name or address of the master's host, and "
            "cluster=ClusterOptions(host=...) where this host's own address cannot be found out."
        ) from None


# The current session

_current: list[Membership] = []


def start(context: DistContext, cluster: ClusterOptions | None, timeout_s: float = _CALL_S) -> Membership:
    """Makes a session the current one, and closes the one before. timeout_s: of collective calls."""
    stop()
    session = Membership(context, cluster or ClusterOptions(), float(timeout_s))
    _current.append(session)
    # Exit handlers run in reverse order. Those of weakref, which the first line registers, end the servers through which this
    # process still has to talk to the others. Processes that multiprocessing forks come to its handlers alone.
    end_group_at_exit()
    atexit.register(_at_exit, session)
    multiprocessing.util.Finalize(None, _at_exit, args=(session,), exitpriority=20)
    return session


def current() -> Membership | None:
    return _current[-1] if _current else None


def required(who: str) -> Membership:
    """Raises `OptionError` where no function has made a context yet."""
    if not _current:
        raise OptionError(
            f"{who}: this process has no context. Call init_worker_group, init_server or init_client first."
        )
    return _current[-1]


def stop(*, failed: bool = False) -> None:
    """Ends the current session, if there is one."""
    if _current:
        _current.pop().close(failed=failed)


def get_context() -> DistContext | None:
    """The context of this process, or None.

    >>> glt.distributed.init_worker_group(1, 0, "trainers")
    >>> glt.distributed.get_context().worker_name
    'trainers_0'
    >>> glt.distributed.shutdown_rpc()
    >>> glt.distributed.get_context() is None
    True
    """
    return _current[-1].context if _current else None


def _at_exit(session: Membership) -> None:
    if session in _current:
        stop(failed=getattr(sys, "last_value", None) is not None)  # after an exception it does not wait for the others


# Which process of a script this is, as GraphLearn-for-PyTorch says it.


class DistRole(Enum):
    """The role of a process.

    >>> DistRole.SERVER.name
    'SERVER'
    """

    WORKER = 1
    SERVER = 2
    CLIENT = 3


@dataclass(frozen=True)
class DistContext:
    """A process of a script.

    role: its role.  group_name: the processes with that role.  world_size, rank: their number, and which this is.
    global_world_size, global_rank: the same of servers and clients together, servers first.
    servers, clients: how many there are.

    >>> DistContext(DistRole.CLIENT, "trainers", 4, 1, 6, 3, servers=2, clients=4).worker_name
    'trainers_1'
    """

    role: DistRole
    group_name: str
    world_size: int
    rank: int
    global_world_size: int
    global_rank: int
    servers: int = 0
    clients: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise OptionError(
                f"{self.group_name}: rank: expected 0 <= rank < {self.world_size} (world size), got {self.rank}."
            )

    def is_worker(self) -> bool:
        return self.role is DistRole.WORKER

    def is_server(self) -> bool:
        return self.role is DistRole.SERVER

    def is_client(self) -> bool:
        return self.role is DistRole.CLIENT

    def num_servers(self) -> int:
        return self.servers

    def num_clients(self) -> int:
        return self.clients

    @property
    def worker_name(self) -> str:
        return f"{self.group_name}_{self.rank}"


# Worker mode: every process trains, and samples for itself.


_GROUP = "_default_worker"


def init_worker_group(
    world_size: int, rank: int, group_name: str | None = None, *, cluster: ClusterOptions | None = None
) -> None:
    """Says that this is worker ``rank`` of ``world_size``. Workers meet when the first of them needs another one: at the first
    loader, or in `init_rpc`.

    group_name: of the workers.  cluster: security, deadlines and limits of the messages between the processes.

    >>> glt.distributed.init_worker_group(world_size=1, rank=0, group_name="trainers")
    >>> glt.distributed.get_context().world_size
    1
    >>> glt.distributed.shutdown_rpc()
    """
    context = DistContext(DistRole.WORKER, (group_name or _GROUP).replace("-", "_"), world_size, rank, world_size, rank)
    start(context, cluster)


def init_rpc(
    master_addr: str,
    master_port: int | str,
    num_rpc_threads: int = 16,
    rpc_timeout: float = 180,
    is_dynamic: bool = False,
) -> None:
    """Meets the other workers at ``master_addr:master_port``, where worker 0 listens. rpc_timeout: seconds that collective calls
    wait.  num_rpc_threads, is_dynamic: no effect.

    >>> glt.distributed.init_worker_group(1, 0, "trainers")
    >>> glt.distributed.init_rpc("localhost", 11111)
    >>> glt.distributed.shutdown_rpc()
    """
    session = required("init_rpc")
    given = CollocatedDistSamplingWorkerOptions(master_addr, master_port, num_rpc_threads, rpc_timeout)
    session.timeout_s = given.rpc_timeout
    session.join_workers(*given.address())


def shutdown_rpc(graceful: bool = True) -> None:
    """Ends what this process has open. graceful: after all others have come here, too.

    >>> glt.distributed.init_worker_group(1, 0, "trainers")
    >>> glt.distributed.shutdown_rpc()
    """
    stop(failed=not graceful)


def barrier(timeout: float | None = None) -> None:
    """Waits for all processes of this role. timeout: in seconds; None: of the options. Raises `PeerError` where one does not come
    in time.

    >>> glt.distributed.init_worker_group(1, 0, "trainers")
    >>> glt.distributed.barrier()
    >>> glt.distributed.shutdown_rpc()
    """
    session = required("barrier")
    if session.group is not None:
        session.group.exchange("", timeout)
    elif session.context.world_size > 1 or not session.context.is_worker():
        raise OptionError("barrier: the processes have not met. Call init_rpc or make a loader first, on all of them.")
