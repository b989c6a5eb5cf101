"""`GLTStrategy`: what our strategies share. DDP whose ranks watch each other and own what samples for them."""

from __future__ import annotations

import os
import secrets
import socket
from abc import abstractmethod
from collections.abc import Sized
from contextlib import ExitStack
from typing import Any, ClassVar

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import TrainerFn

from glt_lightning.base import ClusterOptions, DataError, OptionError
from glt_lightning.lightning.strategies.dry_run import give_shapes
from glt_lightning.lightning.strategies.session_host import SessionHost
from glt_lightning.lightning.strategies.watched_ddp import VARIANTS, WatchedDDP
from glt_lightning.tensors import Reach
from glt_lightning.workers import DistContext, Link, Ranks

_LOOPBACK = "127.0.0.1"


class GLTStrategy(WatchedDDP, SessionHost):
    """DDP whose ranks watch each other; loaders, and what makes their batches, end with the run.

    A strategy of ours says where the graph is (`open_graph`); the graph knows who makes batches of it.

    Args:
        cluster: Where the processes of the job run. ``None``: as the data module says; the command line hands over its
            group ``cluster``.
        **kwargs: As `lightning.pytorch.strategies.DDPStrategy`, and as torch's `DistributedDataParallel`.
    """

    strategy_name: ClassVar[str]
    description: ClassVar[str]
    _role: ClassVar[str]

    def __init__(self, cluster: ClusterOptions | None = None, **kwargs: Any) -> None:
        super().__init__(cluster, **kwargs)
        self._job = ""

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        for suffix, options in VARIANTS.items():
            name = f"{cls.strategy_name}{suffix}"
            if name not in strategy_registry:
                preset = "".join(f"; {option} is {value}" for option, value in options.items())
                strategy_registry.register(name, cls, description=f"{cls.description}{preset}", **options)

    @property
    def servers(self) -> list[str]:
        """Addresses of the graph servers, if the graph is not on this host."""
        return []

    @property
    @abstractmethod
    def context(self) -> DistContext:
        """This process among the processes of the job."""

    def setup(self, trainer: Trainer) -> None:
        if trainer.state.fn == TrainerFn.FITTING:
            give_shapes(trainer)
        super().setup(trainer)

    # Loaders

    def _place(self) -> tuple[Ranks, int, torch.device]:
        return self._ranks, self.num_processes, self.root_device

    def process_dataloader(self, dataloader: object) -> object:
        dataloader = super().process_dataloader(dataloader)
        module = self.lightning_module
        if module is not None and module.trainer.training and isinstance(dataloader, Sized):
            self._check_equal_steps(len(dataloader))
        return dataloader

    def _check_equal_steps(self, steps: int) -> None:
        """A rank with more training steps than another would wait for it for ever."""
        counts = [int(each) for each in self._ranks.exchange(str(steps))]
        if len(set(counts)) > 1:
            given = ", ".join(f"rank {rank}: {count}" for rank, count in enumerate(counts))
            raise DataError(
                f"training needs equally many batches on all ranks, got {given}. Give all ranks the same seeds."
            )

    # What ranks tell each other

    def _link(self, role: str, token: str | None) -> Link:
        """How this rank introduces itself to other processes. The first call is a collective one."""
        self._job = self._job or self._ranks.exchange(secrets.token_hex(8))[0]
        name = f"rank {self.global_rank} (pid {os.getpid()} on {socket.gethostname()})"
        options = self.options
        return Link(
            job=self._job,
            role=role,
            name=name,
            token=token,
            security=options.security,
            deadlines=options.deadlines,
            limits=options.limits,
        )

    def _secret(self) -> str | None:
        """The secret that the ranks of one host share; None where ``security.token_file`` has to give one.
        Raises `OptionError` where several ranks have no other way to agree on one."""
        if self.options.security.token_file is None and self._token is None and self.num_nodes == 1:
            raise OptionError("cluster.security.token_file: needed for several ranks on a system other than Linux.")
        return self._token

    def _reach(self) -> Reach | None:
        if self.num_nodes == 1:
            return None
        link = self._link(self._role, self._token)

        def address() -> str:
            host = self._host()
            return f"[{host}]:0" if ":" in host else f"{host}:0"

        return Reach(f"node {self.node_rank}", link, address, link.open_transport)

    def _host(self) -> str:
        """Name or address of this host for ranks on other hosts."""
        if self.options.host is not None:
            return self.options.host
        if self.num_nodes == 1:
            return _LOOPBACK
        assert self.cluster_environment is not None
        main = self.cluster_environment.main_address
        try:
            found = socket.getaddrinfo(main, self.cluster_environment.main_port, type=socket.SOCK_DGRAM)
            family, _, _, _, where = found[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(where)  # sends nothing; tells which of our addresses leads there
                host = str(probe.getsockname()[0])
        except OSError as error:
            raise OptionError(
                f"cluster.host: the address of this host is unknown, because {main} cannot be resolved ({error}). "
                "Give the name or address of this host."
            ) from None
        if host.startswith("127.") and not main.startswith(("127.", "localhost")):
            raise OptionError(
                f"cluster.host: {main} resolves to {host} on this host, which no other host can reach. Give the "
                "name or address of this host, or set MASTER_ADDR to an address."
            )
        return host

    # The end

    def teardown(self) -> None:
        # Lightning calls this before its loops let go of the loaders, and it is the only call after an exception.
        with ExitStack() as then:  # in reverse order, and each even if an earlier one raises
            then.callback(super().teardown)
            then.callback(self._close_graph)
            then.callback(self.close_session)
            if self.session is not None and not self._failure:
                self._leave_together()

    def _leave(self) -> None:
        self._job = ""
        super()._leave()

    def _leave_together(self) -> None:
        """Waits until no rank needs this one's sampling any more, at the end of a run that went well."""

    def _close_graph(self) -> None:
        """Ends what `open_graph` started. Safe to call twice."""
