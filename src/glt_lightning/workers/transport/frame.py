"""A message on the wire: a frame of 16 bytes, the header as JSON, and a small body right behind it.

A larger body travels beside the frame, in memory of its own that the sender does not copy.

A frame is little-endian. Offset, type and content:

* 0: uint8; protocol: 3
* 1: uint8; kind
* 2: uint16; 0
* 4: uint32; bytes of the header, *h*
* 8: uint64; id: the caller's number of a request, the same in its reply; 0 elsewhere
* 16: *h* bytes; the header: one JSON object in UTF-8, perhaps followed by spaces
* 16 + *h*: body, at most 16 KiB

Kind, sender and header:

* 1: ``REQUEST``; caller; ``{"op": "gather", "header": {...}}``
* 2: ``REPLY``; server; the operation's
* 3: ``FAULT``; server; ``kind`` (name of the exception), ``message``, ``traceback`` (each at most 5000 characters),
  ``expected`` (true: the message explains the error, so people need no traceback)
* 4: ``WELCOME``; server; the answer to the greeting
* 5: ``REFUSED``; server; ``message``
* 6: ``PING``; caller; ``{}``
* 7: ``PONG``; server; ``{}``, at once and not behind the calls
* 8: ``PART``; server; ``{"bytes": n}``: a piece of a body of *n* bytes

A body above 2 MiB comes in pieces, in order: frames ``PART`` with the reply's id, and the last piece with the ``REPLY``
itself. Pieces of several replies may alternate. Pieces are copied into recycled memory, which takes the receiver a
third of the CPU of fresh memory for each message (80 MB bodies, loopback: 0.5 and 1.4 CPU s per GB, both ends).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from glt_lightning.workers.transport.base import PROTOCOL
from glt_lightning.workers.transport.message import EMPTY, MOST_HEADER, WireError, decode_header, encode_header

_PREFIX = struct.Struct("<BBHIQ")  # protocol, kind, 0, bytes of the header, id
PREFIX_BYTES = _PREFIX.size
MOST_INLINE = 16 << 10  # bytes of a body inside the frame: copying them is cheaper than a buffer of their own


class Kind(IntEnum):
    """The kinds of frame. REQUEST and PING go to the server, all others come from it."""

    REQUEST = 1
    REPLY = 2
    FAULT = 3  # instead of a reply: the operation failed
    WELCOME = 4  # the first frame of a stream
    REFUSED = 5  # or this one, and nothing after it
    PING = 6  # is answered by a PONG at once
    PONG = 7
    PART = 8  # a piece of the body of the reply with this id, which ends with the reply's own frame


_KINDS = {int(kind): kind for kind in Kind}


@dataclass(frozen=True)
class Frame:
    """A received frame. inline: the body, if it was inside the frame."""

    kind: Kind
    id: int
    header: memoryview
    inline: np.ndarray

    def decode(self) -> dict[str, Any]:
        """Decodes the header. Raises `WireError`."""
        return decode_header(self.header)


def encode(kind: Kind, id_: int, header: Mapping[str, Any], inline: np.ndarray = EMPTY) -> bytes:
    """Encodes a frame, with its body if that is small."""
    data = encode_header(header)
    return b"".join((_PREFIX.pack(PROTOCOL, kind, 0, len(data), id_), data, memoryview(inline)))


def encode_padded(kind: Kind, id_: int, header: Mapping[str, Any], pad_of: Callable[[int], int]) -> bytes:
    """Encodes a frame without a body, and appends ``pad_of(bytes of the frame)`` spaces to its header."""
    data = encode_header(header)
    data += b" " * pad_of(PREFIX_BYTES + len(data))
    return _PREFIX.pack(PROTOCOL, kind, 0, len(data), id_) + data


def decode(data: Any) -> Frame:
    """Decodes a frame: the inverse of `encode`. data: any buffer; the header stays a view of it. Raises `WireError` for
    anything else."""
    view = memoryview(data).cast("B") if len(data) else memoryview(b"")
    if len(view) < _PREFIX.size:
        raise WireError(f"received a frame of {len(view)} bytes; the shortest has {_PREFIX.size}.")
    protocol, kind, zero, length, id_ = _PREFIX.unpack_from(view)
    if protocol != PROTOCOL or zero:
        raise WireError(
            f"received a frame of protocol {protocol}; this release uses {PROTOCOL}. Install the same release on all hosts."
        )
    if kind not in _KINDS:
        raise WireError(f"received a frame of unknown kind {kind}.")
    # the padding of `encode_padded` may take a header up to 15 bytes over its limit
    if length > MOST_HEADER + 16 or length > len(view) - _PREFIX.size:
        raise WireError(f"received a frame of {len(view)} bytes whose header is announced as {length} bytes.")
    begin = _PREFIX.size + length
    header, inline = view[_PREFIX.size : begin], view[begin:]
    if len(inline) > MOST_INLINE:
        raise WireError(f"received a frame with {len(inline)} bytes of body inside; at most {MOST_INLINE} are allowed.")
    # copied: aligned, writable, and independent of the buffer it came in
    return Frame(_KINDS[kind], id_, header, np.frombuffer(inline, dtype=np.uint8).copy() if len(inline) else EMPTY)
