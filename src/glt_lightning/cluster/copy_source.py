"""Opens what a partition is copied from: a folder, an object store or a graph server."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from glt_lightning.cluster.files import PeerCopySource
from glt_lightning.cluster.link import Link
from glt_lightning.options import ClusterOptions
from glt_lightning.partition.copies import CopySource, open_copy_source

_SERVER = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s/:]+):\d+")  # host:port


def open_any_source(given: str, cluster: ClusterOptions) -> CopySource:
    """given: a folder, a URL of fsspec, or ``host:port``.  Close it."""
    if "://" in given or _SERVER.fullmatch(given) is None or Path(given).exists():
        return open_copy_source(given)
    link = Link(
        job="",
        role="tool",
        name=f"pull (pid {os.getpid()} on {socket.gethostname()})",
        security=cluster.security,
        deadlines=cluster.deadlines,
        retry=cluster.retry,
    )
    return PeerCopySource(link.peer(f"graph server {given}", [given], link.open_transport()), given)
