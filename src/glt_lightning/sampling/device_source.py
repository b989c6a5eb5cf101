"""The GPUs of sampler processes, and the places of the graph that they read: plain values, for another process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from glt_lightning.base import DEFAULT_DRAW, CacheOptions, DrawOptions, GpuBudgets, OptionError, SamplingOptions
from glt_lightning.graph import Manifest, require_readable
from glt_lightning.sampling.drawn_by import drawn_on_gpu


@dataclass(frozen=True, kw_only=True)
class DeviceSource:
    """The GPUs that sample in sampler processes.

    devices: names such as ``cuda:0``; sampler process k takes number k modulo their number.
    topology, features: as in `SamplingOptions`, without ``auto``.  feature_bytes, topology_bytes: the budgets of ``hybrid``.
    edges: batches may have ids and attributes of edges.  weights, timed, labor: as in `DrawOptions`.
    host: path of the arrays that GPUs read in the host's memory; None if they read none.
    """

    devices: tuple[str, ...]
    topology: str
    features: str
    feature_bytes: int | None = None
    topology_bytes: int | None = None
    edges: bool = True
    host: str | None = None
    weights: tuple[str | None, ...] = ()
    timed: bool = False
    labor: bool = False

    @classmethod
    def of(
        cls,
        devices: Sequence[str],
        sampling: SamplingOptions,
        cache: CacheOptions,
        edges: bool,
        draw: DrawOptions = DEFAULT_DRAW,
    ) -> DeviceSource | None:
        """Makes the source by the options; None without devices. Raises `OptionError` for devices that would not be used."""
        if not devices:
            return None
        if draw.picker is not None:
            raise OptionError(
                f"sampling.picker: runs on CPUs, and {', '.join(devices)} would sample. Remove it, or worker_devices."
            )
        topology, features = str(sampling.topology), str(sampling.features)
        if topology == "cpu":
            raise OptionError(
                f"worker_devices: {', '.join(devices)} has no effect with sampling.topology cpu; remove one of them."
            )
        on_disk = cache.memory_bytes is not None
        require_readable(features, on_disk)
        budgets = GpuBudgets.of(sampling, cache)
        if topology == "auto":
            topology = "device" if budgets.topology is None else "hybrid"
        if features == "auto":
            features = "cpu" if on_disk else "device" if budgets.features is None else "hybrid"
        return cls(
            devices=tuple(devices),
            topology=topology,
            features=features,
            feature_bytes=budgets.features,
            topology_bytes=budgets.topology,
            edges=edges,
            weights=draw.weights,
            timed=draw.timed,
            labor=draw.labor,
        )

    @classmethod
    def of_workers(cls, sampling: SamplingOptions, cache: CacheOptions, manifest: Manifest) -> DeviceSource | None:
        """Makes the source for the sampler processes of a rank; None without ``sampling.worker_devices``."""
        return cls.of_devices(sampling.worker_devices, sampling, cache, manifest)

    @classmethod
    def of_devices(
        cls,
        devices: Sequence[str],
        sampling: SamplingOptions,
        cache: CacheOptions,
        manifest: Manifest,
        edges: bool = False,
    ) -> DeviceSource | None:
        """Makes the source for a graph that is sampled by the weights and times of ``sampling``. edges: batches may have ids and
        attributes of edges, even if the graph has no edge attributes.

        Raises `OptionError` as `of`, and for weights and times that the graph does not have.
        """
        draw = drawn_on_gpu(manifest, sampling)
        return cls.of(devices, sampling, cache, edges or "edge_rows" in draw.columns, draw)

    @property
    def on_host(self) -> tuple[str, ...]:
        """The kinds of arrays that GPUs read in the host's memory: ``topology``, ``features``."""
        kinds = {"topology": self.topology, "features": self.features}
        return tuple(what for what, kind in kinds.items() if kind in ("uva", "hybrid"))

    def device(self, index: int) -> str:
        """Returns the device of a sampler process. index: number of the process."""
        return self.devices[index % len(self.devices)]

    @property
    def budgets(self) -> GpuBudgets:
        return GpuBudgets(topology=self.topology_bytes, features=self.feature_bytes)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> DeviceSource:
        return cls(**dict(raw) | {"devices": tuple(raw["devices"]), "weights": tuple(raw["weights"])})
