"""What the loaders of one rank share: the graph, who makes its batches, the memory of batches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, TypedDict, TypeVar, Unpack
from weakref import WeakSet

import numpy as np
import torch

from glt_lightning.base import CacheOptions, DataError, OptionError, SamplerError, SamplingOptions, as_options
from glt_lightning.graph import LocalPartition
from glt_lightning.loader.collate import Batch, Collate
from glt_lightning.loader.link_loader import DistLinkNeighborLoader, make_link_loader
from glt_lightning.loader.link_spec import LinkSpec
from glt_lightning.loader.mapped import MappedGraph
from glt_lightning.loader.neighbor_loader import DistNeighborLoader
from glt_lightning.loader.pinning import cuda_pin
from glt_lightning.loader.plans import attribute_reading, batch_manifest, make_plan, plan_identity, sampler_config
from glt_lightning.loader.spec import LoaderSpec
from glt_lightning.loader.stored import ignored, log_stored_dtypes
from glt_lightning.loader.subgraph_loader import DistSubGraphLoader, SubgraphCollate, check_subgraphs
from glt_lightning.loader.transfer import CopiesInFlight
from glt_lightning.workers import (
    Exchange,
    GatherCounts,
    OpenedProducer,
    PinMemory,
    ProducedElsewhere,
    Producer,
    ProducerSetup,
    Ranks,
    SampledGraph,
    alone,
)

_log = logging.getLogger(__name__)

_Loader = TypeVar("_Loader", bound=DistNeighborLoader)


class RankFields(TypedDict, total=False):
    """The fields of `Ranks` one by one, as scripts may give them."""

    rank: int
    world_size: int
    exchange: Exchange | None
    gather_counts: GatherCounts | None


class MakesLoader(Protocol):
    """What makes a loader of a plan of its own."""

    def make(
        self, manifest: Any, sampling: SamplingOptions, seed: int, rank: int, producer: Producer
    ) -> DistNeighborLoader: ...


class LoaderContext:
    """Makes the loaders of one rank over one graph.

    Close it (or use it in a ``with`` block): that stops its sampler processes.

    Args:
        graph: A partition of which all parts are mapped here, or a graph that knows who makes its batches.
        sampling: How batches are made; ``num_workers`` chooses inline or sampler processes.
        seed: Seed of all draws and shuffles; the same on every rank.
        ranks: This process among those that train together; None: as ``rank_fields`` say.
        pin_memory: Page-lock the memory of batches for copies to a GPU.
        make_producer: Makes the batches of ``graph`` in place of whom the graph knows; it is called with what page-locks
            memory, or None.
        cache: Budgets of the caches.
        device: What trains. A GPU also samples, as ``sampling.topology`` says; batches then lie in its memory. Where the CPU
            samples, a GPU keeps rows with ``cache.device``. Move batches to it with `to_device`. None: the CPU.
        **rank_fields: Fields of ``ranks``, where that is not given: ``rank``, ``world_size``; ``exchange``, which gives every
            rank the texts of all ranks, and without which each rank holds ``cache.memory`` for itself; ``gather_counts``,
            which gives every rank the number of each rank, and is needed for ``per_rank`` seeds on more than one rank.

    Attributes:
        device_rows: What the device keeps, or None.

    Raises:
        OptionError: The options do not fit the graph, the memory or the device.

    Example:
        >>> spec = LoaderSpec(name="train", split="train", num_neighbors=[2, 2], batch_size=4)
        >>> with LoaderContext(LocalPartition.open("parts"), SamplingOptions(with_edge=True)) as context:
        ...     for batch in context.make_loader(spec):
        ...         print(batch.batch_size, batch.n_id[:batch.batch_size], len(batch.e_id) == batch.num_edges)
        4 tensor([0, 1, 2, 3]) True
        2 tensor([4, 5]) True
    """

    def __init__(
        self,
        graph: LocalPartition | SampledGraph,
        sampling: SamplingOptions | None = None,
        *,
        seed: int = 0,
        ranks: Ranks | None = None,
        pin_memory: bool = False,
        make_producer: Callable[[PinMemory | None], Producer] | None = None,
        cache: CacheOptions | None = None,
        device: torch.device | None = None,
        **rank_fields: Unpack[RankFields],
    ) -> None:
        if ranks is not None and rank_fields:
            raise OptionError(f"LoaderContext: give either ranks or {', '.join(rank_fields)}, not both.")
        if unknown := rank_fields.keys() - RankFields.__annotations__.keys():
            raise TypeError(f"LoaderContext() got an unexpected keyword argument {min(unknown)!r}")
        self.seed, self._ranks = seed, ranks or _ranks_of(rank_fields)
        self.sampling = as_options(SamplingOptions, "sampling", {} if sampling is None else sampling)
        self.cache = as_options(CacheOptions, "cache", {} if cache is None else cache)
        self.graph = graph
        self._device, self._in_flight = device or torch.device("cpu"), CopiesInFlight()
        self._loaders: WeakSet[DistNeighborLoader] = WeakSet()  # a reloaded one may go before the context does
        sampled = MappedGraph(graph) if isinstance(graph, LocalPartition) else graph
        if make_producer is not None:
            sampled = ProducedElsewhere(graph, make_producer)
        if self.sampling.feature_dtype == "stored" and self._ranks.rank == 0:
            log_stored_dtypes(graph.manifest)
        setup = ProducerSetup(
            ranks=self._ranks,
            sampling=self.sampling,
            cache=self.cache,
            pin=cuda_pin(self._device) if pin_memory else None,
            device=str(self._device),
        )
        self._opened: OpenedProducer | None = sampled.open_producer(setup)
        self._producer, self.device_rows = self._opened.producer, self._opened.device_rows
        self._noted: set[str] = set()  # lines that were logged

    @property
    def rank(self) -> int:
        """This process among those that train together."""
        return self._ranks.rank

    @property
    def world_size(self) -> int:
        """Number of processes that train together."""
        return self._ranks.world_size

    @property
    def producer(self) -> Producer:
        """Who makes the batches."""
        self._check_open()
        return self._producer

    def make_loader(self, spec: LoaderSpec) -> DistNeighborLoader:
        """A new loader. Raises `OptionError` or `DataError` for a spec that does not fit the graph."""
        return self.make_subgraph_loader(spec) if spec.ptr else self._make_loader(spec, Collate, DistNeighborLoader)

    def _make_loader(self, spec: LoaderSpec, make_collate: type[Collate], make: type[_Loader]) -> _Loader:
        self._check_open()
        manifest, sampling, ranks = self.graph.manifest, self.sampling, self._ranks
        seeds = spec.typed_seeds(self.graph)
        config = sampler_config(spec, seeds, manifest, sampling)
        plan = make_plan(spec, seeds, manifest, sampling, self.seed, ranks, self.read_seeds)
        collate = make_collate(batch_manifest(manifest, config), seeds.types)
        self._require_possible(spec, collate)
        identity = plan_identity(spec.by_type, plan, seeds, manifest, ranks)
        loader = make(plan, config, self._producer, collate, identity, spec.transform)
        self._add(loader)
        return loader

    def make_subgraph_loader(self, spec: LoaderSpec) -> DistSubGraphLoader:
        """A new loader of subgraphs, for graphs with one node type and one edge type. Raises as `make_loader`."""
        check_subgraphs(spec, self.graph.manifest)
        return self._make_loader(replace(spec, subgraph_type="induced"), SubgraphCollate, DistSubGraphLoader)

    def make_row_loader(self, spec: MakesLoader) -> DistNeighborLoader:
        """A new loader over ranges of rows that are this rank's own: of a `RowSpec`."""
        self._check_open()
        loader = spec.make(self.graph.manifest, self.sampling, self.seed, self._ranks.rank, self._producer)
        self._loaders.add(loader)
        return loader

    def make_link_loader(self, spec: LinkSpec) -> DistLinkNeighborLoader:
        """A new loader of edges. Raises `OptionError` or `DataError` for a spec that does not fit the graph, `PartitionError` for
        negatives of a partition folder of an earlier release."""
        self._check_open()
        loader, collate = make_link_loader(spec, self.graph, self.sampling, self.seed, self._ranks, self._producer)
        self._require_possible(spec, collate)
        self._add(loader)
        return loader

    def _add(self, loader: DistNeighborLoader) -> None:
        self._loaders.add(loader)
        for line in ignored(self.graph.manifest, self.sampling, loader.config) if self.rank == 0 else ():
            if line not in self._noted:
                self._noted.add(line)
                _log.info("%s", line)

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
            raise SamplerError("this LoaderContext is closed; open a new one.")

    def to_device(self, batch: Batch, device: torch.device | None = None) -> Batch:
        """The batch on ``device`` (None: the context's), whole: also with the attributes that the device keeps.

        Copies are asynchronous, on the device's current stream, and the batch is referenced until they are done. That is the
        difference to ``batch.to(device, non_blocking=True)``: the memory of a batch is used again as soon as the batch is
        dropped, under a copy that still reads it.
        """
        device = device or self._device
        moved = self._in_flight.copy(batch, device) if device.type != "cpu" else batch.to(device)
        return moved if self.device_rows is None else self.device_rows.complete(moved)

    def close(self) -> None:
        """Closes its loaders and stops its sampler processes. Safe to call twice."""
        for loader in self._loaders:
            loader.close("so is its LoaderContext. Open a new context, and make a loader of it.")
        self._loaders.clear()
        self._in_flight.clear()  # page-locked memory waits for the device before it goes (pinning.py)
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def __enter__(self) -> LoaderContext:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ranks_of(given: RankFields) -> Ranks:
    exchange = given.get("exchange") or alone
    return Ranks(given.get("rank", 0), given.get("world_size", 1), exchange, given.get("gather_counts"))
