"""The common part of both ends of a Flight connection: how a frame and its body become a Flight message, and back.

The carrier of the wire format is Arrow Flight, gRPC over HTTP/2, in clear text on loopback and with mutual TLS
everywhere else. Two of its methods are used; all others are refused.

Method, purpose and opening:

* ``DoExchange``: a *lane*: many calls at once, answered in the order in which they are ready; descriptor of type
  command: the **opening**
* ``DoGet``: a stream of replies to one request; the ticket: the **opening**

Every call brings the job's secret, if the job has one, in the gRPC header ``glt-token``, which is compared before
anything else is read.

A connection has a lane ``calls`` and, once it needs one, a lane ``bulk`` for large replies, so that small ones do not
wait behind them. Each lane has threads of its own at the server.

An opening is a JSON object of at most 64 KiB:

    {"lane": "calls", "hello": {...}, "nonce": "..."}                    of a lane: "calls" or "bulk"
    {"op": "batches", "header": {...}, "hello": {...}, "nonce": "..."}   of a stream

**Flight messages.** All streams have one Arrow schema, a single column ``body`` of ``uint8``. The *frame* below is the
``app_metadata`` of a Flight message. A body of up to 16 KiB rides in the frame; a larger one is the column's buffer,
which the sender does not copy.

In a stream of ``DoGet`` every Flight message has a batch, of no rows where the body is in the frame. In a lane it may
have none.

The header of a frame whose body is in the column is padded with up to 15 spaces, so that the body arrives at an address
that 16 divides: with *f* the bytes of the frame, *b* those of the body rounded up to 8, and *v(n)* the bytes of *n* as
a protobuf varint, (14 + *f* + *v(f)* + *v(b)*) mod 16 = 0. A receiver does not rely on it: it copies a body that is not
aligned to 8.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from glt_lightning.base import FullError, PeerError, PeerLostError, RefusedError
from glt_lightning.kernels import view_of
from glt_lightning.workers.transport import frame as frames
from glt_lightning.workers.transport.frame import Frame, Kind
from glt_lightning.workers.transport.message import EMPTY, MOST_BODY, Recycler, WireError, decode_header, encode_header


@contextmanager
def _quiet() -> Iterator[None]:
    """gRPC reads this when it is first used; by default it logs every unreachable peer to stderr."""
    name = "GRPC_VERBOSITY"
    given = os.environ.get(name)
    if given is None:
        os.environ[name] = "NONE"
    try:
        yield
    finally:
        if given is None:
            del os.environ[name]


with _quiet():
    from pyarrow import flight

    # never used; but making a channel starts gRPC, which reads the variable
    flight.FlightClient("grpc+tcp://127.0.0.1:9").close()

FLIGHT_ERRORS = (pa.ArrowException, OSError)  # Flight raises errors of both families
SCHEMA = pa.schema([("body", pa.uint8())])
TOKEN_HEADER = "glt-token"
# Where the memory of a received body begins depends on what stands before it: 14 bytes, modulo 16, and these frames.
_BEFORE_BODY = 14
_PIECE = 2 << 20  # bytes; why replies go in pieces: see `chunks`
_MOST_BEGUN = 64  # incomplete bodies of a stream, one per call in flight: bounds the memory that a peer can claim

__all__ = [
    "FLIGHT_ERRORS",
    "SCHEMA",
    "TOKEN_HEADER",
    "Assembler",
    "chunk",
    "chunks",
    "flight",
    "open_chunk",
    "read_json",
    "refusal",
    "refused",
    "to_json",
    "translate",
    "write",
    "write_chunk",
]


def chunk(
    kind: Kind, id_: int, header: Mapping[str, Any], body: np.ndarray = EMPTY
) -> tuple[pa.RecordBatch | None, bytes]:
    """Makes the (batch, frame) of a message. A large body is the batch's only column and is not copied: it must not change
    until it has been sent; no reference to it stays after that."""
    if body.nbytes <= frames.MOST_INLINE:
        return None, frames.encode(kind, id_, header, body)
    if body.nbytes > MOST_BODY:
        raise WireError(
            f"the body has {body.nbytes} bytes; one message carries at most {MOST_BODY}. Ask for fewer ids per call."
        )
    data = frames.encode_padded(kind, id_, header, lambda length: _pad(length, body.nbytes))
    column = pa.Array.from_buffers(pa.uint8(), body.nbytes, [None, pa.py_buffer(body)])
    return pa.RecordBatch.from_arrays([column], schema=SCHEMA), data


def chunks(
    kind: Kind, id_: int, header: Mapping[str, Any], body: np.ndarray
) -> Iterator[tuple[pa.RecordBatch | None, bytes]]:
    """Yields the messages of a reply: a very large body goes in pieces. Flight takes fresh memory for each message and returns
    it; with messages of 80 MB that costs three times the CPU of pieces that are copied into recycled memory."""
    last = max(0, body.nbytes - 1) // _PIECE * _PIECE
    final = chunk(kind, id_, header, body[last:])  # made first: if it raises, no piece has been sent
    for begin in range(0, last, _PIECE):
        yield chunk(Kind.PART, id_, {"bytes": body.nbytes}, body[begin : begin + _PIECE])
    yield final


def _pad(frame_bytes: int, body_bytes: int) -> int:
    """Returns the number of spaces after which the body arrives at an address that is a multiple of 16, so that the receiver
    need not copy it to align it."""
    body_size = _varint(-(-body_bytes // 8) * 8)
    for pad in range(16):
        length = frame_bytes + pad
        if (_BEFORE_BODY + length + _varint(length) + body_size) % 16 == 0:
            return pad
    return 0


def _varint(value: int) -> int:
    """Bytes of a number in protobuf's varint encoding."""
    return max(1, -(-value.bit_length() // 7))


def write(writer: Any, kind: Kind, id_: int, header: Mapping[str, Any], body: np.ndarray = EMPTY) -> None:
    """Sends one request."""
    write_chunk(writer, *chunk(kind, id_, header, body))


def write_chunk(writer: Any, batch: pa.RecordBatch | None, frame: bytes) -> None:
    """Sends one message made by `chunk`."""
    if batch is None:
        writer.write_metadata(frame)
    else:
        writer.write_with_metadata(batch, frame)


def open_chunk(received: Any) -> tuple[Frame, np.ndarray]:
    """Returns (frame, body uint8 [n]) of a Flight message. The body is aligned, writable, and the receiver's own.
    Raises `WireError`."""
    frame, memory = _open(received)
    return frame, memory if memory.ctypes.data % 8 == 0 else memory.copy()


def _open(received: Any) -> tuple[Frame, np.ndarray]:
    if received.app_metadata is None:
        raise WireError("received a Flight message without a frame (its app_metadata is empty).")
    frame = frames.decode(received.app_metadata)
    batch = received.data
    if batch is None or batch.num_rows == 0:
        return frame, frame.inline
    if batch.num_columns != 1 or batch.schema.field(0).type != pa.uint8():
        raise WireError("received a body that is not one Arrow column of uint8.")
    column = batch.column(0)
    if column.null_count or len(frame.inline):
        raise WireError("received a body with null values, or a second body inside the frame.")
    buffer = column.buffers()[1]
    if buffer is None or column.offset + len(column) > buffer.size:  # Arrow does not check this itself
        raise WireError("received a body whose length exceeds its buffer.")
    if len(column) > _message_bytes(received.app_metadata):
        raise WireError(f"received a compressed body, of {len(column)} bytes; this protocol has no compression.")
    return frame, view_of(buffer.address + column.offset, len(column), buffer)


def _message_bytes(metadata: Any) -> float:
    """Returns the bytes of a message on the wire: Flight's metadata is a slice of the buffer in which gRPC received the whole
    message, body included. Infinity if Flight has copied the metadata: an uncompressed body must never be refused."""
    memory = getattr(metadata, "parent", None)
    return math.inf if memory is None else memory.size


class Assembler:
    """`open_chunk` for a stream of replies, whose bodies may come in pieces. For one thread."""

    def __init__(self, memory: Recycler) -> None:
        self._memory = memory
        self._begun: dict[int, tuple[np.ndarray, int]] = {}  # by id: memory, and bytes received so far

    def open(self, received: Any) -> tuple[Frame, np.ndarray] | None:
        """Returns (frame, body) of a message; None for a piece that is not the last. Raises `WireError`."""
        frame, piece = _open(received)
        if frame.kind == Kind.PART:
            self._add(frame, piece)
            return None
        if frame.id not in self._begun:
            return frame, piece if piece.ctypes.data % 8 == 0 else piece.copy()
        memory, at = self._begun.pop(frame.id)
        if at + len(piece) != len(memory):
            raise WireError(f"received {at + len(piece)} bytes of a body that was announced as {len(memory)} bytes.")
        memory[at:] = piece
        return frame, memory

    def _add(self, frame: Frame, piece: np.ndarray) -> None:
        total = frame.decode().get("bytes")
        if type(total) is not int or not len(piece) < total <= MOST_BODY:
            raise WireError(
                f"received a piece of {len(piece)} bytes of a body that was announced as {total!r:.50} bytes."
            )
        memory, at = self._begun.get(frame.id) or (None, 0)
        if memory is None:
            if len(self._begun) == _MOST_BEGUN:
                raise WireError(f"{_MOST_BEGUN} bodies of this stream are incomplete; no further one is accepted.")
            memory = self._memory.take(total)
        if len(memory) != total or at + len(piece) > total:
            raise WireError(
                f"a body was announced as {len(memory)} bytes, and its pieces as {max(total, at + len(piece))}."
            )
        memory[at : at + len(piece)] = piece
        self._begun[frame.id] = memory, at + len(piece)


def read_json(data: bytes, source: str) -> dict[str, Any]:
    """Decodes the object in a Flight descriptor or ticket. source: its name in errors. Raises `RefusedError`."""
    try:
        return decode_header(data)
    except WireError as error:
        raise RefusedError(f"{source}: {error}") from None


def to_json(header: Mapping[str, Any]) -> bytes:
    """Encodes an object for a Flight descriptor or ticket: the inverse of `read_json`."""
    return encode_header(header)


def refused(error: PeerError) -> dict[str, Any]:
    """Makes the header of a REFUSED frame."""
    again = {"again": True} if isinstance(error, FullError) else {}
    return {"message": str(error)[:2000], **again}


def refusal(header: Mapping[str, Any]) -> PeerError:
    """Makes the error from the header of a REFUSED frame, the inverse of `refused`."""
    return (FullError if header.get("again") is True else RefusedError)(str(header.get("message", "no reason given")))


_UNTRUSTED = (
    "this process does not trust the server's certificate: it has expired, or its authority is not the one in "
    "cluster.security.ca. Make both with the same authority (glt-lightning certs)"
)
_CLEAR_TEXT = (
    "the server uses clear text, and this process requires TLS. Give cluster.security.ca, cert and key to both, "
    "or to neither"
)
_STRANGER = "a program that is no glt_lightning process listens at this address. Check the address"
# Parts of gRPC's messages, in lower case, and their meaning for the user. Another attempt would fail in the same way.
_REFUSALS = (
    ("certificate_verify_failed", _UNTRUSTED),
    ("certificate verify failed", _UNTRUSTED),
    ("signature failure", _UNTRUSTED),
    ("asn1 encoding routines", _UNTRUSTED),  # the signature, in pyarrow 19
    (
        "is not in peer certificate",
        "the server's certificate is for another host. Make one for this address (glt-lightning certs --hosts)",
    ),
    ("wrong version number", _CLEAR_TEXT),
    ("packet length too long", _CLEAR_TEXT),
    ("empty address list", "cluster.security.cert does not belong to cluster.security.key"),
    ("expected settings frame", _STRANGER),
    ("received http2 header with status", _STRANGER),
    ("unimplemented", _STRANGER),
)
CLOSED = "the connection was closed"
_REASONS = (
    ("connection refused", "nothing listens at this address (connection refused)"),
    ("connection reset", CLOSED),
    ("socket closed", CLOSED),
    ("broken pipe", CLOSED),
    ("goaway", CLOSED),
    ("no route to host", "there is no route to that host"),
    ("network is unreachable", "there is no route to that host"),
    ("connection timed out", "the connection timed out"),
    ("dns resolution failed", "the host name cannot be resolved"),
    ("address lookup failed", "the host name cannot be resolved"),
    ("cancelled", CLOSED),
)


def translate(error: BaseException) -> PeerError:
    """Makes the `PeerError` for an error of Flight. Its message is to follow the peer's name and a colon."""
    if isinstance(error, flight.FlightUnauthenticatedError):
        return RefusedError(
            "the secret of this process is not the job's. Give both processes the same cluster.security.token_file"
        )
    text = " ".join(str(error).split())
    lower = text.lower()
    for sign, meaning in _REFUSALS:
        if sign in lower:
            return RefusedError(meaning)
    for sign, meaning in _REASONS:
        if sign in lower:
            return PeerLostError(meaning)
    message = text.partition(" gRPC client debug context")[0].partition(" Client context:")[0]
    return PeerLostError(message.partition("with message: ")[2][:300] or message[:300])
