"""Asking the owners of parts: the k-hop loop's questions as calls to peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from glt_lightning.errors import PeerError
from glt_lightning.ops.merge import Picks
from glt_lightning.sampler.source import Expand, Gathered, Picked, Rows
from glt_lightning.transport.message import pack, unpack
from glt_lightning.transport.peer import Peer


@dataclass
class Traffic:
    """What a process asked its peers for. remote_rows: rows of attributes; round_trips: questions; bytes: as sent."""

    remote_rows: int = 0
    round_trips: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    retries: int = 0
    reconnects: int = 0


class PeerRows:
    """`sampler.source.RemoteRows` over one `Peer` per owner; for any number of threads. Closes its peers.

    owner_of_part: int32 [P]; 0 for parts that are mapped here, k for those of ``peers[k - 1]``.
    """

    def __init__(self, owner_of_part: np.ndarray, peers: Sequence[Peer]) -> None:
        self.owner_of_part, self.num_owners = owner_of_part, 1 + len(peers)
        self.peers = list(peers)
        self._remote_rows = 0

    def expand(self, owner: int, request: Expand) -> Picked:
        peer = self.peers[owner - 1]
        arrays, body = pack({str(t): ids for t, ids in request.rows.items()})
        header = {
            "key": request.key,
            "hop": request.hop,
            "fanouts": list(request.fanouts),
            "replace": request.replace,
            "with_edge": request.with_edge,
            "arrays": arrays,
        }
        answer = peer.ask("expand", header, body)

        def picked() -> Mapping[int, Picks]:
            found = unpack(answer.result())
            relations = sorted({int(name.partition("/")[0]) for name in found})
            try:
                return {
                    r: Picks(found[f"{r}/counts"], found[f"{r}/neighbors"], found.get(f"{r}/edge_rows"))
                    for r in relations
                }
            except KeyError as error:
                raise PeerError(f"{peer.name} answered a question for neighbours without {error}.") from None

        return picked

    def gather(self, owner: int, request: Sequence[Rows]) -> Gathered:
        peer = self.peers[owner - 1]
        arrays, body = pack({str(number): rows.ids for number, rows in enumerate(request)})
        tables = [[rows.kind, rows.type, list(rows.names)] for rows in request]
        self._remote_rows += sum(len(rows.ids) for rows in request)
        answer = peer.ask("gather", {"tables": tables, "arrays": arrays}, body, bulk=True)
        found: list[Mapping[str, np.ndarray]] = []

        def gathered() -> Sequence[Mapping[str, np.ndarray]]:
            if not found:
                arrays = unpack(answer.result())
                for number, rows in enumerate(request):
                    names = [f"{number}/{name}" for name in rows.names]
                    if not all(name in arrays for name in names):
                        raise PeerError(f"{peer.name} answered a question for attributes without some of {names}.")
                    found.append({name: arrays[f"{number}/{name}"] for name in rows.names})
            return found

        return gathered

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
