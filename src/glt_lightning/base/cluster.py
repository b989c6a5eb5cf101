"""Options of the cluster: servers, their processes, deadlines, limits and security."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from glt_lightning.base.checks import above_zero, as_options, at_least, take_old_name
from glt_lightning.base.deadlines import DeadlineOptions, RetryOptions
from glt_lightning.base.errors import OptionError
from glt_lightning.base.limits import LimitOptions
from glt_lightning.base.parse import parse_address
from glt_lightning.base.security import SecurityOptions
from glt_lightning.base.tensors import TensorOptions
from glt_lightning.base.workers import WorkerOptions

Placement = Literal["host", "rank"]
_DEADLINES, _RETRY, _SECURITY, _TENSORS = DeadlineOptions(), RetryOptions(), SecurityOptions(), TensorOptions()


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(WorkerOptions):
    """Where the processes of the job run, and how they communicate. Strategies of ours and ``serve`` read it; other strategies
    do without, so the same file also runs with ``--trainer.strategy auto``.

    Attributes:
        servers: Addresses of the graph servers, ``host:port``, in the order of their ranks. With addresses, trainers download,
            partition and map nothing. Empty: ``glt_server_client`` starts a server itself, if all ranks are on one host.
        server_rank: Number of the server that makes this rank's batches. ``auto``: rank mod number of servers.
        num_workers: Sampler processes of a server. Those of a rank are ``sampling.num_workers``.
        prefetch: Batches that a client asks for ahead, for each loader; fewer where ``sampling.channel_size`` says so.
        channel_size: Bytes of finished batches that a server holds for one client, such as ``"1GB"``. ``auto``: its clients
            share an eighth of the memory that its host, or control group, has available when it starts; each may have two
            batches.
        placement: Which parts a rank maps in ``glt_worker``: ``host`` gives part p to host p mod hosts, so that a single
            host maps all; ``rank`` gives part p to rank p mod ranks.
        host: Name or address under which other hosts reach this one. ``None``: loopback if all ranks are on one host,
            else the address from which MASTER_ADDR is reached.
        deadlines: Deadlines of calls between processes.
        retry: Pauses between attempts to reach a peer.
        limits: What clients may use of a process that serves them.
        security: Certificates and the secret of the job.
        tensors: What tensors of one's own may take.
        peer_timeout_s: How long a rank may go on after another rank of the job died, in seconds.
        peer_silence_s: Seconds after which a stopped rank of the same host is killed, which ends the job; five times as long
            for a rank that is not stopped and uses no CPU time. Slow steps, compilations and long validations do not count
            as silence.
        prefetch_size: Old name of ``cluster.prefetch``.
        buffer_size: Old name of ``cluster.channel_size``.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> ClusterOptions(servers=["10.0.0.1:7000", "10.0.0.2:7000"]).server_rank
        'auto'
        >>> ClusterOptions(servers=["10.0.0.1"])
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: cluster.servers: ...
    """

    group: ClassVar[str] = "cluster"
    least_workers: ClassVar[int] = 1

    servers: list[str] = field(default_factory=list)
    server_rank: int | Literal["auto"] = "auto"
    num_workers: int = 2
    prefetch: int = 4
    placement: Placement = "host"
    host: str | None = None
    deadlines: DeadlineOptions = _DEADLINES
    retry: RetryOptions = _RETRY
    limits: LimitOptions = field(default_factory=LimitOptions)
    security: SecurityOptions = _SECURITY
    tensors: TensorOptions = _TENSORS
    peer_timeout_s: float = 30.0
    peer_silence_s: float = 60.0
    prefetch_size: int | None = None
    buffer_size: int | str | None = None

    def __post_init__(self) -> None:
        take_old_name(self, "cluster", "prefetch_size", "prefetch")
        take_old_name(self, "cluster", "buffer_size", "channel_size")
        super().__post_init__()
        if self.channel_size is None:
            raise OptionError(
                "cluster.channel_size: null (no limit) is allowed for sampling.channel_size only, because a "
                "server has many clients. Give auto, or bytes such as '1GB'."
            )
        kinds = {
            "deadlines": DeadlineOptions,
            "retry": RetryOptions,
            "limits": LimitOptions,
            "security": SecurityOptions,
            "tensors": TensorOptions,
        }
        for name, kind in kinds.items():
            object.__setattr__(self, name, as_options(kind, f"cluster.{name}", getattr(self, name)))
        for address in self.servers:
            parse_address("cluster.servers", address)
        if self.server_rank != "auto":
            at_least("cluster.server_rank", self.server_rank, 0)
            if self.servers and self.server_rank >= len(self.servers):
                raise OptionError(
                    f"cluster.server_rank: expected the number of one of the {len(self.servers)} cluster.servers, "
                    f"got {self.server_rank}."
                )
        if self.placement not in ("host", "rank"):
            raise OptionError(f"cluster.placement: expected 'host' or 'rank', got {self.placement!r}.")
        above_zero("cluster.peer_timeout_s", self.peer_timeout_s)
        above_zero("cluster.peer_silence_s", self.peer_silence_s)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a pickle, such as hyperparameters in a checkpoint. Those of an earlier release have the old names alone."""
        for old, new in (("prefetch_size", "prefetch"), ("buffer_size", "channel_size")):
            if new not in state:
                state = {**state, new: state[old], old: None}
        state = {"tensors": _TENSORS, **state}
        self.__dict__.update(state)
