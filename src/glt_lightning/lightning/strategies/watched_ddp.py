"""DDP whose ranks watch each other: what our strategies know of processes, whatever they train on."""

from __future__ import annotations

import difflib
import inspect
import json
import re
import secrets
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, ClassVar

from lightning.pytorch import Trainer
from lightning.pytorch.plugins.io import CheckpointIO
from lightning.pytorch.plugins.io.wrapper import _WrappingCheckpointIO
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from glt_lightning.base import (
    ClusterOptions,
    GLTError,
    OptionError,
    PeerError,
    PeerLostError,
    as_options,
    threads_that_sleep,
)
from glt_lightning.lightning.callbacks.checkpoints import WholeCheckpointIO
from glt_lightning.lightning.strategies.failure_board import FailureBoard
from glt_lightning.lightning.strategies.hosts import GlooOnLoopback, connect_store, meet_hosts, open_store
from glt_lightning.lightning.strategies.peers import PeerWatch, RankError
from glt_lightning.lightning.strategies.ranks import check_ranks, in_notebook
from glt_lightning.lightning.strategies.sigterm import end_by_sigterm
from glt_lightning.tensors import ranks_in_group
from glt_lightning.workers import Ranks

_NEWS_S = 2.0  # how long the news of a dead rank may come after the collective that failed because of it
_CLUSTER = ClusterOptions()


class _RanksLauncher(_SubprocessScriptLauncher):
    """Starts the further ranks of this host with threads that sleep while they wait."""

    def _call_children_scripts(self) -> None:
        with threads_that_sleep():
            super()._call_children_scripts()


class WatchedDDP(DDPStrategy):
    """DDP whose ranks notice that another one is gone, and whose process group listens on no more than it must.

    Args:
        cluster: Where the processes of the job run. ``None``: as the data module says.
        **kwargs: As `lightning.pytorch.strategies.DDPStrategy`.
    """

    strategy_name: ClassVar[str]

    def __init__(self, cluster: ClusterOptions | None = None, **kwargs: Any) -> None:
        check_ddp_arguments(type(self).__name__, kwargs)
        super().__init__(**kwargs)
        self.cluster = None if cluster is None else as_options(ClusterOptions, "cluster", cluster)
        self._watch: PeerWatch | None = None
        self._gloo = GlooOnLoopback()
        self._board: FailureBoard | None = None
        self._failure = ""
        self._token: str | None = None

    @property
    def options(self) -> ClusterOptions:
        """Where the processes of the job run."""
        return self.cluster or _CLUSTER

    def adopt_cluster(self, theirs: ClusterOptions) -> None:
        """Takes the options of the data module, which hands them over when a Trainer takes it. Raises `OptionError` if this
        strategy was given other ones."""
        if self.cluster is not None and self.cluster != theirs:
            raise OptionError(
                f"cluster: the data module has {theirs}, the strategy has {self.cluster}. Give it to one of them."
            )
        self.cluster = theirs

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

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        if in_notebook() and not self.cluster_environment.creates_processes_externally:
            check_ranks(self.num_processes * self.num_nodes)
            return  # the only rank is this process; Lightning refuses strategies with a launcher there
        super()._configure_launcher()
        if type(self._launcher) is _SubprocessScriptLauncher:
            self._launcher = _RanksLauncher(self.cluster_environment, self.num_processes, self.num_nodes)

    def setup_environment(self) -> None:
        super().setup_environment()
        self._failure = ""
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

    def setup_distributed(self) -> None:
        """Initialises torch's process group; on one host nothing of it listens beyond loopback."""
        assert self.cluster_environment is not None
        if self.num_nodes > 1:
            met = meet_hosts(self, self.options.deadlines.join_s)
            super().setup_distributed()
            del met  # the group has it now
            run = self._ranks.exchange(secrets.token_hex(8))[0]
            connect = partial(connect_store, self.cluster_environment, f"glt/failures/{run}")
            self._board = FailureBoard(connect, self.world_size)
            return
        self._gloo.open()
        store = open_store(self.cluster_environment, self.local_rank == 0, self.num_processes)
        super().setup_distributed()
        del store  # the group has it now

    # What ranks tell each other

    def _share_on_host(self, text: str | None) -> str:
        """What the first rank of this host gives. All ranks of the job call it."""
        given = [json.loads(each) for each in self._ranks.exchange(json.dumps([self.node_rank, text]))]
        return str(next(text for node, text in given if node == self.node_rank and text is not None))

    @property
    def _ranks(self) -> Ranks:
        return ranks_in_group(self.global_rank, self.world_size, self.root_device)

    def _gather_found(self, find: Callable[[], str]) -> list[str]:
        """What ``find`` gives on each rank; if it raises on one, all ranks raise instead of waiting for that one."""
        found, error = "", None
        try:
            found = find()
        except Exception as raised:
            error = raised
        texts = self._ranks.exchange(json.dumps([found, None if error is None else str(error)]))
        if error is not None:
            raise error
        answers = [json.loads(text) for text in texts]
        for rank, (_, failure) in enumerate(answers):
            if failure is not None:
                here = rank // self.num_processes == self.node_rank
                raise (RankError if here else PeerError)(f"rank {rank}: {failure}")
        return [text for text, _ in answers]

    # The end

    def setup(self, trainer: Trainer) -> None:
        end_by_sigterm(trainer)
        super().setup(trainer)

    def configure_ddp(self) -> None:
        """Wraps nothing where no parameter trains, which DDP refuses: rows of embeddings do not need it."""
        model = self.model
        assert model is not None
        if any(each.requires_grad for each in model.parameters()):
            # for any buffer, an empty one too, DDP would have a collective call in each forward pass
            empty = [name for name, each in model.named_buffers() if not each.numel()]
            ignored = {*getattr(model, "_ddp_params_and_buffers_to_ignore", ()), *empty}
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, sorted(ignored))
            super().configure_ddp()

    def end_soon(self) -> None:
        """This process was asked to end. Takes no lock, so that a signal handler may call it."""
        if self._watch is not None:
            self._watch.end_soon()

    def on_exception(self, exception: BaseException) -> None:
        # not Lightning's, which replaces DDP's message about unused parameters by the advice to take another strategy
        if exception.__cause__ is None:
            exception.__cause__ = unused_parameters(exception, self.lightning_module, self.strategy_name)
        self._failure = f"{type(exception).__name__}: {exception}".strip().splitlines()[0]
        if not _is_lost_connection(exception):
            if self._board is not None and isinstance(exception, Exception):
                self._board.post(as_of_rank(self.global_rank, exception))
        elif (cause := self._cause()) is not None:
            exception.__cause__ = cause

    def _cause(self) -> PeerError | None:
        """Why a connection to another rank is lost; None where nobody says so."""
        told = "" if self._board is None else self._board.found()
        loss = None if self._watch is None or told else self._watch.loss(wait_s=_NEWS_S)
        if loss is not None:
            return RankError(f"{loss}; rank {self.global_rank} cannot go on.")
        if self._board is not None and (told := told or self._board.found(_NEWS_S)):
            here = int(told.split(":")[0].removeprefix("rank ")) // self.num_processes == self.node_rank
            return RankError(told, is_logged=here or self.local_rank > 0)  # one line in the log of a host
        return None

    def teardown(self) -> None:
        with ExitStack() as then:  # in reverse order, and each even if an earlier one raises
            then.callback(super().teardown)
            then.callback(self._gloo.close)
            then.callback(self._leave)

    def _leave(self) -> None:
        """Tells the other ranks of this host that this one goes, and why."""
        board, self._board = self._board, None
        if board is not None:
            board.close()
        watch, self._watch, self._token = self._watch, None, None
        if watch is not None:
            watch.close(self._failure)

    def _end_waits(self) -> None:
        """Another rank of this host is lost: what waits for other processes may raise now. From any thread."""


