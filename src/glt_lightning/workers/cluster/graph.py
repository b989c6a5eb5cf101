"""A whole graph, of which this process maps some parts or none.

Operations, each with its request and its reply:

* **info**: empty; ``parts``, and as body the partition's manifest, as JSON
* **split**: ``name``; ``node_type``, array ``gids`` int64 [S]
* **edge_split**: ``edge_type``, ``name``; arrays of the split, as on disk: ``edge`` int64 [2, S], the user's ids, and
  the arrays that belong to these edges
* **seeds**: ``node_type``, and optionally an array ``ids`` of user ids, without which all nodes are meant;
  ``node_type``, array ``gids`` int64 [S]
* **deleted**: ``node_type``; array ``ids`` int64 [n], the user ids of deleted nodes
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np

from glt_lightning.base import DataError, GraphSchema, PartitionError, RemoteError
from glt_lightning.graph import (
    EDGE_SPLIT_ARRAYS,
    AnyGraph,
    EdgeSplit,
    LocalPartition,
    Manifest,
    Seeds,
    choose_seeds,
    deleted_path,
    gids_by_user_id,
    parse_json,
)
from glt_lightning.sampling import AskedRows, Gather, RemoteRows, wire_dtype
from glt_lightning.workers.transport.base import Caller, CallHandler
from glt_lightning.workers.transport.message import Message
from glt_lightning.workers.transport.peer import Peer

_CHUNK = 1 << 20  # user ids per request
_SEED_BYTES = 24  # of working memory for each node or id: int64 as received, as checked, and as sent


class ClusterGraph:
    """An `AnyGraph` over the local parts and, for operations on the whole graph, the parts of ``remote``.

    remote: the owners of the other parts; set once they are known.
    """

    def __init__(self, partition: LocalPartition, remote: RemoteRows | None = None) -> None:
        self.partition, self.remote = partition, remote
        self.manifest, self.schema = partition.manifest, partition.schema

    def split(self, name: str) -> Seeds:
        return self.partition.split(name)

    def edge_split(self, edge_type: int, name: str) -> EdgeSplit:
        return self.partition.edge_split(edge_type, name)

    def seeds(self, node_type: int, user_ids: np.ndarray | None = None) -> Seeds:
        parts = range(self.manifest.num_parts)
        mapped = self.partition.mapped_user_ids(node_type)
        ids = [array if (array := mapped[p]) is not None else self._fetch(node_type, p) for p in parts]
        gids = gids_by_user_id(self.manifest, node_type, ids, self.partition.directory)
        return choose_seeds(self.schema, node_type, gids, user_ids, self.deleted(node_type))

    def deleted(self, node_type: int) -> np.ndarray:
        return self.partition.deleted(node_type)

    def _fetch(self, node_type: int, part: int) -> np.ndarray:
        """Fetches the user ids of a part from its owner."""
        if self.remote is None:
            raise PartitionError(
                f"{self.partition.directory}: part {part} is not local and its owner is unknown. "
                "Give cluster.servers, or copy the part to this host."
            )
        bounds, offset = self.manifest.bounds[node_type], self.manifest.offsets[node_type]
        begin, end = offset + bounds[part], offset + bounds[part + 1]
        owner, wire = int(self.remote.owner_of_part[part]), wire_dtype(self.manifest)
        chunks = [np.empty(0, dtype=self.manifest.id_dtype)]
        for first in range(begin, end, _CHUNK):
            ids = np.arange(first, min(end, first + _CHUNK), dtype=wire)
            question = Gather([AskedRows("node", node_type, ("n_id",), ids)])
            chunks.append(self.remote.ask(owner, question)()[0]["n_id"])
        return np.concatenate(chunks)


class GraphService:
    """The operations of a server for clients without a graph: ``info`` (the manifest), ``split``, ``edge_split``, ``seeds``."""

    def __init__(self, graph: AnyGraph, parts: tuple[int, ...]) -> None:
        self._graph, self._parts = graph, parts

    @property
    def calls(self) -> Mapping[str, CallHandler]:
        return {
            "info": self._info,
            "split": self._split,
            "edge_split": self._edge_split,
            "seeds": self._seeds,
            "deleted": self._deleted,
        }

    def _info(self, _message: Message, _caller: Caller) -> Message:
        text = json.dumps(self._graph.manifest.to_json()).encode()
        return Message({"parts": list(self._parts)}, np.frombuffer(text, dtype=np.uint8))

    def _split(self, message: Message, caller: Caller) -> Message:
        seeds = self._graph.split(str(message.header.get("name")))
        with caller.working(seeds.gids.nbytes):
            return _seeds_message(seeds)

    def _edge_split(self, message: Message, caller: Caller) -> Message:
        edge_type = _index("edge_type", message, len(self._graph.schema.edge_types))
        found = self._graph.edge_split(edge_type, str(message.header.get("name"))).arrays
        with caller.working(sum(array.nbytes for array in found.values())):
            return Message.of(found)

    def _seeds(self, message: Message, caller: Caller) -> Message:
        node_type = _index("node_type", message, len(self._graph.schema.node_types))
        ids, nodes = message.arrays().get("ids"), self._graph.manifest.num_nodes[node_type]
        with caller.working(_SEED_BYTES * ((nodes if ids is None else ids.size) + nodes)):
            return _seeds_message(self._graph.seeds(node_type, ids))

    def _deleted(self, message: Message, caller: Caller) -> Message:
        ids = self._graph.deleted(_index("node_type", message, len(self._graph.schema.node_types)))
        with caller.working(ids.nbytes):
            return Message.of({"ids": ids})


def _index(name: str, message: Message, count: int) -> int:
    """Reads the index of a type from a message. Raises `DataError`."""
    index = message.header.get(name)
    if type(index) is not int or not 0 <= index < count:
        raise DataError(f"{name}: expected 0 to {count - 1}, got {index!r:.50}.")
    return index


def _seeds_message(seeds: Seeds) -> Message:
    return Message.of({"gids": seeds.gids}, {"node_type": seeds.node_type})


class RemoteGraph:
    """An `AnyGraph` that asks a server. Raises `PeerError`, with the server's name, if it does not answer."""

    def __init__(self, server: Peer) -> None:
        self._server = server

    @cached_property
    def manifest(self) -> Manifest:
        reply = self._ask("info", Message({}))
        try:
            raw: Any = parse_json(reply.body.tobytes())
        except ValueError as error:
            raise PartitionError(f"{self._server.name}: the manifest that it sent cannot be read ({error}).") from None
        return Manifest.parse(raw, self._server.name)

    @property
    def schema(self) -> GraphSchema:
        return self.manifest.schema

    def split(self, name: str) -> Seeds:
        return self._seeds(self._ask("split", Message({"name": name})))

    def edge_split(self, edge_type: int, name: str) -> EdgeSplit:
        found = self._ask("edge_split", Message({"edge_type": edge_type, "name": name})).arrays()
        if "edge" not in found or not set(found) <= set(EDGE_SPLIT_ARRAYS):
            raise PartitionError(f"{self._server.name}: its answer contains no edges of a split.")
        return EdgeSplit(**found)

    def seeds(self, node_type: int, user_ids: np.ndarray | None = None) -> Seeds:
        ids = {} if user_ids is None else {"ids": np.ascontiguousarray(user_ids)}
        return self._seeds(self._ask("seeds", Message.of(ids, {"node_type": node_type})))

    def deleted(self, node_type: int) -> np.ndarray:
        if deleted_path(node_type) not in self.manifest.arrays:
            return np.empty(0, np.int64)
        if node_type not in self._known_deleted:
            ids = self._ask("deleted", Message({"node_type": node_type})).arrays().get("ids")
            if ids is None or ids.dtype != np.int64 or ids.ndim != 1:
                raise PartitionError(f"{self._server.name}: its answer contains no ids of deleted nodes.")
            self._known_deleted[node_type] = ids
        return self._known_deleted[node_type]

    @cached_property
    def _known_deleted(self) -> dict[int, np.ndarray]:
        return {}

    def _ask(self, op: str, question: Message) -> Message:
        try:
            return self._server.ask(op, question.header, question.body).result()
        except RemoteError as error:
            if error.kind == "DataError":  # the user's input is wrong, not the server
                raise DataError(str(error)) from None
            raise

    def _seeds(self, reply: Message) -> Seeds:
        gids = reply.arrays().get("gids")
        if gids is None or gids.dtype != np.int64 or gids.ndim != 1:
            raise PartitionError(f"{self._server.name}: its answer contains no int64 array of seeds.")
        return Seeds(int(reply.header["node_type"]), gids)


