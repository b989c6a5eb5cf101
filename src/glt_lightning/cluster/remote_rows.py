"""The remote rows of the k-hop loop: calls to the owners of parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from glt_lightning.cluster.remote_walks import ask_walks
from glt_lightning.errors import GLTError, PeerError
from glt_lightning.ops.induce import Among, joined
from glt_lightning.ops.merge import Picks
from glt_lightning.sampler.source import MOST_PAIRS, AskedRows, Expand, Gathered, HasEdges, Induced, Picked, Walked
from glt_lightning.sampler.walk_question import WalkQuestion
from glt_lightning.transport.message import Message, pack, unpack
from glt_lightning.transport.peer import Peer, PendingAnswer

_NONE = np.empty(0)


@dataclass
class Traffic:
    """Totals of a process's calls to its peers. remote_rows: rows of attributes; round_trips: calls; bytes: as sent."""

    remote_rows: int = 0
    round_trips: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    retries: int = 0
    reconnects: int = 0


class PeerRows:
    """`sampler.source.RemoteRows` over one `Peer` per owner. Thread-safe. Closes its peers.

    owner_of_part: int32 [P]; 0 for local parts, k for those of ``peers[k - 1]``.
    """

    def __init__(self, owner_of_part: np.ndarray, peers: Sequence[Peer]) -> None:
        self.owner_of_part, self.num_owners = owner_of_part, 1 + len(peers)
        self.peers = list(peers)
        self._remote_rows = 0

    def expand(self, owner: int, request: Expand) -> Picked:
        peer = self.peers[owner - 1]
        excluded = {} if request.excluded is None else request.excluded.to_arrays()
        trees = {} if request.trees is None else request.trees.to_arrays()
        arrays, body = pack({str(t): ids for t, ids in request.rows.items()} | excluded | trees)
        header = {
            "key": request.key,
            "hop": request.hop,
            "fanouts": list(request.fanouts),
            **request.draw.to_wire(),
            "arrays": arrays,
        }
        answer = peer.ask("expand", header, body)

        def picked() -> Mapping[int, Picks]:
            return _Picked(peer, header, body, request.require_room).all(answer.result())

        return picked

    def gather(self, owner: int, request: Sequence[AskedRows]) -> Gathered:
        peer = self.peers[owner - 1]
        self._remote_rows += sum(len(rows.ids) for rows in request)
        answer = _ask_rows(peer, request)
        found: list[Mapping[str, np.ndarray]] = []

        def gathered() -> Sequence[Mapping[str, np.ndarray]]:
            if not found:
                found.extend(_all_rows(peer, request, answer.result()))
            return found

        return gathered

    def has_edges(
        self, owner: int, edge_type: int, dst: np.ndarray, src: np.ndarray, weights: Sequence[str | None] = ()
    ) -> HasEdges:
        header = {"edge_type": edge_type} | ({"weights": list(weights)} if any(weights) else {})
        peer, first = self.peers[owner - 1], _ask_pairs(self.peers[owner - 1], header, dst, src)
        return lambda: _all_found(peer, header, dst, src, first)

    def induce(self, owner: int, among: Among, weights: Sequence[str | None]) -> Induced:
        peer = self.peers[owner - 1]
        header: dict[str, Any] = {"edge_type": among.edge_type}
        header |= {} if among.limit is None else {"limit": among.limit}
        header |= {"weights": list(weights)} if any(weights) else {}
        first = _ask_among(peer, header, among)
        return lambda: _all_among(peer, header, among, first)

    def walk(self, owner: int, question: WalkQuestion) -> Walked:
        return ask_walks(self.peers[owner - 1], question)

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


