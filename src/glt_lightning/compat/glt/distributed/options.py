"""Where the sampler of a loader runs, with the option groups of GraphLearn-for-PyTorch."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from glt_lightning.base import OptionError, at_least, parse_bytes

_log = logging.getLogger(__name__)
_DEFAULT_TIMEOUT_S = 180.0
_BYTES_PER_WORKER = 64 << 20


class _Master:
    """Where the processes of a script meet. num_rpc_threads and use_all2all have no effect, which a warning says."""

    def __init__(
        self,
        master_addr: str | None,
        master_port: int | str | None,
        num_rpc_threads: int | None,
        rpc_timeout: float,
        use_all2all: bool,
    ) -> None:
        if not rpc_timeout > 0:
            raise OptionError(f"rpc_timeout: expected seconds > 0, got {rpc_timeout!r}.")
        self.master_addr = master_addr or os.environ.get("MASTER_ADDR")
        port = master_port or (int(os.environ["MASTER_PORT"]) + 1 if "MASTER_PORT" in os.environ else None)
        self.master_port = None if port is None else int(port)
        self.num_rpc_threads, self.rpc_timeout, self.use_all2all = num_rpc_threads, float(rpc_timeout), use_all2all
        self._warn_of(
            "our transport has threads and calls of its own", num_rpc_threads=num_rpc_threads, use_all2all=use_all2all
        )

    def _warn_of(self, reason: str, **given: Any) -> None:
        """Says which of GLT's options are given and have no effect here."""
        names = [name for name, value in given.items() if value]
        if names:
            _log.warning("%s: %s: no effect; %s.", type(self).__name__, ", ".join(names), reason)

    def address(self) -> tuple[str, int]:
        """Raises `OptionError` where neither the options nor the environment has it."""
        if self.master_addr is None or self.master_port is None:
            raise OptionError(
                f"{type(self).__name__}: master_addr and master_port: several processes need a place to meet. Give them, or set "
                "MASTER_ADDR and MASTER_PORT (the port after it is taken)."
            )
        return self.master_addr, self.master_port


class CollocatedDistSamplingWorkerOptions(_Master):
    """The training process samples.

    master_addr, master_port: where the workers meet; None: as MASTER_ADDR and MASTER_PORT say.  rpc_timeout: seconds that
    collective calls wait.  num_rpc_threads, use_all2all: no effect.

    >>> glt.distributed.CollocatedDistSamplingWorkerOptions("localhost", 11112).address()
    ('localhost', 11112)
    """

    num_workers = 0
    worker_concurrency = 4
    worker_devices: Sequence[Any] | None = None
    channel_size: int | None = None
    pin_memory = False

    def __init__(
        self,
        master_addr: str | None = None,
        master_port: int | str | None = None,
        num_rpc_threads: int | None = None,
        rpc_timeout: float = _DEFAULT_TIMEOUT_S,
        use_all2all: bool = False,
    ) -> None:
        super().__init__(master_addr, master_port, num_rpc_threads, rpc_timeout, use_all2all)


class _Processes(_Master):
    def __init__(
        self,
        num_workers: int,
        worker_devices: Any,
        worker_concurrency: int,
        master: tuple[Any, Any, Any, float, bool],
    ) -> None:
        super().__init__(*master)
        at_least("num_workers", num_workers, 1)
        at_least("worker_concurrency", worker_concurrency, 1)
        self.num_workers = num_workers
        self.worker_devices = [worker_devices] if isinstance(worker_devices, str) else worker_devices
        if self.worker_devices is not None and not isinstance(self.worker_devices, Sequence):
            self.worker_devices = [self.worker_devices]
        self.worker_concurrency = min(worker_concurrency, 32)


