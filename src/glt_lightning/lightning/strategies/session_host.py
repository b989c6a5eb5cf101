"""`SessionHost`: holds the session of a job; `Standalone`: does so under Lightning's own strategies and without a Trainer."""

from __future__ import annotations

import logging
import weakref
from abc import ABC, abstractmethod
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch.distributed
from lightning.pytorch import Trainer

from glt_lightning.base import CacheOptions, ClusterOptions, OptionError, SamplerError, SamplingOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.kernels import keep_freed_memory
from glt_lightning.lightning.strategies.peers import RankError
from glt_lightning.lightning.strategies.ranks import gather_text_of, share_cores
from glt_lightning.lightning.strategies.watched_ddp import as_of_rank
from glt_lightning.loader import Session
from glt_lightning.partition import open_version
from glt_lightning.tensors import DistGraph, GraphReader, Reach
from glt_lightning.workers import Ranks, SampledGraph, with_channel_bytes

_log = logging.getLogger(__name__)
_SAMPLING, _CACHE = SamplingOptions(), CacheOptions()


class SessionHost(ABC):
    """Opens the graph of a job, and holds the session of this process: a strategy of ours, or `Standalone`. Pickles until a
    session is open.

    Attributes:
        session: Makes the loaders of this rank; None before `open_session`, and after `close_session`.
    """

    session: Session | None = None
    _dist_graph: DistGraph | None = None
    _closer: weakref.finalize[[], Any] | None = None

    @property
    @abstractmethod
    def options(self) -> ClusterOptions:
        """Where the processes of the job run."""

    @abstractmethod
    def open_graph(
        self,
        folder: str | Path | None,
        sampling: SamplingOptions = _SAMPLING,
        cache: CacheOptions = _CACHE,
        version: int | str | None = None,
    ) -> LocalPartition | SampledGraph:
        """The graph as this rank sees it, and who makes batches of it. A collective call.

        folder: of its partition; None where servers have it.  sampling, cache: for what starts before `open_session`, such
        as a server of this run.  version: of the partition, as ``partition.version``; servers have theirs.
        """

    @abstractmethod
    def _place(self) -> tuple[Ranks, int, torch.device]:
        """This rank, the number of ranks on its host, and the device that trains."""

    def _of_partition(self, partition: LocalPartition) -> LocalPartition | SampledGraph:
        """A partition that this process has mapped itself, as `open_graph` would give it."""
        return partition

    def _reach(self) -> Reach | None:
        """How ranks of other hosts are reached for tensors; None: they are not. The first call is a collective one."""
        return None

    def postpone(self, error: Exception) -> bool:
        """Whether an error of ``prepare_data`` waits for `require_prepared`, where all ranks learn of it."""
        return False

    def require_prepared(self) -> None:  # noqa: B027 - a strategy of ours postpones nothing
        """Raises on all ranks what was postponed on one. A collective call."""

    def _samplers(self, sampling: SamplingOptions, ranks: int) -> int:
        """Number of sampler processes on this host."""
        return sampling.num_workers * ranks

    def open_session(
        self,
        graph: LocalPartition | SampledGraph,
        sampling: SamplingOptions,
        seed: int,
        cache: CacheOptions = _CACHE,
    ) -> Session:
        """Starts sampling from ``graph`` on this rank; ``seed`` must be the same on all ranks. A collective call.

        A session that is open is closed before. Where it was over the same graph, tensors stay.  cache: which remote rows this
        host caches.
        """
        sampled = self._of_partition(graph) if isinstance(graph, LocalPartition) else graph
        ranks, on_host, device = self._place()
        sampling = with_channel_bytes(sampling, on_host)
        kept = self._dist_graph
        with nullcontext() if kept is None else kept.kept_open():
            self.close_session()
        with ExitStack() as opened:
            if kept is not None:
                opened.callback(kept.close)
            session = Session(sampled, sampling, seed=seed, ranks=ranks, cache=cache, device=device)
            if sampling.keep_memory and device.type == "cpu":
                _keep_memory(opened)
            opened.callback(session.close)
            dist_graph = self._open_tensors(kept, GraphReader.of(sampled), ranks, seed)
            opened.callback(dist_graph.close)
            if device.type == "cpu":
                opened.callback(share_cores(on_host, self._samplers(sampling, on_host)))
            self._closer = weakref.finalize(self, opened.pop_all().close)  # also when this is forgotten, and at exit
        self.session, self._dist_graph = session, dist_graph
        return session

    def _open_tensors(self, kept: DistGraph | None, reader: GraphReader, ranks: Ranks, seed: int) -> DistGraph:
        """The graph by row: the one that was open before, if it is the same graph."""
        if kept is not None:
            if kept.hash == reader.manifest.options_hash:
                kept.renew(reader, seed)
                return kept
            kept.close()
        options, wait_s = self.options.tensors, self.options.deadlines.call_s
        return DistGraph(reader, ranks=ranks, options=options, seed=seed, wait_s=wait_s, reach=self._reach())

    @property
    def graph(self) -> DistGraph:
        """The graph of the job by row, with tensors of one's own. It is open from the first loader on; `GLTDataModule.dist_graph`
        opens it earlier."""
        if self._dist_graph is None:
            raise SamplerError("graph: no graph is open here; ask the data module for dist_graph, in setup() or later.")
        return self._dist_graph

    def share_seed(self, seed: int) -> int:
        """Rank 0's seed. A collective call."""
        return int(self._place()[0].exchange(str(seed))[0])

    def close_session(self) -> None:
        """Closes the loaders, stops the sampler processes, and lets go of tensors. Safe to call twice."""
        self.session = self._dist_graph = None
        if self._closer is not None:
            self._closer()


