"""What a graph server serves, and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glt_lightning.base import CacheOptions, OptionError, PickerSpec, SamplingOptions, ServingOptions
from glt_lightning.graph import LocalPartition, Manifest
from glt_lightning.sampling import DeviceSource
from glt_lightning.workers.cluster.owner_server import OwnerAddresses
from glt_lightning.workers.cluster.placement import placed_parts

_CACHE = CacheOptions()


@dataclass(frozen=True, kw_only=True)
class ServerPlan:
    """The options of a graph server. Plain values, so that they can be sent to a child process.

    directory: the partition folder.  rank: number among ``cluster.servers``.  address: to listen at.
    parts: those to map; None: those of `placed_parts`.
    token: the secret, if it does not come from ``security.token_file``.
    gpus: that sample; None: the CPU samples.
    picker: that clients may ask for; None: none.
    """

    directory: str
    cluster: ServingOptions
    address: str
    rank: int = 0
    parts: tuple[int, ...] | None = None
    token: str | None = None
    cache: CacheOptions = _CACHE
    gpus: DeviceSource | None = None
    picker: PickerSpec | None = None

    @property
    def num_servers(self) -> int:
        return max(1, len(self.cluster.servers))

    def to_json(self) -> dict[str, Any]:
        """The fields, for a private channel: the token is among them."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> ServerPlan:
        parts = None if raw["parts"] is None else tuple(raw["parts"])
        changed = {"cluster": ServingOptions(**raw["cluster"]), "parts": parts, "cache": CacheOptions(**raw["cache"])}
        gpus = None if raw["gpus"] is None else DeviceSource.from_json(raw["gpus"])
        picker = None if raw["picker"] is None else PickerSpec.from_wire(raw["picker"])
        return cls(**dict(raw) | changed | {"gpus": gpus, "picker": picker})

    def other_servers(self, num_parts: int) -> list[OwnerAddresses]:
        """The other servers of the job as owners, those with the same parts as one."""
        found: dict[tuple[int, ...], list[int]] = {}
        for rank in range(len(self.cluster.servers)):
            if rank != self.rank:
                found.setdefault(placed_parts(rank, self.num_servers, num_parts), []).append(rank)
        return [
            OwnerAddresses(
                " / ".join(f"server {r}" for r in ranks), parts, tuple(self.cluster.servers[r] for r in ranks)
            )
            for parts, ranks in found.items()
        ]


def server_gpus(directory: str, sampling: SamplingOptions, cache: CacheOptions) -> DeviceSource | None:
    """The GPUs of ``sampling.worker_devices``, with which a server samples by the weights and times of ``sampling``, and with
    edges: its clients may request them.

    Raises `OptionError` for weights and times that the graph in ``directory`` does not have.
    """
    if not sampling.worker_devices:
        return None
    return DeviceSource.of_devices(sampling.worker_devices, sampling, cache, Manifest.load(Path(directory)), edges=True)


def open_parts(plan: ServerPlan) -> LocalPartition:
    """Maps the parts of this server. Raises `OptionError` if other servers would look for parts that it does not have."""
    num_parts = Manifest.load(plan.directory).num_parts
    expected = placed_parts(plan.rank, plan.num_servers, num_parts)
    parts = expected if plan.parts is None else plan.parts
    if unknown := sorted(set(parts) - set(range(num_parts))):
        raise OptionError(f"server.parts: {plan.directory} has the parts 0 to {num_parts - 1}, got {unknown}.")
    if missing := sorted(set(expected) - set(parts)):
        raise OptionError(
            f"server.parts: {list(parts)} lacks {missing}, which the other servers request from server {plan.rank} of "
            f"{plan.num_servers} (part p is at server p mod {plan.num_servers}). Add them, or remove server.parts."
        )
    return LocalPartition.open(plan.directory, parts=parts)
