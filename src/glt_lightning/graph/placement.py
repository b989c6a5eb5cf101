"""The choice of the memory in which a GPU reads the graph and the attributes, and its size, by numbers alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from glt_lightning.base import CacheOptions, DrawOptions, GpuBudgets, OptionError, SamplingOptions
from glt_lightning.graph.local_partition import LocalPartition
from glt_lightning.graph.manifest import cum_name, edge_path, node_path
from glt_lightning.graph.row_order import TIMES
from glt_lightning.kernels import GraphView, row_bytes

TOPOLOGY_KINDS = ("auto", "device", "uva", "hybrid")
FEATURE_KINDS = (*TOPOLOGY_KINDS, "cpu")


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The kinds of memory that a GPU reads. topology: ``device``, ``uva`` or ``hybrid``.  features: one of these, or ``cpu``.

    topology_bytes, features_bytes: the bytes of each that may lie on the device, if it is ``hybrid``.
    """

    topology: str
    features: str
    topology_bytes: int = 0
    features_bytes: int = 0

    @property
    def on_host(self) -> tuple[str, ...]:
        """The kinds of arrays that have to lie in memory of the host that the device reads."""
        kinds = {"topology": self.topology, "features": self.features}
        return tuple(what for what, kind in kinds.items() if kind in ("uva", "hybrid"))


@dataclass(frozen=True, kw_only=True)
class Need:
    """The bytes of the mapped parts. features_on_disk: some rows of attributes are on disk only."""

    topology: int
    features: int
    features_on_disk: bool = False


@dataclass(frozen=True)
class BatchArrays:
    """The arrays of the mapped parts of ``partition`` that batches are made from. edges: include ids and attributes of edges.

    weights, timed, labor: as in `DrawOptions`.
    """

    partition: LocalPartition
    edges: bool = True
    weights: tuple[str | None, ...] = ()
    timed: bool = False
    labor: bool = False

    @classmethod
    def of(cls, partition: LocalPartition, draw: DrawOptions) -> BatchArrays:
        """Returns the arrays for batches with these draw options (`sampling.drawn_by.drawn_from`)."""
        return cls(partition, "edge_rows" in draw.columns, draw.weights, draw.timed, draw.labor)

    def view(self, opened: Callable[[str], np.ndarray] | None = None) -> GraphView:
        """Makes the topology for draws of neighbours. opened: as for `LocalPartition.view_of`; None: the mapped arrays."""
        if opened is None:
            return self.partition.drawn_by(self.weights, self.timed, self.labor)
        return self.partition.view_of(opened, self.weights, self.timed, self.labor)

    def edge_names(self, edge_type: int) -> tuple[str, ...]:
        """Returns the names of the arrays with a row for each edge of a type."""
        return ("edge_ids", *self.partition.manifest.edge_attrs(edge_type)) if self.edges else ()

    def topology_paths(self) -> Iterator[str]:
        """Yields the paths in the folder of the arrays that sampling reads."""
        schema = self.partition.schema
        for p in self.partition.parts:
            for t in range(len(schema.node_types)):
                yield node_path(p, t, "n_id")
            for r in range(len(schema.edge_types)):
                yield edge_path(p, r, "indptr")
                yield edge_path(p, r, "indices")
                if self.weights and (weight := self.weights[r]) is not None:
                    yield edge_path(p, r, cum_name(weight))
                if self.timed and self.partition.manifest.is_timed(r):
                    yield edge_path(p, r, TIMES)

    def feature_paths(self) -> Iterator[str]:
        """Yields the paths of the arrays from which batches take rows."""
        schema, manifest = self.partition.schema, self.partition.manifest
        for p in self.partition.parts:
            for t in range(len(schema.node_types)):
                yield from (node_path(p, t, name) for name in manifest.node_attrs(t))
            for r in range(len(schema.edge_types)):
                yield from (edge_path(p, r, name) for name in self.edge_names(r))

    @property
    def need(self) -> Need:
        return Need(
            topology=sum(_nbytes(self.partition, path) for path in self.topology_paths()),
            features=sum(_nbytes(self.partition, path) for path in self.feature_paths()),
            features_on_disk=self.partition.memory is not None,
        )

    def placed(self, sampling: SamplingOptions, cache: CacheOptions, free_bytes: int) -> Placement:
        """Places these arrays by the options on a device with so much free memory, as `place` does."""
        return place(sampling.topology, sampling.features, self.need, GpuBudgets.of(sampling, cache), free_bytes)


def place(topology: str, features: str, need: Need, budgets: GpuBudgets, free_bytes: int | None) -> Placement:
    """Resolves ``sampling.topology`` and ``sampling.features`` for a device. free_bytes: its free memory; None: unknown.

    ``hybrid`` becomes ``device`` if everything fits. Raises `OptionError` if something does not fit.
    """
    _require("sampling.topology", topology, TOPOLOGY_KINDS)
    _require("sampling.features", features, FEATURE_KINDS)
    require_readable(features, need.features_on_disk)
    half = None if free_bytes is None else free_bytes // 2
    if topology == "auto":
        fits = budgets.topology is None and (half is None or need.topology <= half)
        topology = "device" if fits else "hybrid"
    budget = _room(budgets.topology, half, need.topology)
    topology, on_device = _settle("topology", topology, need.topology, budget, free_bytes, "sampling.topology_bytes")
    left = None if free_bytes is None else free_bytes - on_device
    half = None if left is None else left // 2
    if features == "auto":
        if need.features_on_disk:
            features = "cpu"
        elif budgets.features is None and (half is None or need.features <= half):
            features = "device"
        else:
            features = "hybrid"
    budget = _room(budgets.features, half, need.features)
    features, features_on_device = _settle("features", features, need.features, budget, left, "sampling.feature_bytes")
    return Placement(topology=topology, features=features, topology_bytes=on_device, features_bytes=features_on_device)


def require_readable(features: str, on_disk: bool) -> None:
    """Raises `OptionError` if a GPU is to read attributes of which some rows lie on disk only."""
    if on_disk and features not in ("auto", "cpu"):
        raise OptionError(
            f"sampling.features: {features!r} with cache.memory, whose rows on disk only the CPU reads. Choose cpu (or auto), "
            "or leave cache.memory out."
        )


def _room(given: int | None, half: int | None, need: int) -> int:
    """Returns the bytes for ``hybrid``: those of the options, else half of the free memory, else all that is needed."""
    if given is not None:
        return given
    return need if half is None else half


def _settle(what: str, kind: str, need: int, budget: int, free: int | None, option: str) -> tuple[str, int]:
    """Returns the kind of memory, and the bytes on the device."""
    on_device = {"device": need, "hybrid": min(budget, need)}.get(kind, 0)
    if free is not None and on_device > free:
        advice = f"Lower {option}." if kind == "hybrid" else f"Choose hybrid, which {option} limits, or uva."
        raise OptionError(
            f"sampling.{what}: {kind!r} takes {on_device:,} bytes of the GPU's memory, and {free:,} are free. {advice}"
        )
    return "device" if kind == "hybrid" and budget >= need else kind, on_device


def _require(option: str, kind: str, known: tuple[str, ...]) -> None:
    if kind not in known:
        raise OptionError(f"{option}: a GPU samples from {', '.join(known)}; got {kind!r}.")


def _nbytes(partition: LocalPartition, path: str) -> int:
    entry = partition.manifest.arrays[path]
    return entry.shape[0] * row_bytes(entry.dtype, entry.shape[1:])
