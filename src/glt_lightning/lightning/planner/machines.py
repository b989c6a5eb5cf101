"""The machines that a plan is for. Those that can be rented are as their sellers describe them; nothing here was measured."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass

from glt_lightning.base import OptionError, parse_bytes, parse_rate
from glt_lightning.graph import available_memory

# name: threads of cores, memory, network
NAMED: dict[str, tuple[int, str, str]] = {
    "c7i.8xlarge": (32, "64GiB", "12.5Gbit"),
    "c7i.24xlarge": (96, "192GiB", "37.5Gbit"),
    "m7i.8xlarge": (32, "128GiB", "12.5Gbit"),
    "r7i.8xlarge": (32, "256GiB", "12.5Gbit"),
    "r7i.16xlarge": (64, "512GiB", "25Gbit"),
    "r6i.32xlarge": (128, "1024GiB", "50Gbit"),
    "n2-standard-32": (32, "128GB", "32Gbit"),
    "n2-highmem-64": (64, "512GB", "32Gbit"),
    "Standard_E32s_v5": (32, "256GiB", "16Gbit"),
}


def _named(name: str) -> tuple[int, str, str]:
    """Returns (threads of cores, memory, network) of a machine. Raises `OptionError` that lists them."""
    if name not in NAMED:
        near = difflib.get_close_matches(name, NAMED, n=1)
        hint = f" Did you mean {near[0]}?" if near else " Of others give --cores, --memory and --network."
        raise OptionError(f"--machine: expected one of {', '.join(NAMED)}; got {name!r}.{hint}")
    return NAMED[name]


@dataclass(frozen=True, kw_only=True)
class Machines:
    """The hosts that a plan is for, as the command line names them; None: as the configuration says, or as this machine.

    machine: one that can be rented, which gives its cores, memory and network where these are None.
    """

    hosts: int | None = None
    ranks: int | None = None
    network: str | None = None
    latency_ms: float = 0.1
    cores: int | None = None
    memory: str | None = None
    machine: str | None = None

    def __post_init__(self) -> None:
        if self.machine is not None:
            for name, value in zip(("cores", "memory", "network"), _named(self.machine), strict=True):
                if getattr(self, name) is None:
                    object.__setattr__(self, name, value)
        for name in ("hosts", "ranks", "cores"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"--{name}: expected at least 1, got {value}.")
        if not 0 <= self.latency_ms < math.inf:
            raise OptionError(f"--latency_ms: expected at least 0, got {self.latency_ms:g}.")
        if self.network is not None:
            parse_rate("--network", self.network)
        if self.memory is not None:
            parse_bytes("--memory", self.memory)

    @property
    def available(self) -> int:
        """Bytes of memory of each host."""
        return available_memory() if self.memory is None else parse_bytes("--memory", self.memory)
