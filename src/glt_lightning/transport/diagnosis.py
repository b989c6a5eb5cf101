"""Why a peer closes the connection during the greeting: gRPC does not say, so the peer is asked once more by plain TLS."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from glt_lightning.options import parse_address
from glt_lightning.transport.credentials import Certificates, Credentials

_ASKS = "it asks for a certificate, and this process has none (cluster.security.ca, cert and key)"
_REJECTS = "it does not accept our certificate: it trusts another authority, or the certificate has expired"


def diagnose(address: str, credentials: Credentials, timeout_s: float) -> str | None:
    """Why trying again would not help; None if nothing speaks for that."""
    try:
        if credentials.tls is None:
            return _ASKS if _speaks_tls(address, timeout_s) else None
        # twice: once may have been the moment in which a server ends
        tls = credentials.tls
        return _REJECTS if _hangs_up(address, tls, timeout_s) and _hangs_up(address, tls, timeout_s) else None
    except OSError:  # it is really gone
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
    """Whether a TLS server says nothing after the handshake. In TLS 1.3 the client is done before the server has looked at
    its certificate, and gRPC does not tell why it leaves; to a welcome client it sends its settings."""
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
    """A path at which ``ssl`` can read what is in memory; a key is not written to a disk for that."""
    fd = os.memfd_create("glt-pem", os.MFD_CLOEXEC)
    try:
        os.write(fd, data)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
