"""`GLTStrategy`: what our strategies share. DDP whose ranks watch each other and own what samples for them."""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
from abc import abstractmethod
from collections.abc import Callable, Sized
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch.distributed
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.io import CheckpointIO
from lightning.pytorch.plugins.io.wrapper import _WrappingCheckpointIO
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn

from glt_lightning.cluster.context import DistContext
from glt_lightning.cluster.link import Link
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.errors import DataError, GLTError, OptionError, PeerError, PeerLostError
from glt_lightning.lightning.callbacks.checkpoint_io import WholeCheckpointIO
from glt_lightning.lightning.strategies.collectives import gather_counts, gather_text
from glt_lightning.lightning.strategies.contexts import ContextOwner
from glt_lightning.lightning.strategies.ddp_arguments import VARIANTS, check_ddp_arguments, unused_parameters
from glt_lightning.lightning.strategies.dry_run import give_shapes
from glt_lightning.lightning.strategies.hosts import Meeting, meet
from glt_lightning.lightning.strategies.loopback import GlooOnLoopback, open_store
from glt_lightning.lightning.strategies.notebook import check_ranks, in_notebook
from glt_lightning.lightning.strategies.peers import PeerWatch, RankError
from glt_lightning.lightning.strategies.sigterm import handle_sigterm, set_exit_status
from glt_lightning.loader import DistNeighborLoader, LoaderSpec
from glt_lightning.loader.collate import Batch
from glt_lightning.options import CacheOptions, ClusterOptions, SamplingOptions, as_options
from glt_lightning.producer.base import SampledGraph
from glt_lightning.producer.in_flight import with_channel_bytes
from glt_lightning.producer.ranks import Ranks

_NEWS_S = 2.0  # how long the news of a dead rank may come after the collective that failed because of it
_CLUSTER, _SAMPLING, _CACHE = ClusterOptions(), SamplingOptions(), CacheOptions()