class MpDistSamplingWorkerOptions(_Processes):
    """Sampler processes of the training process.

    num_workers: how many.  worker_devices: where they sample.  worker_concurrency: batches that each has in flight.
    channel_size: bytes of batches in flight; None: 64 MB for each process.  pin_memory: page-lock batches where there is a GPU.
    master_addr, master_port, rpc_timeout, num_rpc_threads, use_all2all: as of `CollocatedDistSamplingWorkerOptions`.

    >>> glt.distributed.MpDistSamplingWorkerOptions(num_workers=2).channel_size
    134217728
    """

    def __init__(
        self,
        num_workers: int = 1,
        worker_devices: Any = None,
        worker_concurrency: int = 4,
        master_addr: str | None = None,
        master_port: int | str | None = None,
        num_rpc_threads: int | None = None,
        rpc_timeout: float = _DEFAULT_TIMEOUT_S,
        channel_size: int | str | None = None,
        pin_memory: bool = False,
        use_all2all: bool = False,
    ) -> None:
        master = (master_addr, master_port, num_rpc_threads, rpc_timeout, use_all2all)
        super().__init__(num_workers, worker_devices, worker_concurrency, master)
        self.channel_size = _bytes("channel_size", channel_size, num_workers)
        self.pin_memory = pin_memory


class RemoteDistSamplingWorkerOptions(_Processes):
    """A server samples.

    server_rank: which; a list: this client's of it; None: client rank mod servers.  prefetch_size: batches in flight.
    buffer_size: bytes of them.  num_workers, worker_devices and worker_concurrency are the server's own, which ``cluster`` of
    `init_server` sets.  worker_key, glt_graph and workload_type have no effect: loaders do not share what they are sent.
    master_addr, master_port, rpc_timeout, num_rpc_threads, use_all2all: as of `CollocatedDistSamplingWorkerOptions`.

    >>> glt.distributed.RemoteDistSamplingWorkerOptions(server_rank=[1, 0]).server_of(rank=0, servers=2)
    1
    """

    pin_memory = False

    def __init__(
        self,
        server_rank: int | Sequence[int] | None = None,
        num_workers: int = 1,
        worker_devices: Any = None,
        worker_concurrency: int = 4,
        master_addr: str | None = None,
        master_port: int | str | None = None,
        num_rpc_threads: int | None = None,
        rpc_timeout: float = _DEFAULT_TIMEOUT_S,
        buffer_size: int | str | None = None,
        prefetch_size: int = 4,
        worker_key: str | None = None,
        glt_graph: Any = None,
        workload_type: str | None = None,
        use_all2all: bool = False,
    ) -> None:
        master = (master_addr, master_port, num_rpc_threads, rpc_timeout, use_all2all)
        super().__init__(num_workers, worker_devices, worker_concurrency, master)
        at_least("prefetch_size", prefetch_size, 1)
        self.server_rank, self.prefetch_size = server_rank, prefetch_size
        self.buffer_size = _bytes("buffer_size", buffer_size, num_workers)
        self.buffer_capacity = num_workers * self.worker_concurrency
        if prefetch_size > self.buffer_capacity:
            raise OptionError(
                f"prefetch_size: {prefetch_size} is more than num_workers * worker_concurrency, {self.buffer_capacity}. Lower it."
            )
        self.worker_key, self.glt_graph, self.workload_type = worker_key, glt_graph, workload_type
        unused = {"worker_devices": worker_devices, "worker_key": worker_key, "glt_graph": glt_graph}
        self._warn_of("the cluster options of init_server decide", **unused, workload_type=workload_type)

    def server_of(self, rank: int, servers: int) -> int:
        """The server of client ``rank``."""
        given = self.server_rank
        chosen = list(given) if isinstance(given, Sequence) else [given]
        number = rank % servers if given is None or not chosen else chosen[rank % len(chosen)]
        if type(number) is not int or not 0 <= number < servers:
            raise OptionError(f"server_rank: expected numbers from 0 to {servers - 1}, got {given!r}.")
        return number


AnyWorkerOptions = CollocatedDistSamplingWorkerOptions | MpDistSamplingWorkerOptions | RemoteDistSamplingWorkerOptions


def _bytes(name: str, given: int | str | None, workers: int) -> int:
    return workers * _BYTES_PER_WORKER if given is None else parse_bytes(name, given)
