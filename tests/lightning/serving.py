"""Graph servers over the small graph, in this process."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from glt_lightning import CacheOptions, ClusterOptions
from glt_lightning.workers import HostedServer, ServerPlan
from tests.helpers.servers import cluster, of_clients


def free_addresses(count: int) -> list[str]:
    """Addresses of this host at which nobody listens at the moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{sock.getsockname()[1]}" for sock in sockets]


@contextmanager
def serving(
    folder: Path, servers: int = 1, *, cache: CacheOptions | None = None, version: int = 0, **options: Any
) -> Iterator[tuple[ClusterOptions, list[HostedServer]]]:
    """The options that lead clients to servers of a partition folder, and these."""
    where = cluster(servers=free_addresses(servers), **options)
    with ExitStack() as stack:
        hosted = []
        for rank, address in enumerate(where.servers):
            keeps = cache or CacheOptions()
            common: dict[str, Any] = {"directory": str(folder), "cluster": where, "version": version, "cache": keeps}
            hosted.append(HostedServer(ServerPlan(address=address, rank=rank, **common)))
            stack.callback(hosted[-1].close)
        yield of_clients(where), hosted
