"""Arrow Flight as a `Transport`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glt_lightning.base import DeadlineOptions, LimitOptions, parse_address
from glt_lightning.workers.transport.base import Connection, Server, Service
from glt_lightning.workers.transport.credentials import Credentials
from glt_lightning.workers.transport.flight_client import FlightConnection
from glt_lightning.workers.transport.flight_server import FlightServer
from glt_lightning.workers.transport.message import Recycler

_DEADLINES, _LIMITS = DeadlineOptions(), LimitOptions()


class FlightTransport:
    """Peers over TCP: in clear text, or with mutual TLS where the credentials have certificates."""

    def __init__(
        self, credentials: Credentials, deadlines: DeadlineOptions = _DEADLINES, limits: LimitOptions = _LIMITS
    ) -> None:
        self._credentials, self._deadlines, self._limits = credentials, deadlines, limits
        self._memory = Recycler()

    def serve(self, address: str, service: Service) -> Server:
        return FlightServer(address, service, self._credentials, self._limits)

    def connect(self, address: str, hello: Mapping[str, Any], timeout_s: float) -> Connection:
        parse_address("address", address)
        return FlightConnection(address, hello, self._credentials, self._deadlines, timeout_s, self._memory)
