"""Whether hosts reach each other: ``python -m glt_lightning.launch.preflight.ports``, with a question as JSON on stdin.

``listen`` holds ports and keeps a marker, a file among the checkpoints; it answers on stdout which ports, and goes on until
SIGTERM. ``greet`` connects to such ports of other hosts, looks for the marker, and answers how it went.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

_GREETING = b"glt"
_GREET_S = 10.0
_AT_ONCE = 16
_LONGEST_S = 600  # a listener that nobody ends


def main() -> None:
    """Answers the question."""
    asked = json.load(sys.stdin)
    if asked["kind"] == "greet":
        print(json.dumps(_greet_all(asked)), flush=True)
        return
    marker = asked["marker"]
    if marker is not None:
        Path(marker).parent.mkdir(parents=True, exist_ok=True)
        Path(marker).touch()
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, lambda *_: _end(marker))
    sockets, answers = [], []
    for listener in asked["listeners"]:
        try:
            listening = _listen(listener)
        except OSError as error:
            answers.append({**listener, "error": _why(error)})
            continue
        sockets.append((listening, listener))
        answers.append({**listener, "port": listening.getsockname()[1]})
    for listening, listener in sockets:
        context = _context(asked["security"], server=True) if listener["tls"] else None
        threading.Thread(target=_answer, args=(listening, context), daemon=True).start()
    print(json.dumps({"listeners": answers}), flush=True)
    signal.alarm(_LONGEST_S)
    signal.pause()


def _end(marker: str | None) -> None:
    if marker is not None:
        Path(marker).unlink(missing_ok=True)
    os._exit(0)


def _listen(listener: Mapping[str, Any]) -> socket.socket:
    """On the address of a graph server, or for torch's store on all of them."""
    if listener["address"] is None:
        return socket.create_server(("", listener["port"]))
    found = socket.getaddrinfo(listener["address"], listener["port"], type=socket.SOCK_STREAM)
    return socket.create_server(found[0][4][:2], family=found[0][0])


def _context(security: Mapping[str, Any], *, server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(security["ca"])
    context.load_cert_chain(security["cert"], security["key"])
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _answer(listening: socket.socket, context: ssl.SSLContext | None) -> None:
    while True:
        raw, _ = listening.accept()
        raw.settimeout(_GREET_S)
        threading.Thread(target=_greeted, args=(raw, context), daemon=True).start()


def _greeted(raw: socket.socket, context: ssl.SSLContext | None) -> None:
    with suppress(OSError), raw, context.wrap_socket(raw, server_side=True) if context else raw as secure:
        secure.sendall(_GREETING)
        secure.recv(1)  # until the other side closes: its port has to wait then, and not the one that the job will use


def _why(error: OSError) -> str:
    """Without the address, which `socket.create_server` adds: the finding names it."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)


def _greet_all(asked: Mapping[str, Any]) -> dict[str, Any]:
    listeners: Sequence[Mapping[str, Any]] = asked["listeners"]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        errors = list(pool.map(lambda listener: _greet(listener, asked["security"]), listeners))
    marker = asked["marker"]
    return {"errors": errors, "marked": None if marker is None else Path(marker).exists()}


def _greet(listener: Mapping[str, Any], security: Mapping[str, Any]) -> str | None:
    """Why a listener cannot be reached; None if it can."""
    try:
        with socket.create_connection((listener["address"], listener["port"]), _GREET_S) as raw:
            if not listener["tls"]:
                return None if raw.recv(len(_GREETING)) == _GREETING else "another program answers there"
            with _context(security, server=False).wrap_socket(raw, server_hostname=listener["address"]) as secure:
                return None if secure.recv(len(_GREETING)) == _GREETING else "it rejects this host's certificate"
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not accepted: {error.verify_message}"
    except ssl.SSLError as error:
        return f"TLS fails: {error.reason or error}"
    except OSError as error:
        return _why(error)


if __name__ == "__main__":
    main()
