"""A process that serves its parts of the graph, and makes batches for clients."""

from __future__ import annotations

import hashlib
import logging
import math
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import (
    ClusterOptions,
    DataError,
    EdgeType,
    OptionError,
    PeerError,
    SamplingOptions,
    read_integer,
)
from glt_lightning.compat.glt.distributed.calls import BY_INDEX, CallTable
from glt_lightning.compat.glt.distributed.dataset import DistDataset
from glt_lightning.compat.glt.distributed.in_memory import collect_parts
from glt_lightning.compat.glt.distributed.meeting import Group, ask_round
from glt_lightning.compat.glt.distributed.session import DistContext, DistRole, Membership, required, start, stop
from glt_lightning.compat.glt.folders import StoredEdges, load_graphs
from glt_lightning.tensors import GraphReader, row_spaces
from glt_lightning.workers import MOST_BODY, Caller, CallHandler, HostedServer, Message, ServerPlan

_log = logging.getLogger(__name__)


_GROUP = "_default_server"


_LOOK_S = 1.0  # how often a server looks whether it is still needed


_PORTS = range(15000, 30000)  # below those that systems give out: a server that is started again finds its own free


_TRIES = 100


_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


_EDGE_BYTES = 96  # of memory for each edge on the way to an answer: ends as stored, as ids, sorted twice, as sent


SPLITS = ("train", "val", "test")


_CALLABLE = (
    "get_dataset_meta",
    "get_edge_index",
    "get_edge_size",
    "get_labelled_types",
    "get_node_feature",
    "get_node_label",
    "get_node_partition_id",
    "get_node_split",
    "get_tensor_size",
)


