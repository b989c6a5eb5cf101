"""The homes of other hosts, as a rank asks them."""

from __future__ import annotations

import json
import math
import secrets
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np

from glt_lightning.base import PeerError, RemoteError
from glt_lightning.tensors.home import RowsHome
from glt_lightning.tensors.space import Homes
from glt_lightning.workers import Link, Message, Peer, PendingAnswer, Ranks, Transport, on_all_or_none, pack, unpack

_MOST_BYTES = 64 << 20  # of one write; larger ones are sent in pieces


class RemoteHome:
    """One other host's home. Thread-safe. Its methods raise `PeerError`, with its name, if it does not answer in time."""

    def __init__(self, peer: Peer, rank: int) -> None:
        self._peer, self._rank = peer, rank
        self._writer, self._number = secrets.token_hex(16), 0
        self._lock = threading.Lock()  # a write is sent when the one before has its answer
        self._failed = ""

    def rows(
        self, table: str, rows: np.ndarray, dtype: np.dtype, row_shape: tuple[int, ...]
    ) -> Callable[[], np.ndarray]:
        """Asks for rows int64 [n]; what it returns waits for them."""
        answer, whole = self._ask(table, rows), np.empty((len(rows), *row_shape), dtype)

        def wait() -> np.ndarray:
            done, reply = 0, answer.result()
            while True:
                done += self._take(reply, whole[done:])
                if done == len(rows):
                    return whole
                reply = self._ask(table, rows[done:]).result()

        return wait

    def _ask(self, table: str, rows: np.ndarray) -> PendingAnswer:
        arrays, body = pack({"rows": rows})
        return self._peer.ask("rows", {"tensor": table, "arrays": arrays}, body, bulk=True)

    def _take(self, reply: Message, out: np.ndarray) -> int:
        values = unpack(reply).get("values")
        fits = values is not None and values.dtype == out.dtype and values.shape[1:] == out.shape[1:]
        if values is None or not fits or not (len(values) or not len(out)) or len(values) > len(out):
            got = "nothing" if values is None else f"{values.dtype} {list(values.shape)}"
            raise PeerError(
                f"{self._peer.name}: its reply to a request for {len(out)} rows is inconsistent: it has {got}."
            )
        out[: len(values)] = values
        return len(values)

    def put(self, table: str, how: str, rows: np.ndarray | None, values: np.ndarray, epoch: int) -> None:
        """Writes values [n, ...] to rows int64 [n], or a value to all rows of that host (``fill``). They are applied when this
        returns."""
        if rows is None:
            return self._send(table, how, {"values": values}, epoch)
        most = max(1, _MOST_BYTES // max(1, values.itemsize * math.prod(values.shape[1:])))
        for begin in range(0, len(rows), most):
            piece = slice(begin, begin + most)
            self._send(table, how, {"rows": rows[piece], "values": values[piece]}, epoch)

    def _send(self, table: str, how: str, arrays: dict[str, np.ndarray], epoch: int) -> None:
        entries, body = pack(arrays)
        with self._lock:
            if self._failed:
                raise PeerError(
                    f"{self._failed} Whether that write was applied is not known, so no further one is sent."
                )
            header = {"tensor": table, "how": how, "writer": self._writer, "seq": self._number + 1, "epoch": epoch}
            try:
                self._peer.ask("put", {**header, "rank": self._rank, "arrays": entries}, body).result()
            except RemoteError:
                raise  # it was refused, and so not applied
            except PeerError as error:
                self._failed = str(error)
                raise
            self._number += 1

    def count_nonzero(self, table: str) -> int:
        found = self._peer.ask("count", {"tensor": table}).result().header.get("nonzero")
        if type(found) is not int:
            raise PeerError(
                f"{self._peer.name}: its reply to a request for a count is inconsistent: it has {found!r:.50}."
            )
        return found

    def close(self) -> None:
        self._peer.close()


@dataclass(frozen=True, eq=False)
class Reach:
    """How a rank reaches the homes of other hosts, and they reach its own. place: name of this host, the same on all its ranks.
    link: how this rank introduces itself.  address, transport: where it listens, and over what; asked for when the first tensor
    is created."""

    place: str
    link: Link
    address: Callable[[], str]
    transport: Callable[[], Transport]


class RemoteHomes:
    """The homes of the other hosts of a job; the first rank of each host serves that host's. Collective: all ranks construct
    theirs at the same time. Close it, when no other rank needs this host's rows any more."""

    def __init__(self, ranks: Ranks, homes: Homes, reach: Reach) -> None:
        self.served: RowsHome | None = None
        self._others: dict[int, RemoteHome] = {}
        link = reach.link
        with ExitStack() as opened:

            def serve() -> tuple[Transport, str]:
                transport = reach.transport()
                if not homes.is_first:
                    return transport, ""
                self.served = RowsHome(link, reach.address(), transport, len(homes.host_of_rank))
                opened.callback(self.served.close)
                return transport, self.served.address

            transport, mine = on_all_or_none(ranks, serve, lambda _: None)
            everyone = [json.loads(text) for text in ranks.exchange(json.dumps([link.name, mine]))]
            for host in range(homes.num_hosts):
                if host != homes.host:
                    name, where = everyone[homes.ranks_of(host)[0]]
                    self._others[host] = other = RemoteHome(link.peer(name, [where], transport), homes.rank)
                    opened.callback(other.close)
            self._opened = opened.pop_all()

    def __getitem__(self, host: int) -> RemoteHome:
        return self._others[host]

    def all(self) -> list[RemoteHome]:
        return list(self._others.values())

    def close(self) -> None:
        """Safe to call twice."""
        self._opened.close()


class LazyHomes:
    """`RemoteHomes` that are opened by the first tensor of a job."""

    def __init__(self, ranks: Ranks, homes: Homes, reach: Reach) -> None:
        self._open = partial(RemoteHomes, ranks, homes, reach)
        self._opened: RemoteHomes | None = None

    def open(self) -> RemoteHomes:
        """The same object each time. The first call is a collective one."""
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def close(self) -> None:
        """Safe to call twice."""
        if self._opened is not None:
            self._opened.close()
