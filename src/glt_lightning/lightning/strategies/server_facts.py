"""The manifest of a graph that servers hold, before there is a Trainer."""

from __future__ import annotations

import os
import socket
import threading

from lightning.pytorch.utilities.rank_zero import rank_zero_info

from glt_lightning.base import ClusterOptions, PeerLostError
from glt_lightning.graph import Manifest
from glt_lightning.workers import Link, RemoteGraph

_SILENCE_S = 3.0  # after which a log line names the servers that are waited for


def ask_manifest(cluster: ClusterOptions) -> Manifest:
    """Asks the first server that answers. Raises `PeerError` if none does within ``deadlines.reconnect_s``."""
    link = Link(
        job="",
        role="tool",
        name=f"data module (pid {os.getpid()} on {socket.gethostname()})",
        security=cluster.security,
        deadlines=cluster.deadlines,
    )
    waiting = f"waiting up to {cluster.deadlines.reconnect_s:g} s for a graph server at {', '.join(cluster.servers)}"
    notice = threading.Timer(_SILENCE_S, rank_zero_info, (waiting,))
    notice.daemon = True
    peer = link.peer("graph server", cluster.servers, link.open_transport())
    notice.start()
    try:
        return RemoteGraph(peer).manifest
    except PeerLostError as error:
        raise PeerLostError(
            f"{error} If no graph server runs there, start one where the graph is: python -m lightning serve --config F.yaml "
            "--server.rank R, with R the position of its address in cluster.servers."
        ) from error
    finally:
        notice.cancel()
        notice.join()
        peer.close()
