"""Which process of a script this is, as GraphLearn-for-PyTorch says it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from glt_lightning.base import OptionError


class DistRole(Enum):
    """The role of a process.

    >>> DistRole.SERVER.name
    'SERVER'
    """

    WORKER = 1
    SERVER = 2
    CLIENT = 3


@dataclass(frozen=True)
class DistContext:
    """A process of a script.

    role: its role.  group_name: the processes with that role.  world_size, rank: their number, and which this is.
    global_world_size, global_rank: the same of servers and clients together, servers first.
    servers, clients: how many there are.

    >>> DistContext(DistRole.CLIENT, "trainers", 4, 1, 6, 3, servers=2, clients=4).worker_name
    'trainers_1'
    """

    role: DistRole
    group_name: str
    world_size: int
    rank: int
    global_world_size: int
    global_rank: int
    servers: int = 0
    clients: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise OptionError(
                f"{self.group_name}: rank: expected 0 <= rank < {self.world_size} (world size), got {self.rank}."
            )

    def is_worker(self) -> bool:
        return self.role is DistRole.WORKER

    def is_server(self) -> bool:
        return self.role is DistRole.SERVER

    def is_client(self) -> bool:
        return self.role is DistRole.CLIENT

    def num_servers(self) -> int:
        return self.servers

    def num_clients(self) -> int:
        return self.clients

    @property
    def worker_name(self) -> str:
        return f"{self.group_name}_{self.rank}"
