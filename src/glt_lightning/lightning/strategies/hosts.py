"""The ranks of several hosts meet before torch's process group is made: it would wait for them without a word."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed
from lightning.pytorch.plugins.environments import ClusterEnvironment
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch.distributed import TCPStore

from glt_lightning.base import ClusterOptions, OptionError, PeerError, PeerLostError
from glt_lightning.graph import Manifest
from glt_lightning.lightning.strategies.peers import RankError
from glt_lightning.workers import Link, RemoteGraph

_QUIET_S = 3.0  # hosts that start together need no line
_PAUSE_S = 0.1
_CALL_S = 10.0  # one call to a store that answers
_KEY = "glt/joined/"


class Store(Protocol):
    """What is used of torch's store."""

    def set(self, key: str, value: str) -> None: ...

    def check(self, keys: list[str]) -> bool: ...


@dataclass(frozen=True)
class Meeting:
    """Where the ranks of a job meet, and which one this is. Each host has ``per_host`` ranks.

    first_ranks: the first rank of a host stands for all of them, because it starts the others after the meeting.
    """

    address: str
    port: int
    rank: int
    hosts: int
    per_host: int
    deadline_s: float
    first_ranks: bool = False

    @property
    def host(self) -> int:
        return self.rank // self.per_host

    def ranks_of(self, host: int) -> range:
        return range(host * self.per_host, (host + 1) * self.per_host)


def meet_hosts(strategy: Any, deadline_s: float, *, first_ranks: bool = False) -> object:
    """Waits in Python, where signals are handled, for the ranks of the other hosts; torchrun has done so itself.

    strategy: has a cluster environment.  first_ranks: as in `Meeting`.  Returns what is to be kept until there is a group.
    Raises `PeerError` after ``deadline_s``; `RankError` on a rank that is not the first of its host, which says the same.
    """
    if torch.distributed.is_initialized() or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None
    meeting = Meeting(
        address=strategy.cluster_environment.main_address,
        port=strategy.cluster_environment.main_port,
        rank=strategy.node_rank * strategy.num_processes + strategy.local_rank,
        hosts=strategy.num_nodes,
        per_host=strategy.num_processes,
        deadline_s=deadline_s,
        first_ranks=first_ranks,
    )
    if strategy.local_rank == 0:
        return meet(meeting, _say)
    try:
        return meet(meeting, lambda _: None)
    except PeerError as error:
        raise RankError(str(error)) from None


