"""The remote rows of the k-hop loop: calls to the owners of parts, or their counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from glt_lightning.base import PeerError
from glt_lightning.graph import LocalPartition, Manifest, edge_path, node_path
from glt_lightning.kernels import row_bytes
from glt_lightning.sampling import (
    AskedRows,
    Gather,
    InconsistentReplyError,
    OwnedParts,
    OwnerQuestion,
    Received,
    Reply,
    SamplerConfig,
    converse,
)
from glt_lightning.workers.transport.message import lay_out, pack
from glt_lightning.workers.transport.peer import Peer, PendingAnswer

A = TypeVar("A")


@dataclass
class Traffic:
    """Totals of a process's calls to its peers. remote_rows: rows of attributes.  round_trips: calls.  bytes_out, bytes_in:
    bytes of bodies.  retries: calls sent again.  reconnects: connections made after the first."""

    remote_rows: int = 0
    round_trips: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    retries: int = 0
    reconnects: int = 0


class PeerRows:
    """The `RemoteRows` over one `Peer` per owner. Thread-safe. Closes its peers.

    owner_of_part: int32 [P]; 0 for local parts, k for the parts of ``peers[k - 1]``.
    """

    def __init__(self, owner_of_part: np.ndarray, peers: Sequence[Peer]) -> None:
        self.owner_of_part, self.num_owners = owner_of_part, 1 + len(peers)
        self.peers = list(peers)
        self._remote_rows = 0

    def ask(self, owner: int, question: OwnerQuestion[A]) -> Callable[[], A]:
        peer = self.peers[owner - 1]
        self._remote_rows += question.attribute_rows
        answer = converse(question, partial(_send, peer))

        def wait() -> A:
            try:
                return answer()
            except InconsistentReplyError as error:
                raise PeerError(f"{peer.name}: its reply to {error}") from None

        return wait

    @property
    def traffic(self) -> Traffic:
        """Totals so far."""
        stats = [peer.stats for peer in self.peers]
        return Traffic(
            remote_rows=self._remote_rows,
            round_trips=sum(s.calls for s in stats),
            bytes_out=sum(s.bytes_out for s in stats),
            bytes_in=sum(s.bytes_in for s in stats),
            retries=sum(s.retries for s in stats),
            reconnects=sum(s.reconnects for s in stats),
        )

    def close(self) -> None:
        for peer in self.peers:
            peer.close()


def _send(peer: Peer, question: OwnerQuestion[Any]) -> Callable[[], Received]:
    header, arrays = question.to_wire()
    entries, body = pack(arrays)
    return partial(_receive, peer.ask(question.op, {**header, "arrays": entries}, body, bulk=question.bulk))


def _receive(answer: PendingAnswer) -> Received:
    reply = answer.result()
    return Received(reply.header, reply.arrays())


# The messages of `PeerRows`, counted in place of being sent.


@dataclass
class Asked:
    """Counts of one batch: rows of attributes by kind and their bytes, requests, and bytes of bodies in both directions."""

    node_rows: int = 0
    edge_rows: int = 0
    row_bytes: int = 0
    requests: int = 0
    bytes_out: int = 0
    bytes_in: int = 0

    def add(self, requests: int, bytes_out: int, bytes_in: int) -> None:
        self.requests += requests
        self.bytes_out += bytes_out
        self.bytes_in += bytes_in

    def __add__(self, other: Asked) -> Asked:
        return Asked(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


class CountingOwners:
    """A `sampling.source.RemoteRows` that counts, for one host of several, to which parts are dealt as `placed_parts` says.

    It answers from the mapped files, so that a batch is sampled as over the network, and counts the messages that `PeerRows`
    would send. It has no limit of a reply's size, so most answers are one message. Attributes are
    counted, not read.

    config: options of the sampling.  host, hosts: its number, and their number; None: each part has a host.
    caches: functions that tell of gids [n] of a node type whether a cache holds their rows, bool [n]; for each, rows are also
    counted without those.
    """

    def __init__(
        self,
        partition: LocalPartition,
        config: SamplerConfig,
        host: int,
        caches: Sequence[Callable[[int, np.ndarray], np.ndarray]],
        hosts: int | None = None,
    ) -> None:
        self._parts, self._caches = OwnedParts(partition, picker=config.picker), caches
        self._has_edge_rows = config.has_edge_rows
        self._manifest = partition.manifest
        num_parts = self._manifest.num_parts
        self.num_owners = min(hosts or num_parts, num_parts)
        owner, mine = np.arange(num_parts, dtype=np.int32) % self.num_owners, host % self.num_owners
        self.owner_of_part = np.where(owner == mine, 0, owner + (owner < mine)).astype(np.int32)
        self.begin()

    def begin(self) -> None:
        """Resets the counts for the next batch."""
        self._same, self._gathered = Asked(), [Asked() for _ in range(1 + len(self._caches))]

    @property
    def asked(self) -> list[Asked]:
        """The counts of the batch without a cache, then with each cache."""
        return [self._same + each for each in self._gathered]

    def attributes(self, nodes: Sequence[int], edges: Sequence[int]) -> tuple[int, int]:
        """(rows, bytes as stored) of the attributes of a batch, as `Counters` has them. nodes, edges: its counts by type."""
        rows, nbytes, manifest = 0, 0, self._manifest
        for t in range(len(manifest.schema.node_types)):
            rows += nodes[t]
            nbytes += nodes[t] * _width(manifest, "node", t, ("n_id", *manifest.node_attrs(t)))
        for r in range(len(edges) if self._has_edge_rows else 0):
            rows += edges[r]
            nbytes += edges[r] * _width(manifest, "edge", r, ("edge_ids", *manifest.edge_attrs(r)))
        return rows, nbytes

    def ask(self, owner: int, question: OwnerQuestion[A]) -> Callable[[], A]:
        if isinstance(question, Gather):
            self._count_rows(question)
            return _never
        return converse(question, self._send)

    def _send(self, question: OwnerQuestion[Any]) -> Callable[[], Received]:
        return self._counted(question, self._same).received

    def _counted(self, question: OwnerQuestion[Any], asked: Asked) -> Reply:
        header, arrays = question.to_wire()
        reply = question.work(header, arrays, self._parts).reply(lambda: None)
        sent = lay_out({name: (array.dtype, array.shape) for name, array in arrays.items()})
        asked.add(1, sent[1], lay_out(reply.shapes)[1])
        return reply

    def _count_rows(self, question: Gather) -> None:
        for number, asked in enumerate(self._gathered):
            tables = [self._left(rows, number) for rows in question.tables]
            asked.node_rows += sum(len(rows.ids) for rows in tables if rows.kind == "node")
            asked.edge_rows += sum(len(rows.ids) for rows in tables if rows.kind == "edge")
            asked.row_bytes += sum(
                len(rows.ids) * _width(self._manifest, rows.kind, rows.type, rows.names) for rows in tables
            )
            if any(len(rows.ids) for rows in tables):
                self._counted(Gather(tables), asked)

    def _left(self, rows: AskedRows, number: int) -> AskedRows:
        """The rows that the cache with this number lacks; 0 is no cache."""
        if number == 0 or rows.kind != "node":
            return rows
        return replace(rows, ids=rows.ids[~self._caches[number - 1](rows.type, rows.ids)])


def _never() -> Any:
    raise AssertionError("attributes of a predicted batch are not read")


def _width(manifest: Manifest, kind: str, number: int, names: Iterable[str]) -> int:
    """Bytes of a row of attributes, as stored."""
    path = node_path if kind == "node" else edge_path
    entries = [manifest.arrays[path(0, number, name)] for name in names]
    return sum(row_bytes(entry.dtype, entry.shape[1:]) for entry in entries)
