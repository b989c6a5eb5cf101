"""A certificate authority for a job: ``glt-lightning certs`` makes the files that ``cluster.security`` names."""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from glt_lightning.base import OptionError

_LONGEST_NAME = 64  # characters; X.509 limits a common name to this
_SKEW = datetime.timedelta(hours=1)  # clocks of other hosts may be behind
_KEY_MODE, _OPEN_MODE = 0o600, 0o644


class JobAuthority:
    """The authority of one job, in the memory of one process. It signs requests, and never sees the keys of others.

    Example:
        >>> authority = JobAuthority()
        >>> key, request = JobAuthority.request("10.0.0.5")
        >>> ca, cert = authority.sign(request)
    """

    def __init__(self, days: int = 365) -> None:
        self._days = days
        self.key = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"glt-lightning job {secrets.token_hex(4)}")
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        self.certificate = (
            _builder(name, name, self.key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )

    @staticmethod
    def request(host: str) -> tuple[bytes, bytes]:
        """Makes the key of a process on this host, and a request for a certificate of it. Returns both in PEM format.

        host: its name or address, as peers write it.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([_host(host)])
        request = x509.CertificateSigningRequestBuilder().subject_name(_name(host)).add_extension(names, critical=False)
        return _key_pem(key), _pem(request.sign(key, hashes.SHA256()))

    def sign(self, request: bytes) -> tuple[bytes, bytes]:
        """Returns the certificate of the authority and that for a request, in PEM format. Raises `OptionError` for a request that
        its own key has not signed."""
        try:
            asked = x509.load_pem_x509_csr(request)
            names = asked.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (ValueError, x509.ExtensionNotFound) as error:
            raise OptionError(f"certificate: the request cannot be read: {error}.") from None
        key = asked.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey) or not asked.is_signature_valid:
            raise OptionError("certificate: the request is not signed by the key that it names.")
        signed = _signed(asked.subject, names, key, self.certificate.subject, self.key, self._days)
        return _pem(self.certificate), _pem(signed)


class CertificateFolder:
    """The files of a job's mutual TLS: its authority, a certificate and key for each host, and the job's secret.

    Example:
        >>> CertificateFolder.files_of("hosts", "10.0.0.5")["cert"]
        '10.0.0.5.pem'
    """

    CA, CA_KEY, TOKEN = "ca.pem", "ca.key", "token"

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.ca, self.token = self.folder / self.CA, self.folder / self.TOKEN

    @classmethod
    def files_of(cls, option: str, host: str) -> dict[str, str]:
        """Maps options of ``cluster.security`` to the files of a host. They are named after it, as hosts may share the folder.

        Raises `OptionError`, which names ``option``, for a host whose files would be those of the authority or the secret.
        """
        name = host.replace(":", "-")
        if name in (Path(cls.CA).stem, cls.TOKEN):
            raise OptionError(
                f"{option}: the files of {host!r} would replace those of the authority or the secret; use the host's address."
            )
        return {"ca": cls.CA, "cert": f"{name}.pem", "key": f"{name}.key", "token_file": cls.TOKEN}

    def has(self, path: Path) -> bool:
        """Tells whether a file is, by its name, one of this folder."""
        return path.parent.resolve() == self.folder.resolve() and (
            path.suffix in (".pem", ".key") or path.name == self.TOKEN
        )

    def complete(self, hosts: Mapping[str, Sequence[str]]) -> list[str]:
        """Makes what the folder lacks. hosts: name of a host's certificate file -> the host's names and addresses.

        Returns the names of the files that were made.
        """
        made = []
        if not self.ca.exists():
            self.make_authority()
            made += [self.CA, self.CA_KEY]
        if not self.token.exists():
            made.append(self.make_token().name)
        for cert, names in hosts.items():
            if not (self.folder / cert).exists():
                made.append(self.make_certificate(cert.removesuffix(".pem"), names)[0].name)
        return made

    def make_authority(self, days: int = 365, *, force: bool = False) -> Path:
        """Makes ``ca.pem`` and ``ca.key`` and returns the path of the former.

        Raises `OptionError` if there is an authority already, unless ``force``: replacing it invalidates the certificates that it
        signed.
        """
        made = JobAuthority(days)
        _refuse_existing([self.ca, self.folder / self.CA_KEY], force)
        _write(self.folder / self.CA_KEY, _key_pem(made.key), _KEY_MODE)
        _write(self.ca, _pem(made.certificate), _OPEN_MODE)
        return self.ca

    def make_certificate(
        self, name: str, hosts: Sequence[str], days: int = 365, *, force: bool = False
    ) -> tuple[Path, Path]:
        """Makes a certificate and key for a host, as server and as client, signed by the authority.

        hosts: its names and addresses, as peers write them.  Returns the paths (``name.pem``, ``name.key``).
        Raises `OptionError` without an authority, or if the files exist already, unless ``force``.
        """
        authority, signer = self._open_authority()
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        certificate = _signed(_name(name), names, key.public_key(), authority.subject, signer, days)
        paths = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        _refuse_existing(paths, force)
        _write(paths[1], _key_pem(key), _KEY_MODE)
        _write(paths[0], _pem(certificate), _OPEN_MODE)
        return paths

    def make_token(self, *, force: bool = False) -> Path:
        """Makes the file of a job's secret. Raises `OptionError` if there is one already, unless ``force``."""
        _refuse_existing([self.token], force)
        _write(self.token, secrets.token_urlsafe(32).encode() + b"\n", _KEY_MODE)
        return self.token

    def _open_authority(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        try:
            certificate = x509.load_pem_x509_certificate(self.ca.read_bytes())
            key = serialization.load_pem_private_key((self.folder / self.CA_KEY).read_bytes(), None)
        except OSError as error:
            raise OptionError(
                f"--dir: {self.folder} has no authority: {error.filename}: {error.strerror}. Run glt-lightning certs in a new "
                "folder."
            ) from None
        except (ValueError, TypeError) as error:
            raise OptionError(
                f"--dir: the authority in {self.folder} cannot be read: {error}. Restore its files, or make a new one in another "
                "folder."
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise OptionError(
                f"--dir: {self.ca} does not belong to {self.CA_KEY} beside it. Restore the pair, or choose a new folder."
            )
        return certificate, key


def run_certs(argv: Sequence[str]) -> None:
    """Runs ``glt-lightning certs``."""
    parser = argparse.ArgumentParser(
        prog="glt-lightning certs",
        description="Makes an authority for a job and a certificate for each host, for mutual TLS between them. "
        "Run it again with the same --dir to add hosts.",
    )
    parser.add_argument("--dir", type=Path, required=True, help="folder of the files; keep ca.key to yourself")
    parser.add_argument(
        "--hosts",
        required=True,
        help="comma-separated; each a name or address as it stands in cluster.servers or MASTER_ADDR; several names of "
        "one host are joined by +, such as node1+10.0.0.5",
    )
    parser.add_argument("--days", type=int, default=365, help="how long they are valid")
    parser.add_argument("--token", action="store_true", help="make a secret of the job, too")
    parser.add_argument(
        "--force", action="store_true", help="replace certificates and the secret that are there already"
    )
    args = parser.parse_args(argv)
    if args.days < 1:
        raise OptionError(f"--days: expected at least 1, got {args.days}.")
    groups = [[host.strip() for host in group.split("+")] for group in args.hosts.split(",")]
    for host in (host for group in groups for host in group):
        _host(host)
    folder = CertificateFolder(args.dir)
    own = [folder.files_of("--hosts", group[0]) for group in groups]
    names = [each["cert"].removesuffix(".pem") for each in own]
    if len(set(names)) != len(names):
        raise OptionError(f"--hosts: {args.hosts} names a host twice. List each host once; join its names by +.")
    files = [args.dir / each[kind] for each in own for kind in ("cert", "key")]
    _refuse_existing([*files, *([folder.token] if args.token else [])], args.force)  # all or nothing
    if not folder.ca.exists():
        folder.make_authority(args.days)
    for name, group in zip(names, groups, strict=True):
        folder.make_certificate(name, group, args.days, force=args.force)
    token = [f"    token_file: {folder.make_token(force=args.force)}"] if args.token else []
    print(
        f"made certificates in {args.dir} for: {', '.join(names)}. Copy {folder.CA}, the host's own .pem and .key"
        f"{' and the token' if token else ''} to each host"
    )
    print(f"(never {folder.CA_KEY}), and put into its configuration:\n")
    shown = [f"    {option}: {args.dir / own[0][option]}" for option in ("ca", "cert", "key")]
    print("\n".join(["cluster:", "  security:", *shown, *token]))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:_LONGEST_NAME])])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    if not text or not all(c.isascii() and (c.isalnum() or c in "-._") for c in text):
        raise OptionError(f"--hosts: expected names or addresses such as node1 or 10.0.0.5, got {text!r}.")
    return x509.DNSName(text)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _signed(
    subject: x509.Name,
    names: x509.SubjectAlternativeName,
    key: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    signer: ec.EllipticCurvePrivateKey,
    days: int,
) -> x509.Certificate:
    """A certificate for ``key``, as server and as client."""
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return (
        _builder(subject, issuer, key, days)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(authority, critical=False)
        .sign(signer, hashes.SHA256())
    )


def _pem(made: x509.Certificate | x509.CertificateSigningRequest) -> bytes:
    return made.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def _refuse_existing(paths: Iterable[Path], force: bool) -> None:
    existing = [str(path) for path in paths if path.exists()]
    if existing and not force:
        raise OptionError(
            f"--dir: {', '.join(existing)} exist already. Give --force to replace them, or leave these hosts out of --hosts."
        )


def _write(path: Path, data: bytes, mode: int) -> None:
    """Writes the whole file or nothing. It has ``mode`` from its creation on, so a key is never readable by other users."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OptionError(f"--dir: cannot write {path}: {error.strerror or error}.") from None