def _is_lost_connection(exception: BaseException) -> bool:
    if isinstance(exception.__cause__, GLTError):
        return False
    if isinstance(exception, GLTError):
        return isinstance(exception, PeerLostError)
    text = str(exception).lower()
    return isinstance(exception, RuntimeError) and ("gloo" in text or "nccl" in text or "connection" in text)


def as_of_rank(rank: int, exception: BaseException) -> str:
    """The first line of an error, by the name of its rank."""
    each: BaseException | None = exception
    while each is not None and not isinstance(each, GLTError):
        each = each.__cause__
    text = str(each) if each is not None else f"{type(exception).__name__}: {exception}"
    text = (text.strip().splitlines() or [type(exception).__name__])[0]
    return text if RankError.named(text) else f"rank {rank}: {text}"


# DDP's own arguments and messages, under the names of our strategies.


# What follows the name of a strategy in the registry, as Lightning has it for ddp, and the arguments it stands for.
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "_find_unused_parameters_false": {"find_unused_parameters": False},
    "_find_unused_parameters_true": {"find_unused_parameters": True},
}

_GIVEN_BY_LIGHTNING = {"self", "kwargs", "module", "device_ids"}
_UNUSED = "Expected to have finished reduction in the prior iteration"
_INDICES = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")
_MOST_NAMES = 5


def check_ddp_arguments(strategy: str, names: Iterable[str]) -> None:
    """Raises `OptionError` for a name that is no argument of DDP. DDP itself says so when training starts."""
    signatures = (DDPStrategy.__init__, DistributedDataParallel.__init__)
    known = {name for each in signatures for name in inspect.signature(each).parameters} - _GIVEN_BY_LIGHTNING
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise OptionError(
                f"{strategy}: unknown argument {name!r}.{hint} It takes cluster, and the arguments of Lightning's "
                "DDPStrategy and of torch's DistributedDataParallel."
            )


def unused_parameters(exception: BaseException, module: nn.Module | None, strategy: str) -> OptionError | None:
    """What DDP's error about parameters without a gradient means for this module; None for another error."""
    text = str(exception)
    if not isinstance(exception, RuntimeError) or _UNUSED not in text:
        return None
    names = _names(module, text)
    which = f" ({', '.join(names)})" if names else ""
    return OptionError(
        f"the loss of training_step does not depend on every parameter{which}, and DDP waits for the gradient of each. "
        f"Choose the strategy {strategy}_find_unused_parameters_true, or leave these parameters out of the model."
    )


def _names(module: nn.Module | None, text: str) -> list[str]:
    """Names of the parameters whose numbers are in DDP's message, the first few."""
    found = _INDICES.search(text)
    if module is None or found is None:
        return []
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]  # in DDP's order
    numbers = [int(number) for number in found.group(1).split()]
    names = [trained[number] for number in numbers if number < len(trained)]
    return names if len(names) <= _MOST_NAMES else [*names[:_MOST_NAMES], f"and {len(names) - _MOST_NAMES} more"]