def meet(
    meeting: Meeting,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> torch.distributed.TCPStore:
    """Waits until the ranks of all hosts are there. Returns the store, which torch uses again as long as it is referenced.

    say: is told after a few seconds whom this rank waits for. Raises `PeerError` when ``deadline_s`` is over.
    """
    end = clock() + meeting.deadline_s
    if meeting.rank == 0:
        store = _open_store(meeting)
    else:
        _wait(meeting, lambda: [] if _answers(meeting) else [0], say, end, clock, pause)
        store = _store(meeting, is_master=False)
    wait_for_ranks(meeting, store, say, end, clock, pause)
    return store


def wait_for_ranks(
    meeting: Meeting,
    store: Store,
    say: Callable[[str], None],
    end: float,
    clock: Callable[[], float],
    pause: Callable[[float], None],
) -> None:
    """Signs in and waits for the other hosts, until the clock shows ``end``."""
    store.set(f"{_KEY}{meeting.rank}", socket.gethostname())
    _wait(meeting, lambda: _missing(meeting, store), say, end, clock, pause)


def _missing(meeting: Meeting, store: Store) -> list[int]:
    """Hosts of which ranks are not there yet."""
    awaited = slice(1) if meeting.first_ranks else slice(None)
    return [
        host
        for host in range(meeting.hosts)
        if not store.check([f"{_KEY}{rank}" for rank in meeting.ranks_of(host)[awaited]])
    ]


def _wait(
    meeting: Meeting,
    missing: Callable[[], list[int]],
    say: Callable[[str], None],
    end: float,
    clock: Callable[[], float],
    pause: Callable[[float], None],
) -> None:
    begin, logged = clock(), False
    while hosts := missing():
        now = clock()
        if now >= end:
            raise PeerError(_given_up(meeting, hosts))
        if not logged and now - begin >= _QUIET_S:
            logged = True
            say(
                f"host {meeting.host} of {meeting.hosts} waits for {_named(meeting, hosts)} at {meeting.address}:{meeting.port}, "
                f"up to {meeting.deadline_s:g} s (cluster.deadlines.join_s). {_remedy(meeting, hosts[0])}"
            )
        pause(_PAUSE_S)


def _given_up(meeting: Meeting, hosts: Sequence[int]) -> str:
    return (
        f"{_named(meeting, hosts)} did not come to {meeting.address}:{meeting.port} within {meeting.deadline_s:g} s "
        f"(cluster.deadlines.join_s). {_remedy(meeting, hosts[0])} Or set trainer.num_nodes to the hosts there are."
    )


def _remedy(meeting: Meeting, host: int) -> str:
    if meeting.address.startswith("127.") or meeting.address == "localhost":
        return (
            f"No other host reaches {meeting.address}: on all hosts set MASTER_ADDR to the name of host 0 and MASTER_PORT to "
            f"one free port of it, and on host {host} NODE_RANK={host}."
        )
    return (
        f"Start the same command on host {host} with NODE_RANK={host} MASTER_ADDR={meeting.address} "
        f"MASTER_PORT={meeting.port}, and check that it can reach this port."
    )


def _named(meeting: Meeting, hosts: Sequence[int]) -> str:
    names = []
    for host in hosts:
        ranks = meeting.ranks_of(host)
        which = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        names.append(f"host {host} ({which})")
    return " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"


def _answers(meeting: Meeting) -> bool:
    """Whether something listens where rank 0 has its store."""
    with suppress(OSError), socket.create_connection((meeting.address, meeting.port), timeout=_CALL_S):
        return True
    return False


def _open_store(meeting: Meeting) -> torch.distributed.TCPStore:
    try:
        return _store(meeting, is_master=True)
    except RuntimeError as error:  # a DistError in newer versions of torch
        raise OptionError(
            f"MASTER_PORT: rank 0 cannot listen at port {meeting.port} of this host "
            f"({str(error).splitlines()[0]}). Stop the process that uses it, or choose another port, the same on all "
            "hosts."
        ) from error


def _store(meeting: Meeting, *, is_master: bool) -> torch.distributed.TCPStore:
    # multi_tenant: torch's process group takes over the store of this process at the same port
    return torch.distributed.TCPStore(
        meeting.address,
        meeting.port,
        meeting.hosts * meeting.per_host,
        is_master=is_master,
        timeout=timedelta(seconds=_CALL_S),
        wait_for_workers=False,
        multi_tenant=True,
    )


def connect_store(environment: Any, prefix: str) -> torch.distributed.PrefixStore:
    """A client of its own of the job's store, wherever that is, with a prefix to all keys. Raises RuntimeError."""
    store = torch.distributed.TCPStore(
        environment.main_address,
        environment.main_port,
        is_master=False,
        timeout=timedelta(seconds=_CALL_S),
        wait_for_workers=False,
    )
    return torch.distributed.PrefixStore(prefix, store)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# In a job on one host, torch's process group listens on loopback alone.


_LOOPBACK = "127.0.0.1"
_BACKLOG = 2048  # as torch's own store: the ranks of a host connect at the same moment
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"


def open_store(environment: ClusterEnvironment, first: bool, ranks: int) -> TCPStore | None:
    """Opens the store of a process group whose ranks are all on this host, before the group is initialised.

    Torch's own store listens on all interfaces. It takes over the store of this process at the same port (the meaning of
    ``multi_tenant``), so Lightning can go on to initialise the group. Keep the store until then.

    first: whether this rank has the store. The other ranks only learn where it is: None.
    """
    if torch.distributed.is_initialized() or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None  # torchrun's agent has the store
    os.environ["MASTER_ADDR"] = _LOOPBACK  # a host name, as SLURM gives it, would lead to an address of the network
    address = _resolve(environment.main_address)
    if not first or not address.startswith("127."):  # an environment may insist on its own address
        return None
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, environment.main_port))
        listener.listen(_BACKLOG)
    except OSError:
        # Taken: by the store of an earlier group of this process, which torch uses again, or else torch raises.
        listener.close()
        return None
    return TCPStore(
        address,
        environment.main_port,
        ranks,
        is_master=True,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=listener.detach(),
        use_libuv=torch.__version__ >= "2.8",  # before, torch's newer store took no socket
    )


class GlooOnLoopback:
    """Makes gloo connect ranks over the loopback interface, unless the user names another. By default it listens at the
    address that the name of the host leads to."""

    def __init__(self) -> None:
        self._set = False

    def open(self) -> None:
        if sys.platform == "linux" and _GLOO_INTERFACE not in os.environ:
            os.environ[_GLOO_INTERFACE] = "lo"
            self._set = True

    def close(self) -> None:
        """Takes the setting back. Safe to call twice."""
        if self._set:
            os.environ.pop(_GLOO_INTERFACE, None)
        self._set = False


def _resolve(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return ""


# The manifest of a graph that servers hold, before there is a Trainer.


_SILENCE_S = 3.0  # after which a log line names the servers that are waited for


def ask_manifest(cluster: ClusterOptions) -> Manifest:
    """Asks the first server that answers. Raises `PeerError` if none does within ``deadlines.reconnect_s``."""
    link = Link(
        job="",
        role="tool",
        name=f"data module (pid {os.getpid()} on {socket.gethostname()})",
        security=cluster.security,
        deadlines=cluster.deadlines,
    )
    waiting = f"waiting up to {cluster.deadlines.reconnect_s:g} s for a graph server at {', '.join(cluster.servers)}"
    notice = threading.Timer(_SILENCE_S, rank_zero_info, (waiting,))
    notice.daemon = True
    peer = link.peer("graph server", cluster.servers, link.open_transport())
    notice.start()
    try:
        return RemoteGraph(peer).manifest
    except PeerLostError as error:
        raise PeerLostError(
            f"{error} If no graph server runs there, start one where the graph is: python -m lightning serve --config F.yaml "
            "--server.rank R, with R the position of its address in cluster.servers."
        ) from error
    finally:
        notice.cancel()
        notice.join()
        peer.close()
