"""Sampling inside each rank, from a graph that it maps whole: under Lightning's own strategies, or without a Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from lightning.pytorch import Trainer

from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.errors import OptionError
from glt_lightning.lightning.strategies.base import GLTStrategy
from glt_lightning.lightning.strategies.collectives import gather_text_of
from glt_lightning.lightning.strategies.contexts import ContextOwner
from glt_lightning.loader import DistNeighborLoader, LoaderSpec
from glt_lightning.loader.collate import Batch
from glt_lightning.options import CacheOptions, SamplingOptions
from glt_lightning.producer.base import SampledGraph
from glt_lightning.producer.in_flight import with_channel_bytes
from glt_lightning.producer.ranks import Ranks

_SAMPLING, _CACHE = SamplingOptions(), CacheOptions()


class GraphHost(Protocol):
    """Where the graph is and who samples it: a strategy of ours, or `Standalone`."""

    @property
    def has_context(self) -> bool: ...

    def open_graph(
        self, folder: str | Path | None, sampling: SamplingOptions = ..., cache: CacheOptions = ...
    ) -> LocalPartition | SampledGraph: ...

    def open_context(
        self,
        graph: LocalPartition | SampledGraph,
        sampling: SamplingOptions,
        seed: int,
        cache: CacheOptions = ...,
    ) -> None: ...

    def make_loader(self, spec: LoaderSpec) -> DistNeighborLoader: ...

    def read_seeds(self, spec: LoaderSpec, name: str) -> np.ndarray: ...

    def complete(self, batch: Batch) -> Batch: ...

    def share_seed(self, seed: int) -> int: ...


class Standalone:
    """A `GraphHost` that asks nobody."""

    def __init__(self) -> None:
        self._contexts = ContextOwner()
        self._trainer: Trainer | None = None
        self._opened: list[LocalPartition] = []

    def under(self, trainer: Trainer | None) -> GraphHost:
        """The trainer's strategy if it is ours, else this object, with that trainer's ranks."""
        if trainer is not None and isinstance(trainer.strategy, GLTStrategy):
            return trainer.strategy
        self._trainer = trainer
        return self

    @property
    def has_context(self) -> bool:
        return self._contexts.is_open

    def open_graph(
        self, folder: str | Path | None, sampling: SamplingOptions = _SAMPLING, cache: CacheOptions = _CACHE
    ) -> LocalPartition:
        if folder is None:
            raise OptionError(
                "cluster.servers: only strategy glt_server_client samples from graph servers. Choose it, or give "
                "data.dataset or data.partition.dir without cluster."
            )
        self._opened.append(LocalPartition.open(folder))
        return self._opened[-1]

    def open_context(
        self,
        graph: LocalPartition | SampledGraph,
        sampling: SamplingOptions,
        seed: int,
        cache: CacheOptions = _CACHE,
    ) -> None:
        trainer = self._trainer
        on_host = 1 if trainer is None else getattr(trainer.strategy, "num_processes", 1)
        self._contexts.open(
            graph,
            with_channel_bytes(sampling, on_host),
            seed=seed,
            ranks=Ranks(
                rank=0 if trainer is None else trainer.global_rank,
                world_size=1 if trainer is None else trainer.world_size,
                exchange=self._gather_text,
            ),
            device=torch.device("cpu") if trainer is None else trainer.strategy.root_device,
            cache=cache,
        )

    def _gather_text(self, text: str) -> list[str]:
        return [text] if self._trainer is None else gather_text_of(self._trainer, text)

    def make_loader(self, spec: LoaderSpec) -> DistNeighborLoader:
        return self._contexts.make_loader(spec)

    def read_seeds(self, spec: LoaderSpec, name: str) -> np.ndarray:
        return self._contexts.read_seeds(spec, name)

    def complete(self, batch: Batch) -> Batch:
        """Gives a batch that was moved to the training device the rows that are cached there."""
        return self._contexts.complete(batch)

    def share_seed(self, seed: int) -> int:
        return int(self._gather_text(str(seed))[0])

    def close(self) -> None:
        """Closes the loaders and the graphs. Safe to call twice."""
        self._contexts.close()
        while self._opened:
            self._opened.pop().close()
