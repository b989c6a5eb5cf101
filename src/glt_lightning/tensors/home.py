"""The shard server of a host's rows for ranks on other hosts: it answers reads, and applies each write once.

The first rank of a host serves the host's rows of users' tensors to the ranks of the same job on other hosts, from the
first tensor on. Only callers with the role ``worker`` or ``client`` and the same ``job`` are answered.
``tensor`` in each request is the name that rank 0 drew for the tensor when all ranks created it together, 16
hexadecimal digits; a tensor that is unknown or closed is an error. Rows are numbers in the type; those that lie on
another host, or are out of range, are an error.

**rows** reads rows. The request has ``tensor`` and the array ``rows`` int64 [n]; the reply has the array ``values`` of
the tensor's dtype (bfloat16 as uint16): the first rows, as many as fit into ``cluster.limits.reply_size``, at least
one; the others are asked for again.

**put** writes. The request has ``tensor``; ``how``: ``set``, ``add`` or ``fill``; ``writer``: 16 to 100 characters,
drawn once by each rank for each shard server; ``seq``: the number of the write, from 1 for each writer; ``rank`` and
``epoch``, the rank that writes and its number of barriers so far, by which conflicting writes are found; the arrays
``rows`` int64 [n] and ``values`` [n, ...], for ``fill`` ``values`` [...] alone. The reply is empty. A writer sends a
write when the one before has its reply. The shard server applies the write after the last one; one with a number that
was applied already is answered and not applied again; any other number is an error. So each write is applied once,
however often it is sent and whatever overtakes it. dtype and shape must be the tensor's; nothing is written otherwise.

**count** gives ``nonzero``, the number of values in the host's rows of ``tensor`` that are not zero.
"""

from __future__ import annotations

import json
import math
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from glt_lightning.base import DataError, PeerError, RefusedError, RemoteError, read_integer
from glt_lightning.tensors.space import Homes
from glt_lightning.workers import Caller, Link, Message, Peer, Ranks, Transport

if TYPE_CHECKING:
    from glt_lightning.tensors.table import SharedTable


_POSITION_BYTES = 48  # of memory for each row that is looked for: its part, where that begins, its place
_MOST_WRITERS = 1 << 16
_LEAST_WRITER, _MOST_WRITER = 16, 100  # characters of a writer's name
HOWS = ("set", "add", "fill")