# The role and rank of a process in its job.


class Role(Enum):
    """The role of a process: a worker trains and samples, a server samples for clients, a client trains."""

    WORKER = "worker"
    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True, kw_only=True)
class DistContext:
    """The role and rank of a process in a distributed job.

    rank, world_size: number of the process among those with its role, and their number.
    num_servers, num_clients: number of processes with these roles; None if unknown: a server serves any number of clients,
    which come and go.
    parts: the parts of the graph that this process maps.
    peers: the owners of the other parts: addresses of servers, or names of ranks.

    >>> context = DistContext(role=Role.CLIENT, rank=1, world_size=4, num_servers=2, num_clients=4)
    >>> context.worker_name, context.global_rank, context.global_world_size
    ('client-1', 3, 6)
    """

    role: Role
    rank: int
    world_size: int
    num_servers: int = 0
    num_clients: int | None = 0
    parts: tuple[int, ...] = ()
    peers: tuple[str, ...] = ()

    @property
    def group_name(self) -> str:
        """Name of the processes with this role."""
        return self.role.value

    @property
    def worker_name(self) -> str:
        """Name of this process."""
        return f"{self.group_name}-{self.rank}"

    @property
    def global_rank(self) -> int:
        """Number among servers and clients together, servers first; the rank of a worker."""
        return self.num_servers + self.rank if self.is_client else self.rank

    @property
    def global_world_size(self) -> int | None:
        """Number of all processes; None if the number of clients is not known."""
        if self.is_worker:
            return self.world_size
        return None if self.num_clients is None else self.num_servers + self.num_clients

    @property
    def is_worker(self) -> bool:
        return self.role is Role.WORKER

    @property
    def is_server(self) -> bool:
        return self.role is Role.SERVER

    @property
    def is_client(self) -> bool:
        return self.role is Role.CLIENT


# The placement of parts: which process maps which parts of a graph.


def placed_parts(slot: int, slots: int, num_parts: int) -> tuple[int, ...]:
    """Returns the parts of one of ``slots`` hosts, ranks or servers: every ``slots``-th part from ``slot`` on; with more
    slots than parts, several slots have the same part.

    >>> [placed_parts(slot, 2, 3) for slot in range(2)]
    [(0, 2), (1,)]
    >>> [placed_parts(slot, 3, 2) for slot in range(3)]
    [(0,), (1,), (0,)]
    """
    return (slot % num_parts,) if slots > num_parts else tuple(range(slot, num_parts, slots))


def served_parts(slot: int, slots: int, manifest: Manifest) -> tuple[int, ...]:
    """Returns `placed_parts` with their parts of the overlay, if the graph has one."""
    parts = placed_parts(slot, slots, manifest.base_parts)
    return tuple(p for p in range(manifest.num_parts) if p % manifest.base_parts in parts)