class Standalone(SessionHost):
    """A `SessionHost` of which each rank maps the whole graph and samples for itself."""

    def __init__(self, cluster: ClusterOptions | None = None) -> None:
        self._cluster = cluster or ClusterOptions()
        self._trainer: Trainer | None = None
        self._postponed: Exception | None = None
        self._opened: list[LocalPartition] = []

    @property
    def options(self) -> ClusterOptions:
        return self._cluster

    def under(self, trainer: Trainer | None) -> SessionHost:
        """The trainer's strategy if it is ours, else this object, with that trainer's ranks."""
        if trainer is not None and isinstance(trainer.strategy, SessionHost):
            return trainer.strategy
        self._trainer = trainer
        return self

    def open_graph(
        self,
        folder: str | Path | None,
        sampling: SamplingOptions = _SAMPLING,
        cache: CacheOptions = _CACHE,
        version: int | str | None = None,
    ) -> LocalPartition:
        if folder is None:
            raise OptionError(
                "cluster.servers: only strategy glt_server_client samples from graph servers. Choose it, or give "
                "data.dataset or data.partition.dir without cluster."
            )
        self._opened.append(LocalPartition.open(folder))
        self._opened.append(open_version(self._opened[-1], version))
        return self._opened[-1]

    def postpone(self, error: Exception) -> bool:
        """The other ranks wait in a barrier, which would end with a lost connection."""
        if self._trainer is None or self._trainer.world_size == 1 or not torch.distributed.is_initialized():
            return False
        self._postponed = error
        return True

    def require_prepared(self) -> None:
        own, self._postponed = self._postponed, None
        ranks, on_host, _ = self._place()
        found = ranks.exchange("" if own is None else as_of_rank(ranks.rank, own))
        if own is not None:
            raise own
        for rank, failure in enumerate(found):
            if failure:  # which is in the log of the host of that rank
                raise RankError(failure, is_logged=rank // on_host == ranks.rank // on_host or ranks.rank % on_host > 0)

    def _place(self) -> tuple[Ranks, int, torch.device]:
        trainer = self._trainer
        if trainer is None:
            return Ranks(), 1, torch.device("cpu")
        ranks = Ranks(trainer.global_rank, trainer.world_size, lambda text: gather_text_of(trainer, text))
        return ranks, getattr(trainer.strategy, "num_processes", 1), trainer.strategy.root_device

    def close(self) -> None:
        """Closes the session and the graphs. Safe to call twice."""
        self.close_session()
        while self._opened:
            self._opened.pop().close()


def _keep_memory(until: ExitStack) -> None:
    try:
        until.callback(keep_freed_memory())
    except RuntimeError as reason:
        _log.info("sampling.keep_memory has no effect: %s.", reason)
