"""In a job on one host, torch's process group listens on loopback alone."""

from __future__ import annotations

import os
import socket
import sys

import torch.distributed
from lightning.pytorch.plugins.environments import ClusterEnvironment
from torch.distributed import TCPStore

_LOOPBACK = "127.0.0.1"
_BACKLOG = 2048  # as torch's own store: the ranks of a host connect at the same moment
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"


def open_store(environment: ClusterEnvironment, first: bool, ranks: int) -> TCPStore | None:
    """Opens the store of a process group whose ranks are all on this host, before the group is initialised.

    Torch's own store listens on all interfaces. It takes over the store of this process at the same port (the meaning of
    ``multi_tenant``), so Lightning can go on to initialise the group. Keep the store until then.

    first: whether this rank has the store. The other ranks only learn where it is: None.
    """
    if torch.distributed.is_initialized() or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None  # torchrun's agent has the store
    os.environ["MASTER_ADDR"] = _LOOPBACK  # a host name, as SLURM gives it, would lead to an address of the network
    address = _resolve(environment.main_address)
    if not first or not address.startswith("127."):  # an environment may insist on its own address
        return None
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, environment.main_port))
        listener.listen(_BACKLOG)
    except OSError:
        # Taken: by the store of an earlier group of this process, which torch uses again, or else torch raises.
        listener.close()
        return None
    return TCPStore(
        address,
        environment.main_port,
        ranks,
        is_master=True,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=listener.detach(),
    )


class GlooOnLoopback:
    """Makes gloo connect ranks over the loopback interface, unless the user names another. By default it listens at the
    address that the name of the host leads to."""

    def __init__(self) -> None:
        self._set = False

    def open(self) -> None:
        if sys.platform == "linux" and _GLOO_INTERFACE not in os.environ:
            os.environ[_GLOO_INTERFACE] = "lo"
            self._set = True

    def close(self) -> None:
        """Takes the setting back. Safe to call twice."""
        if self._set:
            os.environ.pop(_GLOO_INTERFACE, None)
        self._set = False


def _resolve(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return ""
