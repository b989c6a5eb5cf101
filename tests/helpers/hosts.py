"""Several hosts on one machine: network namespaces on a switch, their links shaped and cut as a test likes."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_PREFIX = "glt-"
_PORT = "eth0"


def why_not() -> str | None:
    """Why namespaces cannot be made here; None if they can."""
    for tool in ("ip", "tc"):
        if _tool(tool) is None:
            return f"{tool} (iproute2) is not installed"
    name = f"{_PREFIX}probe-{os.getpid()}"
    made = _run("ip", "netns", "add", name, check=False)
    if made.returncode:
        return f"network namespaces need privileges: {made.stderr.strip()}"
    try:
        probe = _run("ip", "-n", name, "link", "add", "br0", "type", "bridge", check=False)
        return None if probe.returncode == 0 else f"no bridges here: {probe.stderr.strip()}"
    finally:
        _run("ip", "netns", "del", name, check=False)


class Hosts:
    """``count`` hosts with the addresses 10.77.0.1, 10.77.0.2 and so on. Made by `hosts`. names: of their namespaces."""

    def __init__(self, names: list[str], switch: str) -> None:
        self.names, self._switch = names, switch

    def address(self, host: int) -> str:
        return f"10.77.0.{host + 1}"

    def command(self, host: int, argv: Sequence[str | os.PathLike[str]]) -> list[str]:
        """What runs ``argv`` on a host."""
        return [str(_tool("ip")), "netns", "exec", self.names[host], *map(os.fspath, argv)]

    def environment(self, host: int, master: int, port: int) -> Mapping[str, str]:
        """What a launcher would set on the ``host - master``-th host of a job that begins at ``master``."""
        return {
            "MASTER_ADDR": self.address(master),
            "MASTER_PORT": str(port),
            "NODE_RANK": str(host - master),
            "GLOO_SOCKET_IFNAME": _PORT,
        }

    def processes(self, host: int) -> list[int]:
        """Process ids of all that runs on a host."""
        return [int(pid) for pid in _run("ip", "netns", "pids", self.names[host]).stdout.split()]

    def cut(self, host: int) -> None:
        """Takes a host's link down: nothing is said to anybody."""
        _run("ip", "-n", self.names[host], "link", "set", _PORT, "down")

    def heal(self, host: int) -> None:
        _run("ip", "-n", self.names[host], "link", "set", _PORT, "up")

    def bytes_sent(self, host: int) -> int:
        found = _run("ip", "netns", "exec", self.names[host], "cat", f"/sys/class/net/{_PORT}/statistics/tx_bytes")
        return int(found.stdout)


@contextlib.contextmanager
def hosts(count: int, rate: str = "1gbit", queue: str = "50ms") -> Iterator[Hosts]:
    """Makes hosts whose links carry ``rate`` each way, and takes them away. What a killed test left goes first.

    queue: the longest time that a packet waits before a link."""
    _remove_stale()
    mark = f"{_PREFIX}{os.getpid()}"
    switch, names = f"{mark}-switch", [f"{mark}-{number}" for number in range(count)]
    try:
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "br0", "up")
        for number, name in enumerate(names):
            port = f"port{number}"
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", _PORT, "netns", name)
            _run("ip", "-n", switch, "link", "set", port, "master", "br0", "up")
            _run("ip", "-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", _PORT)
            _run("ip", "-n", name, "link", "set", _PORT, "up")
            shape = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", queue]
            _run("tc", "-n", name, "qdisc", "add", "dev", _PORT, *shape)
            _run("tc", "-n", switch, "qdisc", "add", "dev", port, *shape)
        yield Hosts(names, switch)
    finally:
        for name in (*names, switch):
            _run("ip", "netns", "del", name, check=False)


def _remove_stale() -> None:
    for line in _run("ip", "netns", "list").stdout.splitlines():
        name = line.split()[0]
        pid = name.removeprefix(_PREFIX).partition("-")[0]
        if name.startswith(_PREFIX) and pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            _run("ip", "netns", "del", name, check=False)


def _tool(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _run(*argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(_tool(argv[0])), *argv[1:]], capture_output=True, text=True, timeout=30)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done
