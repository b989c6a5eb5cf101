"""`GraphHost`: where the graph is and who samples it; and `Standalone`, for Lightning's own strategies and without a Trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
import torch
from lightning.pytorch import Trainer

from glt_lightning.base import CacheOptions, ClusterOptions, OptionError, SamplingOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.lightning.strategies.collectives import gather_text_of
from glt_lightning.lightning.strategies.contexts import AnySpec, ContextOwner
from glt_lightning.lightning.strategies.torch_threads import share_cores
from glt_lightning.loader import Batch, DistNeighborLoader, LoaderSpec
from glt_lightning.tensors import DistGraph, Reach
from glt_lightning.workers import Ranks, SampledGraph, with_channel_bytes

_SAMPLING, _CACHE = SamplingOptions(), CacheOptions()


class GraphHost(ABC):
    """Where the graph is and who samples it: a strategy of ours, or `Standalone`."""

    _contexts: ContextOwner

    @property
    @abstractmethod
    def options(self) -> ClusterOptions:
        """Where the processes of the job run."""

    @abstractmethod
    def open_graph(
        self, folder: str | Path | None, sampling: SamplingOptions = _SAMPLING, cache: CacheOptions = _CACHE
    ) -> LocalPartition | SampledGraph:
        """The graph as this rank sees it, and who makes batches of it. A collective call.

        folder: of its partition; None where servers have it.  sampling, cache: for what starts before `open_context`, such
        as a server of this run.
        """

    @abstractmethod
    def _of_partition(self, partition: LocalPartition) -> LocalPartition | SampledGraph:
        """A partition that this process has mapped itself, as `open_graph` would give it."""

    @abstractmethod
    def _place(self) -> tuple[Ranks, int, torch.device]:
        """This rank, the number of ranks on its host, and the device that trains."""

    @abstractmethod
    def _gather_text(self, text: str) -> list[str]:
        """The texts of all ranks. A collective call."""

    def _reach(self) -> Reach | None:
        """How ranks of other hosts are reached for tensors; None: they are not. The first call is a collective one."""
        return None

    def _samplers(self, sampling: SamplingOptions, ranks: int) -> int:
        """Number of sampler processes on this host."""
        return sampling.num_workers * ranks

    @property
    def has_context(self) -> bool:
        return self._contexts.is_open

    def open_context(
        self,
        graph: LocalPartition | SampledGraph,
        sampling: SamplingOptions,
        seed: int,
        cache: CacheOptions = _CACHE,
    ) -> None:
        """Starts sampling from ``graph`` on this rank; ``seed`` must be the same on all ranks. A collective call.

        cache: which remote rows this host caches.
        """
        sampled = self._of_partition(graph) if isinstance(graph, LocalPartition) else graph
        ranks, on_host, device = self._place()
        sampling = with_channel_bytes(sampling, on_host)
        self._contexts.open(
            sampled,
            sampling,
            seed=seed,
            ranks=ranks,
            device=device,
            cache=cache,
            cluster=self.options,
            reach=self._reach(),
        )
        if device.type == "cpu":
            self._contexts.until_closed(share_cores(on_host, self._samplers(sampling, on_host)))

    @property
    def graph(self) -> DistGraph:
        """The graph of the job by row, with tensors of one's own. It is open from the first loader on; `GLTDataModule.dist_graph`
        opens it earlier."""
        return self._contexts.graph

    def make_loader(self, spec: AnySpec) -> DistNeighborLoader:
        """A loader of this rank's batches, of nodes, edges or ranges of rows; `open_context` comes first."""
        return self._contexts.make_loader(spec)

    def read_seeds(self, spec: LoaderSpec, name: str) -> np.ndarray:
        """A node attribute of all seeds of a loader, on every rank; `open_context` comes first."""
        return self._contexts.read_seeds(spec, name)

    def complete(self, batch: Batch) -> Batch:
        """Gives a batch that was moved to the training device the rows that are cached there."""
        return self._contexts.complete(batch)

    def share_seed(self, seed: int) -> int:
        """Rank 0's seed. A collective call."""
        return int(self._gather_text(str(seed))[0])


class Standalone(GraphHost):
    """A `GraphHost` of which each rank maps the whole graph and samples for itself."""

    def __init__(self, cluster: ClusterOptions | None = None) -> None:
        self._contexts, self._cluster = ContextOwner(), cluster or ClusterOptions()
        self._trainer: Trainer | None = None
        self._opened: list[LocalPartition] = []

    @property
    def options(self) -> ClusterOptions:
        return self._cluster

    def under(self, trainer: Trainer | None) -> GraphHost:
        """The trainer's strategy if it is ours, else this object, with that trainer's ranks."""
        if trainer is not None and isinstance(trainer.strategy, GraphHost):
            return trainer.strategy
        self._trainer = trainer
        return self

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

    def _of_partition(self, partition: LocalPartition) -> LocalPartition:
        return partition

    def _place(self) -> tuple[Ranks, int, torch.device]:
        trainer = self._trainer
        if trainer is None:
            return Ranks(), 1, torch.device("cpu")
        ranks = Ranks(trainer.global_rank, trainer.world_size, self._gather_text)
        return ranks, getattr(trainer.strategy, "num_processes", 1), trainer.strategy.root_device

    def _gather_text(self, text: str) -> list[str]:
        return [text] if self._trainer is None else gather_text_of(self._trainer, text)

    def close(self) -> None:
        """Closes the loaders and the graphs. Safe to call twice."""
        self._contexts.close()
        while self._opened:
            self._opened.pop().close()
