"""Finds out why a peer closes the connection during the greeting: gRPC does not report it, so a plain TLS handshake is
tried."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from glt_lightning.base import parse_address
from glt_lightning.workers.transport.credentials import Certificates, Credentials

_ASKS = "the server requires TLS with a client certificate, and this process has none. Set cluster.security.ca, cert and key."
_REJECTS = (
    "the server rejects the certificate of this process (cluster.security.cert): its ca is another authority, or the "
    "certificate has expired. Make both with the same authority (glt-lightning certs)."
)


def diagnose(address: str, credentials: Credentials, timeout_s: float) -> str | None:
    """The reason why another attempt would fail as well; None if none was found."""
    try:
        if credentials.tls is None:
            return _ASKS if _speaks_tls(address, timeout_s) else None
        # twice: a server that is shutting down also hangs up, once
        tls = credentials.tls
        return _REJECTS if _hangs_up(address, tls, timeout_s) and _hangs_up(address, tls, timeout_s) else None
    except OSError:  # nothing answers: the peer is away, and another attempt may succeed
        return None


def _speaks_tls(address: str, timeout_s: float) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection(parse_address("address", address), timeout_s) as raw, context.wrap_socket(raw):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")


def _hangs_up(address: str, tls: Certificates, timeout_s: float) -> bool:
    """Whether a TLS server ends the connection after the handshake. In TLS 1.3 the client is done before the server has
    checked its certificate, and gRPC reports no reason; to a client that it accepts, the server sends HTTP/2 settings."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # gRPC has checked the peer's already
    context.set_alpn_protocols(["h2"])
    with _file(tls.cert) as cert, _file(tls.key) as key:
        context.load_cert_chain(cert, key)
    with socket.create_connection(parse_address("address", address), timeout_s) as raw:
        try:
            with context.wrap_socket(raw) as secure:
                return secure.recv(1) == b""
        except ssl.SSLError as error:
            return "ALERT" in (error.reason or "")


@contextmanager
def _file(data: bytes) -> Iterator[str]:
    """A path from which ``ssl`` can read ``data``: a memfd, so that no key is written to a disk."""
    fd = os.memfd_create("glt-pem", os.MFD_CLOEXEC)
    try:
        os.write(fd, data)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
