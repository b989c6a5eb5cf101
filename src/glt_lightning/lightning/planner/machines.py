"""The machines that a plan is for. Those that can be rented are as their sellers describe them; nothing here was measured."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from glt_lightning.base import OptionError, parse_bytes, parse_rate
from glt_lightning.graph import available_memory
from glt_lightning.lightning.planner.gpus import GPUS, Gpu

T = TypeVar("T")

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
    "g6.12xlarge": (48, "192GiB", "40Gbit"),
    "g6e.12xlarge": (48, "384GiB", "100Gbit"),
    "p4de.24xlarge": (96, "1152GiB", "400Gbit"),
    "p5.48xlarge": (192, "2048GiB", "3200Gbit"),
    "p5en.48xlarge": (192, "2048GiB", "3200Gbit"),
}
_GPUS_OF = {
    "g6.12xlarge": ("L4", 4),
    "g6e.12xlarge": ("L40S", 4),
    "p4de.24xlarge": ("A100", 8),
    "p5.48xlarge": ("H100", 8),
    "p5en.48xlarge": ("H200", 8),
}


def _named(option: str, name: str, table: Mapping[str, T], others: str) -> T:
    """Returns the entry of a name. Raises `OptionError` that lists all."""
    if name not in table:
        near = difflib.get_close_matches(name, table, n=1)
        hint = f"Did you mean {near[0]}?" if near else others
        raise OptionError(f"{option}: expected one of {', '.join(table)}; got {name!r}. {hint}")
    return table[name]


@dataclass(frozen=True, kw_only=True)
class Machines:
    """The hosts that a plan is for, as the command line names them; None: as the configuration says, or as this machine.

    machine: one that can be rented, which gives its cores, memory, network and kind of GPU where these are None.
    gpus: of each host, with a rank each; None: no steps on GPUs.
    """

    hosts: int | None = None
    ranks: int | None = None
    network: str | None = None
    latency_ms: float = 0.1
    cores: int | None = None
    memory: str | None = None
    machine: str | None = None
    gpus: int | None = None
    gpu: str | None = None

    def __post_init__(self) -> None:
        if self.machine is not None:
            figures = _named("--machine", self.machine, NAMED, "Of others give --cores, --memory and --network.")
            for name, value in zip(("cores", "memory", "network"), figures, strict=True):
                if getattr(self, name) is None:
                    object.__setattr__(self, name, value)
        self._check_gpus()
        for name in ("gpus", "hosts", "ranks", "cores"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"--{name}: expected at least 1, got {value}.")
        if not 0 <= self.latency_ms < math.inf:
            raise OptionError(f"--latency_ms: expected at least 0, got {self.latency_ms:g}.")
        if self.network is not None:
            parse_rate("--network", self.network)
        if self.memory is not None:
            parse_bytes("--memory", self.memory)

    def _check_gpus(self) -> None:
        if self.gpus is None:
            if self.gpu is not None:
                raise OptionError("--gpu: say how many there are of each host, with --gpus.")
            return
        machine = self.machine
        kind, most = (self.gpu, self.gpus) if machine is None else _GPUS_OF.get(machine, (None, 0))
        if self.gpus > most:
            raise OptionError(f"--gpus: {machine} has {most}; got {self.gpus}.")
        if kind is None:
            raise OptionError(
                f"--gpus: say which they are, with --gpu {'|'.join(GPUS)}, or name a --machine that has some."
            )
        if self.gpu not in (None, kind):
            raise OptionError(f"--gpu: {machine} has {kind}; got {self.gpu}.")
        object.__setattr__(self, "gpu", kind)
        if self.ranks not in (None, self.gpus):
            raise OptionError(f"--ranks: each of the {self.gpus} GPUs has one rank; got {self.ranks}. Leave it out.")
        object.__setattr__(self, "ranks", self.gpus)
        _ = self.on

    @property
    def on(self) -> Gpu | None:
        """The kind of GPU of each rank; None on a CPU."""
        return None if self.gpu is None else _named("--gpu", self.gpu, GPUS, "The figures of others are not known.")

    @property
    def available(self) -> int:
        """Bytes of memory of each host."""
        return available_memory() if self.memory is None else parse_bytes("--memory", self.memory)
