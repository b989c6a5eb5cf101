"""Worker mode: every process trains, and samples for itself."""

from __future__ import annotations

from glt_lightning.base import ClusterOptions, OptionError
from glt_lightning.compat.glt.distributed.options import CollocatedDistSamplingWorkerOptions
from glt_lightning.compat.glt.distributed.session import DistContext, DistRole, required, start, stop

_GROUP = "_default_worker"


def init_worker_group(
    world_size: int, rank: int, group_name: str | None = None, *, cluster: ClusterOptions | None = None
) -> None:
    """Says that this is worker ``rank`` of ``world_size``. Workers meet when the first of them needs another one: at the first
    loader, or in `init_rpc`.

    group_name: of the workers.  cluster: security, deadlines and limits of what the processes tell each other.

    >>> glt.distributed.init_worker_group(world_size=1, rank=0, group_name="trainers")
    >>> glt.distributed.get_context().world_size
    1
    >>> glt.distributed.shutdown_rpc()
    """
    context = DistContext(DistRole.WORKER, (group_name or _GROUP).replace("-", "_"), world_size, rank, world_size, rank)
    start(context, cluster)


def init_rpc(
    master_addr: str,
    master_port: int | str,
    num_rpc_threads: int = 16,
    rpc_timeout: float = 180,
    is_dynamic: bool = False,
) -> None:
    """Meets the other workers at ``master_addr:master_port``, where worker 0 listens. rpc_timeout: seconds that collective calls
    wait.  num_rpc_threads, is_dynamic: no effect.

    >>> glt.distributed.init_worker_group(1, 0, "trainers")
    >>> glt.distributed.init_rpc("localhost", 11111)
    >>> glt.distributed.shutdown_rpc()
    """
    session = required("init_rpc")
    given = CollocatedDistSamplingWorkerOptions(master_addr, master_port, num_rpc_threads, rpc_timeout)
    session.timeout_s = given.rpc_timeout
    session.join_workers(*given.address())


def shutdown_rpc(graceful: bool = True) -> None:
    """Ends what this process has open. graceful: after all others have come here, too.

    >>> glt.distributed.init_worker_group(1, 0, "trainers")
    >>> glt.distributed.shutdown_rpc()
    """
    stop(failed=not graceful)


def barrier(timeout: float | None = None) -> None:
    """Waits for all processes of this role. timeout: in seconds; None: of the options. Raises `PeerError` where one does not come
    in time.

    >>> glt.distributed.init_worker_group(1, 0, "trainers")
    >>> glt.distributed.barrier()
    >>> glt.distributed.shutdown_rpc()
    """
    session = required("barrier")
    if session.group is not None:
        session.group.exchange("", timeout)
    elif session.context.world_size > 1 or not session.context.is_worker():
        raise OptionError("barrier: the processes have not met. Call init_rpc or make a loader first, on all of them.")
