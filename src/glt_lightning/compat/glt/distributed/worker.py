"""Worker mode: every process trains, and samples for itself."""

from __future__ import annotations

import json
from typing import Any

from glt_lightning.base import ClusterOptions, OptionError
from glt_lightning.compat.glt.distributed.meeting import Group
from glt_lightning.compat.glt.distributed.options import CollocatedDistSamplingWorkerOptions
from glt_lightning.compat.glt.distributed.session import DistContext, DistRole, current, required, start, stop

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


def rpc_is_initialized() -> bool:
    """Whether this process has met the others.

    >>> glt.distributed.rpc_is_initialized()
    False
    """
    session = current()
    return session is not None and session.group is not None


def shutdown_rpc(graceful: bool = True) -> None:
    """Ends what this process has open. graceful: after all others have come here, too.

    >>> glt.distributed.init_worker_group(1, 0, "trainers")
    >>> glt.distributed.shutdown_rpc()
    """
    stop(failed=not graceful)


def all_gather(obj: Any, timeout: float | None = None) -> dict[str, Any]:
    """The objects of all processes of this role by their names. A collective call. obj: a value that JSON can represent.
    timeout: in seconds; None: of the options.

    >>> glt.distributed.init_worker_group(1, 0, "trainers")
    >>> glt.distributed.all_gather([1, "a"])
    {'trainers_0': [1, 'a']}
    >>> glt.distributed.shutdown_rpc()
    """
    session = required("all_gather")
    texts = _exchange("all_gather", session.group, _text(obj), timeout)
    return {f"{session.context.group_name}_{rank}": json.loads(each) for rank, each in enumerate(texts)}


def barrier(timeout: float | None = None) -> None:
    """Waits for all processes of this role. timeout: in seconds; None: of the options. Raises `PeerError` where one does not come
    in time.

    >>> glt.distributed.init_worker_group(1, 0, "trainers")
    >>> glt.distributed.barrier()
    >>> glt.distributed.shutdown_rpc()
    """
    _exchange("barrier", required("barrier").group, "", timeout)


def global_all_gather(obj: Any, timeout: float | None = None) -> dict[str, Any]:
    """As `all_gather`, which says what obj and timeout are, of servers and clients together.

    >>> glt.distributed.init_worker_group(1, 0, "trainers")
    >>> glt.distributed.global_all_gather(5)
    {'trainers_0': 5}
    >>> glt.distributed.shutdown_rpc()
    """
    session = required("global_all_gather")
    mine = json.dumps([session.context.worker_name, json.loads(_text(obj))])
    texts = _exchange("global_all_gather", session.everyone(), mine, timeout)
    return dict(json.loads(each) for each in texts)


def global_barrier(timeout: float | None = None) -> None:
    """As `barrier`, which says what timeout is, of servers and clients together.

    >>> glt.distributed.init_worker_group(1, 0, "trainers")
    >>> glt.distributed.global_barrier()
    >>> glt.distributed.shutdown_rpc()
    """
    _exchange("global_barrier", required("global_barrier").everyone(), "", timeout)


def _text(obj: Any) -> str:
    try:
        return json.dumps(obj)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"all_gather: expected numbers, strings, lists and dictionaries, because nothing is unpickled here ({error}). Use "
            "torch.distributed.all_gather for tensors."
        ) from None


def _exchange(who: str, group: Group | None, text: str, timeout: float | None) -> list[str]:
    if group is not None:
        return group.exchange(text, timeout)
    if required(who).context.world_size == 1 and required(who).context.is_worker():
        return [text]
    raise OptionError(
        f"{who}: the processes have not met. Call init_rpc(master_addr, master_port) first, on all of them."
    )
