"""A host of a launched job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["trainer", "server"]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A host with its defaults filled in. What serves and trains on one host is two of these.

    Attributes:
        role: What runs there.
        number: Rank of the host among those of its role.
        host: Name for ssh.
        address: Name or address for the other hosts.
        user: User to log in as; None: ssh's choice.
        ssh_port: Port of sshd; None: ssh's choice.
        python: Python interpreter.
        dir: Folder that the processes run in.
        env: Environment variables of the processes.
        num_devices: Trainer processes.
        gpus: Which GPUs these use; None: all that they see.
        port: Where the graph server listens; 0 for a trainer.
    """

    role: Role
    number: int
    host: str
    address: str
    user: str | None
    ssh_port: int | None
    python: str
    dir: str
    env: Mapping[str, str] = field(default_factory=dict)
    num_devices: int = 1
    gpus: tuple[int, ...] | None = None
    port: int = 0

    @property
    def name(self) -> str:
        """What stands before its lines, and its log is called after."""
        return self.host if self.role == "trainer" else f"{self.host}:server{self.number}"

    @property
    def is_server(self) -> bool:
        return self.role == "server"

    @property
    def endpoint(self) -> str:
        """Address of the graph server, as it stands in ``cluster.servers``."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"
