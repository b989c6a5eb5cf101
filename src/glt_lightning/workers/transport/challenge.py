"""The proof by which a server shows its client that it knows the job's secret.

The client shows the secret with every call, and a server without one would take it and answer. So each opening carries
a nonce, and the welcome a MAC of it under the secret. A client that has a secret accepts no server without this proof.

A caller that was given the job's secret puts a ``nonce`` into each opening, 32 hexadecimal digits of its own, new each
time. The ``WELCOME`` then has ``proof``: HMAC-SHA256 in hexadecimal, keyed with the secret, of the bytes
``glt-lightning welcome``, a zero byte, and the nonce. If it is missing or wrong, the caller ends the connection before
its first request, with an error that names the server and ``cluster.security.token_file``. A server ignores a nonce of
more than 128 characters, and any nonce if it has no secret. The secret itself is sent before the proof arrives: on a
shared machine use certificates, which identify the server first.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from typing import Any

from glt_lightning.base import UnprovenError
from glt_lightning.workers.transport.credentials import Credentials

_NONCE, _PROOF = "nonce", "proof"
_PURPOSE = b"glt-lightning welcome\0"
_MOST_NONCE = 128  # characters; ours has 32. Bounds the work that a stranger can ask for before it is refused


class Challenge:
    """The client's side, for one opening."""

    def __init__(self, credentials: Credentials) -> None:
        self._token = credentials.token
        self._nonce = secrets.token_hex(16)

    @property
    def fields(self) -> dict[str, str]:
        """The fields that the opening carries for this challenge."""
        return {} if self._token is None else {_NONCE: self._nonce}

    def check(self, welcome: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the welcome without its proof. Raises `UnprovenError` if this process has a secret and the proof is missing
        or was made with another secret."""
        proof = welcome.get(_PROOF)
        if self._token is not None:
            wanted = _mac(self._token, self._nonce)
            if not isinstance(proof, str) or not hmac.compare_digest(proof.encode("utf-8", "replace"), wanted.encode()):
                found = "was started without a secret" if proof is None else "has another secret"
                raise UnprovenError(
                    f"the server {found}, but this process has the job's. Start the server with the same "
                    "cluster.security.token_file, or remove token_file here."
                )
        return {name: value for name, value in welcome.items() if name != _PROOF}


def proof_for(opening: Mapping[str, Any], credentials: Credentials) -> dict[str, str]:
    """The server's side: the proof that the welcome to an opening carries; empty where no secret or no nonce was given."""
    nonce = opening.get(_NONCE)
    if credentials.token is None or not isinstance(nonce, str) or len(nonce) > _MOST_NONCE:
        return {}
    return {_PROOF: _mac(credentials.token, nonce)}


def _mac(token: str, nonce: str) -> str:
    return hmac.new(token.encode(), _PURPOSE + nonce.encode("utf-8", "replace"), "sha256").hexdigest()
