"""The status of a graph server, for whoever asks from outside of a job."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from glt_lightning.base import ClusterOptions, parse_address
from glt_lightning.workers.cluster.link import Link

_HEALTH_S = 5.0  # an orchestrator's probe must get an answer


def ask_status(address: str, cluster: ClusterOptions) -> Mapping[str, Any]:
    """The status of a server: one attempt. Raises `PeerError` naming it."""
    parse_address("address", address)
    given = cluster.deadlines
    deadlines = replace(
        given, connect_s=min(given.connect_s, _HEALTH_S), call_s=min(given.call_s, _HEALTH_S), reconnect_s=1e-3
    )
    link = Link(
        job="",
        role="tool",
        name=f"serve (pid {os.getpid()} on {socket.gethostname()})",
        security=cluster.security,
        deadlines=deadlines,
    )
    peer = link.peer("graph server", [address], link.open_transport())
    try:
        return peer.ask("status").result().header
    finally:
        peer.close()
