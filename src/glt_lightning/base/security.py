"""Which processes may connect to those of a job."""

from __future__ import annotations

from dataclasses import dataclass

from glt_lightning.base.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class SecurityOptions:
    """Certificates and the secret that processes of a job authenticate with. ``glt-lightning certs`` makes the files.

    Attributes:
        ca: PEM file of the authority that signed every certificate of the job.
        cert: PEM file of this host's certificate.
        key: PEM file of its private key.
        token_file: File with the job's secret, at least 16 characters; the same on all hosts.
        insecure: Allow clear text beyond the loopback interface.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> SecurityOptions(ca="ca.pem", cert="node.pem", key="node.key").ca
        'ca.pem'
        >>> SecurityOptions(cert="node.pem")
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: cluster.security: ...
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    token_file: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        given = [name for name in ("ca", "cert", "key") if getattr(self, name) is not None]
        if 0 < len(given) < 3:
            raise OptionError(
                f"cluster.security: expected ca, cert and key together, got {' and '.join(given)} only. "
                "`glt-lightning certs` makes all three."
            )

    @property
    def tls(self) -> bool:
        """Whether peers prove who they are with certificates."""
        return self.ca is not None
