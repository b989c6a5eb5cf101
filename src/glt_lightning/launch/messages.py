"""Messages between the launcher and its agents: one JSON object a line.

To an agent: ``begin`` (protocol, stop_s, silence_s), ``write`` (path, data, mode, more), ``start`` (id, argv, env, cwd, input,
failure), ``end`` (id), ``beat`` (sent), ``stop``, ``kill``. From an agent: ``hello`` (protocol, version, python, pid),
``written`` (path), ``started`` (id, pid), ``lines`` (id, text), ``exited`` (id, status, reason, failure), ``beat`` (sent,
wall), ``refused`` (reason), ``silent`` (reason).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

PROTOCOL = 1
MOST_BYTES = 1 << 20  # of a line
PIECE_BYTES = 1 << 18  # of a file in one message: base64 makes it a third longer


class MessageError(ValueError):
    """A line that is no message."""


def encode(op: str, **fields: Any) -> bytes:
    return json.dumps({"op": op, **fields}, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """The message of a line. Raises `MessageError`."""
    if len(line) > MOST_BYTES:
        raise MessageError(f"a line of {len(line):,} bytes; at most {MOST_BYTES:,} are allowed")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"no JSON: {error}: {line[:80]!r}") from None
    if not isinstance(message, dict) or not isinstance(message.get("op"), str):
        raise MessageError(f"no object with an op: {line[:80]!r}")
    return message


def field(message: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
    """A field of a message. Raises `MessageError` if it is missing or of another type."""
    value = message.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise MessageError(f"{message.get('op')}: {name} is {value!r:.80}")
    return value


def texts(message: Mapping[str, Any], name: str) -> list[str]:
    """A field that is a list of at least one text."""
    value = field(message, name, list)
    if not value or not all(isinstance(each, str) and "\0" not in each for each in value):
        raise MessageError(f"{message['op']}: {name} is {value!r:.80}")
    return list(value)


def variables(message: Mapping[str, Any], name: str) -> dict[str, str]:
    """A field that maps texts to texts."""
    value = field(message, name, dict)
    if not all(isinstance(each, str) and "\0" not in each for pair in value.items() for each in pair):
        raise MessageError(f"{message['op']}: {name} is {value!r:.80}")
    return dict(value)