class _Picked:
    """Picks that arrive in one reply, or in several if the answer exceeds the owner's limit of a reply."""

    def __init__(
        self, peer: Peer, header: Mapping[str, Any], body: np.ndarray, require_room: Callable[[int], None]
    ) -> None:
        self._peer, self._header, self._body, self._require_room = peer, header, body, require_room

    def all(self, reply: Message) -> Mapping[int, Picks]:
        try:
            return self._stitched(reply)
        except GLTError:
            raise
        except (KeyError, ValueError) as error:
            raise PeerError(
                f"{self._peer.name}: its reply to a request for neighbours is inconsistent: {error!r:.200}."
            ) from None

    def _stitched(self, reply: Message) -> Mapping[int, Picks]:
        piece, total = unpack(reply), reply.header["total"]
        edge_types = sorted({int(name.partition("/")[0]) for name in piece})
        counts = {r: piece[f"{r}/counts"] for r in edge_types}
        got = _num_picks(piece)
        if got == total:
            return {r: Picks(counts[r], piece[f"{r}/neighbors"], piece.get(f"{r}/edge_rows")) for r in edge_types}
        sizes = {r: int(counts[r].sum(dtype=np.int64)) for r in edge_types}
        if sum(sizes.values()) != total or any(counts[r].min(initial=0) < 0 for r in edge_types):
            raise ValueError(f"the counts add up to {sum(sizes.values())} picks, the total is {total!r}")
        lists = [name for name in piece if not name.endswith("/counts")]
        self._require_room(total * sum(piece[name].itemsize for name in lists if name.startswith(f"{edge_types[0]}/")))
        whole = {name: np.empty(sizes[int(name.partition("/")[0])], dtype=piece[name].dtype) for name in lists}
        ends = dict.fromkeys(lists, 0)
        while True:
            for name, end in ends.items():
                ends[name] = end + len(piece[name])
                whole[name][end : ends[name]] = piece[name]  # a ValueError if it is longer than its counts
            if got == total:
                break
            piece = unpack(self._peer.ask("expand", {**self._header, "first": got}, self._body).result())
            if not _num_picks(piece):
                raise ValueError(f"no picks after {got} of {total}")
            got += _num_picks(piece)
        if any(end != len(whole[name]) for name, end in ends.items()):
            raise ValueError(f"lists have {ends} picks, counts say {sizes}")
        return {r: Picks(counts[r], whole[f"{r}/neighbors"], whole.get(f"{r}/edge_rows")) for r in edge_types}


def _num_picks(piece: Mapping[str, np.ndarray]) -> int:
    return sum(len(array) for name, array in piece.items() if name.endswith("/neighbors"))


def _ask_rows(peer: Peer, request: Sequence[AskedRows]) -> PendingAnswer:
    arrays, body = pack({str(number): rows.ids for number, rows in enumerate(request)})
    tables = [[rows.kind, rows.type, list(rows.names)] for rows in request]
    return peer.ask("gather", {"tables": tables, "arrays": arrays}, body, bulk=True)


def _all_rows(peer: Peer, request: Sequence[AskedRows], reply: Message) -> Sequence[Mapping[str, np.ndarray]]:
    """The requested rows. An owner sends as many of them as fit into a reply; the rest is requested again."""
    piece = _rows_of(peer, request, reply)
    if all(_num_rows(each, rows) == len(rows.ids) for each, rows in zip(piece, request, strict=True)):
        return piece
    whole = [
        {name: np.empty((len(rows.ids), *array.shape[1:]), dtype=array.dtype) for name, array in each.items()}
        for each, rows in zip(piece, request, strict=True)
    ]
    done = [0] * len(request)
    while True:
        received = [_num_rows(each, rows) for each, rows in zip(piece, request, strict=True)]
        for k, each in enumerate(piece):
            for name, array in each.items():
                whole[k][name][done[k] : done[k] + received[k]] = array
            done[k] += received[k]
        rest = [replace(rows, ids=rows.ids[done[k] :]) for k, rows in enumerate(request)]
        if not any(len(rows.ids) for rows in rest):
            return whole
        if not any(received):
            raise PeerError(f"{peer.name}: its reply to a request for attributes has no rows.")
        piece = _rows_of(peer, rest, _ask_rows(peer, rest).result())


