"""A process that serves its parts of the graph, and makes batches for clients."""

from __future__ import annotations

import hashlib
import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from glt_lightning.base import (
    ClusterOptions,
    DataError,
    OptionError,
    PeerError,
    SamplingOptions,
    read_integer,
)
from glt_lightning.compat.glt.distributed.calls import LABELS, CallTable
from glt_lightning.compat.glt.distributed.dataset import DistDataset
from glt_lightning.compat.glt.distributed.in_memory import collect_parts
from glt_lightning.compat.glt.distributed.meeting import Group, ask_round
from glt_lightning.compat.glt.distributed.session import DistContext, DistRole, Membership, required, start, stop
from glt_lightning.workers import Caller, HostedServer, Message, ServerPlan

_log = logging.getLogger(__name__)
_GROUP = "_default_server"
_LOOK_S = 1.0  # how often a server looks whether it is still needed
_PORTS = range(15000, 30000)  # below those that systems give out: a server that is started again finds its own free
_TRIES = 100
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
SPLITS = ("train", "val", "test")


class DistServer:
    """The server of this process. Its methods ``get_...`` are what loaders of clients call.

    `init_server` makes it, of a session and a group that have met, a dataset, this server's address and the addresses of all;
    sampling: how it samples.
    """

    def __init__(
        self,
        session: Membership,
        group: Group,
        dataset: DistDataset,
        address: str,
        addresses: list[str],
        sampling: SamplingOptions,
    ) -> None:
        self._session, self._group, self._dataset, self._address = session, group, dataset, address
        self._left: set[int] = set()
        self._all_left = threading.Event()
        options = replace(session.cluster, servers=addresses).serving(sampling)
        plan = ServerPlan(
            directory=str(dataset.folder.resolve()),
            cluster=options,
            address=address,
            rank=group.rank,
            parts=dataset.parts,
        )
        table: dict[str, Callable[..., Any]] = {
            "DistServer.get_labelled_types": self.get_labelled_types,
            LABELS: self.get_node_label,
            "DistServer.get_node_split": self.get_node_split,
            "torch.cuda.device_count": torch.cuda.device_count,
        }
        working: dict[str, Callable[..., int]] = {
            LABELS: self._label_bytes,
            "DistServer.get_node_split": self._split_bytes,
        }
        self._reply_bytes = options.limits.reply_bytes
        self._hosted = HostedServer(plan, {"call": CallTable(table, working), "left": self._client_left})

    def close(self) -> None:
        self._hosted.close()

    @property
    def num_clients(self) -> int:
        """Clients that have a loader now."""
        return int(self._hosted.server.status()["num_clients"])

    # What clients may call

    def get_node_split(self, name: str) -> Tensor | None:
        """Ids of ``train``, ``val`` or ``test`` of this server's data set, as `DistDataset.random_node_split` makes them."""
        if name not in SPLITS:
            raise DataError(f"get_node_split: expected {', '.join(SPLITS)}, got {name!r:.100}.")
        given = self._dataset.node_split
        return None if given is None else torch.as_tensor(given[SPLITS.index(name)])

    def get_labelled_types(self) -> list[str]:
        """Node types with labels that are not in the partition."""
        return sorted(self._dataset.labels_beside)

    def get_node_label(self, node_type: str, index: Tensor) -> Tensor:
        """Labels that are not in the partition, of the first nodes of ``index``: as many as fit into a reply, and at least
        one."""
        own, fit = self._labels(node_type)
        index = index[:fit].long()
        if (bad := (index < 0) | (index >= len(own))).any():
            raise DataError(
                f"get_node_label: node {int(index[bad][0])} of type {node_type!r} has no label; ids are 0 to {len(own) - 1}."
            )
        return own[index]

    def _label_bytes(self, node_type: str, index: Tensor) -> int:
        """Bytes of memory that `get_node_label` takes. Raises `DataError` for an index that names no nodes."""
        if not isinstance(index, Tensor) or index.ndim != 1 or index.dtype not in _INTEGERS:
            got = f"{index.dtype} {list(index.shape)}" if isinstance(index, Tensor) else f"{index!r:.100}"
            raise DataError(f"get_node_label: index: expected a tensor of integers [n], got {got}.")
        own, fit = self._labels(node_type)
        # the rows as stored, as given and as sent, and their numbers
        return min(fit, len(index)) * (3 * own[:1].nbytes + 32)

    def _labels(self, node_type: Any) -> tuple[Tensor, int]:
        """(labels of a type, number of rows that fit into a reply)"""
        known = self._dataset.labels_beside
        if not isinstance(node_type, str) or node_type not in known:
            raise DataError(f"get_node_label: node_type: expected one of {', '.join(known)}, got {node_type!r:.100}.")
        own = known[node_type]
        return own, max(1, self._reply_bytes // max(8, own[:1].nbytes))

    def _split_bytes(self, name: str) -> int:
        given = self._dataset.node_split
        return 0 if given is None or name not in SPLITS else 16 * len(given[SPLITS.index(name)])

    # The end

    def _client_left(self, message: Message, _caller: Caller) -> Message:
        clients = self._session.context.clients or read_integer(message.header, "clients", 0, 1 << 20)
        self._left.add(read_integer(message.header, "rank", 0, 1 << 20))
        if clients and len(self._left) >= clients:
            self._all_left.set()
        return Message({})

    def wait(self, look_s: float = _LOOK_S) -> None:
        """Until all clients have left. Raises `PeerError` where they are gone without a word."""
        idle, needed, limit_s = 0.0, False, self._session.cluster.deadlines.reconnect_s
        while not self._all_left.wait(look_s):
            if self._group.rank:  # the first server may have been started again, and knows nobody
                with suppress(PeerError):
                    ask_round(
                        self._group.peer, self._group.name, 0, self._group.rank, self._group.world, self._address, 0
                    )
            there = self.num_clients > 0
            needed, idle = needed or there, 0.0 if there else idle + look_s
            if needed and idle > limit_s:
                raise PeerError(
                    f"{self._session.name}: no client for {limit_s:g} s (cluster.deadlines.reconnect_s), and not all of them "
                    "said that they are done (shutdown_client). Look for the error of a client."
                )


def init_server(
    num_servers: int,
    server_rank: int,
    dataset: DistDataset,
    master_addr: str,
    master_port: int | str,
    num_clients: int = 0,
    num_rpc_threads: int = 16,
    request_timeout: float = 180,
    server_group_name: str | None = None,
    is_dynamic: bool = False,
    *,
    cluster: ClusterOptions | None = None,
    sampling: SamplingOptions | None = None,
) -> None:
    """Serves the parts of ``dataset`` as server ``server_rank``, from now on.

    Server 0 listens at ``master_addr:master_port``, where servers and clients meet; each server listens at a port of its own. A
    server that is started again with the same arguments goes on. num_servers: how many there are.  num_clients: that it waits
    for in `wait_and_shutdown_server`.  request_timeout: seconds that collective calls wait.  server_group_name: of the servers.
    cluster: deadlines, limits, security.  sampling: sampler processes (``num_workers``).  num_rpc_threads, is_dynamic: no effect,
    as clients may always come and go.

    >>> data = glt.distributed.DistDataset()
    >>> data.load("parts", partition_idx=0)
    >>> glt.distributed.init_server(2, 0, data, "server-0", 11111, num_clients=4)  # doctest: +SKIP
    >>> glt.distributed.init_server(2, 0, "parts", "server-0", 11111)
    Traceback (most recent call last):
        ...
    glt_lightning.base.errors.OptionError: dataset: expected a DistDataset, got str.
    """
    if not isinstance(dataset, DistDataset):
        raise OptionError(f"dataset: expected a DistDataset, got {type(dataset).__name__}.")
    name = (server_group_name or _GROUP).replace("-", "_")
    total = num_servers + num_clients
    context = DistContext(
        DistRole.SERVER, name, num_servers, server_rank, total, server_rank, servers=num_servers, clients=num_clients
    )
    session = start(context, cluster, request_timeout)
    try:
        group = session.meet(
            master_addr, int(master_port), "servers", server_rank, num_servers, is_master=server_rank == 0
        )
        session.group = group
        address = free_address(session.own_host(), f"{master_addr}:{master_port}/{server_rank}")
        addresses = group.exchange(address)  # the first round, which clients read
        if dataset.in_memory:
            collect_parts(dataset)
        server = DistServer(session, group, dataset, address, addresses, sampling or SamplingOptions())
    except BaseException:
        stop(failed=True)
        raise
    session.served = server
    session.ends.callback(server.close)


def get_server() -> DistServer:
    """The server of this process. Raises `OptionError` where there is none.

    >>> glt.distributed.get_server()
    Traceback (most recent call last):
        ...
    glt_lightning.base.errors.OptionError: get_server: this process has no context...
    """
    served = required("get_server").served
    if not isinstance(served, DistServer):
        raise OptionError("get_server: this process is no server. Call init_server first.")
    return served


def wait_and_shutdown_server() -> None:
    """Serves until all clients have called `shutdown_client`, or ended in order.

    >>> glt.distributed.wait_and_shutdown_server()
    Traceback (most recent call last):
        ...
    glt_lightning.base.errors.OptionError: get_server: this process has no context...
    """
    server = get_server()
    try:
        server.wait()
    finally:
        stop()


def free_address(host: str, key: str) -> str:
    """An address of this host that the server of this name finds again when it is started again."""
    first = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")
    shown, family = (f"[{host}]", socket.AF_INET6) if ":" in host else (host, socket.AF_INET)
    for attempt in range(_TRIES):
        port = _PORTS[(first + attempt * 7919) % len(_PORTS)]
        with socket.socket(family, socket.SOCK_STREAM) as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return f"{shown}:{port}"
    raise OptionError(
        f"init_server: none of {_TRIES} ports of {host} between {_PORTS[0]} and {_PORTS[-1]} is free. Check that {host} is an "
        "address of this host (cluster=ClusterOptions(host=...))."
    )