class DistServer:
    """What clients may call of a server with `request_server`: its methods ``get_...``.

    `init_server` makes it, of a session and a group that have met, a dataset, this server's address and the addresses of all;
    sampling: how it samples.

    >>> data = glt.distributed.DistDataset()
    >>> data.load("parts", partition_idx=[0, 1])
    >>> glt.distributed.init_server(1, 0, data, "localhost", glt.utils.get_free_port())
    >>> server = glt.distributed.get_server()
    >>> server.get_dataset_meta(), server.get_node_feature(None, torch.tensor([3])).tolist()
    ([2, 0, None, None], [[9.0, 10.0, 11.0]])
    >>> server.get_edge_size(), server.get_edge_index()[1][:4].tolist()
    ([10, 10], [1, 2, 2, 3])
    >>> glt.distributed.shutdown_rpc()
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
        table = {f"DistServer.{name}": getattr(self, name) for name in _CALLABLE}
        table["torch.cuda.device_count"] = torch.cuda.device_count
        table |= {f"DistServer.{name}": partial(self._first_rows, name) for name in BY_INDEX}
        working: dict[str, Callable[..., int]] = {
            f"DistServer.{name}": partial(self._row_bytes, name) for name in BY_INDEX
        }
        working |= {"DistServer.get_edge_index": self._edge_bytes, "DistServer.get_node_split": self._split_bytes}
        self._reply_bytes = options.limits.reply_bytes
        calls: dict[str, CallHandler] = {"call": CallTable(table, working), "left": self._client_left}
        self._hosted = HostedServer(plan, calls)
        self._reader = GraphReader.of(self._hosted.graph)
        self._stored = StoredEdges.of(self._hosted.graph.manifest)
        self._spaces = {space.of: space for space in row_spaces(self._hosted.graph.manifest)}

    def close(self) -> None:
        self._hosted.close()

    @property
    def num_clients(self) -> int:
        """Clients that have a loader now."""
        return int(self._hosted.server.status()["num_clients"])

    # What clients may call

    def get_dataset_meta(self) -> list[Any]:
        """[number of parts, first part of this server, node types, edge types]; the types are None in a homogeneous graph."""
        schema = self._hosted.graph.schema
        types: list[Any] = [list(schema.node_types), [list(self._stored.given(e)) for e in schema.edge_types]]
        if schema.homogeneous:
            types = [None, None]
        return [self._dataset.num_partitions, self._dataset.partition_idx, *types]

    def get_node_label(self, node_type: str | None, index: Tensor) -> Tensor:
        own = self._dataset.labels_beside
        kind = self._node_type(node_type)
        if kind not in own:
            return self._attribute(kind, "y", index)
        if (bad := (index < 0) | (index >= len(own[kind]))).any():
            raise DataError(
                f"get_node_label: node {int(index[bad][0])} of type {kind!r} has no label; ids are 0 to {len(own[kind]) - 1}."
            )
        return own[kind][index]

    def get_node_feature(self, node_type: str | None, index: Tensor) -> Tensor:
        return self._attribute(self._node_type(node_type), "x", index)

    def get_tensor_size(self, node_type: str | None) -> list[int]:
        kind = self._node_type(node_type)
        space = self._spaces[kind]
        return [space.num_rows, *self._reader.open(space, "x").row_shape]

    def get_node_partition_id(self, node_type: str | None, index: Tensor) -> Tensor:
        space = self._spaces[self._node_type(node_type)]
        return torch.from_numpy(space.parts_of(self._reader.rows_of(space, index.numpy())).astype("i8"))

    def get_node_split(self, name: str) -> Tensor | None:
        """Ids of ``train``, ``val`` or ``test`` of this server's data set, as `DistDataset.random_node_split` makes them."""
        if name not in SPLITS:
            raise DataError(f"get_node_split: expected {', '.join(SPLITS)}, got {name!r:.100}.")
        given = self._dataset.node_split
        return None if given is None else torch.as_tensor(given[SPLITS.index(name)])

    def get_edge_size(self, edge_type: Any = None, layout: str = "coo") -> list[int]:
        """[number of source nodes, number of destination nodes] of an edge type."""
        schema, counts = self._hosted.graph.schema, self._hosted.graph.manifest.num_nodes
        _, found = self._edge_type(edge_type)
        ends = found[::-2] if self._stored.turned else found[::2]
        return [counts[schema.node_index(end)] for end in ends]

    def get_edge_index(self, edge_type: Any = None, layout: str = "coo") -> list[Tensor]:
        """[sources, destinations] of the edges of this server's parts, in ascending order."""
        if layout != "coo":
            raise DataError(f"get_edge_index: layout: expected 'coo', got {layout!r:.100}.")
        given, _ = self._edge_type(edge_type)
        spaces = [self._spaces[t] for t in self._hosted.graph.schema.node_types]
        ids = [self._reader.user_ids(space, np.arange(space.num_rows)) for space in spaces]
        mapped, parts = self._dataset.map(whole=False), self._dataset.parts
        ends = torch.cat([load_graphs(mapped, part, ids)[given].edge_index for part in parts], dim=1)
        ends = ends[:, torch.argsort(ends[1], stable=True)]
        return list(ends[:, torch.argsort(ends[0], stable=True)])

    def _edge_type(self, given: Any) -> tuple[EdgeType, EdgeType]:
        """An edge type as the user names it, and as it is stored."""
        types = self._hosted.graph.schema.edge_types
        if given is None and len(types) == 1:
            return self._stored.given(types[0]), types[0]
        if not isinstance(given, (list, tuple)) or len(given) != 3 or not all(isinstance(each, str) for each in given):
            raise DataError(f"edge_type: expected (source, relation, destination), got {given!r:.100}.")
        return tuple(given), self._stored.stored(tuple(given))

    def get_labelled_types(self) -> list[str]:
        """Node types with labels that are not in the partition."""
        return sorted(self._dataset.labels_beside)

    def _node_type(self, given: str | None) -> str:
        types = self._hosted.graph.schema.node_types
        if given is None and len(types) == 1:
            return types[0]
        if given not in types:
            raise DataError(f"node_type: expected one of {', '.join(types)}, got {given!r:.100}.")
        return given

    def _attribute(self, node_type: str, name: str, index: Tensor) -> Tensor:
        space = self._spaces[node_type]
        if name not in self._reader.names(space):
            raise DataError(f"nodes of type {node_type!r} have no {name}.")
        return torch.from_numpy(self._reader.open(space, name).read(self._reader.rows_of(space, index.numpy())))

    # How much of it a call may take

    def _first_rows(self, name: str, node_type: str | None, index: Tensor) -> Tensor:
        """What a call of `BY_INDEX` answers: of the first nodes, as many as fit into a reply, and at least one."""
        found: Tensor = getattr(self, name)(node_type, index[: self._fit(name, node_type)[0]].long())
        return found

    def _row_bytes(self, name: str, node_type: str | None, index: Tensor) -> int:
        """Bytes of memory that `_first_rows` takes. Raises `DataError` for an index that names no nodes."""
        if not isinstance(index, Tensor) or index.ndim != 1 or index.dtype not in _INTEGERS:
            got = f"{index.dtype} {list(index.shape)}" if isinstance(index, Tensor) else f"{index!r:.100}"
            raise DataError(f"{name}: index: expected a tensor of integers [n], got {got}.")
        fit, row_bytes = self._fit(name, node_type)
        # the rows as stored, as given and as sent, and their numbers
        return min(fit, len(index)) * (3 * row_bytes + 32)

    def _fit(self, name: str, node_type: str | None) -> tuple[int, int]:
        """(number of rows that fit into a reply, bytes of each)"""
        kind = self._node_type(node_type)
        row_bytes = 8
        if name == "get_node_label" and kind in self._dataset.labels_beside:
            own = self._dataset.labels_beside[kind]
            row_bytes = own[:1].numel() * own.element_size()
        elif name != "get_node_partition_id":
            space, attr = self._spaces[kind], "x" if name == "get_node_feature" else "y"
            if attr in self._reader.names(space):
                row_bytes = 8 * math.prod(self._reader.open(space, attr).row_shape)
        return max(1, self._reply_bytes // max(8, row_bytes)), max(8, row_bytes)

    def _edge_bytes(self, edge_type: Any = None, layout: str = "coo") -> int:
        """Bytes of memory that `get_edge_index` takes. Raises `DataError` where the answer is too large for a message."""
        graph = self._hosted.graph
        bounds = graph.partition.view.edge_bounds[graph.schema.edge_types.index(self._edge_type(edge_type)[1])]
        edges = sum(int(bounds[part + 1] - bounds[part]) for part in self._dataset.parts)
        if 2 * 8 * edges > MOST_BODY:
            raise DataError(
                f"get_edge_index: the {edges} edges of this server's parts take {16 * edges} bytes; one message carries at most "
                f"{MOST_BODY}. Serve fewer parts with each server, or read the partition folder."
            )
        return _EDGE_BYTES * edges + 16 * sum(graph.manifest.num_nodes)

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
