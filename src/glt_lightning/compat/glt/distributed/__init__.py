"""GraphLearn-for-PyTorch's `distributed`: contexts, servers, clients and loaders of plain scripts, over our own.

A door and no second house: what a name does is done by `Session`, `HostedServer` and `ServedGraph`. docs/coming-from.md has
examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.base import lazy_names, listed_names

if TYPE_CHECKING:
    from glt_lightning.compat.glt.distributed.client import (
        init_client as init_client,
        request_server as request_server,
        shutdown_client as shutdown_client,
    )
    from glt_lightning.compat.glt.distributed.dataset import DistDataset as DistDataset
    from glt_lightning.compat.glt.distributed.event_loop import ConcurrentEventLoop as ConcurrentEventLoop
    from glt_lightning.compat.glt.distributed.loaders import (
        DistLinkNeighborLoader as DistLinkNeighborLoader,
        DistNeighborLoader as DistNeighborLoader,
        DistSubGraphLoader as DistSubGraphLoader,
    )
    from glt_lightning.compat.glt.distributed.options import (
        CollocatedDistSamplingWorkerOptions as CollocatedDistSamplingWorkerOptions,
        MpDistSamplingWorkerOptions as MpDistSamplingWorkerOptions,
        RemoteDistSamplingWorkerOptions as RemoteDistSamplingWorkerOptions,
    )
    from glt_lightning.compat.glt.distributed.sampler import DistNeighborSampler as DistNeighborSampler
    from glt_lightning.compat.glt.distributed.server import (
        init_server as init_server,
        wait_and_shutdown_server as wait_and_shutdown_server,
    )
    from glt_lightning.compat.glt.distributed.session import (
        DistContext as DistContext,
        DistRole as DistRole,
        barrier as barrier,
        get_context as get_context,
        init_rpc as init_rpc,
        init_worker_group as init_worker_group,
        shutdown_rpc as shutdown_rpc,
    )

_ON_PEERS = (
    "{name}: code is not sent between processes here. Use request_server, which knows a fixed table of callables."
)
_ODPS = "{name}: tables of ODPS and vineyard are not read. Export them, and partition the files: docs/data.md."
_INSIDE = "{name}: DistNeighborLoader starts its sampler processes itself, as MpDistSamplingWorkerOptions say."
_ROWS = "{name}: loaders read the rows of all workers; in a script, glt_lightning.DistGraph(folder).ndata['x'] does."
_BOOKS = "{name}: loaders know who has which part; DistDataset takes parts in memory with their books."
_PIECES = "{name}: give the pieces to DistDataset as parts in memory, or the whole graph to RandomPartitioner."
_MEETING = "{name}: processes meet when they make a loader. Use torch.distributed, or glt.distributed.barrier()."
_ROWS_OF_SERVERS = (
    "{name}: request_server(rank, torch.cuda.device_count) is answered, and loaders are; open the folder for rows."
)
_REFUSED = (
    dict.fromkeys(("all_gather", "global_all_gather", "global_barrier", "rpc_is_initialized"), _MEETING)
    | dict.fromkeys(("get_rpc_master_addr", "get_rpc_master_port"), _MEETING)
    | dict.fromkeys(("DistServer", "async_request_server", "get_server"), _ROWS_OF_SERVERS)
    | {"DistLoader": "{name}: use DistNeighborLoader, DistLinkNeighborLoader or DistSubGraphLoader."}
    | dict.fromkeys(("RpcCalleeBase", "rpc_register", "rpc_request", "rpc_request_async"), _ON_PEERS)
    | dict.fromkeys(("rpc_global_request", "rpc_global_request_async"), _ON_PEERS)
    | dict.fromkeys(("DistTableDataset", "DistTableRandomPartitioner"), _ODPS)
    | dict.fromkeys(("DistCollocatedSamplingProducer", "DistMpSamplingProducer"), _INSIDE)
    | dict.fromkeys(("DistFeature", "PartialFeature"), _ROWS)
    | dict.fromkeys(("DistGraph", "RpcDataPartitionRouter", "rpc_sync_data_partitions"), _BOOKS)
    | {"DistRandomPartitioner": _PIECES}
)

__all__ = [*listed_names(__name__)]

__getattr__, __dir__ = lazy_names(__name__, refused=_REFUSED)
