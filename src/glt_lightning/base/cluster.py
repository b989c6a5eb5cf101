"""Options of the cluster: servers, deadlines, limits and security."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from glt_lightning.base.checks import above_zero, as_options, at_least
from glt_lightning.base.deadlines import DeadlineOptions
from glt_lightning.base.errors import OptionError
from glt_lightning.base.limits import LimitOptions
from glt_lightning.base.parse import parse_address
from glt_lightning.base.removed import without_removed
from glt_lightning.base.sampling import SamplingOptions
from glt_lightning.base.security import SecurityOptions
from glt_lightning.base.tensors import TensorOptions
from glt_lightning.base.workers import WorkerOptions

Placement = Literal["host", "rank"]
_SERVER_WORKERS = 2  # of a graph server whose configuration names none
_DEADLINES, _SECURITY, _TENSORS = DeadlineOptions(), SecurityOptions(), TensorOptions()


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Where the processes of the job run, and how they communicate. Strategies of ours and ``serve`` read it; other strategies
    do without, so the same file also runs with ``--trainer.strategy auto``.

    Attributes:
        servers: Addresses of the graph servers, ``host:port``, in the order of their ranks. With addresses, trainers download,
            partition and map nothing. Empty: ``glt_server_client`` starts a server itself, if all ranks are on one host.
        server_rank: Number of the server that makes this rank's batches. ``auto``: rank mod number of servers.
        prefetch: Batches that a client asks for ahead, for each loader; fewer where ``sampling.channel_size`` says so.
        placement: Which parts a rank maps in ``glt_worker``: ``host`` gives part p to host p mod hosts, so that a single
            host maps all; ``rank`` gives part p to rank p mod ranks.
        host: Name or address under which other hosts reach this one. ``None``: loopback if all ranks are on one host,
            else the address from which MASTER_ADDR is reached.
        deadlines: Deadlines of calls between processes.
        limits: What clients may use of a process that serves them.
        security: Certificates and the secret of the job.
        tensors: What tensors of one's own may take.
        peer_timeout_s: How long a rank may go on after another rank of the job died, in seconds.
        peer_silence_s: Seconds after which a stopped rank of the same host is killed, which ends the job; five times as long
            for a rank that is not stopped and uses no CPU time. Slow steps, compilations and long validations do not count
            as silence.

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

    servers: list[str] = field(default_factory=list)
    server_rank: int | Literal["auto"] = "auto"
    prefetch: int = 4
    placement: Placement = "host"
    host: str | None = None
    deadlines: DeadlineOptions = _DEADLINES
    limits: LimitOptions = field(default_factory=LimitOptions)
    security: SecurityOptions = _SECURITY
    tensors: TensorOptions = _TENSORS
    peer_timeout_s: float = 30.0
    peer_silence_s: float = 60.0

    def __post_init__(self) -> None:
        at_least("cluster.prefetch", self.prefetch, 1)
        kinds = {
            "deadlines": DeadlineOptions,
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

    def serving(self, sampling: SamplingOptions) -> ServingOptions:
        """The options of a graph server: these, with the sampler processes of ``sampling``; two, where it has none."""
        return ServingOptions(
            **{each.name: getattr(self, each.name) for each in fields(ClusterOptions)},
            num_workers=sampling.num_workers or _SERVER_WORKERS,
            concurrency=sampling.concurrency,
            worker_devices=sampling.worker_devices,
            channel_size="auto" if sampling.channel_size is None else sampling.channel_size,
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a pickle, such as hyperparameters in a checkpoint; one of an earlier release may have options that were removed."""
        self.__dict__.update({"tensors": _TENSORS, **without_removed("cluster", state)})


@dataclass(frozen=True, kw_only=True)
class ServingOptions(ClusterOptions, WorkerOptions):
    """Options of a graph server: those of the cluster, and its sampler processes, which `data.sampling` of the server's
    configuration describes.

    Attributes:
        num_workers: Sampler processes.
        channel_size: Bytes of finished batches that it holds for one client. ``auto``: its clients share an eighth of the memory
            that its host, or control group, has available when it starts; each may have two batches.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> ClusterOptions().serving(SamplingOptions(num_workers=3, concurrency=2)).num_workers
        3
    """

    group: ClassVar[str] = "sampling"
    least_workers: ClassVar[int] = 1

    num_workers: int = _SERVER_WORKERS

    def __post_init__(self) -> None:
        ClusterOptions.__post_init__(self)
        WorkerOptions.__post_init__(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
