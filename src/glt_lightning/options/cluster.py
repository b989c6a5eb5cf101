"""Options of the cluster: servers, their processes, deadlines, limits and security."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from glt_lightning.errors import OptionError
from glt_lightning.options.checks import above_zero, as_options, at_least, check_devices
from glt_lightning.options.deadlines import DeadlineOptions, RetryOptions
from glt_lightning.options.limits import LimitOptions
from glt_lightning.options.parse import parse_address, parse_bytes
from glt_lightning.options.security import SecurityOptions

Placement = Literal["host", "rank"]
_DEADLINES, _RETRY, _SECURITY = DeadlineOptions(), RetryOptions(), SecurityOptions()


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Where the graph is served and sampled.

    Attributes:
        servers: Addresses of the graph servers, ``host:port``, in the order of their ranks. Empty: ``glt_server_client``
            starts one itself, if all ranks are on one host.
        server_rank: The server that makes this rank's batches; ``auto`` takes rank mod servers.
        num_workers: Sampler processes of a server.
        concurrency: Batches that each of them has in flight.
        worker_devices: GPUs of a server on which these sample, such as ``[cuda:0, cuda:1]``, in turn; from where
            ``sampling.topology`` and ``sampling.features`` say. Empty: the CPU samples.
        buffer_size: Most bytes of finished batches that a server keeps for one client. ``auto``: its clients share an
            eighth of the memory that its host, or control group, has available when it starts; each may have two batches.
        prefetch_size: Batches that a client asks for ahead.
        placement: Which parts a rank maps in ``glt_worker``: ``host`` gives part p to host p mod hosts, so that a single
            host maps all; ``rank`` gives part p to rank p mod ranks.
        host: Name or address under which other hosts reach this one. ``None``: loopback if all ranks are on one host,
            else the address from which MASTER_ADDR is reached.
        deadlines: How long to wait for peers.
        retry: Pauses between attempts.
        limits: How much clients may have of a process that serves them.
        security: Who may talk to the processes of the job.
        peer_timeout_s: How long a rank may go on after another rank of the job died, in seconds.
        peer_silence_s: After how many seconds without a sign of life a rank of the same host that is stopped is killed, which
            ends the job; five times as long for one that is not stopped and uses no CPU time. Slow steps, compilations and
            long validations are no silence.
    """

    servers: list[str] = field(default_factory=list)
    server_rank: int | Literal["auto"] = "auto"
    num_workers: int = 2
    concurrency: int = 4
    worker_devices: list[str] = field(default_factory=list)
    buffer_size: int | str = "auto"
    prefetch_size: int = 4
    placement: Placement = "host"
    host: str | None = None
    deadlines: DeadlineOptions = _DEADLINES
    retry: RetryOptions = _RETRY
    limits: LimitOptions = field(default_factory=LimitOptions)
    security: SecurityOptions = _SECURITY
    peer_timeout_s: float = 30.0
    peer_silence_s: float = 60.0

    def __post_init__(self) -> None:
        kinds = {
            "deadlines": DeadlineOptions,
            "retry": RetryOptions,
            "limits": LimitOptions,
            "security": SecurityOptions,
        }
        for name, kind in kinds.items():
            object.__setattr__(self, name, as_options(kind, f"cluster.{name}", getattr(self, name)))
        for address in self.servers:
            parse_address("cluster.servers", address)
        at_least("cluster.num_workers", self.num_workers, 1)
        at_least("cluster.concurrency", self.concurrency, 1)
        at_least("cluster.prefetch_size", self.prefetch_size, 1)
        check_devices("cluster.worker_devices", self.worker_devices)
        if self.buffer_size != "auto":
            parse_bytes("cluster.buffer_size", self.buffer_size)
        if self.server_rank != "auto":
            at_least("cluster.server_rank", self.server_rank, 0)
            if self.servers and self.server_rank >= len(self.servers):
                raise OptionError(
                    f"cluster.server_rank: {self.server_rank} names none of the {len(self.servers)} cluster.servers."
                )
        if self.placement not in ("host", "rank"):
            raise OptionError(f"cluster.placement: expected 'host' or 'rank', got {self.placement!r}.")
        above_zero("cluster.peer_timeout_s", self.peer_timeout_s)
        above_zero("cluster.peer_silence_s", self.peer_silence_s)

    @property
    def buffer_bytes(self) -> int | None:
        """``buffer_size`` in bytes; None for ``auto``."""
        return None if self.buffer_size == "auto" else parse_bytes("cluster.buffer_size", self.buffer_size)
