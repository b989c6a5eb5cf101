"""The files that a launched job copies to its hosts, besides the partition."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from glt_lightning.base import OptionError
from glt_lightning.graph import open_regular
from glt_lightning.launch.hosts import Machine
from glt_lightning.launch.options import LaunchConfig
from glt_lightning.launch.plan import CERTIFICATES, security_files, target_of
from glt_lightning.workers import CertificateFolder

_MOST_BYTES = 100_000_000  # of all files: they pass through the launcher, to each host
_SECRET, _OPEN = 0o600, 0o644
_PRIVATE_KEY = re.compile(rb"^-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----\s*$", re.MULTILINE)


@dataclass(frozen=True)
class FileCopy:
    """A file of the launching host, and its path below the folder of each host."""

    source: Path
    target: str
    mode: int = _OPEN


def files_for_all(config: LaunchConfig) -> list[FileCopy]:
    """The files that all hosts get: the configuration, the script, and ``files``. Those of ``security.dir`` are left out, of
    which each host gets its own.

    Raises `OptionError` for a file that cannot be copied, and for a private key or the secret under any name.
    """
    own = None if config.security.dir is None else CertificateFolder(config.security.dir)
    found = [] if config.run_config is None else [FileCopy(Path(config.run_config), target_of(config.run_config))]
    given = list(config.files)
    if config.is_script and not PurePosixPath(config.command).is_absolute():
        given.append(config.command)
    for text in given:
        path = PurePosixPath(text)
        if path.is_absolute() or ".." in path.parts:
            raise OptionError(
                f"files: {text} is not below the current folder. Start the launch from a folder above it."
            )
        path_here = Path(text)
        if own is not None and (path_here.resolve() == own.folder.resolve() != Path.cwd() or own.has(path_here)):
            raise OptionError(
                f"files: {text} is security.dir or of it. Drop it: each host gets its own certificate and key."
            )
        found += [each for each in _below(path_here) if own is None or not own.has(each.source)]
    total = sum(_size(each.source) for each in found)
    if total > _MOST_BYTES:
        raise OptionError(
            f"files: {total:,} bytes in all; at most {_MOST_BYTES:,} are sent to each host. Copy large data by `partition` of "
            "the launch file, or by rsync."
        )
    secret = _contents(own.token) if own is not None and own.token.exists() else None
    sources: dict[str, Path] = {}
    for each in found:
        if (other := sources.setdefault(each.target, each.source)) != each.source:
            raise OptionError(f"files: {each.source} and {other} would both be {each.target} on each host. Rename one.")
        _refuse_secrets(each.source, secret)
    return list(dict.fromkeys(found))


def _below(path: Path) -> Iterator[FileCopy]:
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    for each in files:
        if (path == each or each.is_file()) and "__pycache__" not in each.parts:
            # Not readable by others there if it is not here.
            yield FileCopy(each, each.as_posix(), _SECRET | (each.stat().st_mode & 0o755 if each.exists() else 0))


def _refuse_secrets(path: Path, secret: bytes | None) -> None:
    contents = _contents(path)
    kind = "a private key" if _PRIVATE_KEY.search(contents) else "the secret of the job" if contents == secret else None
    if kind is not None:
        raise OptionError(
            f"files: {path} is {kind}, and would go to every host. Move it out of files: with security.dir each host gets its "
            "own."
        )


def _contents(path: Path) -> bytes:
    try:
        with open_regular(path) as stream:
            return stream.read()
    except OSError as error:
        raise OptionError(f"files: cannot read {path}: {error.strerror}.") from None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise OptionError(f"files: cannot read {path}: {error.strerror}.") from None


def make_certificates(config: LaunchConfig) -> list[str]:
    """Makes the certificates and the secret that ``security.dir`` lacks. Returns the names of the files that were made."""
    if config.security.dir is None:
        return []
    hosts = {security_files(each)["cert"]: list(dict.fromkeys([each.address, each.host])) for each in config.machines}
    return CertificateFolder(config.security.dir).complete(hosts)


def files_for(config: LaunchConfig, machine: Machine) -> list[FileCopy]:
    """The certificate, key and secret of one host."""
    if config.security.dir is None:
        return []
    names = security_files(machine)
    return [
        FileCopy(
            Path(config.security.dir, name),
            f"{CERTIFICATES}/{name}",
            _SECRET if option in ("key", "token_file") else _OPEN,
        )
        for option, name in names.items()
    ]
