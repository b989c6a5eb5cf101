"""`Session`: owns what a graph opened on one rank, and makes its loaders."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, overload
from weakref import WeakSet

import numpy as np
import torch

from glt_lightning.base import CacheOptions, DataError, OptionError, SamplerError, SamplingOptions, as_options
from glt_lightning.graph import LocalPartition
from glt_lightning.loader.asked import AskedSample, ask
from glt_lightning.loader.collate import Batch, Collate
from glt_lightning.loader.device_rows import device_rows
from glt_lightning.loader.link_loader import DistLinkNeighborLoader, make_link_loader
from glt_lightning.loader.link_spec import LinkSpec
from glt_lightning.loader.neighbor_loader import DistNeighborLoader
from glt_lightning.loader.pinning import CopiesInFlight, cuda_pin
from glt_lightning.loader.plans import (
    attribute_reading,
    batch_manifest,
    log_stored_dtypes,
    plan_identity,
    plan_nodes,
)
from glt_lightning.loader.row_loader import RowSpec
from glt_lightning.loader.spec import LoaderSpec
from glt_lightning.loader.subgraph_loader import DistSubGraphLoader, SubgraphCollate, check_subgraphs
from glt_lightning.loader.typed_plan import TypedSeeds
from glt_lightning.sampling import EpochPlan, SamplerConfig
from glt_lightning.workers import MappedGraph, Producer, ProducerSetup, Ranks, SampledGraph

_log = logging.getLogger(__name__)

_Loader = TypeVar("_Loader", bound=DistNeighborLoader)


class Session:
    """Owns what a graph opened on this rank, its producer and the memory of batches, and makes loaders from specs.

    Close it (or use it in a ``with`` block): that closes its loaders and stops its sampler processes. Strategies hold one;
    scripts use it ``with``.

    Args:
        graph: A partition folder, which is then closed with the session; a partition of which all parts are mapped here; or a
            graph that opens its producer itself (docs/decisions/014).
        sampling: How batches are made; ``num_workers`` chooses inline or sampler processes.
        seed: Seed of all draws and shuffles; the same on every rank.
        ranks: This process among those that train together. Without ``Ranks.exchange`` each rank holds ``cache.memory`` for
            itself; ``Ranks.gather_counts`` is needed for ``per_rank`` seeds on more than one rank.
        cache: Budgets of the caches.
        device: What trains. A GPU also samples, as ``sampling.topology`` says; batches then lie in its memory. Where the CPU
            samples, a GPU keeps rows with ``cache.device``. Move batches to it with `to_device`. None: the CPU.

    Attributes:
        device_rows: What the device keeps, or None.
        in_flight: Copies of batches to a GPU that still run.

    Raises:
        OptionError: The options do not fit the graph, the memory or the device.

    Example:
        >>> spec = LoaderSpec(name="train", split="train", num_neighbors=[2, 2], batch_size=4)
        >>> with Session("parts", SamplingOptions(with_edge=True)) as session:
        ...     for batch in session.make_loader(spec):
        ...         print(batch.batch_size, batch.n_id[:batch.batch_size], len(batch.e_id) == batch.num_edges)
        4 tensor([0, 1, 2, 3]) True
        2 tensor([4, 5]) True
    """

    def __init__(
        self,
        graph: str | Path | LocalPartition | SampledGraph,
        sampling: SamplingOptions | None = None,
        *,
        seed: int = 0,
        ranks: Ranks | None = None,
        cache: CacheOptions | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.seed, self.ranks = seed, ranks or Ranks()
        self.sampling = as_options(SamplingOptions, "sampling", {} if sampling is None else sampling)
        self.cache = as_options(CacheOptions, "cache", {} if cache is None else cache)
        self._device, self.in_flight = device or torch.device("cpu"), CopiesInFlight()
        self._loaders: WeakSet[DistNeighborLoader] = WeakSet()  # a reloaded one may go before the session does
        self._noted: set[str] = set()  # lines that were logged
        self._opened: ExitStack | None = None
        with ExitStack() as opened:
            if isinstance(graph, str | Path):
                graph = LocalPartition.open(graph)
                opened.callback(graph.close)
            self.graph = graph
            if self.sampling.feature_dtype == "stored" and self.ranks.rank == 0:
                log_stored_dtypes(graph.manifest)
            setup = ProducerSetup(
                ranks=self.ranks,
                sampling=self.sampling,
                cache=self.cache,
                pin=cuda_pin(self._device) if wants_pinned(self.sampling, self._device) else None,
                device=str(self._device),
                keep_rows=device_rows,
            )
            sampled = MappedGraph(graph) if isinstance(graph, LocalPartition) else graph
            found: tuple[Producer, Any] = sampled.open_producer(setup, opened)
            self._producer, self.device_rows = found
            self._opened = opened.pop_all()

    @property
    def producer(self) -> Producer:
        """Who makes the batches."""
        self._check_open()
        return self._producer

    @overload
    def make_loader(self, spec: LinkSpec) -> DistLinkNeighborLoader: ...

    @overload
    def make_loader(self, spec: LoaderSpec | RowSpec) -> DistNeighborLoader: ...

    def make_loader(self, spec: LoaderSpec | LinkSpec | RowSpec) -> DistNeighborLoader:
        """A new loader of nodes, of edges, or of ranges of rows that are this rank's own. Raises `OptionError` or `DataError` for
        a spec that does not fit the graph, `PartitionError` for negatives of a partition folder of an earlier release."""
        self._check_open()
        if isinstance(spec, RowSpec):
            rows = spec.make(self.graph.manifest, self.sampling, self.seed, self.ranks.rank, self._producer)
            self._loaders.add(rows)
            return rows
        if isinstance(spec, LinkSpec):
            loader, collate = make_link_loader(spec, self.graph, self.sampling, self.seed, self.ranks, self._producer)
            return self._added(spec, loader, collate)
        return self.make_subgraph_loader(spec) if spec.ptr else self._of_nodes(spec, Collate, DistNeighborLoader)

    def ask(self, spec: LoaderSpec | LinkSpec, key: int, most_bytes: int | None = None) -> AskedSample:
        """Samples all seeds of ``spec``, as many as its ``batch_size`` at most, as one batch under a key of 64 bits.

        most_bytes: of the sample; None: no limit. Raises as `make_loader`, and `DataError` for a sample that is larger."""
        if isinstance(spec, LinkSpec):
            loader = self.make_loader(spec)
            parts = loader.plan, loader.config, loader.collate
        else:
            parts = self._parts(spec, Collate)[:3]
        return ask(*parts, self.producer, key, most_bytes)

    def make_subgraph_loader(self, spec: LoaderSpec) -> DistSubGraphLoader:
        """A new loader of subgraphs, for graphs with one node type and one edge type. Raises as `make_loader`."""
        self._check_open()
        check_subgraphs(spec, self.graph.manifest)
        return self._of_nodes(replace(spec, subgraph_type="induced"), SubgraphCollate, DistSubGraphLoader)

    def _of_nodes(self, spec: LoaderSpec, make_collate: type[Collate], make: type[_Loader]) -> _Loader:
        plan, config, collate, seeds = self._parts(spec, make_collate)
        identity = plan_identity(spec.by_type, plan, seeds, self.graph.manifest, self.ranks)
        return self._added(spec, make(plan, config, self._producer, collate, identity, spec.transform), collate)

    def _parts(
        self, spec: LoaderSpec, make_collate: type[Collate]
    ) -> tuple[EpochPlan, SamplerConfig, Collate, TypedSeeds]:
        plan, config, seeds = plan_nodes(spec, self.graph, self.sampling, self.seed, self.ranks, self.read_seeds)
        return plan, config, make_collate(batch_manifest(self.graph.manifest, config), seeds.types), seeds

    def _added(self, spec: LoaderSpec | LinkSpec, loader: _Loader, collate: Collate) -> _Loader:
        self._require_possible(spec, collate)
        self._loaders.add(loader)
        for line in loader.config.ignored(self.graph.manifest, self.sampling) if self.ranks.rank == 0 else ():
            if line not in self._noted:
                self._noted.add(line)
                _log.info("%s", line)
        return loader

    def read_seeds(self, spec: LoaderSpec, name: str) -> np.ndarray:
        """A node attribute [S, ...] of all seeds of ``spec``, in their order, on every rank: wherever their rows are, batches of
        seeds alone bring them. Raises `DataError` for an attribute that their type does not have."""
        self._check_open()
        if len(spec.by_type) > 1:
            return np.concatenate([self.read_seeds(each, name) for each in spec.by_type])
        manifest, schema, seeds = self.graph.manifest, self.graph.schema, spec.typed_seeds(self.graph)
        node_type = schema.node_types[seeds.node_type]
        if name not in (known := manifest.node_attrs(seeds.node_type)):
            raise DataError(
                f"nodes of type {node_type!r} have no attribute {name!r}; they have {', '.join(known) or 'none'}."
            )
        config, plan = attribute_reading(spec, seeds, name, manifest, self.sampling, self.seed)
        collate = Collate(manifest, seeds.types)
        loader = DistNeighborLoader(plan, config, self._producer, collate, {})
        found = []
        for batch in loader:
            whole = self.to_device(batch)
            store = whole if schema.homogeneous else whole[node_type]
            rows = store[name][: store.batch_size]
            found.append((rows.float() if rows.dtype == torch.bfloat16 else rows).cpu().numpy().copy())
        loader.close()
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)

    def _require_possible(self, spec: LoaderSpec | LinkSpec, collate: Collate) -> None:
        if taken := {name for each in spec.by_type for name in each.extras} & collate.names:
            raise OptionError(
                f"loader {spec.name!r}: extras: batches have {', '.join(sorted(taken))} already. Use other names."
            )
        if spec.transform is not None and self.device_rows is not None:
            raise OptionError(
                f"loader {spec.name!r}: transform: with cache.device batches get their rows on {self._device}, after the "
                "transform would have run. Remove cache.device, or change batches in on_after_batch_transfer of the module."
            )

    def _check_open(self) -> None:
        if self._opened is None:
            raise SamplerError("the Session is closed; open a new one.")

    def to_device(self, batch: Batch, device: torch.device | None = None) -> Batch:
        """The batch on ``device`` (None: the session's), whole: also with the attributes that the device keeps.

        Copies to a GPU are asynchronous, on its current stream, and the batch is referenced until they are done. That is the
        difference to ``batch.to(device, non_blocking=True)``: the memory of a batch is used again as soon as the batch is
        dropped, under a copy that still reads it.
        """
        device = device or self._device
        return self.complete(batch.to(device) if device.type == "cpu" else self.in_flight.copy(batch, device))

    def complete(self, batch: Batch) -> Batch:
        """Gives a batch that was moved to the device the rows that are kept there."""
        return batch if self.device_rows is None else self.device_rows.complete(batch)

    def close(self) -> None:
        """Closes its loaders and stops its sampler processes. Safe to call twice."""
        for loader in self._loaders:
            loader.close("so is its Session. Open a new session, and make a loader of it.")
        self._loaders.clear()
        self.in_flight.clear()  # page-locked memory waits for the device before it goes (`pinning`)
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def wants_pinned(sampling: SamplingOptions, device: torch.device) -> bool:
    """Whether the memory of batches is page-locked: as the user says, else when they go to a GPU."""
    if sampling.pin_memory and not torch.cuda.is_available():
        raise OptionError("sampling.pin_memory: true needs a CUDA device, and this host has none. Remove the option.")
    return device.type == "cuda" if sampling.pin_memory is None else sampling.pin_memory
