"""Answers to the launcher's questions to a host: ``python -m glt_lightning.launch.on_host QUESTION``, with arguments as JSON on
stdin.

``facts`` reports versions, disk space and partition of the host; `launch.preflight`, which sees all hosts, judges them.
``listen`` holds ports until SIGTERM, and a marker, a file among the checkpoints; ``greet`` connects to ports of other hosts, and
looks for the marker, by which hosts are known to share the folder. ``copy`` copies the parts that the host needs. ``health``
waits for a graph server.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from glt_lightning.base import GLTError, __version__, counted, size
from glt_lightning.graph import MANIFEST, Manifest, check_header, files_hash, verify_array
from glt_lightning.partition import CopySource, Versions, pull_partition
from glt_lightning.workers import PROTOCOL, placed_parts

_GREETING, _GREET_S, _AT_ONCE = b"glt", 10.0, 16
_LONGEST_S = 600  # seconds after which a listener ends by itself, if the launcher is lost
_PAUSE_S = 0.2  # between two questions to a server that is not healthy


def facts(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Reports facts about the host. asked: ``folder`` of the partition; its ``version``; ``slots`` of ``of``, whose parts are on
    this host; ``verify``, to compare the files of these parts with their hashes."""
    return {
        "versions": _versions(),
        "partition": None if asked["folder"] is None else _partition(asked),
        "free_bytes": shutil.disk_usage(_existing(Path(asked["folder"] or "."))).free,
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }


def _versions() -> dict[str, str]:
    found = {"Python": ".".join(platform.python_version_tuple()[:2]), "glt_lightning": __version__}
    for name in ("torch", "lightning"):
        try:
            found[name] = version(name).partition("+")[0]  # +cpu, +cu124: the same release
        except PackageNotFoundError:
            found[name] = "none"
    return found | {"wire protocol": str(PROTOCOL)}


def _partition(asked: Mapping[str, Any]) -> dict[str, Any]:
    folder = Path(asked["folder"])
    if not (folder / MANIFEST).is_file():
        return {"error": f"{folder}: this folder holds no partition"}
    try:
        manifest = Manifest.load(folder)
        parts = _parts(asked, manifest)
        wanted = manifest.files_of(parts)
        if asked["verify"]:
            Versions(folder).verify()
        appended = Versions(folder).read(manifest, asked["version"])
        absent = [path for path in wanted if not (folder / path).exists()]
        for path, entry in wanted.items():
            if path not in absent:
                (verify_array if asked["verify"] else check_header)(folder, path, entry)
    except (GLTError, OSError) as error:
        return {"error": str(error)}
    return {
        "options_hash": manifest.options_hash,
        "hashes": files_hash(manifest),
        "rows": appended.digest,
        "parts": parts,
        "absent": absent[:3],
        "absent_parts": sorted({path.split("/")[0] for path in absent}),
        "absent_bytes": sum(wanted[path].bytes for path in absent),
    }


def _parts(asked: Mapping[str, Any], manifest: Manifest) -> list[int]:
    return sorted({p for slot in asked["slots"] for p in placed_parts(slot, asked["of"], manifest.num_parts)})


def _existing(path: Path) -> Path:
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())


def listen(asked: Mapping[str, Any]) -> None:
    """Listens at the ports, prints them, and holds them until SIGTERM. asked: ``listeners``, ``security``, ``marker``."""
    marker = asked["marker"]
    if marker is not None:
        Path(marker).parent.mkdir(parents=True, exist_ok=True)
        Path(marker).touch()
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, lambda *_: _end(marker))
    answers = []
    for listener in asked["listeners"]:
        try:
            context = _context(asked["security"], server=True) if listener["tls"] else None
            listening = _listen(listener)
        except OSError as error:
            answers.append({**listener, "error": _why(error)})
            continue
        answers.append({**listener, "port": listening.getsockname()[1]})
        threading.Thread(target=_answer, args=(listening, context), daemon=True).start()
    print(json.dumps({"listeners": answers}), flush=True)
    signal.alarm(_LONGEST_S)  # the launcher may be lost: the ports must not stay taken
    signal.pause()


def _end(marker: str | None) -> None:
    if marker is not None:
        Path(marker).unlink(missing_ok=True)
    os._exit(0)


def _listen(listener: Mapping[str, Any]) -> socket.socket:
    """Listens at the address of a graph server, or, for torch's store, at all addresses of the host, as that does."""
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
        # Waits until the other side closes: the side that closes first keeps its port in TIME_WAIT, and the job needs this port
        secure.recv(1)


def _why(error: OSError) -> str:
    """The text of an error, without the address that `socket.create_server` adds: the finding names it already."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS fails: {error.reason or error}"
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)


def greet(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Connects to ports of other hosts. Returns for each the reason why it cannot be reached, or None; and whether the marker
    exists on this host."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        errors = list(pool.map(lambda listener: _greet(listener, asked["security"]), asked["listeners"]))
    marker = asked["marker"]
    return {"errors": errors, "marked": None if marker is None else Path(marker).exists()}


def _greet(listener: Mapping[str, Any], security: Mapping[str, Any]) -> str | None:
    try:
        with socket.create_connection((listener["address"], listener["port"]), _GREET_S) as raw:
            if not listener["tls"]:
                return None if raw.recv(len(_GREETING)) == _GREETING else "another program answers there"
            with _context(security, server=False).wrap_socket(raw, server_hostname=listener["address"]) as secure:
                return None if secure.recv(len(_GREETING)) == _GREETING else "it rejects this host's certificate"
    except OSError as error:
        return _why(error)


def copy(asked: Mapping[str, Any]) -> None:
    """Copies parts of a partition to this host. asked: ``source``; ``folder``; ``slots`` of ``of``, whose parts are copied."""
    try:
        parts = _parts(asked, CopySource(asked["source"]).manifest())
        pulled = pull_partition(asked["source"], asked["folder"], parts, progress=False)
    except (GLTError, OSError) as error:
        sys.exit(f"error: {error}")
    files = f"{counted(pulled.files, 'file')}, {size(pulled.bytes)}"
    files = f"version {pulled.version}, {files}" if pulled.version else files
    print(f"{asked['folder']}: parts {parts}, {files}; copied {size(pulled.fetched)}")


def health(asked: Mapping[str, Any]) -> None:
    """Returns when the server is healthy; ends the process with its last answer after ``seconds``.

    ``serve --health`` asks the same only once, and imports Lightning, which takes seconds.
    """
    from glt_lightning.base import ClusterOptions
    from glt_lightning.workers import ask_status  # imports Arrow Flight

    deadline = time.monotonic() + asked["seconds"]
    while True:
        try:
            ask_status(asked["address"], ClusterOptions(security=asked["security"]))
            return
        except GLTError as error:
            if time.monotonic() > deadline:
                sys.exit(f"error: {error}")
        time.sleep(_PAUSE_S)


_QUESTIONS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any] | None]] = {
    "facts": facts,
    "listen": listen,
    "greet": greet,
    "copy": copy,
    "health": health,
}


def main() -> None:
    answer = _QUESTIONS[sys.argv[1]](json.load(sys.stdin))
    if answer is not None:
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
