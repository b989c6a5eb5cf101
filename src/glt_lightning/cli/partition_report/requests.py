"""Owners of other parts that count what a batch asks of them: the rows, the requests and the bytes of messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from glt_lightning.base import DrawOptions
from glt_lightning.cli.partition_report.caches import RemoteRanking
from glt_lightning.graph import LocalPartition
from glt_lightning.sampling import AskedRows, Gather, OwnedParts, OwnerQuestion, Received, Reply, converse
from glt_lightning.workers import lay_out

A = TypeVar("A")


@dataclass
class Asked:
    """Of one batch: rows of attributes by kind, requests, and bytes of bodies there and back."""

    node_rows: int = 0
    edge_rows: int = 0
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
    """`sampler.source.RemoteRows` of the host of one part, where each part has a host of its own.

    They answer from the mapped files, so that a batch is sampled as over the network, and count the messages that
    `cluster.remote_rows` would send; the limit of a reply is not theirs, so most answers are one message. Attributes are counted,
    not read.

    draw: how neighbours are drawn.  caches: by which rankings, and with what share of the nodes, rows of nodes are cached in
    further counts of the same batches.
    """

    def __init__(
        self, partition: LocalPartition, draw: DrawOptions, part: int, caches: Sequence[tuple[RemoteRanking, float]]
    ) -> None:
        self._parts, self._caches = OwnedParts(partition, picker=draw.picker), caches
        self.num_owners = partition.manifest.num_parts
        self.owner_of_part = np.arange(self.num_owners, dtype=np.int32) + 1
        self.owner_of_part[part], self.owner_of_part[part + 1 :] = 0, self.owner_of_part[part + 1 :] - 1
        self.begin()

    def begin(self) -> None:
        """Forgets the batch before."""
        self._same, self._gathered = Asked(), [Asked() for _ in range(1 + len(self._caches))]

    @property
    def asked(self) -> list[Asked]:
        """What the batch asked for without a cache, and with each of them."""
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
            if any(len(rows.ids) for rows in tables):
                self._counted(Gather(tables), asked)

    def _left(self, rows: AskedRows, number: int) -> AskedRows:
        """The rows that are not cached."""
        if number == 0 or rows.kind != "node":
            return rows
        ranking, ratio = self._caches[number - 1]
        return replace(rows, ids=rows.ids[~ranking.cached(rows.type, rows.ids, ratio)])


def _never() -> Any:
    raise AssertionError("attributes of a predicted batch are not read")
