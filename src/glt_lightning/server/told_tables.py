"""What clients say of the tables in the memory of their hosts, for the status of a server."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any

from glt_lightning.errors import DataError
from glt_lightning.transport.base import Caller
from glt_lightning.transport.message import Message

_MOST_CLIENTS = 1000  # the one that was heard longest ago is forgotten
MOST_TABLES = 100  # of a client, and of a status
_MOST_NAME = 200


class ToldTables:
    """Takes the call ``tables``. Rows lie at trainers and not at servers, which so show what the job of a client takes."""

    def __init__(self) -> None:
        self._by_client: dict[str, list[tuple[str, int, bool]]] = {}
        self._lock = threading.Lock()

    def take(self, message: Message, caller: Caller) -> Message:
        """Raises `DataError` for anything but [name, bytes, on disk] of each table."""
        given = message.header.get("tables")
        if not isinstance(given, (list, tuple)) or not all(map(_is_table, given)):
            raise DataError(f"tables: expected [name, bytes, whether on disk] of each table, got {given!r:.100}.")
        with self._lock:
            self._by_client.pop(caller.name, None)
            if given:
                self._by_client[caller.name] = [(name, nbytes, disk) for name, nbytes, disk in given[:MOST_TABLES]]
            while len(self._by_client) > _MOST_CLIENTS:
                del self._by_client[next(iter(self._by_client))]
        return Message({})

    def status(self, clients: Collection[str]) -> list[dict[str, Any]]:
        """The tables of these clients, as JSON values."""
        with self._lock:
            told = [(client, *table) for client in clients for table in self._by_client.get(client, ())]
        names = ("client", "table", "bytes", "on_disk")
        return [dict(zip(names, each, strict=True)) for each in told[:MOST_TABLES]]


def _is_table(given: Any) -> bool:
    if not isinstance(given, (list, tuple)) or len(given) != 3:
        return False
    name, nbytes, on_disk = given
    named = isinstance(name, str) and 0 < len(name) <= _MOST_NAME
    return named and type(nbytes) is int and 0 <= nbytes < 1 << 62 and type(on_disk) is bool
