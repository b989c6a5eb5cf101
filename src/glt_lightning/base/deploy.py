"""Options of the endpoint that answers requests with a model's predictions."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from glt_lightning.base.checks import above_zero, at_least, one_of, parse_bytes
from glt_lightning.base.errors import OptionError

_LEAST_KEY = 16


@dataclass(frozen=True, kw_only=True)
class DeployOptions:
    """How an endpoint listens, and what a request may cost.

    Attributes:
        host: Name or address at which it listens. Beyond the loopback interface, ``api_key_file``, ``tls_cert`` and ``tls_key``
            are required.
        port: Port; 0: a free one, which the log names.
        api_key_file: File with the key that clients send as ``Authorization: Bearer KEY`` or ``X-API-Key: KEY``, at least 16
            characters.
        tls_cert: PEM file of the certificate, with those between it and its authority.
        tls_key: PEM file of its private key.
        insecure: Allow clear text beyond the loopback interface, as behind a proxy that ends TLS. The key is required even so.
        max_batch: Rows of requests that the model computes together, at most. Requests that come while it computes are the next
            batch.
        batch_wait_s: How long a batch waits for further requests, in seconds. 0: whatever has come.
        max_waiting: Requests in work at once; further ones are answered with status 503.
        max_rows: Rows of one request: ids, pairs, new nodes and new edges together.
        max_body: Bytes of one request, such as ``"8MB"``.
        max_sample: Bytes of the sample of one request, such as ``"256MB"``: what an id of very many neighbours may take.
        max_hops: Fan-outs that a request may name. Those of the endpoint are ``data.evaluation.num_neighbors``.
        max_fanout: Greatest fan-out that a request may name.
        timeout_s: Seconds after which a request that has no answer yet is answered with status 503.
        embeddings: The embedding of a node that came after training in a model that learned one for each node: ``mean`` of all,
            ``zero``, or ``error``.
        record: File to which each batch is added as a line: requests and answers, for ``replay``. ``None``: nothing is recorded.
        poll_s: How often, in seconds, a new version is looked for with ``data.partition.version: latest``.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> DeployOptions(max_body="8MB").body_bytes
        8000000
        >>> DeployOptions(host="0.0.0.0")
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: endpoint.api_key_file: ...
    """

    EMBEDDINGS: ClassVar = ("mean", "zero", "error")

    host: str = "127.0.0.1"
    port: int = 8000
    api_key_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    insecure: bool = False
    max_batch: int = 256
    batch_wait_s: float = 0.0
    max_waiting: int = 1024
    max_rows: int = 1000
    max_body: int | str = "8MB"
    max_sample: int | str = "256MB"
    max_hops: int = 3
    max_fanout: int = 50
    timeout_s: float = 30.0
    embeddings: str = "mean"
    record: str | None = None
    poll_s: float = 10.0

    def __post_init__(self) -> None:
        for name in ("max_batch", "max_waiting", "max_rows", "max_hops", "max_fanout"):
            at_least(f"endpoint.{name}", getattr(self, name), 1)
        at_least("endpoint.port", self.port, 0)
        if self.port > 65535:
            raise OptionError(f"endpoint.port: expected 0 to 65535, got {self.port}.")
        for name in ("timeout_s", "poll_s"):
            above_zero(f"endpoint.{name}", getattr(self, name))
        if isinstance(self.batch_wait_s, bool) or not 0 <= self.batch_wait_s < float("inf"):
            raise OptionError(f"endpoint.batch_wait_s: expected seconds >= 0, got {self.batch_wait_s!r}.")
        for name in ("max_body", "max_sample"):
            parse_bytes(f"endpoint.{name}", getattr(self, name))
        one_of("endpoint.embeddings", self.embeddings, self.EMBEDDINGS)
        self._check_security()

    def _check_security(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise OptionError("endpoint: expected tls_cert and tls_key together, got one of them.")
        for name in ("api_key_file", "tls_cert", "tls_key"):
            path = getattr(self, name)
            if path is not None and not Path(path).is_file():
                raise OptionError(f"endpoint.{name}: there is no file {path!r}.")
        if self.loopback:
            return
        if self.api_key_file is None:
            raise OptionError(
                f"endpoint.api_key_file: required where others can connect (host {self.host}). Write a key of at least "
                f"{_LEAST_KEY} characters into a file, such as by: openssl rand -hex 32 > api.key"
            )
        if self.tls_cert is None and not self.insecure:
            raise OptionError(
                f"endpoint.tls_cert: a certificate is required where others can connect (host {self.host}): give tls_cert and "
                "tls_key. Behind a proxy that ends TLS, set insecure: true."
            )

    @property
    def loopback(self) -> bool:
        """Whether only processes of this host can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def body_bytes(self) -> int:
        """``max_body`` in bytes."""
        return parse_bytes("endpoint.max_body", self.max_body)

    @property
    def sample_bytes(self) -> int:
        """``max_sample`` in bytes."""
        return parse_bytes("endpoint.max_sample", self.max_sample)

    def read_api_key(self) -> str | None:
        """Returns the key that clients have to send; None: they need none. Raises `OptionError` for one that is too short."""
        if self.api_key_file is None:
            return None
        key = Path(self.api_key_file).read_text("utf-8").strip()
        if len(key) < _LEAST_KEY or not key.isascii():
            raise OptionError(
                f"endpoint.api_key_file: {self.api_key_file}: expected at least {_LEAST_KEY} ASCII characters, got {len(key)}."
            )
        return key
