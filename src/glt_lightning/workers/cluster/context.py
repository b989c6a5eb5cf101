"""The role and rank of a process in its job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    """The role of a process: a worker trains and samples, a server samples for clients, a client trains."""

    WORKER = "worker"
    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True, kw_only=True)
class DistContext:
    """A process of a distributed job.

    rank, world_size: its number among the processes with its role, and the number of these.
    num_servers, num_clients: number of processes with these roles; None if unknown: a server serves any number of clients,
    which come and go.
    parts: the parts of the graph that this process maps.
    peers: the owners of the other parts: addresses of servers, or names of ranks.

    >>> context = DistContext(role=Role.CLIENT, rank=1, world_size=4, num_servers=2, num_clients=4)
    >>> context.worker_name, context.global_rank, context.global_world_size
    ('client-1', 3, 6)
    """

    role: Role
    rank: int
    world_size: int
    num_servers: int = 0
    num_clients: int | None = 0
    parts: tuple[int, ...] = ()
    peers: tuple[str, ...] = ()

    @property
    def group_name(self) -> str:
        """Name of the processes with this role."""
        return self.role.value

    @property
    def worker_name(self) -> str:
        """Name of this process."""
        return f"{self.group_name}-{self.rank}"

    @property
    def global_rank(self) -> int:
        """Number among servers and clients together, servers first; a worker's is its rank."""
        return self.num_servers + self.rank if self.is_client else self.rank

    @property
    def global_world_size(self) -> int | None:
        """Number of all processes; None where the number of clients is not known."""
        if self.is_worker:
            return self.world_size
        return None if self.num_clients is None else self.num_servers + self.num_clients

    @property
    def is_worker(self) -> bool:
        return self.role is Role.WORKER

    @property
    def is_server(self) -> bool:
        return self.role is Role.SERVER

    @property
    def is_client(self) -> bool:
        return self.role is Role.CLIENT
