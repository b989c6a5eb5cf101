"""sshd in the network namespaces of a test, with keys and a configuration of its own."""

from __future__ import annotations

import contextlib
import getpass
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.helpers.hosts import Hosts

PORT = 2222
_SSHD = "/usr/sbin/sshd"
_START_S = 20.0


def why_no_sshd() -> str | None:
    """Why sshd cannot run here; None if it can."""
    missing = [tool for tool in (_SSHD, "ssh", "ssh-keygen") if shutil.which(tool) is None]
    return f"{', '.join(missing)} (openssh-server) is not installed" if missing else None


@contextlib.contextmanager
def sshds(made: Hosts, count: int, folder: Path) -> Iterator[list[str]]:
    """Runs an sshd on each of the first hosts. Gives the ssh command that reaches them as ``host0``, ``host1`` and so on."""
    Path("/run/sshd").mkdir(exist_ok=True)  # of sshd's child without privileges
    for name in ("client", "host"):
        _key(folder / name)
    (folder / "authorized_keys").write_text((folder / "client.pub").read_text())
    known = (folder / "host.pub").read_text()
    (folder / "known_hosts").write_text("".join(f"[{made.address(n)}]:{PORT} {known}" for n in range(count)))
    config = [_client(f"host{n}", made.address(n), folder) for n in range(count)]
    (folder / "ssh_config").write_text("\n".join(config))
    with contextlib.ExitStack() as stack:
        for number in range(count):
            stack.enter_context(_sshd(made, number, folder))
        yield ["ssh", "-F", str(folder / "ssh_config")]


def _client(alias: str, address: str, folder: Path) -> str:
    lines = [f"HostName {address}", f"Port {PORT}", f"User {getpass.getuser()}"]
    lines += [f"IdentityFile {folder}/client", "IdentitiesOnly yes", f"UserKnownHostsFile {folder}/known_hosts"]
    return "\n  ".join([f"Host {alias}", *lines, "GlobalKnownHostsFile /dev/null", "StrictHostKeyChecking yes"]) + "\n"


@contextlib.contextmanager
def _sshd(made: Hosts, number: int, folder: Path) -> Iterator[None]:
    config = folder / f"sshd{number}.conf"
    config.write_text(
        f"Port {PORT}\nListenAddress {made.address(number)}\nHostKey {folder}/host\nPidFile {folder}/sshd{number}.pid\n"
        f"UsePAM no\nStrictModes no\nAuthorizedKeysFile {folder}/authorized_keys\nPermitRootLogin yes\nPrintMotd no\n"
        "MaxStartups 100\n"
    )
    argv = made.command(number, [_SSHD, "-D", "-e", "-f", config])
    with (folder / f"sshd{number}.log").open("wb") as log:
        daemon = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _wait_for(daemon, folder / f"sshd{number}.log")
        yield
    finally:
        daemon.terminate()
        daemon.wait(10)


def _wait_for(daemon: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while "Server listening" not in log.read_text():
        assert daemon.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def _key(path: Path) -> None:
    argv: Sequence[str] = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(argv, check=True, capture_output=True, timeout=30)
