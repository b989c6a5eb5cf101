"""A Ray cluster whose nodes are network namespaces: Ray tells nodes from each other by their addresses."""

from __future__ import annotations

import contextlib
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator

from tests.helpers.hosts import Hosts
from tests.helpers.run import Run, started

_PORT = 6379
_START_S = 120.0
_ARGV = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]


class RayNodes:
    """Nodes of a Ray cluster, the first of which is its head. Made by `ray_nodes`."""

    def __init__(self, made: Hosts, cpus: int, env: dict[str, str], temp: str, closing: contextlib.ExitStack) -> None:
        self.made, self.env = made, env
        self._cpus, self._temp, self._closing = cpus, temp, closing

    @property
    def address(self) -> str:
        return f"{self.made.address(0)}:{_PORT}"

    def start(self, host: int, *options: str) -> Run:
        """Starts a node, and waits until it serves."""
        where = (
            ["--head", f"--port={_PORT}", "--include-dashboard=false"] if host == 0 else [f"--address={self.address}"]
        )
        argv = [*_ARGV, *where, f"--node-ip-address={self.made.address(host)}", f"--num-cpus={self._cpus}", *options]
        argv += [f"--temp-dir={self._temp}"] if host == 0 else []
        run = self._closing.enter_context(started(self.made.command(host, argv), env=self.env))
        deadline = time.monotonic() + _START_S
        while "Ray runtime started" not in run.output:
            assert run.popen.poll() is None, run.output
            assert time.monotonic() < deadline, run.output
            time.sleep(0.1)
        return run


@contextlib.contextmanager
def ray_nodes(made: Hosts, count: int, *, cpus: int, env: dict[str, str]) -> Iterator[RayNodes]:
    """Starts ``count`` nodes with ``cpus`` CPUs each."""
    temporary = tempfile.TemporaryDirectory(
        prefix="ray", dir="/tmp", ignore_cleanup_errors=True
    )  # sockets need short paths
    with temporary as temp, contextlib.ExitStack() as closing:
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        nodes = RayNodes(made, cpus, env | token, temp, closing)
        for host in range(count):
            nodes.start(host)
        yield nodes
