"""A certificate authority for a job: ``glt-lightning certs`` makes the files that ``cluster.security`` names."""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from glt_lightning.base import OptionError

CA, CA_KEY, TOKEN = "ca.pem", "ca.key", "token"
_LONGEST_NAME = 64  # characters; X.509 limits a common name to this
_SKEW = datetime.timedelta(hours=1)  # clocks of other hosts may be behind
_KEY_MODE, _OPEN_MODE = 0o600, 0o644


def make_authority(folder: str | Path, days: int = 365, *, force: bool = False) -> Path:
    """Makes ``ca.pem`` and ``ca.key`` in ``folder`` and returns the path of the former.

    Raises `OptionError` if there is an authority already, unless ``force``: replacing it invalidates the certificates that it
    signed.
    """
    folder = Path(folder)
    key = ec.generate_private_key(ec.SECP256R1())
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
    certificate = (
        _builder(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _refuse_existing([folder / CA, folder / CA_KEY], force)
    _write(folder / CA_KEY, _key_pem(key), _KEY_MODE)
    _write(folder / CA, certificate.public_bytes(serialization.Encoding.PEM), _OPEN_MODE)
    return folder / CA


def make_certificate(
    folder: str | Path, name: str, hosts: Sequence[str], days: int = 365, *, force: bool = False
) -> tuple[Path, Path]:
    """Makes a certificate and key for a host, as server and as client, signed by the authority in ``folder``.

    hosts: its names and addresses, as peers write them.  Returns the paths (``name.pem``, ``name.key``).
    Raises `OptionError` for a folder without an authority, or if the files exist already, unless ``force``.
    """
    folder = Path(folder)
    authority, signer = _open_authority(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    certificate = (
        _builder(_name(name), authority.subject, key.public_key(), days)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(issuer, critical=False)
        .sign(signer, hashes.SHA256())
    )
    paths = folder / f"{name}.pem", folder / f"{name}.key"
    _refuse_existing(paths, force)
    _write(paths[1], _key_pem(key), _KEY_MODE)
    _write(paths[0], certificate.public_bytes(serialization.Encoding.PEM), _OPEN_MODE)
    return paths


def make_token(folder: str | Path, *, force: bool = False) -> Path:
    """Makes the file of a job's secret. Raises `OptionError` if there is one already, unless ``force``."""
    path = Path(folder) / TOKEN
    _refuse_existing([path], force)
    _write(path, secrets.token_urlsafe(32).encode() + b"\n", _KEY_MODE)
    return path


def certificate_name(option: str, host: str) -> str:
    """Returns the name of the files of a host's certificate and key. Raises `OptionError`, which names ``option``."""
    name = host.replace(":", "-")
    if name in (Path(CA).stem, TOKEN):
        raise OptionError(
            f"{option}: the files of {host!r} would replace those of the authority or the secret; use the host's address."
        )
    return name


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
    names = [certificate_name("--hosts", group[0]) for group in groups]
    if len(set(names)) != len(names):
        raise OptionError(f"--hosts: {args.hosts} names a host twice. List each host once; join its names by +.")
    files = [args.dir / f"{name}.{end}" for name in names for end in ("pem", "key")]
    _refuse_existing([*files, *([args.dir / TOKEN] if args.token else [])], args.force)  # all or nothing
    if not (args.dir / CA).exists():
        make_authority(args.dir, args.days)
    for name, group in zip(names, groups, strict=True):
        make_certificate(args.dir, name, group, args.days, force=args.force)
    token = [f"    token_file: {make_token(args.dir, force=args.force)}"] if args.token else []
    print(
        f"made certificates in {args.dir} for: {', '.join(names)}. Copy {CA}, the host's own .pem and .key"
        f"{' and the token' if token else ''} to each host"
    )
    print(f"(never {CA_KEY}), and put into its configuration:\n")
    files_of_first = {"ca": CA, "cert": f"{names[0]}.pem", "key": f"{names[0]}.key"}
    shown = [f"    {option}: {args.dir / name}" for option, name in files_of_first.items()]
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


def _open_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate((folder / CA).read_bytes())
        key = serialization.load_pem_private_key((folder / CA_KEY).read_bytes(), None)
    except OSError as error:
        raise OptionError(
            f"--dir: {folder} has no authority: {error.filename}: {error.strerror}. Run glt-lightning certs in a new folder."
        ) from None
    except (ValueError, TypeError) as error:
        raise OptionError(
            f"--dir: the authority in {folder} cannot be read: {error}. Restore its files, or make a new one in another folder."
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise OptionError(
            f"--dir: {folder / CA} does not belong to {CA_KEY} beside it. Restore the pair, or choose a new folder."
        )
    return certificate, key


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
