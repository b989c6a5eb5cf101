"""Options of the cluster: servers, deadlines, limits and security."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from glt_lightning.base.checks import above_zero, as_options, at_least, parse_address, parse_bytes
from glt_lightning.base.errors import OptionError
from glt_lightning.base.removed import without_removed
from glt_lightning.base.sampling import SamplingOptions
from glt_lightning.base.tensors import TensorOptions
from glt_lightning.base.workers import WorkerOptions

# Deadlines of calls between processes, and the pauses between attempts.


@dataclass(frozen=True, kw_only=True)
class DeadlineOptions:
    """How long the processes of a job wait for each other, in seconds.

    Attributes:
        connect_s: One attempt to reach a peer.
        call_s: One attempt of one call.
        reconnect_s: How long to retry an unresponsive peer before the run fails; longer than a server takes to restart.
        lease_s: Session lease: how long a server keeps the state of a silent client.
        start_s: Until the processes that a rank or a server starts itself are ready.
        join_s: Until the ranks of all hosts of a job (``trainer.num_nodes``) have met.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> ClusterOptions(deadlines=DeadlineOptions(call_s=10, reconnect_s=300)).deadlines.call_s
        10
        >>> DeadlineOptions(call_s=0)
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: cluster.deadlines.call_s: ...
    """

    connect_s: float = 10.0
    call_s: float = 30.0
    reconnect_s: float = 120.0
    lease_s: float = 15.0
    start_s: float = 60.0
    join_s: float = 600.0

    def __post_init__(self) -> None:
        for name in ("connect_s", "call_s", "reconnect_s", "lease_s", "start_s", "join_s"):
            above_zero(f"cluster.deadlines.{name}", getattr(self, name))


# Limits of what clients may use of a process that serves them.


_LEAST_REPLY, _MOST_REPLY = 64 << 10, 2047 << 20


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """What clients may use of a process that serves them: a graph server, or a process of ``glt_worker`` that owns parts. A
    client that finds it full tries again until ``cluster.deadlines.reconnect_s`` is over. One address has at most three
    quarters of the streams, and a graph server at most as many sessions as streams: when all are in use, an idle one is ended.

    Attributes:
        streams: Number of open streams. A client has two for its calls and one for its batches; each takes a thread. When all
            are in use, an idle connection of the address with the most streams is closed.
        unread_total_size: Bytes of replies that wait unread on all connections, and of memory that all calls at work take; a
            call that alone takes more waits until no other is at work. At the limit of replies, the connection with the most is
            closed if it has read nothing for 2 s. On one connection 256 MB may wait, and one reply always.
        reply_size: Bytes of one reply of a process that owns parts, 64KiB to 2047MiB. A larger answer (all neighbours of a node
            that has millions) comes in pieces.
        batch_size: Bytes of one batch that a graph server makes. A request with fan-outs that lead to a larger batch gets an
            error.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> ClusterOptions(limits={"streams": 4000}).limits.streams_per_host
        3000
    """

    unread_bytes: ClassVar[int] = 256_000_000  # of replies that wait unread on one connection, and of its calls at work

    streams: int = 1024
    unread_total_size: int | str = "2GB"
    reply_size: int | str = "256MB"
    batch_size: int | str = "8GiB"

    def __post_init__(self) -> None:
        at_least("cluster.limits.streams", self.streams, 1)
        for name in ("unread_total_size", "reply_size", "batch_size"):
            parse_bytes(f"cluster.limits.{name}", getattr(self, name))
        if not _LEAST_REPLY <= self.reply_bytes <= _MOST_REPLY:
            raise OptionError(
                "cluster.limits.reply_size: expected 64KiB to 2047MiB, the most that one message takes; got "
                f"{self.reply_size!r}."
            )

    @property
    def streams_per_host(self) -> int:
        """Number of open streams from one address."""
        return max(1, self.streams * 3 // 4)

    @property
    def sessions(self) -> int:
        """Number of client sessions of a graph server."""
        return self.streams

    @property
    def unread_total_bytes(self) -> int:
        """``unread_total_size`` in bytes."""
        return parse_bytes("cluster.limits.unread_total_size", self.unread_total_size)

    @property
    def reply_bytes(self) -> int:
        """``reply_size`` in bytes."""
        return parse_bytes("cluster.limits.reply_size", self.reply_size)

    @property
    def batch_bytes(self) -> int:
        """``batch_size`` in bytes."""
        return parse_bytes("cluster.limits.batch_size", self.batch_size)


# Which processes may connect to those of a job.


@dataclass(frozen=True, kw_only=True)
class SecurityOptions:
    """Certificates and the secret that processes of a job authenticate with. ``glt-lightning certs`` makes the files.

    Attributes:
        ca: PEM file of the authority that signed every certificate of the job.
        cert: PEM file of this host's certificate.
        key: PEM file of its private key.
        token_file: File with the job's secret, at least 16 characters; the same on all hosts.
        insecure: Allow clear text beyond the loopback interface.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> SecurityOptions(ca="ca.pem", cert="node.pem", key="node.key").ca
        'ca.pem'
        >>> SecurityOptions(cert="node.pem")
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: cluster.security: ...
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    token_file: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        given = [name for name in ("ca", "cert", "key") if getattr(self, name) is not None]
        if 0 < len(given) < 3:
            raise OptionError(
                f"cluster.security: expected ca, cert and key together, got {' and '.join(given)} only. "
                "`glt-lightning certs` makes all three."
            )

    @property
    def tls(self) -> bool:
        """Whether peers prove who they are with certificates."""
        return self.ca is not None


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
    """Options of a graph server: those of the cluster, and its sampler processes, which ``data.sampling`` of the server's
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
