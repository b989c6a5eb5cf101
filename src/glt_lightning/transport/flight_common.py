"""What both ends of a Flight connection share: how a frame and its body become one Flight message, and back."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from glt_lightning.errors import FullError, PeerError, PeerLostError, RefusedError
from glt_lightning.ops.native import view_of
from glt_lightning.transport import frame as frames
from glt_lightning.transport.frame import Frame, Kind
from glt_lightning.transport.memory import Recycler
from glt_lightning.transport.message import EMPTY, MOST_BODY, WireError, decode_header, encode_header


@contextmanager
def _quiet() -> Iterator[None]:
    """gRPC reads this when it is first used; it would tell stderr about every peer that is not there."""
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

    # a channel that is never used, but its making starts gRPC
    flight.FlightClient("grpc+tcp://127.0.0.1:9").close()

FLIGHT_ERRORS = (pa.ArrowException, OSError)  # some of Flight's errors are the one, some the other
SCHEMA = pa.schema([("body", pa.uint8())])
TOKEN_HEADER = "glt-token"
# Where the memory of a received body begins depends on what stands before it: 14 bytes, modulo 16, and these frames.
_BEFORE_BODY = 14
_PIECE = 2 << 20  # bytes
_MOST_BEGUN = 64  # bodies of a stream that are put together at once

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
    """(batch, frame): a body that is large is the batch's only column and is not copied. It must not change until it
    has been sent; nothing keeps it after that."""
    if body.nbytes <= frames.MOST_INLINE:
        return None, frames.encode(kind, id_, header, body)
    if body.nbytes > MOST_BODY:
        raise WireError(f"a body of {body.nbytes} bytes; at most {MOST_BODY} can be sent in one message.")
    data = frames.encode_padded(kind, id_, header, lambda length: _pad(length, body.nbytes))
    column = pa.Array.from_buffers(pa.uint8(), body.nbytes, [None, pa.py_buffer(body)])
    return pa.RecordBatch.from_arrays([column], schema=SCHEMA), data


def chunks(
    kind: Kind, id_: int, header: Mapping[str, Any], body: np.ndarray
) -> Iterator[tuple[pa.RecordBatch | None, bytes]]:
    """The same for a reply: a very large body goes in pieces. Flight takes fresh memory for each message and returns it;
    with messages of 80 MB that costs three times the CPU of pieces that are copied into recycled memory."""
    last = max(0, body.nbytes - 1) // _PIECE * _PIECE
    final = chunk(kind, id_, header, body[last:])  # first, so that nothing of a reply that cannot be sent is
    for begin in range(0, last, _PIECE):
        yield chunk(Kind.PART, id_, {"bytes": body.nbytes}, body[begin : begin + _PIECE])
    yield final


def _pad(frame_bytes: int, body_bytes: int) -> int:
    """Spaces that let the body arrive at an address that 16 divides: then it need not be copied."""
    body_size = _varint(-(-body_bytes // 8) * 8)
    for pad in range(16):
        length = frame_bytes + pad
        if (_BEFORE_BODY + length + _varint(length) + body_size) % 16 == 0:
            return pad
    return 0


def _varint(value: int) -> int:
    """Bytes that protobuf takes for a number."""
    return max(1, -(-value.bit_length() // 7))


def write(writer: Any, kind: Kind, id_: int, header: Mapping[str, Any], body: np.ndarray = EMPTY) -> None:
    """Sends one request."""
    write_chunk(writer, *chunk(kind, id_, header, body))


def write_chunk(writer: Any, batch: pa.RecordBatch | None, frame: bytes) -> None:
    """Sends what `chunk` made."""
    if batch is None:
        writer.write_metadata(frame)
    else:
        writer.write_with_metadata(batch, frame)


def open_chunk(received: Any) -> tuple[Frame, np.ndarray]:
    """(frame, body uint8 [n]) of a Flight message. The body is aligned, writable, and the receiver's own.
    Raises `WireError`."""
    frame, memory = _open(received)
    return frame, memory if memory.ctypes.data % 8 == 0 else memory.copy()


def _open(received: Any) -> tuple[Frame, np.ndarray]:
    if received.app_metadata is None:
        raise WireError("a message without a frame.")
    frame = frames.decode(received.app_metadata)
    batch = received.data
    if batch is None or batch.num_rows == 0:
        return frame, frame.inline
    if batch.num_columns != 1 or batch.schema.field(0).type != pa.uint8():
        raise WireError("a body that is not one column of uint8.")
    column = batch.column(0)
    if column.null_count or len(frame.inline):
        raise WireError("a body with gaps, or two of them.")
    buffer = column.buffers()[1]
    if buffer is None or column.offset + len(column) > buffer.size:  # Arrow itself does not look
        raise WireError("a body that is longer than its memory.")
    if len(column) > _message_bytes(received.app_metadata):
        raise WireError(f"a compressed body, of {len(column)} bytes; bodies are sent as they are.")
    return frame, view_of(buffer.address + column.offset, len(column), buffer)


def _message_bytes(metadata: Any) -> float:
    """What a message took on the wire: Flight's metadata is a slice of the memory that gRPC received all of it in, of the
    body as well. Without bound where Flight has copied it: a body that was sent as it is must never be refused."""
    memory = getattr(metadata, "parent", None)
    return math.inf if memory is None else memory.size


class Assembler:
    """`open_chunk` for a stream of replies, whose bodies may come in pieces. For one thread."""

    def __init__(self, memory: Recycler) -> None:
        self._memory = memory
        self._begun: dict[int, tuple[np.ndarray, int]] = {}  # by id: memory, and how much of it has come

    def open(self, received: Any) -> tuple[Frame, np.ndarray] | None:
        """(frame, body); None for a piece that is not the last. Raises `WireError`."""
        frame, piece = _open(received)
        if frame.kind == Kind.PART:
            self._add(frame, piece)
            return None
        if frame.id not in self._begun:
            return frame, piece if piece.ctypes.data % 8 == 0 else piece.copy()
        memory, at = self._begun.pop(frame.id)
        if at + len(piece) != len(memory):
            raise WireError(f"a body of {len(memory)} bytes of which {at + len(piece)} came.")
        memory[at:] = piece
        return frame, memory

    def _add(self, frame: Frame, piece: np.ndarray) -> None:
        total = frame.decode().get("bytes")
        if type(total) is not int or not len(piece) < total <= MOST_BODY:
            raise WireError(f"a piece of {len(piece)} bytes of a body of {total!r:.50}.")
        memory, at = self._begun.get(frame.id) or (None, 0)
        if memory is None:
            if len(self._begun) == _MOST_BEGUN:
                raise WireError(f"{_MOST_BEGUN} bodies are begun and not ended.")
            memory = self._memory.take(total)
        if len(memory) != total or at + len(piece) > total:
            raise WireError(f"a body of {len(memory)} bytes that becomes one of {max(total, at + len(piece))}.")
        memory[at : at + len(piece)] = piece
        self._begun[frame.id] = memory, at + len(piece)


def read_json(data: bytes, what: str) -> dict[str, Any]:
    """A descriptor or ticket. Raises `RefusedError`."""
    try:
        return decode_header(data)
    except WireError as error:
        raise RefusedError(f"{what}: {error}") from None


def to_json(header: Mapping[str, Any]) -> bytes:
    """What `read_json` reads."""
    return encode_header(header)


def refused(error: PeerError) -> dict[str, Any]:
    """The header of a REFUSED frame."""
    again = {"again": True} if isinstance(error, FullError) else {}
    return {"message": str(error)[:2000], **again}


def refusal(header: Mapping[str, Any]) -> PeerError:
    """The error that `refused` describes."""
    return (FullError if header.get("again") is True else RefusedError)(str(header.get("message", "no reason given")))


# What gRPC says, in lower case, and what it means to the user. Trying again would not help with any of these.
_REFUSALS = (
    ("certificate_verify_failed", "its certificate is not accepted: another authority signed it, or it has expired"),
    ("certificate verify failed", "its certificate is not accepted: another authority signed it, or it has expired"),
    ("signature failure", "its certificate is not accepted: another authority signed it"),
    ("is not in peer certificate", "its certificate is for another host: make one that names this address"),
    ("wrong version number", "it speaks clear text, and this process has certificates (cluster.security)"),
    ("packet length too long", "it speaks clear text, and this process has certificates (cluster.security)"),
    ("empty address list", "cluster.security.cert and key are not one pair"),
    ("expected settings frame", "what listens there does not speak this protocol"),
    ("received http2 header with status", "what listens there does not speak this protocol"),
    ("unimplemented", "what listens there does not speak this protocol"),
)
CLOSED = "the connection was closed"
_REASONS = (
    ("connection refused", "nothing listens there (connection refused)"),
    ("connection reset", CLOSED),
    ("socket closed", CLOSED),
    ("broken pipe", CLOSED),
    ("goaway", CLOSED),
    ("no route to host", "there is no route to that host"),
    ("network is unreachable", "there is no route to that host"),
    ("connection timed out", "the connection timed out"),
    ("address lookup failed", "its name is not known"),
    ("cancelled", CLOSED),
)


def translate(error: BaseException) -> PeerError:
    """An error of Flight as ours; the message is for behind "<who>: "."""
    if isinstance(error, flight.FlightUnauthenticatedError):
        return RefusedError("the secret of this process is not that of the job (cluster.security.token_file)")
    text = " ".join(str(error).split())
    lower = text.lower()
    for sign, meaning in _REFUSALS:
        if sign in lower:
            return RefusedError(meaning)
    for sign, meaning in _REASONS:
        if sign in lower:
            return PeerLostError(meaning)
    said = text.partition(" gRPC client debug context")[0].partition(" Client context:")[0]
    return PeerLostError(said.partition("with message: ")[2][:300] or said[:300])