@dataclass
class _Writer:
    """A rank that writes. applied: number of its last write that was applied."""

    applied: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class RowsHome:
    """The shard server of a host: serves its tables at ``address`` to the ranks of the same job on other hosts, by the calls
    ``rows``, ``put`` and ``count``. Close it.

    A writer numbers its writes from 1 and sends the next one when it has the reply to the last. So a write whose number was
    applied already is a repeated one, and is answered without being applied.
    """

    def __init__(self, link: Link, address: str, transport: Transport, num_ranks: int) -> None:
        self._link, self._ranks = link, num_ranks
        self._tables: dict[str, SharedTable] = {}
        self._writers: dict[str, _Writer] = {}
        self._lock = threading.Lock()
        calls = {"rows": self._rows, "put": self._put, "count": self._count}
        self._server = link.serve(address, calls, transport)
        self.address = self._server.address

    def add(self, id_: str, table: SharedTable) -> None:
        self._tables[id_] = table

    def remove(self, id_: str) -> None:
        self._tables.pop(id_, None)

    def close(self) -> None:
        """Stops serving. Safe to call twice."""
        self._server.close()
        self._tables.clear()

    def _rows(self, message: Message, caller: Caller) -> Message:
        """Answers with the first rows, as many as fit into a reply; the caller asks again for the rest."""
        table, rows = self._table(message, caller), _ids(message.arrays().get("rows"))
        row_bytes = max(8, math.prod(table.row_shape) * table.dtype.itemsize)  # of narrow rows, the numbers take more
        rows = rows[: max(1, self._link.limits.reply_bytes // row_bytes)]
        with caller.working(len(rows) * (2 * row_bytes + _POSITION_BYTES)):
            table.position(rows)  # raises for rows of another host
            return Message.of({"values": table.read(rows)})

    def _put(self, message: Message, caller: Caller) -> Message:
        table, arrays, header = self._table(message, caller), message.arrays(), message.header
        how = header.get("how")
        if how not in HOWS:
            raise DataError(f"how: expected {', '.join(HOWS)}, got {how!r:.50}.")
        number = read_integer(header, "seq", 1, 2**62)
        epoch, rank = read_integer(header, "epoch", 0, 2**40), read_integer(header, "rank", 0, self._ranks - 1)
        rows = None if how == "fill" else _ids(arrays.get("rows"))
        values = arrays.get("values")
        shape = table.row_shape if rows is None else (len(rows), *table.row_shape)
        if values is None or values.dtype != table.dtype or values.shape != shape:
            got = "nothing" if values is None else f"{values.dtype} {list(values.shape)}"
            raise DataError(f"values: expected {table.dtype} {list(shape)}, got {got}.")
        writer = self._writer(header.get("writer"))
        with writer.lock:  # a write that is sent again may arrive while the first one is applied
            if number <= writer.applied:
                return Message({})
            if number != writer.applied + 1:
                raise DataError(f"seq: expected {writer.applied + 1}, the write after the last one, got {number}.")
            table.apply(how, rows, values, rank, epoch)
            writer.applied = number
        return Message({})

    def _count(self, message: Message, caller: Caller) -> Message:
        return Message({"nonzero": self._table(message, caller).count_own()})

    def _table(self, message: Message, caller: Caller) -> SharedTable:
        hello: Mapping[str, Any] = caller.hello
        if hello.get("role") not in ("worker", "client") or hello.get("job") != self._link.job:
            raise RefusedError(f"{caller.name:.200}: rows of a job are for its own ranks. Check the addresses.")
        id_ = message.header.get("tensor")
        table = self._tables.get(id_) if isinstance(id_, str) else None
        if table is None:
            raise DataError(
                f"tensor: {self._link.name} has no tensor {id_!r:.50}; it was closed, or is none of this job."
            )
        return table

    def _writer(self, name: Any) -> _Writer:
        if not isinstance(name, str) or not _LEAST_WRITER <= len(name) <= _MOST_WRITER:
            raise DataError(f"writer: expected {_LEAST_WRITER} to {_MOST_WRITER} characters, got {name!r:.50}.")
        with self._lock:
            if name not in self._writers and len(self._writers) >= _MOST_WRITERS:
                raise DataError(f"writer: there are {_MOST_WRITERS} already.")
            return self._writers.setdefault(name, _Writer())


def _ids(rows: np.ndarray | None) -> np.ndarray:
    if rows is None or rows.dtype != np.int64 or rows.ndim != 1:
        got = "nothing" if rows is None else f"{rows.dtype} {list(rows.shape)}"
        raise DataError(f"rows: expected int64 [n], got {got}.")
    return rows


# The shard servers of other hosts, as a rank calls them.


_MOST_BYTES = 64 << 20  # of one write; larger ones are sent in pieces


class RemoteHome:
    """A client of another host's shard server. Thread-safe. Its methods raise `PeerError`, with the server's name, if it does
    not answer in time."""

    def __init__(self, peer: Peer, rank: int) -> None:
        self._peer, self._rank = peer, rank
        self._writer, self._number = secrets.token_hex(16), 0
        self._lock = threading.Lock()  # a write is sent when the one before has its answer
        self._failed = ""

    def rows(
        self, table: str, rows: np.ndarray, dtype: np.dtype, row_shape: tuple[int, ...]
    ) -> Callable[[], np.ndarray]:
        """Asks for rows int64 [n]. Returns a function that waits for them and returns [n, *row_shape]."""
        answer, whole = self._ask(table, rows), np.empty((len(rows), *row_shape), dtype)

        def wait() -> np.ndarray:
            done, reply = 0, answer()
            while True:
                done += self._take(reply, whole[done:])
                if done == len(rows):
                    return whole
                reply = self._ask(table, rows[done:])()

        return wait

    def _ask(self, table: str, rows: np.ndarray) -> Callable[[], Message]:
        """Asks for as many of the rows as fit into a reply. Returns a function that waits for it."""
        question = Message.of({"rows": rows}, {"tensor": table})
        return self._peer.ask("rows", question.header, question.body, bulk=True).result

    def _take(self, reply: Message, out: np.ndarray) -> int:
        values = reply.arrays().get("values")
        fits = values is not None and values.dtype == out.dtype and values.shape[1:] == out.shape[1:]
        if values is None or not fits or not (len(values) or not len(out)) or len(values) > len(out):
            got = "nothing" if values is None else f"{values.dtype} {list(values.shape)}"
            raise PeerError(
                f"{self._peer.name}: its reply to a request for {len(out)} rows is inconsistent: it has {got}."
            )
        out[: len(values)] = values
        return len(values)

    def put(self, table: str, how: str, rows: np.ndarray | None, values: np.ndarray, epoch: int) -> None:
        """Writes values [n, ...] to rows int64 [n], or one value to all rows of that host (``fill``). The write is applied when
        this returns."""
        if rows is None:
            return self._send(table, how, {"values": values}, epoch)
        most = max(1, _MOST_BYTES // max(1, values.itemsize * math.prod(values.shape[1:])))
        for begin in range(0, len(rows), most):
            piece = slice(begin, begin + most)
            self._send(table, how, {"rows": rows[piece], "values": values[piece]}, epoch)

    def _send(self, table: str, how: str, arrays: dict[str, np.ndarray], epoch: int) -> None:
        write = {"tensor": table, "how": how, "writer": self._writer, "epoch": epoch, "rank": self._rank}
        message = Message.of(arrays, write)
        with self._lock:  # the numbers of writes must arrive in order; so a write waits for the reply to the one before
            if self._failed:
                raise PeerError(
                    f"{self._failed} Whether that write was applied is not known, so no further one is sent."
                )
            try:
                self._peer.ask("put", {**message.header, "seq": self._number + 1}, message.body).result()
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
    """The means by which the ranks of different hosts reach each other's rows.

    place: name of this host, the same on all its ranks.  link: how this rank introduces itself.
    address, transport: called when the first tensor is created; where this host listens, and over which transport.
    """

    place: str
    link: Link
    address: Callable[[], str]
    transport: Callable[[], Transport]


class RemoteHomes:
    """The shard servers of all hosts of a job: that of this host, which its first rank runs, and clients of the others.
    All ranks construct theirs at the same time. Close it when no other rank needs this host's rows any more."""

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

            transport, mine = ranks.all_or_none(serve, lambda _: None)
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
        """Closes the clients, and the shard server of this rank. Safe to call twice."""
        self._opened.close()


class LazyHomes:
    """The `RemoteHomes` of a job, opened with its first tensor: a job without tensors needs no shard servers."""

    def __init__(self, ranks: Ranks, homes: Homes, reach: Reach) -> None:
        self._open = partial(RemoteHomes, ranks, homes, reach)
        self._opened: RemoteHomes | None = None

    def open(self) -> RemoteHomes:
        """Opens them, or returns those of the first call, which is a collective one."""
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def close(self) -> None:
        """Closes them if they were opened. Safe to call twice."""
        if self._opened is not None:
            self._opened.close()