class GLTStrategy(DDPStrategy):
    """DDP whose ranks watch each other; loaders, and what makes their batches, end with the run.

    A strategy of ours says where the graph is (`open_graph`); the graph knows who makes batches of it.

    Args:
        cluster: Where the processes of the job run. ``None``: as the data module says; the command line hands over its
            group ``cluster``.
        **kwargs: As `lightning.pytorch.strategies.DDPStrategy`, and as torch's `DistributedDataParallel`.
    """

    strategy_name: ClassVar[str]
    description: ClassVar[str]

    def __init__(self, cluster: ClusterOptions | None = None, **kwargs: Any) -> None:
        check_ddp_arguments(type(self).__name__, kwargs)
        super().__init__(**kwargs)
        self.cluster = None if cluster is None else as_options(ClusterOptions, "cluster", cluster)
        self._contexts = ContextOwner()
        self._watch: PeerWatch | None = None
        self._gloo = GlooOnLoopback()
        self._failure = ""
        self._job = ""
        self._token: str | None = None

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        for suffix, options in VARIANTS.items():
            name = f"{cls.strategy_name}{suffix}"
            if name not in strategy_registry:
                said = "".join(f"; {option} is {value}" for option, value in options.items())
                strategy_registry.register(name, cls, description=f"{cls.description}{said}", **options)

    @property
    def options(self) -> ClusterOptions:
        """Where the processes of the job run."""
        return self.cluster or _CLUSTER

    @property
    def checkpoint_io(self) -> CheckpointIO:
        """Who writes checkpoints: `WholeCheckpointIO`, unless the user gave another."""
        if self._checkpoint_io is None:
            self._checkpoint_io = WholeCheckpointIO()
        elif isinstance(self._checkpoint_io, _WrappingCheckpointIO):
            self._checkpoint_io.checkpoint_io = WholeCheckpointIO()  # no effect where it wraps another already
        return self._checkpoint_io

    @checkpoint_io.setter
    def checkpoint_io(self, io: CheckpointIO | None) -> None:
        self._checkpoint_io = io

    @property
    def servers(self) -> list[str]:
        """Addresses of those that have the graph, if it is not on this host."""
        return []

    @property
    @abstractmethod
    def context(self) -> DistContext:
        """This process among the others of the job."""

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

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        if in_notebook() and not self.cluster_environment.creates_processes_externally:
            check_ranks(self.num_processes * self.num_nodes)
            return  # the only rank is this process; Lightning refuses strategies with a launcher there
        super()._configure_launcher()

    def setup_environment(self) -> None:
        super().setup_environment()
        self._failure = ""
        self._adopt_cluster()
        if self._watch is not None:
            return
        mine = {"token": secrets.token_hex(32)} if self.local_rank == 0 and self.num_nodes == 1 else {}
        if self.num_processes > 1 and sys.platform == "linux":
            self._watch = PeerWatch(
                rank=self.global_rank,
                local_rank=self.local_rank,
                local_size=self.num_processes,
                share=self._share_on_host,
                timeout_s=self.options.peer_timeout_s,
                silence_s=self.options.peer_silence_s,
                job_secret=mine,
                on_loss=self._end_waits,
            )
            mine = dict(self._watch.job_secret)
        self._token = mine.get("token") if self.num_processes == 1 or self._watch is not None else None

    def setup(self, trainer: Trainer) -> None:
        if trainer.state.fn == TrainerFn.FITTING:
            give_shapes(trainer)
        super().setup(trainer)

    def setup_distributed(self) -> None:
        """Initialises torch's process group; on one host nothing of it listens beyond loopback."""
        assert self.cluster_environment is not None
        if self.num_nodes > 1:
            met = self._meet_hosts()
            super().setup_distributed()
            del met  # the group has it now
            return
        self._gloo.open()
        store = open_store(self.cluster_environment, self.local_rank == 0, self.num_processes)
        super().setup_distributed()
        del store  # the group has it now

    def _meet_hosts(self) -> object:
        """Waits for the ranks of the other hosts, unless torchrun has done so. Keep what it returns until there is a group."""
        if torch.distributed.is_initialized() or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            return None
        self._adopt_cluster()
        self.set_world_ranks()
        assert self.cluster_environment is not None
        meeting = Meeting(
            address=self.cluster_environment.main_address,
            port=self.cluster_environment.main_port,
            rank=self.global_rank,
            hosts=self.num_nodes,
            per_host=self.num_processes,
            deadline_s=self.options.deadlines.join_s,
        )
        if self.local_rank == 0:
            return meet(meeting, _say)
        try:
            return meet(meeting, lambda _: None)
        except PeerError as error:  # the first rank of this host says the same
            raise RankError(str(error)) from None

    def _adopt_cluster(self) -> None:
        """Takes the options of the data module. Raises `OptionError` if there are others here."""
        module = self.lightning_module
        theirs = getattr(getattr(module and module.trainer, "datamodule", None), "cluster", None)
        if not isinstance(theirs, ClusterOptions):
            return
        if self.cluster is not None and self.cluster != theirs:
            raise OptionError(
                f"cluster: the data module has {theirs}, the strategy has {self.cluster}. Give it to one of them."
            )
        self.cluster = theirs

    def _share_on_host(self, text: str | None) -> str:
        """What the first rank of this host gives. All ranks of the job call it."""
        given = [json.loads(each) for each in self._gather_text(json.dumps([self.node_rank, text]))]
        return str(next(text for node, text in given if node == self.node_rank and text is not None))

    # Loaders

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

        cache: which rows of other parts are kept on this host.
        """
        self._contexts.open(
            self._of_partition(graph) if isinstance(graph, LocalPartition) else graph,
            with_channel_bytes(sampling, self.num_processes),
            seed=seed,
            ranks=Ranks(self.global_rank, self.world_size, self._gather_text, self._gather_counts),
            device=self.root_device,
            cache=cache,
        )

    def make_loader(self, spec: LoaderSpec) -> DistNeighborLoader:
        """A loader of this rank's batches; `open_context` comes first."""
        return self._contexts.make_loader(spec)

    def read_seeds(self, spec: LoaderSpec, name: str) -> np.ndarray:
        """A node attribute of all seeds of a loader, on every rank; `open_context` comes first."""
        return self._contexts.read_seeds(spec, name)

    def complete(self, batch: Batch) -> Batch:
        """Gives a batch that was moved to the training device the rows that are kept there."""
        return self._contexts.complete(batch)

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

    # What ranks tell each other

    def share_seed(self, seed: int) -> int:
        """Rank 0's seed. A collective call."""
        return int(self._gather_text(str(seed))[0])

    def _gather_counts(self, count: int) -> list[int]:
        return gather_counts(count, self.world_size, self.root_device)

    def _gather_text(self, text: str) -> list[str]:
        return gather_text(text, self.world_size, self.root_device)

    def _gather_found(self, find: Callable[[], str]) -> list[str]:
        """What ``find`` gives on each rank; if it raises on one, all ranks raise instead of waiting for that one."""
        found, error = "", None
        try:
            found = find()
        except Exception as raised:
            error = raised
        said = self._gather_text(json.dumps([found, None if error is None else str(error)]))
        if error is not None:
            raise error
        answers = [json.loads(text) for text in said]
        for rank, (_, failure) in enumerate(answers):
            if failure is not None:
                here = rank // self.num_processes == self.node_rank
                raise (RankError if here else PeerError)(f"rank {rank}: {failure}")
        return [text for text, _ in answers]

    def _link(self, role: str, token: str | None) -> Link:
        """How this rank introduces itself to other processes. The first call is a collective one."""
        self._job = self._job or self._gather_text(secrets.token_hex(8))[0]
        name = f"rank {self.global_rank} (pid {os.getpid()} on {socket.gethostname()})"
        options = self.options
        return Link(
            job=self._job,
            role=role,
            name=name,
            token=token,
            security=options.security,
            deadlines=options.deadlines,
            retry=options.retry,
            limits=options.limits,
        )

    def _secret(self) -> str | None:
        """The secret that the ranks of one host share; None where ``security.token_file`` has to give one.
        Raises `OptionError` where several ranks have no other way to agree on one."""
        if self.options.security.token_file is None and self._token is None and self.num_nodes == 1:
            raise OptionError("cluster.security.token_file: needed for several ranks on a system other than Linux.")
        return self._token

    # The end

    def on_train_start(self) -> None:
        super().on_train_start()
        self._handle_sigterm()

    def on_validation_start(self) -> None:
        super().on_validation_start()
        self._handle_sigterm()

    def on_test_start(self) -> None:
        super().on_test_start()
        self._handle_sigterm()

    def on_predict_start(self) -> None:
        super().on_predict_start()
        self._handle_sigterm()

    def _handle_sigterm(self) -> None:
        module = self.lightning_module
        if self._watch is not None and module is not None:
            handle_sigterm(module.trainer, self._watch)

    def on_exception(self, exception: BaseException) -> None:
        # not Lightning's, which replaces DDP's message about unused parameters by the advice to take another strategy
        set_exit_status(exception)
        if exception.__cause__ is None:
            exception.__cause__ = unused_parameters(exception, self.lightning_module, self.strategy_name)
        self._failure = f"{type(exception).__name__}: {exception}".strip().splitlines()[0]
        if self._watch is None or exception.__cause__ is not None or not _is_lost_connection(exception):
            return
        loss = self._watch.loss(wait_s=_NEWS_S)
        if loss is not None:
            exception.__cause__ = RankError(f"{loss}; rank {self.global_rank} cannot go on.")

    def teardown(self) -> None:
        # Lightning calls this before its loops let go of the loaders, and it is the only call after an exception.
        with ExitStack() as then:  # in reverse, and each whatever becomes of the others
            then.callback(super().teardown)
            then.callback(self._gloo.close)
            then.callback(self._leave)
            then.callback(self._close_graph)
            then.callback(self._contexts.close)
            if self.has_context and not self._failure:
                self._leave_together()

    def _leave(self) -> None:
        """Tells the other ranks of this host that this one goes, and why."""
        watch, self._watch = self._watch, None
        self._job, self._token = "", None
        if watch is not None:
            watch.close(self._failure)

    def _leave_together(self) -> None:
        """Waits until no rank needs this one's sampling any more, at the end of a run that went well."""

    def _end_waits(self) -> None:
        """Another rank of this host is lost: what waits for other processes may raise now. From any thread."""

    def _close_graph(self) -> None:
        """Ends what `open_graph` started. Safe to call twice."""


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _is_lost_connection(exception: BaseException) -> bool:
    if isinstance(exception, GLTError):
        return isinstance(exception, PeerLostError)
    text = str(exception).lower()
    return isinstance(exception, RuntimeError) and ("gloo" in text or "nccl" in text or "connection" in text)
