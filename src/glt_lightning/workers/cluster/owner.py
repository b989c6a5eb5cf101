"""The owner of some parts: answers calls about their rows. It keeps no state, so every call may be repeated."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from glt_lightning.base import ClusterOptions, PartitionError, PeerLostError, PickerSpec, parse_address
from glt_lightning.graph import LocalPartition
from glt_lightning.kernels import guarded
from glt_lightning.sampling import QUESTIONS, OwnedParts, OwnerQuestion
from glt_lightning.workers.cluster.link import Link, is_stopped
from glt_lightning.workers.cluster.remote_rows import PeerRows
from glt_lightning.workers.transport.base import Caller, CallHandler, Server, Transport
from glt_lightning.workers.transport.message import Message, Recycler, lay_out, layout_entries, zero_padding

_SLOTS = 16  # replies in flight that are written into recycled memory


class Owner:
    """The operations on the parts that a process maps: the questions of `sampling.questions`, and ``here`` (a heartbeat).
    Each question's module has its messages.

    reply_bytes: limit of one reply; larger answers take several.  works_for: pid of the process whose sampler this one is;
    None: it samples for itself.  picker: the picker that other processes may ask for.

    Raises `DataError` for a picker that cannot be made here.
    """

    def __init__(
        self,
        partition: LocalPartition,
        reply_bytes: int,
        works_for: int | None = None,
        picker: PickerSpec | None = None,
    ) -> None:
        self._works_for = works_for
        self._parts = OwnedParts(partition, reply_bytes, picker)
        self._memory = Recycler(_SLOTS)

    @property
    def calls(self) -> Mapping[str, CallHandler]:
        return {kind.op: partial(self._answer, kind) for kind in QUESTIONS} | {"here": self._here}

    def close(self) -> None:
        self._memory.close()
        self._parts.close()

    def _here(self, _message: Message, _caller: Caller) -> Message:
        pid = self._works_for
        return Message({"stopped": pid} if pid is not None and is_stopped(pid) else {})

    @guarded()  # a truncated file becomes an error to the caller, and this process goes on
    def _answer(self, kind: type[OwnerQuestion[Any]], message: Message, caller: Caller) -> Message:
        work = kind.work(message.header, message.arrays(), self._parts)
        # Reserved before the work is done: questions of many callers at once must not exceed this host's memory.
        with caller.working(work.nbytes):
            reply = work.reply(partial(_require_caller, caller))
            layout, nbytes = lay_out(reply.shapes)
            # recycled memory comes back when the transport has sent it
            body = self._memory.take(nbytes) if kind.bulk else np.empty(nbytes, dtype=np.uint8)
            reply.write({place.name: place.view(body) for place in layout})
            zero_padding(layout, body)
            return Message({"arrays": layout_entries(layout), **reply.header}, body)


def _require_caller(caller: Caller) -> None:
    """Raises `PeerLostError` if the caller does not wait for the answer any more."""
    if caller.is_gone():
        raise PeerLostError("the caller has left")


# A process that serves the parts it maps, and asks the owners of the other parts.


@dataclass(frozen=True)
class OwnerAddresses:
    """The processes that own the same parts. name: their name in errors.  addresses: any of them serves all the parts."""

    name: str
    parts: tuple[int, ...]
    addresses: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "parts": list(self.parts), "addresses": list(self.addresses)}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> OwnerAddresses:
        return cls(raw["name"], tuple(raw["parts"]), tuple(raw["addresses"]))


def connect_owners(
    partition: LocalPartition, owners: Sequence[OwnerAddresses], link: Link, transport: Transport, turn: int = 0
) -> PeerRows:
    """Returns the `RemoteRows` of the parts that ``partition`` does not map. Nothing is sent before the first question.

    turn: index of the address of each owner that is tried first, so that callers spread over its processes.
    Raises `PartitionError` for a part without an owner.
    """
    missing = set(range(partition.manifest.num_parts)) - set(partition.parts)
    owner_of_part = np.zeros(partition.manifest.num_parts, dtype=np.int32)
    peers = []
    for owner in owners:
        theirs = sorted(missing & set(owner.parts))
        if theirs:
            first = turn % len(owner.addresses)
            addresses = owner.addresses[first:] + owner.addresses[:first]
            peers.append(link.peer(owner.name, addresses, transport))
            owner_of_part[theirs] = len(peers)
            missing -= set(theirs)
    if missing:
        known = "; ".join(f"{h.name}: {list(h.parts)}" for h in owners) or "none"
        raise PartitionError(
            f"no process serves part {min(missing)} of {partition.manifest.num_parts}: {link.name} maps "
            f"{list(partition.parts)}, its peers map {known}. Start a process for each part."
        )
    return PeerRows(owner_of_part, peers)


class OwnerServer:
    """Serves the mapped parts of ``partition`` at ``address`` (``host:port``; port 0 picks a free port). Close it, which ends
    the server and all calls.

    works_for, picker: see `Owner`.
    Raises `OptionError` for an address that cannot be used.
    """

    def __init__(
        self,
        partition: LocalPartition,
        link: Link,
        address: str,
        works_for: int | None = None,
        picker: PickerSpec | None = None,
    ) -> None:
        self._partition, self._link = partition, link
        self._owner = Owner(partition, link.limits.reply_bytes, works_for, picker)
        self._transport = link.open_transport()
        self._server: Server = link.serve(address, self._owner.calls, self._transport, prompt=frozenset({"here"}))
        self.rows: PeerRows | None = None

    @property
    def address(self) -> str:
        """The address of the server, with the actual port."""
        return self._server.address

    def join(self, owners: Sequence[OwnerAddresses], turn: int = 0) -> PeerRows:
        """Connects to the owners of the other parts. turn: see `connect_owners`."""
        self.rows = connect_owners(self._partition, owners, self._link, self._transport, turn)
        return self.rows

    def close(self) -> None:
        """Ends the server and the connections to other owners. Safe to call twice."""
        if self.rows is not None:
            self.rows.close()
        self._server.close()
        self._owner.close()


# The status of a graph server, for tools outside of a job.


_HEALTH_S = 5.0  # an orchestrator's probe must get an answer


def ask_status(address: str, cluster: ClusterOptions) -> Mapping[str, Any]:
    """Asks a graph server for its status, with one attempt. Raises `PeerError`, with the server's address."""
    parse_address("address", address)
    given = cluster.deadlines
    deadlines = replace(
        given, connect_s=min(given.connect_s, _HEALTH_S), call_s=min(given.call_s, _HEALTH_S), reconnect_s=1e-3
    )
    link = Link(
        job="",
        role="tool",
        name=f"serve (pid {os.getpid()} on {socket.gethostname()})",
        security=cluster.security,
        deadlines=deadlines,
    )
    peer = link.peer("graph server", [address], link.open_transport())
    try:
        return peer.ask("status").result().header
    finally:
        peer.close()
