"""Messages between a rank and its sampler processes: a JSON header, raw bytes, file descriptors; no pickle.

Frame: two little-endian uint32, the lengths of header and body, then header and body. Descriptors ride on the frame.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any

_LENGTHS = struct.Struct("<II")
_MOST = 1 << 31  # bytes of a header or body: lengths beyond it mean that the stream is out of step


class ClosedError(ConnectionError):
    """The other end is gone."""


def send(
    sock: socket.socket, header: dict[str, Any], body: bytes | memoryview = b"", fds: list[int] | None = None
) -> None:
    """Sends one message. Raises `ClosedError` if the other end is gone, TimeoutError at the socket's deadline."""
    text = json.dumps(header).encode()
    lengths = _LENGTHS.pack(len(text), len(body))
    try:
        if fds:
            socket.send_fds(sock, [lengths], fds)
            sock.sendall(text)
        else:
            sock.sendall(lengths + text)
        if len(body):
            sock.sendall(body)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise ClosedError(str(error)) from None


def receive(sock: socket.socket) -> tuple[dict[str, Any], bytes, list[int]]:
    """Receives one message. Raises `ClosedError` at the end of the stream, TimeoutError at the socket's deadline."""
    fds: list[int] = []
    try:
        first, fds, _, _ = socket.recv_fds(sock, _LENGTHS.size, 1)
        if not first:
            raise ClosedError("the other process closed the connection")
        lengths = first + _exactly(sock, _LENGTHS.size - len(first))
        header_size, body_size = _LENGTHS.unpack(lengths)
        if header_size > _MOST or body_size > _MOST:
            raise ClosedError(
                f"received a frame of {header_size} + {body_size} bytes; at most {_MOST} each are possible"
            )
        header = json.loads(_exactly(sock, header_size))
        return header, _exactly(sock, body_size), list(fds)
    except BaseException as error:
        for fd in fds:  # the descriptors arrive with the first bytes of a message, whose rest may be missing
            os.close(fd)
        if isinstance(error, ConnectionResetError):
            raise ClosedError(str(error)) from None
        raise


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    got = 0
    while got < size:
        n = sock.recv_into(view[got:])
        if n == 0:
            raise ClosedError("the other process closed the connection in the middle of a message")
        got += n
    return bytes(data)
