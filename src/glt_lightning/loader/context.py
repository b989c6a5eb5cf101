"""What the loaders of one rank share: the mapped graph, the sampler processes, the memory of batches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
import torch

from glt_lightning.channel.slots import PinMemory
from glt_lightning.cluster.cache import NOTHING_TO_KEEP
from glt_lightning.cluster.graph import ClusterGraph
from glt_lightning.data.graph import AnyGraph, Seeds
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.data.manifest import Manifest
from glt_lightning.errors import DataError, OptionError, SamplerError
from glt_lightning.loader.collate import Batch, Collate
from glt_lightning.loader.device_rows import DeviceRows, device_rows
from glt_lightning.loader.neighbor_loader import DistNeighborLoader
from glt_lightning.loader.on_gpu import gpu_kernels, make_device_producer
from glt_lightning.loader.pinning import cuda_pin
from glt_lightning.loader.resume import graph_identity, seeds_identity
from glt_lightning.loader.spec import LoaderSpec
from glt_lightning.loader.transfer import CopiesInFlight
from glt_lightning.options import CacheOptions, SamplingOptions, as_options
from glt_lightning.producer.base import Producer
from glt_lightning.producer.inline import InlineProducer
from glt_lightning.producer.once_per_host import Exchange
from glt_lightning.producer.samplers import SamplerSource
from glt_lightning.producer.shared_tiers import shared_host_tier
from glt_lightning.producer.shared_uva import SamplerGpus
from glt_lightning.producer.subprocess import SubprocessProducer
from glt_lightning.sampler.device_source import DeviceSource
from glt_lightning.sampler.fanouts import fanout_table
from glt_lightning.sampler.khop import KHopSampler
from glt_lightning.sampler.plan import EpochPlan
from glt_lightning.sampler.request import SamplerConfig, drawn_from
from glt_lightning.store.device_index import DeviceIndex
from glt_lightning.store.host_tier import HostTier

_log = logging.getLogger(__name__)

_NO_HASH = (
    "loader %r: this partition folder is of an earlier release and has no hash of the split's ids: a checkpoint in mid-epoch "
    "resumes with this partition alone. Partition again to resume with other parts."
)

_FEW_SEEDS = (
    "loader %r: %d seeds for %d ranks: a rank without seeds gets one batch with batch_size 0, in which the mean of a loss is not "
    "a number."
)

# Is given what page-locks memory; and, as ``on_device``, which rows batches leave out, if there are any such; and, as
# ``inner``, who makes batches in this process in place of the CPU, if somebody does.
MakeProducer = Callable[..., Producer]


class LoaderContext:
    """Makes the loaders of one rank over one partition folder.

    Close it (or use it in a ``with`` block): that stops its sampler processes.

    Args:
        graph: The mapped graph, or one that servers hold.
        sampling: How batches are made; ``num_workers`` chooses inline or sampler processes.
        seed: Seed of all draws and shuffles; the same on every rank.
        rank: This process among those that train together.
        world_size: Number of those.
        pin_memory: Page-lock the memory of batches for copies to a GPU.
        gather_counts: Gives every rank the number that each rank puts in, in rank order; needed for loaders with
            ``per_rank`` seeds on more than one rank.
        cache: What is kept in memory.
        make_producer: Who makes the batches, if not this process or its own sampler processes from a mapped graph. Heeds
            the cache itself, but for what is kept on ``device``.
        exchange: Gives every rank the texts of all ranks, in rank order; without it each rank holds ``cache.memory`` for
            itself.
        device: What trains. A GPU also samples, as ``sampling.topology`` says; batches then lie in its memory. Where the CPU
            samples, a GPU keeps rows with ``cache.device``. Move batches to it with `to_device`. None: the CPU.

    Attributes:
        device_rows: What the device keeps, or None.

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
        graph: AnyGraph,
        sampling: SamplingOptions | None = None,
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        pin_memory: bool = False,
        gather_counts: Callable[[int], list[int]] | None = None,
        make_producer: MakeProducer | None = None,
        cache: CacheOptions | None = None,
        exchange: Exchange | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.graph = graph
        self.sampling = as_options(SamplingOptions, "sampling", {} if sampling is None else sampling)
        self.cache = as_options(CacheOptions, "cache", {} if cache is None else cache)
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self.pin_memory = pin_memory
        self._gather_counts = gather_counts
        self._memory: HostTier | None = None
        self.device_rows: DeviceRows | None = None
        self._device, self._in_flight = device or torch.device("cpu"), CopiesInFlight()
        self._producer: Producer | None = None
        self._gpus: SamplerGpus | None = None
        try:
            if make_producer is None and isinstance(graph, LocalPartition) and graph.memory is None:
                self._memory = shared_host_tier(graph, self.cache, exchange or _alone, f"rank {rank}")
                if self._memory is not None:
                    graph = graph.with_memory(self._memory)
            if make_producer is None and self.cache.keeps_rows and rank == 0:
                _log.info("%s", NOTHING_TO_KEEP)
            if self.sampling.feature_dtype == "stored" and rank == 0:
                _log.info("%s", _given_as_stored(graph.manifest))
            self._open_producer(graph, make_producer, exchange or _alone, self._device)
        except BaseException:
            self._close_producer()
            raise
        self._loaders: WeakSet[DistNeighborLoader] = WeakSet()  # a reloaded one may go before the context does

    def _open_producer(
        self, graph: AnyGraph, make_producer: MakeProducer | None, exchange: Exchange, device: torch.device
    ) -> None:
        sampling, cache, name = self.sampling, self.cache, f"rank {self.rank}"
        kernels = gpu_kernels(graph, sampling, device, exchange, name)
        if kernels is not None and isinstance(graph, LocalPartition) and make_producer is None:
            self._producer = make_device_producer(graph, None, kernels, sampling, cache, exchange, name)
            return
        pin = cuda_pin(device) if self.pin_memory else None
        if kernels is not None and isinstance(graph, ClusterGraph) and make_producer is not None:
            inner = partial(
                make_device_producer, kernels=kernels, sampling=sampling, cache=cache, exchange=exchange, name=name
            )
            self._producer = make_producer(pin, inner=inner)
            return
        if make_producer is None:
            assert isinstance(graph, LocalPartition), "a graph that is not mapped here needs make_producer"
            gpus = DeviceSource.of_workers(sampling, cache, graph.manifest)
            self._gpus = SamplerGpus(graph, gpus, exchange, name)
            make_producer = partial(local_producer, graph, sampling, self._gpus.source)
        if not sampling.worker_devices:  # else the budget is for those
            self.device_rows = device_rows(graph, cache, device, stored=sampling.feature_dtype == "stored")
        members = {} if self.device_rows is None else {"on_device": self.device_rows.members}
        self._producer = make_producer(pin, **members)
        if self.device_rows is not None:
            self.device_rows.fill(graph.remote if isinstance(graph, ClusterGraph) else None)

    def make_loader(self, spec: LoaderSpec) -> DistNeighborLoader:
        """A new loader. Raises `OptionError` or `DataError` for a spec that does not fit the graph."""
        producer = self._open()
        options, schema = self.sampling, self.graph.schema
        seeds = spec.find_seeds(self.graph)
        config = SamplerConfig(
            seed_type=seeds.node_type,
            fanouts=fanout_table(spec.num_neighbors, schema),
            stored=options.feature_dtype == "stored",
            **drawn_from(self.graph.manifest, options.draw).values,
        )
        plan = self._own_plan(spec, seeds) if spec.per_rank else self._shared_plan(spec, seeds)
        manifest = self.graph.manifest.as_stored if config.stored else self.graph.manifest
        collate = Collate(manifest, seeds.node_type)
        if taken := set(plan.extras) & collate.names:
            raise OptionError(
                f"loader {spec.name!r}: extras: batches have {', '.join(sorted(taken))} already. Use other names."
            )
        identity: dict[str, Any] = {"graph": graph_identity(self.graph.manifest), "world_size": self.world_size}
        if not spec.per_rank:  # the state is the same on every rank, so it cannot hold what one rank alone has
            identity |= seeds_identity(spec, self.graph.manifest, seeds.node_type, plan)
            if "seeds_crc32" in identity and not spec.exact and self.rank == 0:
                _log.info(_NO_HASH, spec.name)
            if spec.exact and 0 < len(plan.seeds) < self.world_size and self.rank == 0:
                _log.warning(_FEW_SEEDS, spec.name, len(plan.seeds), self.world_size)
        loader = DistNeighborLoader(plan, config, producer, collate, identity)
        self._loaders.add(loader)
        return loader

    def read_seeds(self, spec: LoaderSpec, name: str) -> np.ndarray:
        """A node attribute [S, ...] of all seeds of ``spec``, in their order, on every rank: wherever their rows are, batches of
        seeds alone bring them. Raises `DataError` for an attribute that their type does not have."""
        seeds = spec.find_seeds(self.graph)
        node_type = self.graph.schema.node_types[seeds.node_type]
        if name not in (known := self.graph.manifest.node_attrs(seeds.node_type)):
            raise DataError(
                f"nodes of type {node_type!r} have no attribute {name!r}; they have {', '.join(known) or 'none'}."
            )
        no_neighbours = ((0,) * len(self.graph.schema.edge_types),)
        config = SamplerConfig(seed_type=seeds.node_type, fanouts=no_neighbours, threads=self.sampling.num_threads)
        plan = EpochPlan(
            seeds=seeds.gids, batch_size=spec.batch_size, seed=self.seed, loader=f"{spec.name}/{name}", exact=True
        )
        collate = Collate(self.graph.manifest, seeds.node_type)
        loader = DistNeighborLoader(plan, config, self._open(), collate, {})
        found = []
        for batch in loader:
            whole = self.to_device(batch)
            store = whole if self.graph.schema.homogeneous else whole[node_type]
            rows = store[name][: store.batch_size]
            found.append((rows.float() if rows.dtype == torch.bfloat16 else rows).cpu().numpy().copy())
        loader.close()
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)

    def _open(self) -> Producer:
        if self._producer is None:
            raise SamplerError("this LoaderContext is closed; open a new one.")
        return self._producer

    def to_device(self, batch: Batch, device: torch.device | None = None) -> Batch:
        """The batch on ``device`` (None: the context's), whole: also with the attributes that the device keeps.

        Copies are asynchronous, on the device's current stream, and the batch is kept until they are done. That is the
        difference to ``batch.to(device, non_blocking=True)``: the memory of a batch is used again as soon as the batch is
        dropped, under a copy that still reads it.
        """
        device = device or self._device
        moved = self._in_flight.copy(batch, device) if device.type != "cpu" else batch.to(device)
        return moved if self.device_rows is None else self.device_rows.complete(moved)

    def _shared_plan(self, spec: LoaderSpec, seeds: Seeds) -> EpochPlan:
        return EpochPlan(
            seeds=seeds.gids,
            batch_size=spec.batch_size,
            seed=self.seed,
            loader=spec.name,
            rank=self.rank,
            world_size=self.world_size,
            shuffle=spec.shuffle,
            exact=spec.exact,
            extras=spec.find_extras(seeds),
            weights=spec.weights,
            owner=self._owners(seeds) if self.sampling.seed_placement == "owner" else None,
        )

    def _own_plan(self, spec: LoaderSpec, seeds: Seeds) -> EpochPlan:
        """This rank's own seeds, as many steps as the rank with the most."""
        if self.world_size > 1 and self._gather_counts is None:
            raise OptionError(f"loader {spec.name!r}: per_rank seeds on {self.world_size} ranks need gather_counts.")
        plan = EpochPlan(
            seeds=seeds.gids,
            batch_size=spec.batch_size,
            seed=self.seed,
            loader=f"{spec.name}/{self.rank}",
            shuffle=spec.shuffle,
            exact=spec.exact,
            extras=spec.find_extras(seeds),
            weights=spec.weights,
        )
        counts = [len(plan)] if self._gather_counts is None else self._gather_counts(len(plan))
        if min(counts) == 0 and not spec.exact:
            raise OptionError(
                f"loader {spec.name!r}: rank {counts.index(0)} has no seeds; every rank needs some to train."
            )
        return plan if spec.exact else replace(plan, steps=max(counts))

    def _owners(self, seeds: Seeds) -> np.ndarray:
        """int64 [S]: the rank whose part holds each seed; part p belongs to rank p mod world_size."""
        manifest = self.graph.manifest
        rows = seeds.gids - manifest.offsets[seeds.node_type]
        return (np.searchsorted(manifest.bounds[seeds.node_type], rows, side="right") - 1) % self.world_size

    def close(self) -> None:
        """Closes its loaders and stops its sampler processes. Safe to call twice."""
        for loader in self._loaders:
            loader.close()
        self._loaders.clear()
        self._in_flight.clear()  # page-locked memory waits for the device before it goes (pinning.py)
        self._close_producer()

    def _close_producer(self) -> None:
        producer, self._producer = self._producer, None
        with ExitStack() as then:  # in reverse, and each whatever becomes of the others
            for each in (self._memory, self._gpus, self.device_rows, producer):
                if each is not None:
                    then.callback(each.close)

    def __enter__(self) -> LoaderContext:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _given_as_stored(manifest: Manifest) -> str:
    """What ``feature_dtype: stored`` comes to, in one line."""
    dtypes: dict[str, set[str]] = {}
    for key, entry in manifest.encodings.items():
        still = key in manifest.as_stored.encodings and entry.stored != "bfloat16"
        dtypes.setdefault("float32, decoded from int8" if still else entry.stored, set()).add(key)
    if not dtypes.keys() - {"float32, decoded from int8"}:
        why = "no attribute is stored as float16 or bfloat16. Partition with partition.storage"
        return f"sampling.feature_dtype: stored has no effect: {why}."
    what = "; ".join(f"{', '.join(sorted(keys))} as {dtype}" for dtype, keys in sorted(dtypes.items()))
    return f"sampling.feature_dtype: stored: batches have {what}."


def _alone(text: str) -> list[str]:
    return [text]


def local_producer(
    partition: LocalPartition,
    options: SamplingOptions,
    gpus: DeviceSource | None,
    pin: PinMemory | None,
    on_device: DeviceIndex | None = None,
) -> Producer:
    """Makes batches in this process or in sampler processes, as the options say, from a graph whose parts are all mapped."""
    if options.num_workers == 0:
        return InlineProducer(partition, pin, partial(KHopSampler, partition, on_device=on_device))
    members = None if on_device is None else on_device.path
    return SubprocessProducer(SamplerSource.of(partition, on_device=members, gpus=gpus), options, pin)
