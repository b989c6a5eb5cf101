"""The shard server of a host's rows for ranks on other hosts: it answers reads, and applies each write once.

The first rank of a host serves the host's rows of tensors of one's own to the ranks of the same job on other hosts,
from the first tensor on. Only callers with the role ``worker`` or ``client`` and the same ``job`` are answered.
``tensor`` in each request is the name that rank 0 drew for the tensor when all ranks created it together, 16
hexadecimal digits; a tensor that is unknown or closed is an error. Rows are numbers in the type; those that lie on
another host, or are out of range, are an error.

**rows** reads rows. The request has ``tensor`` and the array ``rows`` int64 [n]; the reply has the array ``values`` of
the tensor's dtype (bfloat16 as uint16): the first rows, as many as fit into ``cluster.limits.reply_size``, at least
one; the others are asked for again.

**put** writes. The request has ``tensor``; ``how``: ``set``, ``add`` or ``fill``; ``writer``: 16 to 100 characters,
drawn once by each rank for each shard server; ``seq``: the number of the write, from 1 for each writer; ``rank`` and
``epoch``, the rank that writes and its number of barriers so far, by which conflicting writes are told; the arrays
``rows`` int64 [n] and ``values`` [n, ...], for ``fill`` ``values`` [...] alone. The reply is empty. A writer sends a
write when the one before has its reply. The shard server applies the write after the last one; one with a number that
was applied already is answered and not applied again; any other number is an error. So each write is applied once,
however often it is sent and whatever overtakes it. dtype and shape must be the tensor's; nothing is written otherwise.

**count** gives ``nonzero``, the number of values in the host's rows of ``tensor`` that are not zero.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from glt_lightning.base import DataError, RefusedError, read_integer
from glt_lightning.workers import Caller, CallHandler, Link, Message, Service, Transport, pack, unpack

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
    """Serves the tables of this host at ``address`` to the ranks of the same job on other hosts: ``rows``, ``put``, ``count``.
    Close it.

    A writer numbers its writes from 1 and sends the next one when it has the answer to the last. So a write whose number was
    applied already is one that was sent again, and is answered without being applied.
    """

    def __init__(self, link: Link, address: str, transport: Transport, num_ranks: int) -> None:
        self._link, self._ranks = link, num_ranks
        self._tables: dict[str, SharedTable] = {}
        self._writers: dict[str, _Writer] = {}
        self._lock = threading.Lock()
        calls: dict[str, CallHandler] = {"rows": self._rows, "put": self._put, "count": self._count}
        self._server = transport.serve(address, Service(link.greet, calls, {}))
        self.address = self._server.address

    def add(self, id_: str, table: SharedTable) -> None:
        self._tables[id_] = table

    def remove(self, id_: str) -> None:
        self._tables.pop(id_, None)

    def close(self) -> None:
        """Safe to call twice."""
        self._server.close()
        self._tables.clear()

    def _rows(self, message: Message, caller: Caller) -> Message:
        """The first rows, as many as fit into a reply; the caller asks again for the rest."""
        table, rows = self._table(message, caller), _ids(unpack(message).get("rows"))
        row_bytes = max(8, math.prod(table.row_shape) * table.dtype.itemsize)  # of narrow rows, the numbers take more
        rows = rows[: max(1, self._link.limits.reply_bytes // row_bytes)]
        with caller.working(len(rows) * (2 * row_bytes + _POSITION_BYTES)):
            table.position(rows)  # raises for rows of another host
            entries, body = pack({"values": table.read(rows)})
            return Message({"arrays": entries}, body)

    def _put(self, message: Message, caller: Caller) -> Message:
        table, arrays, header = self._table(message, caller), unpack(message), message.header
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
