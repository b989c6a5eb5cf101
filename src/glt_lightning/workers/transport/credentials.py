"""The certificates and the job's secret with which a process authenticates itself to its peers. Read once."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glt_lightning.base import OptionError, RefusedError, SecurityOptions

_LEAST_TOKEN = 16  # characters: too long to be guessed over the network
_MOST_TOKEN = 1024  # travels in an HTTP/2 header of every call


class UnprovenError(RefusedError):
    """This process turns a peer away that has not proved to know the job's secret."""


@dataclass(frozen=True)
class Certificates:
    """PEM texts. Each side of a connection presents ``cert`` and checks the peer's certificate against ``ca``."""

    ca: bytes = field(repr=False)
    cert: bytes = field(repr=False)
    key: bytes = field(repr=False)


@dataclass(frozen=True)
class Credentials:
    """The means by which a process authenticates itself. token: the job's secret; None: no secret is required.  tls: the
    certificates; None: clear text.  insecure: the user allows clear text beyond the loopback interface."""

    token: str | None = field(default=None, repr=False)
    tls: Certificates | None = None
    insecure: bool = False

    @classmethod
    def load(cls, options: SecurityOptions, token: str | None = None) -> Credentials:
        """Reads the files that ``options`` name. ``token`` is the secret where ``token_file`` is not given.
        Raises `OptionError` for files that cannot be read or have other contents."""
        if options.token_file is not None:
            token = _read(options.token_file, "token_file").decode("utf-8", "replace").strip()
            _check_token(token, f"cluster.security.token_file: {options.token_file}")
        elif token is not None:
            _check_token(token, "token")
        tls = None
        if options.ca is not None and options.cert is not None and options.key is not None:
            tls = Certificates(
                ca=_pem(options.ca, "ca", "CERTIFICATE"),
                cert=_pem(options.cert, "cert", "CERTIFICATE"),
                key=_pem(options.key, "key", "PRIVATE KEY"),
            )
        return cls(token, tls, options.insecure)

    def accepts(self, token: str | None) -> bool:
        """Tells whether a peer's secret is this job's. Takes the same time for every wrong secret, so timing reveals nothing."""
        if self.token is None:
            return True
        return hmac.compare_digest((token or "").encode("utf-8", "replace"), self.token.encode())


def _check_token(token: str, name: str) -> None:
    if not _LEAST_TOKEN <= len(token) <= _MOST_TOKEN or not token.isascii() or not token.isprintable():
        raise OptionError(
            f"{name}: expected a secret of {_LEAST_TOKEN} to {_MOST_TOKEN} printable ASCII characters on one line, got "
            f"{len(token)} characters. `glt-lightning certs --token` makes one."
        )


def _read(path: str, option: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise OptionError(
            f"cluster.security.{option}: cannot read {path}: {error.strerror or error}. "
            "Give the path of a file on this host that this user may read."
        ) from None


def _pem(path: str, option: str, kind: str) -> bytes:
    data = _read(path, option)
    if b"-----BEGIN " not in data or f"{kind}-----".encode() not in data:
        raise OptionError(
            f"cluster.security.{option}: {path} contains no {kind.lower()} in PEM format. "
            "`glt-lightning certs` makes ca, cert and key."
        )
    if b"ENCRYPTED" in data:
        raise OptionError(f"cluster.security.{option}: {path} is encrypted. Give a key without a passphrase.")
    return data


# The proof by which a server shows its client that it knows the job's secret.


_NONCE, _PROOF = "nonce", "proof"
_PURPOSE = b"glt-lightning welcome\0"
_MOST_NONCE = 128  # characters; ours has 32. Bounds the work that a stranger can ask for before it is refused


class Challenge:
    """The client's side of the proof, for one opening: a nonce, and the check of the server's answer to it."""

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
    """Makes the proof that the server's welcome to an opening carries; empty if there is no secret or no nonce."""
    nonce = opening.get(_NONCE)
    if credentials.token is None or not isinstance(nonce, str) or len(nonce) > _MOST_NONCE:
        return {}
    return {_PROOF: _mac(credentials.token, nonce)}


def _mac(token: str, nonce: str) -> str:
    return hmac.new(token.encode(), _PURPOSE + nonce.encode("utf-8", "replace"), "sha256").hexdigest()
