"""The files that a launched job copies to its hosts, besides the partition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from glt_lightning.errors import OptionError
from glt_lightning.launch.machine import Machine
from glt_lightning.launch.options import LaunchConfig
from glt_lightning.launch.plan import CERTIFICATES, security_files, target_of
from glt_lightning.transport.certs import CA, CA_KEY, TOKEN, make_authority, make_certificate, make_token

_MOST_BYTES = 100_000_000  # of all files: they pass through the launcher, to each host
_SECRET, _OPEN = 0o600, 0o644


@dataclass(frozen=True)
class FileCopy:
    """A file here, and where it goes below the folder of each host."""

    source: Path
    target: str
    mode: int = _OPEN


def files_for_all(config: LaunchConfig) -> list[FileCopy]:
    """The configuration, the script, and ``files``. Raises `OptionError` for what cannot be copied."""
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
        found += _below(Path(text))
    total = sum(_size(each.source) for each in found)
    if total > _MOST_BYTES:
        raise OptionError(
            f"files: {total:,} bytes in all; at most {_MOST_BYTES:,} are sent to each host. Copy large data by `partition` of "
            "the launch file, or by rsync."
        )
    return list(dict.fromkeys(found))


def _below(path: Path) -> Iterator[FileCopy]:
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    for each in files:
        if (path == each or each.is_file()) and "__pycache__" not in each.parts:
            yield FileCopy(each, each.as_posix(), _OPEN | (each.stat().st_mode & 0o111 if each.exists() else 0))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise OptionError(f"files: cannot read {path}: {error.strerror}.") from None


def make_certificates(config: LaunchConfig) -> list[str]:
    """Makes what is missing in ``security.dir``. Returns the names of the files that were made."""
    if config.security.dir is None:
        return []
    folder, made = Path(config.security.dir), []
    if not (folder / CA).exists():
        make_authority(folder)
        made += [CA, CA_KEY]
    if not (folder / TOKEN).exists():
        make_token(folder)
        made.append(TOKEN)
    for machine in config.machines:
        cert = security_files(machine)["cert"]
        if not (folder / cert).exists():
            names = list(dict.fromkeys([machine.address, machine.host]))
            make_certificate(folder, cert.removesuffix(".pem"), names)
            made.append(cert)
    return made


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