def _rows_of(peer: Peer, request: Sequence[AskedRows], reply: Message) -> Sequence[Mapping[str, np.ndarray]]:
    """The arrays of one reply. Raises `PeerError` if some are missing, or differ in their number of rows."""
    arrays, found = unpack(reply), []
    for number, rows in enumerate(request):
        names = [f"{number}/{name}" for name in rows.names]
        if not all(name in arrays for name in names):
            raise PeerError(f"{peer.name}: its reply to a request for attributes lacks some of {names}.")
        each = {name: arrays[f"{number}/{name}"] for name in rows.names}
        if len({len(array) for array in each.values()}) > 1 or _num_rows(each, rows) > len(rows.ids):
            raise PeerError(
                f"{peer.name}: its reply to a request for {len(rows.ids)} rows has more rows, or "
                "attributes of different lengths."
            )
        found.append(each)
    return found


def _ask_pairs(peer: Peer, header: Mapping[str, Any], dst: np.ndarray, src: np.ndarray) -> PendingAnswer:
    arrays, body = pack({"dst": dst[:MOST_PAIRS], "src": src[:MOST_PAIRS]})
    return peer.ask("has_edges", {**header, "arrays": arrays}, body)


def _all_found(
    peer: Peer, header: Mapping[str, Any], dst: np.ndarray, src: np.ndarray, first: PendingAnswer
) -> np.ndarray:
    """bool [n]. One question has a limit, and an owner answers its first pairs; the rest is requested after that."""
    whole, done, answer = np.empty(len(dst), dtype=np.bool_), 0, first
    while True:
        found, left = unpack(answer.result()).get("found"), len(dst) - done
        if found is None or found.dtype != np.uint8 or found.ndim != 1 or not 0 < len(found) <= min(left, MOST_PAIRS):
            got = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
            raise PeerError(f"{peer.name}: its reply to a question for {left} edges is inconsistent: it has {got}.")
        whole[done : done + len(found)] = found != 0
        done += len(found)
        if done == len(dst):
            return whole
        answer = _ask_pairs(peer, header, dst[done:], src[done:])


def _ask_among(peer: Peer, header: Mapping[str, Any], among: Among) -> PendingAnswer:
    arrays, body = pack(replace(among, rows=among.rows[:MOST_PAIRS]).to_arrays())
    return peer.ask("induce", {**header, "arrays": arrays}, body)


def _all_among(peer: Peer, header: Mapping[str, Any], among: Among, first: PendingAnswer) -> Picks:
    """The edges of all rows. An owner answers its first rows; the rest is requested after that."""
    pieces, done, answer = [], 0, first
    while True:
        piece = _edges_of(peer, unpack(answer.result()), len(among.rows) - done, len(among.members))
        pieces.append(piece)
        done += len(piece.counts)
        if done == len(among.rows):
            return joined(pieces)
        answer = _ask_among(peer, header, replace(among, rows=among.rows[done:]))


def _edges_of(peer: Peer, reply: Mapping[str, np.ndarray], rows: int, members: int) -> Picks:
    """The edges in a reply, about at most so many rows. Raises `PeerError` for a reply that contradicts itself."""
    counts, found, edge_rows = (reply.get(name, _NONE) for name in ("counts", "members", "edge_rows"))
    flat = all(a.ndim == 1 and a.dtype in (np.int32, np.int64) for a in (counts, found, edge_rows))
    whole = flat and 0 < len(counts) <= min(rows, MOST_PAIRS) and counts.min() >= 0
    if not whole or not counts.sum(dtype=np.int64) == len(found) == len(edge_rows):
        raise PeerError(f"{peer.name}: its reply to a question for the edges of {rows} nodes is inconsistent.")
    if len(found) and not 0 <= found.min() <= found.max() < members:
        raise PeerError(f"{peer.name}: its reply to a question for edges among nodes names others.")
    return Picks(counts, found, edge_rows)


def _num_rows(piece: Mapping[str, np.ndarray], rows: AskedRows) -> int:
    return len(next(iter(piece.values()))) if piece else len(rows.ids)
