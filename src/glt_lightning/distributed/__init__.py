"""GraphLearn-for-PyTorch's `distributed`: contexts, servers, clients and loaders of plain scripts, over our own.

A door and no second house: what a name does is done by `LoaderContext`, `HostedServer` and `ServedGraph`. docs/coming-from.md has
an example of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.lazy import lazy_names

if TYPE_CHECKING:
    from glt_lightning.distributed.client import (
        async_request_server as async_request_server,
        init_client as init_client,
        request_server as request_server,
        shutdown_client as shutdown_client,
    )
    from glt_lightning.distributed.context import DistContext as DistContext, DistRole as DistRole
    from glt_lightning.distributed.dataset import DistDataset as DistDataset
    from glt_lightning.distributed.loaders import (
        DistLinkNeighborLoader as DistLinkNeighborLoader,
        DistLoader as DistLoader,
        DistNeighborLoader as DistNeighborLoader,
        DistSubGraphLoader as DistSubGraphLoader,
    )
    from glt_lightning.distributed.options import (
        CollocatedDistSamplingWorkerOptions as CollocatedDistSamplingWorkerOptions,
        MpDistSamplingWorkerOptions as MpDistSamplingWorkerOptions,
        RemoteDistSamplingWorkerOptions as RemoteDistSamplingWorkerOptions,
    )
    from glt_lightning.distributed.server import (
        DistServer as DistServer,
        get_server as get_server,
        init_server as init_server,
        wait_and_shutdown_server as wait_and_shutdown_server,
    )
    from glt_lightning.distributed.session import get_context as get_context
    from glt_lightning.distributed.worker import (
        all_gather as all_gather,
        barrier as barrier,
        global_all_gather as global_all_gather,
        global_barrier as global_barrier,
        init_rpc as init_rpc,
        init_worker_group as init_worker_group,
        rpc_is_initialized as rpc_is_initialized,
        shutdown_rpc as shutdown_rpc,
    )

_NAMES = {
    "client": ("async_request_server", "init_client", "request_server", "shutdown_client"),
    "context": ("DistContext", "DistRole"),
    "dataset": ("DistDataset",),
    "loaders": ("DistLinkNeighborLoader", "DistLoader", "DistNeighborLoader", "DistSubGraphLoader"),
    "options": (
        "CollocatedDistSamplingWorkerOptions",
        "MpDistSamplingWorkerOptions",
        "RemoteDistSamplingWorkerOptions",
    ),
    "server": ("DistServer", "get_server", "init_server", "wait_and_shutdown_server"),
    "session": ("get_context",),
    "worker": (
        "all_gather",
        "barrier",
        "global_all_gather",
        "global_barrier",
        "init_rpc",
        "init_worker_group",
        "rpc_is_initialized",
        "shutdown_rpc",
    ),
}
_ON_PEERS = (
    "{name}: code is not sent between processes here. Use request_server, which knows a fixed table of callables."
)
_ODPS = "{name}: tables of ODPS and vineyard are not read. Export them, and partition the files: docs/data.md."
_INSIDE = "{name}: loaders keep several batches in flight themselves: DistNeighborLoader, by worker_concurrency of its options."
_ROWS = (
    "{name}: rows of all parts are read by glt_lightning.DistGraph: graph.ndata['x'][ids], from graph = strategy.graph."
)
_PARTS = (
    "{name}: several processes write one folder with glt_lightning.partition.partition_parts: docs/partitioning.md."
)
_REFUSED = (
    dict.fromkeys(
        ("RpcCalleeBase", "rpc_register", "rpc_request", "rpc_request_async", "rpc_global_request"), _ON_PEERS
    )
    | dict.fromkeys(("rpc_global_request_async", "RpcDataPartitionRouter", "rpc_sync_data_partitions"), _ON_PEERS)
    | dict.fromkeys(("DistTableDataset", "DistTableRandomPartitioner"), _ODPS)
    | dict.fromkeys(("ConcurrentEventLoop", "DistNeighborSampler", "DistMpSamplingProducer"), _INSIDE)
    | dict.fromkeys(("DistCollocatedSamplingProducer",), _INSIDE)
    | dict.fromkeys(("DistFeature", "DistGraph", "PartialFeature"), _ROWS)
    | {"DistRandomPartitioner": _PARTS}
)
_HOMES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOMES)

__getattr__ = lazy_names(__name__, _HOMES, _REFUSED)
