"""A process that serves the parts it maps, and asks the owners of the other parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glt_lightning.base import PartitionError, PickerSpec
from glt_lightning.graph import LocalPartition
from glt_lightning.workers.cluster.link import Link
from glt_lightning.workers.cluster.owner import Owner
from glt_lightning.workers.cluster.remote_rows import PeerRows
from glt_lightning.workers.transport.base import Server, Service, Transport


@dataclass(frozen=True)
class OwnerAddresses:
    """The owners of the same parts. name: for errors.  addresses: any of them answers for all."""

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
    """The parts that ``partition`` does not map, asked of their owners. Nothing is sent before the first question.

    turn: which address of an owner is tried first, so that callers spread over its processes.
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
    """Serves the mapped parts of ``partition`` at ``address`` (``host:port``, port 0 picks one). works_for, picker: see `Owner`.

    Raises `OptionError` for an address that cannot be used. Close it: that ends the server and all calls.
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
        self._server: Server = self._transport.serve(
            address, Service(link.greet, self._owner.calls, {}, frozenset({"here"}))
        )
        self.rows: PeerRows | None = None

    @property
    def address(self) -> str:
        """Its address, with the actual port."""
        return self._server.address

    def join(self, owners: Sequence[OwnerAddresses], turn: int = 0) -> PeerRows:
        """Sets the owners of the other parts."""
        self.rows = connect_owners(self._partition, owners, self._link, self._transport, turn)
        return self.rows

    def close(self) -> None:
        """Ends the server and the connections to other owners. Safe to call twice."""
        if self.rows is not None:
            self.rows.close()
        self._server.close()
        self._owner.close()
