"""The main program of a graph server that a trainer starts itself. It ends when the trainer closes its socket or dies."""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import traceback
from contextlib import suppress

from glt_lightning.base import GLTError
from glt_lightning.workers.slots import ClosedError, receive, send


def serve(sock: socket.socket) -> None:
    """Reads a plan, answers with the address or the error, and serves until ``sock`` ends."""
    from glt_lightning.workers.server.hosted import HostedServer, ServerPlan

    header, _, _ = receive(sock)
    try:
        server = HostedServer(ServerPlan.from_json(header))
    except Exception as error:
        known = isinstance(error, GLTError)
        reason = str(error) if known else f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        send(sock, {"error": reason})
        return
    try:
        send(sock, {"address": server.address})
        receive(sock)
    finally:
        server.close()


def main(fd: int) -> None:
    """Serves until the trainer at the other end of the socket ``fd`` closes it."""
    faulthandler.enable()
    sock = socket.socket(fileno=fd)
    with suppress(ClosedError):
        serve(sock)
    sys.stderr.flush()
    os._exit(0)  # threads may be deep in native code, and there is nothing to flush
