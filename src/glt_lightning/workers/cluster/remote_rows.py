"""The remote rows of the k-hop loop: calls to the owners of parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from glt_lightning.base import PeerError
from glt_lightning.sampling import InconsistentReplyError, OwnerQuestion, Received, converse
from glt_lightning.workers.transport.message import pack, unpack
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
    return Received(reply.header, unpack(reply))
