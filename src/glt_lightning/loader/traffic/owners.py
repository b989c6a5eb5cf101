"""Owners of other parts that count what a batch asks of them, and the remote rows that a cache would hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from glt_lightning.base import DrawOptions
from glt_lightning.graph import LocalPartition, Manifest, edge_path, node_path, rank_stored, rows_of_share
from glt_lightning.kernels import row_bytes
from glt_lightning.sampling import (
    AskedRows,
    Gather,
    OwnedParts,
    OwnerQuestion,
    Received,
    Reply,
    SamplerConfig,
    converse,
    node_names,
)
from glt_lightning.workers import lay_out

A = TypeVar("A")


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

    It answers from the mapped files, so that a batch is sampled as over the network, and counts the messages that
    `workers.cluster.remote_rows` would send. It has no limit of a reply's size, so most answers are one message. Attributes are
    counted, not read.

    draw: options of the draws.  host, hosts: its number, and their number; None: each part has a host.
    caches: pairs (ranking, share of the nodes); for each, rows are also counted without those that
    such a cache holds.
    """

    def __init__(
        self,
        partition: LocalPartition,
        draw: DrawOptions,
        host: int,
        caches: Sequence[tuple[RemoteRanking, float]],
        hosts: int | None = None,
    ) -> None:
        self._parts, self._caches = OwnedParts(partition, picker=draw.picker), caches
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
        ranking, ratio = self._caches[number - 1]
        return replace(rows, ids=rows.ids[~ranking.cached(rows.type, rows.ids, ratio)])


def _never() -> Any:
    raise AssertionError("attributes of a predicted batch are not read")


def attribute_rows(manifest: Manifest, config: SamplerConfig, nodes: list[int], edges: list[int]) -> tuple[int, int]:
    """(rows, bytes as stored) of the attributes of a batch, as `Counters` has them. nodes, edges: its counts by type."""
    rows = nbytes = 0
    for t, names in enumerate(node_names(manifest)):
        rows += nodes[t]
        nbytes += nodes[t] * _width(manifest, "node", t, ("n_id", *names))
    for r in range(len(edges) if config.has_edge_rows else 0):
        rows += edges[r]
        nbytes += edges[r] * _width(manifest, "edge", r, ("edge_ids", *manifest.edge_attrs(r)))
    return rows, nbytes


def _width(manifest: Manifest, kind: str, number: int, names: Iterable[str]) -> int:
    """Bytes of a row of attributes, as stored."""
    path = node_path if kind == "node" else edge_path
    entries = [manifest.arrays[path(0, number, name)] for name in names]
    return sum(row_bytes(entry.dtype, entry.shape[1:]) for entry in entries)


# The remote rows that a cache of a part would hold, hottest first.


PRESAMPLED = "presampled"


class RemoteRanking:
    """The remote nodes to cache for one part, per node type, hottest first.

    lists: T arrays of gids [K_t].
    """

    def __init__(self, manifest: Manifest, lists: Sequence[np.ndarray]) -> None:
        self._manifest, self._lists = manifest, lists
        self._none = np.iinfo(np.int32).max
        self._rank = []  # position of each node of a type in the list
        for n, gids, first in zip(manifest.num_nodes, lists, manifest.offsets, strict=False):
            rank = np.full(n, self._none, dtype=np.int32)
            rank[np.asarray(gids) - first] = np.arange(len(gids), dtype=np.int32)
            self._rank.append(rank)

    def cached(self, node_type: int, gids: np.ndarray, ratio: float) -> np.ndarray:
        """Returns bool [n]: whether nodes of a type are in a cache with this share of the nodes of each type."""
        ranks = self._rank[node_type][gids - self._manifest.offsets[node_type]]
        found: np.ndarray = ranks < self.sizes(ratio)[node_type]
        return found

    def sizes(self, ratio: float) -> list[int]:
        """Number of nodes of each type in a cache of this share; fewer if the list is shorter."""
        return [
            rows_of_share(ratio, n, len(gids)) for n, gids in zip(self._manifest.num_nodes, self._lists, strict=True)
        ]


def stored_lists(partition: LocalPartition, policy: str, parts: tuple[int, ...]) -> RemoteRanking:
    """Reads the rankings that the partitioner has written, for a host with ``parts``."""
    ranked = rank_stored(LocalPartition(partition.directory, partition.manifest, parts), policy)
    assert ranked is not None, "the folder has lists of this policy"
    return RemoteRanking(partition.manifest, [each.gids for each in ranked])


def presampled_lists(
    manifest: Manifest, parts: Sequence[int], counts: Sequence[np.ndarray], ratio: float
) -> RemoteRanking:
    """Ranks the nodes of other parts than ``parts`` by how many batches they were in, then as their parts rank them.

    counts: T arrays int32 [N_t], batches by number in the type.  ratio: the lists are long enough for such a cache.
    """
    lists = []
    for seen, bounds, offset in zip(counts, manifest.bounds, manifest.offsets, strict=False):
        nodes = np.arange(len(seen), dtype=np.int64)
        row = nodes - np.repeat(bounds[:-1], np.diff(bounds))  # the hottest of a part come first
        remote = np.delete(nodes, np.concatenate([nodes[bounds[p] : bounds[p + 1]] for p in parts]))
        hottest = np.lexsort((row[remote], -seen[remote]))[: rows_of_share(ratio, len(seen), len(remote))]
        lists.append(remote[hottest] + offset)
    return RemoteRanking(manifest, lists)


def cached_widths(manifest: Manifest) -> list[int]:
    """Bytes of a node's row in a remote cache, by type: its id and attributes."""
    widths = []
    for t, names in enumerate(node_names(manifest)):
        entries = [manifest.arrays[node_path(0, t, name)] for name in ("n_id", *names)]
        widths.append(sum(row_bytes(entry.dtype, entry.shape[1:]) for entry in entries))
    return widths


def remote_cache_bytes(manifest: Manifest, ratio: float) -> float:
    """The memory of a remote cache with this share of the nodes of each type."""
    return sum(ratio * n * width for n, width in zip(manifest.num_nodes, cached_widths(manifest), strict=True))
