"""`GLTWorkerStrategy`: every rank samples for itself, from partitions that its host maps."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Sized
from typing import Any

import torch
import torch.distributed
from lightning.pytorch.strategies import DDPStrategy

from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.errors import DataError, GLTError, PeerError
from glt_lightning.lightning.contexts import ContextOwner
from glt_lightning.lightning.peers import PeerWatch
from glt_lightning.loader import DistNeighborLoader, LoaderSpec
from glt_lightning.options import ClusterOptions, SamplingOptions

_NEWS_S = 2.0  # how long the news of a dead rank may come after the collective that failed because of it


class GLTWorkerStrategy(DDPStrategy):
    """DDP on one or more hosts; the ranks of a host share the mapped graph and watch each other.

    Registered as ``glt_worker``. It owns the sampler processes of its rank and ends them with the run, however that ends.

    Args:
        cluster: Options of the job's processes. The command line hands over its group ``cluster``.
        **kwargs: As `lightning.pytorch.strategies.DDPStrategy`.
    """

    strategy_name = "glt_worker"

    def __init__(self, cluster: ClusterOptions | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cluster = cluster
        self._contexts = ContextOwner()
        self._watch: PeerWatch | None = None
        self._failure = ""

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        if cls.strategy_name not in strategy_registry:
            strategy_registry.register(cls.strategy_name, cls, description="DDP over partitions that the host maps")

    def setup_environment(self) -> None:
        super().setup_environment()
        self._failure = ""
        if self._watch is None and self.num_processes > 1 and sys.platform == "linux":
            self._watch = PeerWatch(
                rank=self.global_rank,
                local_rank=self.local_rank,
                local_size=self.num_processes,
                share=self._share_on_host,
                timeout_s=(self.cluster or ClusterOptions()).peer_timeout_s,
            )

    def _share_on_host(self, text: str | None) -> str:
        """What the first rank of this host gives. All ranks of the job call it."""
        given: list[Any] = [None] * self.world_size
        torch.distributed.all_gather_object(given, (self.node_rank, text))
        return next(text for node, text in given if node == self.node_rank and text is not None)

    @property
    def has_context(self) -> bool:
        return self._contexts.is_open

    def open_context(self, partition: LocalPartition, sampling: SamplingOptions, seed: int) -> None:
        """Starts sampling from ``partition`` on this rank; ``seed`` must be the same on all ranks."""
        self._contexts.open(
            partition,
            sampling,
            seed=seed,
            rank=self.global_rank,
            world_size=self.world_size,
            device=self.root_device,
            gather_counts=self._gather_counts,
        )

    def make_loader(self, spec: LoaderSpec) -> DistNeighborLoader:
        """A loader of this rank's batches; `open_context` comes first."""
        return self._contexts.make_loader(spec)

    def process_dataloader(self, dataloader: object) -> object:
        dataloader = super().process_dataloader(dataloader)
        module = self.lightning_module
        if module is not None and module.trainer.training and isinstance(dataloader, Sized):
            self._check_equal_steps(len(dataloader))
        return dataloader

    def _check_equal_steps(self, steps: int) -> None:
        """A rank with more training steps than another would wait for it for ever."""
        counts = self._gather_counts(steps)
        if len(set(counts)) > 1:
            said = ", ".join(f"rank {rank}: {count}" for rank, count in enumerate(counts))
            raise DataError(
                f"training needs equally many batches on all ranks, got {said}. Give all ranks the same seeds."
            )

    def _gather_counts(self, count: int) -> list[int]:
        """What each rank puts in, in rank order. A collective call."""
        gathered = [torch.zeros(1, dtype=torch.int64, device=self.root_device) for _ in range(self.world_size)]
        torch.distributed.all_gather(gathered, torch.tensor([count], device=self.root_device))
        return [int(each) for each in gathered]

    def on_train_start(self) -> None:
        super().on_train_start()
        self._bound_sigterm()

    def on_validation_start(self) -> None:
        super().on_validation_start()
        self._bound_sigterm()

    def on_test_start(self) -> None:
        super().on_test_start()
        self._bound_sigterm()

    def on_predict_start(self) -> None:
        super().on_predict_start()
        self._bound_sigterm()

    def _bound_sigterm(self) -> None:
        """Lightning's handler of SIGTERM makes a collective call, and so may wait for a rank that is in another one."""
        inner = signal.getsignal(signal.SIGTERM)
        if self._watch is None or not callable(inner) or isinstance(inner, _Bounded):
            return
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _Bounded(inner, self._watch))  # Lightning takes it away after the run

    def on_exception(self, exception: BaseException) -> None:
        super().on_exception(exception)
        self._failure = f"{type(exception).__name__}: {exception}".strip().splitlines()[0]
        if self._watch is None or exception.__cause__ is not None or not _is_lost_collective(exception):
            return
        loss = self._watch.loss(wait_s=_NEWS_S)
        if loss is not None:
            exception.__cause__ = PeerError(f"{loss}; rank {self.global_rank} cannot go on.")

    def teardown(self) -> None:
        # Lightning calls this before its loops let go of the loaders, and it is the only call after an exception.
        try:
            self._contexts.close()
        finally:
            watch, self._watch = self._watch, None
            if watch is not None:
                watch.close(self._failure)
            super().teardown()


class _Bounded:
    """A signal handler whose process ends within a deadline."""

    def __init__(self, inner: Callable[..., Any], watch: PeerWatch) -> None:
        self._inner, self._watch = inner, watch

    def __call__(self, signum: int, frame: Any) -> None:
        self._watch.end_soon()
        self._inner(signum, frame)


def _is_lost_collective(exception: BaseException) -> bool:
    if isinstance(exception, GLTError):
        return False
    text = str(exception).lower()
    return isinstance(exception, RuntimeError) and ("gloo" in text or "nccl" in text or "connection" in text)
