"""Requests to an ASGI application in this process, without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        return json.loads(self.body)


def request(
    app: Any, path: str, given: Any = None, headers: Mapping[str, str] | None = None, method: str | None = None
) -> Reply:
    """Sends ``given``, bytes or what becomes JSON, and waits for the answer. It may be called from several threads."""
    body = given if isinstance(given, bytes) else b"" if given is None else json.dumps(given).encode()
    found = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method or ("GET" if given is None else "POST"),
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": found,
        "client": None,
        "server": ("test", 80),
        "scheme": "http",
    }
    sent: list[dict[str, Any]] = []
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        return parts.pop() if parts else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    start = next(each for each in sent if each["type"] == "http.response.start")
    names = {name.decode(): value.decode() for name, value in start["headers"]}
    return Reply(start["status"], names, b"".join(each.get("body", b"") for each in sent))
