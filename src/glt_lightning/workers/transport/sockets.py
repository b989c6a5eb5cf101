"""Ends TCP connections that are owned by a library (gRPC) which offers no way to end them."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from urllib.parse import unquote

from glt_lightning.base import parse_address


def sever_accepted(port: int) -> None:
    """Shuts down the connections that this process has accepted at a port. Without this, Flight waits for ever for a peer
    that has stopped reading."""
    _sever(lambda connection: connection.getsockname()[1] == port)


def sever_peer(port: int, peer: str) -> None:
    """Shuts down the connection that this process has accepted at a port from ``peer``, as gRPC names it:
    ``ipv4:10.0.0.1:4711`` or ``ipv6:[::1]:4711``, percent-encoded."""
    host, _, theirs = unquote(peer).partition(":")[2].rpartition(":")
    host = host.strip("[]").removeprefix("::ffff:")
    _sever(
        lambda connection: (
            connection.getsockname()[1] == port
            and str(connection.getpeername()[1]) == theirs
            and _host(connection) == host
        )
    )


def sever_to(address: str) -> None:
    """Shuts down the connections of this process to ``host:port``. gRPC does not cancel a write to a peer that has
    stopped reading, nor a call that the peer has not begun to answer."""
    host, port = parse_address("address", address)
    with suppress(OSError):
        hosts = {str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        _sever(lambda connection: connection.getpeername()[1] == port and _host(connection) in hosts)


def _host(connection: socket.socket) -> str:
    return str(connection.getpeername()[0]).removeprefix("::ffff:")


def _sever(mine: Callable[[socket.socket], bool]) -> None:
    for connection in _sockets():
        with connection, suppress(OSError):
            if connection.family in (socket.AF_INET, socket.AF_INET6) and mine(connection):
                connection.getpeername()  # raises for a listening socket, which must stay open
                connection.shutdown(socket.SHUT_RDWR)


def _sockets() -> Iterator[socket.socket]:
    """Duplicated descriptors of all sockets of this process: another thread may close the original, and the kernel may give
    its number to another file, at any moment."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            fd = os.dup(int(name))
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                yield socket.socket(fileno=fd)
            else:
                os.close(fd)
